"""Tests of a request's meaning: runs, identities, what is shared, what exists, and what is refused before the first task."""

import io
import re
import shutil
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from analysis.names import SEVEN
from analysis.study import Line, write_lines
from data.spec import DataSpec
from eval.job import Job
from eval.kinds import KINDS, eval_id
from eval.shell.sources import UserData
from experiments import execute, graph
from experiments.__main__ import Prepare, main
from experiments.artefact import MAIN, Artefact, _read, artefacts, chosen
from experiments.collect import collect
from experiments.fox import fig7_gate_types
from experiments.overview import count, print_plan
from experiments.plan import Plan, Run, make_plan, write_specs
from experiments.recipes import NAMES, recipes
from experiments.request import Request
from experiments.scales import SCALES, TINY, for_ablations, sizes_at
from experiments.stick_breaking import stick_recall
from experiments.stick_breaking.stick_extrapolation import far
from results.store import read_run, record_run, run_file
from tests.experiments.finished import finish
from tests.models.test_count import EXPECTED, paper_spec
from training.command_line import arguments_of, parse
from training.spec import Execution, TrainSpec

ROOT = Path(__file__).parents[2]


def kinds(plan, name: str) -> list[str]:
    return sorted(task.kind for task in graph.tasks(plan) if name in task.key)


def test_every_artefact_is_declared_and_drawn_at_every_scale(asked):
    for scale in SCALES.values():
        for artefact in artefacts().values():
            found = list(artefact.runs(scale, (0, 1)))
            assert found
            places = [(recipe.label, recipe.name, recipe.scale, recipe.seed) for recipe in found]
            assert len(set(places)) == len(places), artefact.stem
            assert callable(artefact.draw) and callable(artefact.summary)
            assert artefact.evals(scale)


def test_the_papers_evaluations_at_the_papers_scale():
    scale = SCALES["760m-48b"]
    known = artefacts()
    (loss,) = known["fig2_per_token_loss"].evals(scale)
    assert (loss.context_len, loss.num_documents) == (65536, 32768)
    easy, standard, *others = known["fig4_needle"].evals(scale)
    assert easy.lengths == standard.lengths == tuple(range(1000, 32001, 3100))
    assert (easy.mode, standard.mode, easy.max_new_tokens) == ("easy", "standard", 1024)
    assert [(spec.kind, spec.mode) for spec in others] == [
        (kind, mode) for kind in ("needle_recall", "needle_choice") for mode in ("easy", "standard")
    ]
    (longbench,) = known["table2_longbench"].evals(scale)
    assert longbench.max_prompt_tokens == 15500 and longbench.dataset == "hub"
    (harness,) = known["table1_lm_eval"].evals(scale)
    assert (harness.max_length, harness.batch_size, harness.add_bos) == (16384, 16, True)


def test_a_model_is_trained_once_for_all_artefacts(asked):
    plan = make_plan(asked)
    trained = [task.key for task in graph.tasks(plan) if task.kind == "train"]
    assert len(trained) == len(set(trained)) == sum(run.trains for run in plan.runs.values())
    main = make_plan(replace(asked, artefacts=()))
    assert list(main.drawings) == list(MAIN)
    assert sorted(run.spec.name for run in main.runs.values()) == sorted(SEVEN)
    assert set(main.runs) <= set(plan.runs)
    (fox,) = (run for run in main.runs.values() if run.spec.name == "fox_pro")
    assert len(fox.evals) == len({eval_id(spec) for spec in fox.evals}) == 11


def test_a_run_of_two_names_is_trained_once_whatever_asks_for_it(asked):
    """FoX (LLaMA) with all but the shift is FoX (Pro) without it: who asks first names the folder, and others find it."""
    llama, pro = "FoX (LLaMA) + QK-norm + output gate + output norm", "FoX (Pro) - KV-shift"

    def planned(*labels: str) -> Run:
        (run,) = make_plan(replace(asked, artefacts=("table3_ablation",), line=labels)).runs.values()
        return run

    names = [planned(*labels).spec.name for labels in ((llama,), (pro,), (llama, pro))]
    assert names == ["fox_llama", "fox_pro", "fox_llama"]
    first = planned(pro)
    first.folder.create(first.folder.path, first.spec)
    finish(first)
    for labels in ((llama,), (pro,), (llama, pro)):
        found = planned(*labels)
        assert (found.folder.path, found.spec, found.folder.finished) == (first.folder.path, first.spec, True)


def test_scales_with_documents_of_other_lengths_have_corpora_of_their_own(asked):
    plan = make_plan(replace(asked, artefacts=("stick_extrapolation",), scale="mini"), rehearsal=True)
    other = make_plan(replace(asked, artefacts=("fig6_scale", "stick_extrapolation"), scale="mini"), rehearsal=True)
    lengths = {run.spec.scale: run.corpus.spec.document_len for run in (*plan.runs.values(), *other.runs.values())}
    assert lengths["mini-extrapolation"] == 2 * lengths["mini"] == 32_768


def test_seeds_are_runs_of_their_own_under_one_label(asked):
    plan = make_plan(replace(asked, artefacts=("fig2_per_token_loss",), seeds=(0, 1, 2), only=("fox_pro",)))
    assert len(plan.runs) == 3 == len({run.folder.path for run in plan.runs.values()})
    assert {line.line.label for line in plan.drawings["fig2_per_token_loss"].lines} == {"fox_pro"}


@pytest.mark.parametrize(("artefacts", "idle"), [
    (("fig2_per_token_loss",), []), (("fig2_per_token_loss", "fig5_tokens_and_lr"), ["fig5_tokens_and_lr"]),
])  # fmt: skip
def test_an_artefact_of_which_no_line_is_asked_for_is_named(asked, artefacts, idle):
    plan = make_plan(replace(asked, artefacts=artefacts, line=("mamba2",)))
    assert plan.idle == idle and {run.spec.name for run in plan.runs.values()} == {"mamba2"}
    print_plan(plan, 0.4, Console(file=(shown := io.StringIO()), width=200))
    said = "skipped fig5_tokens_and_lr: none of their lines matches the request"
    assert (said in shown.getvalue()) is bool(idle)


@pytest.mark.parametrize(("artefacts", "only", "flags"), [
    (("stick_recall",), ("stick_breaking",), ["--data", "--tokenizer"]),
    (("stick_recall", "fig2_per_token_loss"), ("fox_pro", "stick_breaking"), []),
])  # fmt: skip
def test_a_text_that_nothing_reads_is_named(asked, artefacts, only, flags):
    plan = make_plan(replace(asked, artefacts=artefacts, tokenizer="bytes", only=only))
    assert plan.unread == flags
    print_plan(plan, 0.4, Console(file=(shown := io.StringIO()), width=200))
    said = "ignored --data, --tokenizer: every run here generates its own sequences"
    assert (said in shown.getvalue()) is bool(flags)


def test_corpora_are_prepared_for_the_very_request(asked, texts):
    """Any other plan may be refused, or need other corpora. How trainings are executed does not matter."""
    request = replace(
        asked, artefacts=("fig2_per_token_loss", "fig4_needle"), scale="mini", seeds=(0, 3), only=("fox_pro", "mamba2"),
        line=("fox*", "*, 2 layers"), also=("stick_breaking",), reuse_stored=True, draw_these_trainings=True,
        judge_model="judge", heldout=str(texts / "text-00.txt"), tokenizer="bytes",
        user_data=UserData(haystack=texts, haystack_unsorted=True, judge_url="http://here"),
    )  # fmt: skip
    alike = {item.name for item in fields(Request) if getattr(request, item.name) == getattr(Request(), item.name)}
    assert alike == {"execution"}, "give each option another value than its default"
    made = make_plan(replace(asked, artefacts=request.artefacts))
    (task, *_) = graph.tasks(Plan(request, made.drawings, made.runs))
    given = parse(Prepare, list(task.args[1:]), "", "")
    assert task.args[0] == "prepare" and given == Prepare(corpora_only=True, **vars(request))


def test_own_texts_are_prepared_beside_the_committed_rows(asked, monkeypatch):
    monkeypatch.setattr(execute, "check", lambda plan: None)  # the texts are few
    request = replace(asked, artefacts=("fig2_per_token_loss",), only=("fox_pro",))
    (task, *_) = graph.tasks(make_plan(request))
    assert task.kind == "prepare" and main(list(task.args)) == 0
    assert all(path.is_file() for path in task.makes)


def test_timings_need_no_training(asked):
    plan = make_plan(replace(asked, artefacts=("table6_throughput",)))
    found = graph.tasks(plan)
    assert {task.kind for task in found} == {"prepare", "time", "draw"}
    assert all(task.alone for task in found if task.kind == "time")


def test_timings_of_trained_models_have_the_machine_for_themselves(asked):
    """They wait for the training, and for all that may run beside them."""
    found = graph.tasks(make_plan(replace(asked, artefacts=("generation",), only=("fox_pro",))))
    (timing,) = (task for task in found if task.kind == "time")
    (training,) = (task for task in found if task.kind == "train")
    assert timing.alone and training.key in timing.needs and not training.alone
    assert not any(task.kind == "evaluate" for task in found)


def test_what_exists_is_not_planned_again(asked):
    plan = make_plan(replace(asked, artefacts=("fig2_per_token_loss",)))
    write_specs(plan)
    (run,) = (run for run in plan.runs.values() if run.spec.name == "hgrn2")
    finish(run)
    assert kinds(plan, "hgrn2") == ["evaluate"]
    finish(run, evaluations=True)
    assert kinds(plan, "hgrn2") == []
    run.eval_file(run.evals[0]).write_bytes(b"")  # damaged: made again
    assert kinds(plan, "hgrn2") == ["evaluate"]


def test_stored_rows_count_as_done_where_they_may(asked, tmp_path):
    """Plan a run whose folder is gone: nothing is trained for what is stored, everything for what is not."""
    wanted = replace(asked, artefacts=("fig2_per_token_loss",), only=("hgrn2",), results_dir=tmp_path / "results")
    plan = make_plan(wanted)
    write_specs(plan)
    (run,) = plan.runs.values()
    finish(run, evaluations=True)
    assert collect(plan.drawings["fig2_per_token_loss"]).lines == 1
    before = read_run(run_file(wanted.results_dir, run.spec.scale, run.spec.run_id))
    shutil.rmtree(run.folder.path)
    assert kinds(make_plan(wanted), "hgrn2") == ["evaluate", "train"]
    stored = make_plan(replace(wanted, reuse_stored=True))
    assert kinds(stored, "hgrn2") == []
    for either, to_do in ((plan, "to do: 1 trainings, 1 evaluations"), (stored, "to do: 0 trainings, 0 evaluations")):
        print_plan(either, 0.4, Console(file=(shown := io.StringIO()), width=40))
        assert to_do in shown.getvalue() and "recurrent models reach a fraction" in shown.getvalue()
    write_specs(stored)
    assert collect(stored.drawings["fig2_per_token_loss"]).lines == 1
    assert read_run(run_file(wanted.results_dir, run.spec.scale, run.spec.run_id)) == before
    more = replace(wanted, artefacts=("appendix_training_curves",), reuse_stored=True)
    assert kinds(make_plan(more), "hgrn2") == ["evaluate", "train"]
    (rows,) = (wanted.results_dir / run.spec.scale / "rows" / "per_token_loss").glob("*.parquet")
    rows.write_bytes(b"")  # damaged: made again
    assert kinds(make_plan(replace(wanted, reuse_stored=True)), "hgrn2") == ["evaluate", "train"]


def test_a_plan_is_the_same_on_a_machine_without_a_gpu(asked):
    here, there = (make_plan(replace(asked, only=("fox_pro", "hgrn2")).on(device)) for device in ("cpu", "cuda"))
    assert set(here.runs) == set(there.runs)


def test_a_scale_that_a_figure_has_no_run_at_is_told_with_the_figure(asked):
    wanted = replace(asked, artefacts=("acp_tiles",), scale="340m-slimpajama", data="hf:some/texts")
    with pytest.raises(ValueError, match=r"^acp_tiles, .* at 340m-slimpajama: document_len 2048 is not a multiple of seq_len"):
        make_plan(wanted, rehearsal=True)


def test_what_a_scale_cannot_have_is_told_with_what_to_leave_out(asked, monkeypatch):
    """A scale too narrow for HGRN2, then with a tokeniser whose questions do not fit into the needle test's reserve."""
    narrow = replace(TINY, name="narrow", hidden_size=64, default_tokenizer="bytes", heldout_documents=2)
    monkeypatch.setitem(SCALES, "narrow", narrow)
    wanted, others = replace(asked, artefacts=(*MAIN,), scale="narrow"), ("fox_pro", "mamba2")
    remedy = r"leave the line out with --only or --line, or leave out fig2_per_token_loss\.$"
    with pytest.raises(ValueError, match=rf"'hgrn2', at narrow: hidden_size 64 .* expand_ratio 128; {remedy}"):
        make_plan(wanted)
    with pytest.raises(ValueError, match=r"raise the reserve \(--reserve, or `needle` .*\); or leave out fig4_needle$"):
        make_plan(replace(wanted, only=others))
    assert make_plan(replace(wanted, only=others, artefacts=tuple(stem for stem in MAIN if stem != "fig4_needle"))).runs
    with pytest.raises(ValueError, match=r"raise the reserve \(--reserve, or `needle` of a scale in experiments/scales.py\)$"):
        make_plan(replace(wanted, only=others, artefacts=("fig4_needle",)))


def test_what_a_gpu_cannot_compute_is_refused(asked):
    """fla's DeltaNet kernels take no fp32; at scales in bf16 they are planned."""
    with pytest.raises(ValueError, match=r"delta_net at tiny .* fp32, .* --device cpu \(.*\), or leave the model out with"):
        make_plan(asked.on("cuda"))
    assert paper_plan(asked).runs


def test_tiny_stays_on_the_cpu_unless_a_gpu_is_asked_for(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    asked = [Request(scale="tiny", execution=Execution(device=device)) for device in ("auto", "cuda")]
    assert [request.settled().device for request in asked] == ["cpu", "cuda"]
    assert Request(scale="mini").settled().device == "cuda"


def test_the_tokenisers_folder_reaches_trainings_and_evaluations(asked):
    """LongCrawl64 comes without GPT-2's vocabulary, and evaluations turn its tokens into text."""
    plan = paper_plan(asked, tokenizer="gpt2-json:vocabulary")
    found = [task for task in graph.tasks(plan) if task.kind in ("train", "evaluate")]
    assert {task.kind for task in found} == {"train", "evaluate"}
    for task in found:
        assert task.args[task.args.index("--tokenizer") + 1] == "gpt2-json:vocabulary"
        if task.kind == "evaluate":
            assert parse(Job, list(task.args), "eval.job", None).sources.tokenizer == "gpt2-json:vocabulary"


def test_a_tokeniser_that_a_training_would_not_read_is_not_handed_to_it(asked):
    plan = make_plan(replace(asked, artefacts=("fig2_per_token_loss",), tokenizer="bytes"))
    assert not any("--tokenizer" in task.args for task in graph.tasks(plan) if task.kind == "train")


def test_another_corpus_is_another_run_and_needs_another_folder(asked, tmp_path):
    request = replace(asked, artefacts=("fig2_per_token_loss",), only=("fox_pro",))
    plan = make_plan(request)
    (run,) = plan.runs.values()
    record = {"run_id": run.spec.run_id, "scale": "tiny", "name": "fox_pro", "starts": [],
              "spec": {"data": {"source": "text", "fingerprint": "another"}}}  # fmt: skip
    record_run(request.results_dir, record)
    line = Line("fox_pro", {}, "fox_pro", 0, "tiny", run.spec.run_id, {})
    write_lines(request.results_dir, "tiny", "fig2_per_token_loss", [line])
    with pytest.raises(ValueError, match=r"another corpus .*--results-dir"):
        make_plan(request)
    make_plan(replace(request, results_dir=tmp_path / "other"))


@pytest.mark.parametrize(("document_len", "mixes"), [(1024, True), (2048, False)])
def test_lines_of_another_scale_are_of_the_same_texts_too(asked, document_len, mixes):
    """Two scales that cut texts alike have the same corpus, or one figure would compare models of different texts."""
    request = replace(asked, artefacts=("fig2_per_token_loss",), only=("fox_pro",))
    (run,) = make_plan(request).runs.values()
    own = {"source": "text", "tokenizer": run.spec.data.tokenizer, "document_len": document_len, "fingerprint": "another"}
    record = {"run_id": "f" * 10, "scale": "tiny-short", "name": "fox_pro", "starts": [], "spec": {"data": own}}
    record_run(request.results_dir, record)
    line = Line("more", {}, "fox_pro", 0, "tiny-short", "f" * 10, {})
    write_lines(request.results_dir, "tiny", "fig2_per_token_loss", [line])
    assert run.spec.data.document_len == 1024
    with pytest.raises(ValueError, match=r"another corpus .*--results-dir") if mixes else nullcontext():
        make_plan(request)


def test_what_can_be_known_is_refused_before_the_first_task(asked):
    with pytest.raises(ValueError, match=r"--seeds 0 0: give different numbers"):
        make_plan(replace(asked, seeds=(0, 0)))
    with pytest.raises(ValueError, match="no such figure or table"):
        chosen(["fig99"])
    with pytest.raises(ValueError, match=r"--only mamba2: no line of fig3_forget_gates matches"):
        make_plan(replace(asked, artefacts=("fig3_forget_gates",), only=("mamba2",)))
    with pytest.raises(ValueError, match=r"--line 'LR 0.004': no line of table_lr_grid has this label; .* fox_pro, LR 0.008;"):
        make_plan(replace(asked, artefacts=("table_lr_grid",), line=("*, LR 0.004", "LR 0.004")))
    with pytest.raises(ValueError, match=r"--only mamba2 --line 'hgrn2, \*': no line of table_lr_grid matches"):
        make_plan(replace(asked, artefacts=("table_lr_grid",), only=("mamba2",), line=("hgrn2, *",)))


def test_lines_are_asked_for_by_their_labels(asked):
    plan = make_plan(replace(asked, artefacts=("table_lr_grid", "fig7_gate_types"), line=("*, LR 0.008", "fixed, T_max 4")))
    labels = {stem: [line.line.label for line in drawing.lines] for stem, drawing in plan.drawings.items()}
    assert labels == {"table_lr_grid": [f"{model}, LR 0.008" for model in SEVEN], "fig7_gate_types": ["fixed, T_max 4"] * 2}
    assert len(plan.runs) == 9


# Steps and peak learning rate (Tables 4 and 5, section 4.1), those of the main setting by model.
SETTINGS = {"125m-2.7b": (5_120, 2e-3), "360m-7.5b": (14_336, 2e-3), "760m-16b": (30_720, 1e-3), "760m-48b": (92_160, None)}
TABLE_5 = {"fox_pro": 2e-3, "transformer_pro": 1e-3, "fox_llama": 1e-3, "transformer_llama": 5e-4, "mamba2": 2e-3,
           "hgrn2": 2e-3, "delta_net": 1e-3}  # fmt: skip


@pytest.mark.parametrize("scale", SETTINGS)
def test_what_the_papers_scales_train_is_the_papers(scale):
    """The whole spec of every model, not what it is made from; `paper_spec` is held to the paper's counts."""
    text = DataSpec(
        source="longcrawl64", tokenizer="gpt2-json", vocab_size=50257, bos_id=50256, document_len=65536, fingerprint="0" * 16
    )
    steps, rate = SETTINGS[scale]
    size = scale.partition("-")[0]
    for name in [model for each, model in EXPECTED if each == size and (rate or model in TABLE_5)]:
        (recipe,) = recipes(SCALES[scale], name, (3,))
        spec = recipe.run_spec(text)
        assert spec.model == paper_spec(size, name), name
        assert spec.train == TrainSpec(
            seq_len=16_384,
            batch_tokens=32 * 16_384,
            train_tokens=steps * 32 * 16_384,
            warmup_tokens=512 * 32 * 16_384,
            peak_lr=rate or TABLE_5[name],
        )
        assert (spec.seed, spec.data) == (3, text)


def test_changes_of_a_recipe_change_the_run_and_nothing_else(asked):
    (plain,) = recipes(SCALES["tiny"], "fox_pro", (0,))
    (roped,) = recipes(SCALES["tiny"], "fox_pro", (0,), model=dict(use_rope=True), train=dict(peak_lr=1e-3))
    data = next(iter(make_plan(asked).corpora)).spec
    assert roped.run_spec(data) == replace(
        plain.run_spec(data),
        model=replace(plain.run_spec(data).model, use_rope=True),
        train=replace(plain.run_spec(data).train, peak_lr=1e-3),
    )
    (ungated,) = recipes(SCALES["tiny"], "fox_pro", (0,), model=dict(use_output_gate=False))
    assert ungated.run_spec(data).model.intermediate_size == 344  # an ablated block keeps its size


def test_evaluations_hold_what_they_read(asked):
    plan = make_plan(asked)
    for run in plan.runs.values():
        for spec in run.evals:
            if spec.NEEDS == "weights":
                assert run.spec.data.fingerprint in str(spec), spec


def paper_plan(asked: Request, **changes: object):
    return make_plan(replace(asked, scale="760m-48b", data=None, artefacts=(), **changes).on("cuda"), rehearsal=True)


def test_a_dry_run_at_the_papers_scale_says_what_it_takes(asked):
    """Every run with its cost and what it is for, evaluations, GPU-hours and disk in all."""
    plan = make_plan(replace(asked, scale="760m-48b", data=None, seeds=(0, 1)).on("cuda"), rehearsal=True)
    print_plan(plan, 0.4, Console(width=160, file=(shown := io.StringIO())))
    said = shown.getvalue()
    for run in plan.runs.values():
        assert re.search(
            rf"{run.spec.scale}/{run.spec.folder_name} +[\d,]+ +\S+ +\S+ +[\d.,]+ +[\d.]+ [GM]iB  nothing, 0/\d", said
        )
    evaluations = sum(len(run.evals) for run in plan.runs.values())
    total = re.search(rf"{len(plan.runs)} runs, {evaluations} evaluations +([\d.,]+) +([\d.,]+) GiB", said)
    assert total is not None and float(total[1].replace(",", "")) > 2000 and float(total[2].replace(",", "")) > 1000
    for words in ("table3_ablation: FoX (Pro)", "seed 1", "LongCrawl64 is not here", "H100-hours"):
        assert words in said


def args_of(plan, name: str, processes: int = 1) -> tuple[str, ...]:
    (run,) = (run for run in plan.runs.values() if run.spec.name == name)
    return graph.train_task(plan, run, processes).args


def test_attention_models_are_compiled_on_gpus_unless_memory_is_short(asked):
    plan = paper_plan(asked)
    assert {name for name in SEVEN if "--compile" in args_of(plan, name)} == set(SEVEN[:4])
    short = replace(asked.execution, activation_checkpointing=True)
    args = args_of(paper_plan(asked, execution=short), "fox_pro")
    assert "--activation-checkpointing" in args and "--compile" not in args


def test_micro_batches_are_those_of_the_scale_unless_asked_for(asked):
    def flags(tokens: int | None, processes: int = 1) -> list[str]:
        plan = paper_plan(asked, execution=replace(asked.execution, micro_batch_tokens=tokens))
        args = args_of(plan, "fox_pro", processes)
        return [args[i + 1] for i, arg in enumerate(args) if arg == "--micro-batch-tokens"]

    assert flags(None) == ["16384"]
    assert flags(65536) == flags(65536, processes=8) == ["65536"]
    for bad, processes in ((10000, 1), (3 * 16384, 1), (131072, 8)):
        with pytest.raises(ValueError, match=f"micro_batch_tokens {bad} must be a multiple of seq_len 16384"):
            flags(bad, processes)


def test_models_besides_are_lines_where_lines_are_models(asked):
    also = ("stick_breaking", "alibi")
    plan = make_plan(replace(asked, artefacts=("fig2_per_token_loss", "table_lr_grid"), seeds=(0, 1), also=also))
    lines = [line.line for line in plan.drawings["fig2_per_token_loss"].lines]
    assert len(lines) == 2 * (len(SEVEN) + 2)
    assert {recipe.seed for recipe in lines if recipe.label == recipe.model == "stick_breaking"} == {0, 1}
    assert {line.line.model for line in plan.drawings["table_lr_grid"].lines} == set(SEVEN), "its lines are learning rates"
    already = make_plan(replace(asked, artefacts=("stick_extrapolation",), also=also))
    assert len(already.drawings["stick_extrapolation"].lines) == 4
    with pytest.raises(ValueError, match="--also nothing: no such model"):
        make_plan(replace(asked, also=("nothing",)))
    with pytest.raises(ValueError, match="--also alibi: the lines of fig7_gate_types are not one per model; leave it out"):
        make_plan(replace(asked, artefacts=("fig7_gate_types",), also=("fox_pro", "alibi")))
    for part in (dict(only=("fox_pro", "stick_breaking")), dict(line=("fox*", "stick*"))):
        with pytest.raises(ValueError, match="--also alibi: --only or --line leaves it out; name it there, too"):
            make_plan(replace(asked, artefacts=("fig2_per_token_loss",), also=also, **part))
    both = make_plan(replace(asked, artefacts=("fig2_per_token_loss",), also=also, only=("fox_pro", *also)))
    assert [run.spec.name for run in both.runs.values()] == ["fox_pro", *also]
    with pytest.raises(ValueError, match="--only alibi: no line of fig2_per_token_loss matches; --also alibi adds it"):
        make_plan(replace(asked, artefacts=("fig2_per_token_loss",), only=("fox_pro", "alibi")))


def test_models_besides_recall_in_the_sizes_of_recalls_own(asked):
    """Every model there is; ALiBi with the slopes of as many heads as it then has."""
    plan = make_plan(replace(asked, artefacts=("mqar",), also=NAMES))
    models = {run.spec.name: run.spec.model for run in plan.runs.values()}
    assert models.keys() == set(NAMES)
    sizes = {name: (model.hidden_size, model.num_params) for name, model in models.items()}
    assert {width for width, _ in sizes.values()} == {64}
    assert all(0.8 < count / sizes["fox_pro"][1] < 1.5 for _, count in sizes.values()), sizes
    assert models["alibi"].decay_time_min == 2.0 ** (8 / models["alibi"].num_heads)
    own = make_plan(replace(asked, artefacts=("mqar",)))
    assert own.runs.keys() < plan.runs.keys() and len(own.runs) == 5


def test_a_judge_that_nothing_asks_is_refused(asked):
    with pytest.raises(ValueError, match=r"^--judge-model: no evaluation that fig2_per_token_loss needs at tiny reads it\.$"):
        make_plan(replace(asked, artefacts=("fig2_per_token_loss",), judge_model="gpt"))


def test_a_judges_address_without_a_model_is_refused_with_the_option_that_reads_it(asked):
    only, url = replace(asked, only=("fox_pro",)), UserData(judge_url="http://x")
    with pytest.raises(ValueError, match=r"^--judge-url: read only with --judge-model MODEL; give that, too\.$"):
        make_plan(replace(only, artefacts=("fig4_needle", "fig2_per_token_loss"), user_data=url))
    assert make_plan(replace(only, artefacts=("fig4_needle",), user_data=url, judge_model="m")).runs
    two = replace(only, artefacts=("fig2_per_token_loss", "fig3_forget_gates"))
    with pytest.raises(
        ValueError, match=r"^--judge-url: no evaluation that fig2_per_token_loss, fig3_forget_gates need at tiny reads it"
    ):
        make_plan(replace(two, user_data=url))
    with pytest.raises(ValueError, match=r"^--judge-url, --judge-model: no evaluation that .* need at tiny reads them\.$"):
        make_plan(replace(two, user_data=url, judge_model="m"))


def test_a_synthetic_task_needs_no_text(asked):
    plan = make_plan(replace(asked, artefacts=("stick_recall",), scale="mini", data=None))
    assert {run.spec.data.source for run in plan.runs.values()} == {"recall"}
    found = graph.tasks(plan)
    assert {task.kind for task in found} == {"train", "evaluate", "draw"}
    assert not any("--corpus" in task.args or "--corpus-dir" in task.args for task in found)
    assert len({run.spec.data.fingerprint for run in plan.runs.values()}) == len(
        sizes_at(SCALES["mini"], stick_recall.SIZES, stick_recall.__name__).num_keys
    )


def test_a_new_scale_is_told_every_table_that_lacks_it(asked, monkeypatch):
    """Each once, whether runs or evaluations ask for its sizes."""
    monkeypatch.setitem(SCALES, "new", replace(TINY, name="new"))
    stems = ("fig7_gate_types", "table3_ablation", "ruler", "stick_recall", "mqar")
    with pytest.raises(ValueError, match="ABLATIONS has nothing") as told:
        make_plan(replace(asked, artefacts=stems, scale="new"))
    first, others = str(told.value).split(" The same holds for ")
    assert first == 'experiments/scales.py: ABLATIONS has nothing for scale new; add ("new",) with its values there.'
    assert others == "experiments/stick_breaking/stick_recall.py: SIZES, experiments/beyond/ruler.py: SIZES."


def test_extrapolation_reaches_sixteen_times_the_training_length():
    for scale in SCALES.values():
        at = far(scale)
        assert at.document_len == 16 * at.seq_len and far(at) is at


def test_the_users_texts_go_to_the_evaluations_in_their_order(asked, texts):
    request = replace(asked, artefacts=("fig4_needle",), user_data=UserData(haystack=texts))
    plans = [
        make_plan(replace(request, user_data=UserData(haystack=texts, haystack_unsorted=order))) for order in (False, True)
    ]
    assert [arguments_of(plan.request.sources) for plan in plans] == [
        ["--haystack", str(texts)],
        ["--haystack", str(texts), "--haystack-unsorted"],
    ]
    ids = [{spec.text for run in plan.runs.values() for spec in run.evals} for plan in plans]
    assert ids[1] == {f"{text}-unsorted" for text in ids[0]}


def test_a_rate_beyond_the_grid_is_tried_by_those_best_at_its_edge_and_by_recurrent_models(asked):
    plan = make_plan(replace(asked, artefacts=("table_lr_grid", "gate_worth"), scale="mini"), rehearsal=True)
    rates = {
        stem: [line.line.label for line in drawing.lines if "0.0005" in line.line.label]
        for stem, drawing in plan.drawings.items()
    }
    assert rates == {"table_lr_grid": ["fox_llama, LR 0.0005"], "gate_worth": ["83.9M tokens, LR 0.0005"]}
    highest = [line.line.label for line in plan.drawings["table_lr_grid"].lines if "0.008" in line.line.label]
    assert highest == ["mamba2, LR 0.008", "hgrn2, LR 0.008", "delta_net, LR 0.008"]
    assert all(
        {each.rpartition("-")[0] for each in line.evals} == {"per_token_loss", "training_curve"}
        for line in plan.drawings["table_lr_grid"].lines
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([(dict(gate="shared"), "shared")],
         r"fig7_gate_types cannot draw its line 'shared' of fox_pro: it has gate = 'shared', but the figure knows full, "
         r"bias_only, fixed\. Add it to AXES and draw in experiments/fox/fig7_gate_types\.py, or leave"),
        ([({}, "plain")], r"line 'plain' of fox_pro: it has no gate, but the figure knows full"),
        ([(dict(gate="fixed", longest="4"), "text")], r"it has longest = '4', but the figure knows int \| None"),
        ([(dict(gate="full", colour="red"), "red")], r"it has colour = 'red', but the figure knows no such axis"),
        ([(dict(gate="full"), "the same")], r"line 'the same' of fox_pro: 'data-dependent' has the same axes"),
        ([(dict(gate="fixed", longest=7), "fixed, T_max 4")], r"has several lines 'fixed, T_max 4' of fox_pro"),
    ],
)  # fmt: skip
def test_a_line_that_its_figure_cannot_draw_is_refused_before_anything_trains(asked, monkeypatch, more, said):
    """A gate variant that only `runs` knows, for one: its training and evaluation would be lost on the figure."""
    artefact = artefacts()["fig7_gate_types"]

    def runs(scale, seeds):
        yield from artefact.runs(scale, seeds)
        for axes, label in more:
            yield from recipes(for_ablations(scale), "fox_pro", seeds, axes=axes, label=label, model=dict(num_heads=1))

    monkeypatch.setitem(artefacts(), artefact.stem, replace(artefact, runs=runs))
    with pytest.raises(ValueError, match=said):
        make_plan(replace(asked, artefacts=(artefact.stem,)))


def test_every_artefact_can_draw_what_it_declares_at_every_scale():
    for scale in SCALES.values():
        for artefact in artefacts().values():
            artefact.check(artefact.runs(scale, (0, 1)))


def test_an_evaluation_that_is_not_listed_is_refused_before_anything_trains(asked, monkeypatch):
    monkeypatch.delitem(KINDS, "per_token_loss")
    with pytest.raises(ValueError, match=r"no evaluation is listed as 'per_token_loss'; add .* to NAMES in eval/kinds\.py"):
        make_plan(replace(asked, artefacts=("fig2_per_token_loss",)))


def test_a_figure_without_one_of_its_parts_is_named(monkeypatch):
    monkeypatch.delattr(fig7_gate_types, "summary")
    artefacts.cache_clear()
    with pytest.raises(ValueError, match=r"^experiments/fox/fig7_gate_types\.py has no summary"):
        artefacts()
    artefacts.cache_clear()


@pytest.mark.parametrize(
    "text", [None, "", "FoX: Gates.", "FoX: Gates.\n\n", "Gates.\n\nThe gates.", "FoX: Gates.\nThe gates."]
)
def test_a_figure_that_does_not_say_whose_it_is_or_what_it_shows_is_named(monkeypatch, text):
    monkeypatch.setattr(fig7_gate_types, "__doc__", text)
    with pytest.raises(
        ValueError, match=r"fig7_gate_types\.py: its docstring is not `PAPER: TITLE\.`, an empty line, and what it"
    ):
        _read("fox", "fig7_gate_types")
    monkeypatch.setattr(fig7_gate_types, "__doc__", "FoX: Figure 7: Gates.\n\nThe\ngates.")
    found = _read("fox", "fig7_gate_types")
    assert (found.paper, found.title, found.shows) == ("FoX: Figure 7", "Gates", "The gates.")


def test_artefacts_stand_in_the_papers_order_and_pictures_without_claims_or_findings_last():
    papers = [artefact.paper for artefact in artefacts().values() if artefact.folder == "fox"]
    numbers = {"Figure ": range(1, 8), "Table ": range(1, 10), "Appendix F.": (1, *range(4, 11))}
    assert papers == [f"{kind}{number}" for kind in numbers for number in numbers[kind]]
    beyond = [artefact for artefact in artefacts().values() if artefact.folder == "beyond"]
    bare = [each.pictured and not each.claims and each.findings is Artefact.findings for each in beyond]
    assert bare == sorted(bare) and set(bare) == {False, True}


def test_a_unique_beginning_of_a_name_is_enough_and_a_wrong_name_says_what_was_meant():
    assert list(chosen(["fig2", "table_lr"])) == ["fig2_per_token_loss", "table_lr_grid"]
    assert set(chosen(["all"])) == set(artefacts()) and set(chosen([])) == set(MAIN)
    for name, said in (
        ("table", "several figures and tables begin with it: .*table1_lm_eval"),
        ("figure2", r"did you mean fig2_per_token_loss\?"),
        ("throughput", r"did you mean table6_throughput or output_gates\?"),
        ("zzz", "no such figure or table; choose from fig1_arch"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name}: .*{said}"):
            chosen([name])


def test_counts_are_printed_in_the_largest_unit_that_they_reach():
    wanted = {0: "0", 999: "999", 1000: "1k", 1234: "1.23k", 999_499: "999k", 1e6: "1M", 2.5e8: "250M", 1e9: "1B", 48e9: "48B"}
    assert {number: count(number) for number in wanted} == wanted
