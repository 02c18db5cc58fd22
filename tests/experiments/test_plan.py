"""A request's meaning: runs, identities, what is shared and what exists, and the paper's own settings."""

import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis.names import SEVEN
from analysis.study import Line, Lines, Study, write_lines
from data.spec import DataSpec
from eval.kinds import eval_id
from experiments import graph
from experiments.__main__ import Prepare
from experiments.artefact import MAIN, artefacts, chosen
from experiments.fox import fig6_scale
from experiments.fox.table_lr_grid import rates_of
from experiments.overview import count, print_plan
from experiments.plan import make_plan, write_specs
from experiments.publish import publish
from experiments.recipes import NAMES, recipes
from experiments.scales import SCALES, get_scale
from experiments.stick_breaking.stick_extrapolation import far
from tests.experiments.conftest import data_at
from tests.experiments.finished import finish
from tests.models.test_count import EXPECTED, paper_spec
from training.command_line import parse
from training.run_folder import RunFolder
from training.spec import TrainSpec

FIG2 = "fig2_per_token_loss"


def kinds(plan, name):
    return sorted(task.kind for task in graph.tasks(plan) if name in task.key)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_figure_is_planned_at_every_scale(scale):
    """Lines that it can draw and tell apart, specs that are allowed, evaluations; pruning needs contexts that fit."""
    for artefact in artefacts().values():
        found = list(artefact.runs(scale, (0, 1)))
        artefact.check(found)
        assert len({(each.label, each.name, each.scale, each.seed) for each in found}) == len(found) > 0 and artefact.evals(
            scale
        )
        for each in found:
            if scale.name not in ("mini-packed", "340m-slimpajama") or not artefact.stem.startswith("acp"):
                assert each.run_spec(data_at(each.scale)).seed == each.seed and artefact.evals(each.sizes)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stems=st.sets(st.sampled_from([*artefacts()]), min_size=1, max_size=4),
    seeds=st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=2),
)
def test_what_is_planned_is_made_once_and_needs_what_is_made(asked, stems, seeds):
    plan = make_plan(replace(asked, artefacts=tuple(chosen(stems)), seeds=tuple(seeds)))
    tasks = graph.tasks(plan)
    keys, made = [task.key for task in tasks], [path for task in tasks for path in task.makes]
    assert len(set(keys)) == len(keys) and len(set(made)) == len(made)
    assert all(need in keys[:place] for place, task in enumerate(tasks) for need in task.needs)
    assert {run.eval_file(spec) for run in plan.runs.values() for spec in run.evals} <= set(made)
    for lines in plan.drawings.values():
        for line in lines:
            assert set(line.evals) <= {eval_id(spec) for spec in plan.runs[line.run_id].evals}
    for run in plan.runs.values():
        assert all(run.spec.data.fingerprint in str(spec) for spec in run.evals if spec.NEEDS == "weights")
    prepare = [task for task in tasks if task.kind == "prepare"]
    for task in prepare:  # for the very request: any other plan may need other corpora
        given = parse(Prepare, list(task.args[1:]), "", "")
        assert given == Prepare(corpora_only=True, **vars(plan.request))


def test_a_model_is_trained_once_for_all_artefacts(asked):
    plan = make_plan(asked)
    trained = [task.key for task in graph.tasks(plan) if task.kind == "train"]
    assert len(trained) == len(set(trained)) == sum(run.trains for run in plan.runs.values())
    main = make_plan(replace(asked, artefacts=()))
    assert list(main.drawings) == list(MAIN) and sorted(run.spec.name for run in main.runs.values()) == sorted(SEVEN)
    assert set(main.runs) <= set(plan.runs)


def test_a_run_of_two_names_is_trained_once_whatever_asks_for_it(asked):
    """FoX (LLaMA) with all but the shift is FoX (Pro) without it: who asks first names the folder, and others find it."""
    llama, pro = "FoX (LLaMA) + QK-norm + output gate + output norm", "FoX (Pro) - KV-shift"

    def planned(*labels):
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


def test_what_exists_is_not_planned_again(asked):
    plan = make_plan(replace(asked, artefacts=(FIG2,)))
    write_specs(plan)
    (run,) = (run for run in plan.runs.values() if run.spec.name == "hgrn2")
    finish(run)
    assert kinds(plan, "hgrn2") == ["evaluate"]
    finish(run, evaluations=True)
    assert kinds(plan, "hgrn2") == []
    run.eval_file(run.evals[0]).write_bytes(b"")  # damaged: made again
    assert kinds(plan, "hgrn2") == ["evaluate"]


def test_rows_beside_count_as_done_and_are_drawn(asked, tmp_path):
    wanted = replace(asked, artefacts=(FIG2,), only=("hgrn2",))
    plan = make_plan(wanted)
    write_specs(plan)
    (run,) = plan.runs.values()
    finish(run, evaluations=True)
    assert kinds(make_plan(wanted), "hgrn2") == []
    elsewhere = replace(wanted, results_dir=tmp_path / "mine")
    assert kinds(make_plan(elsewhere), "hgrn2") == ["evaluate", "train"]
    beside = replace(elsewhere, beside=wanted.results_dir, seeds=(0, 1))
    plan = make_plan(beside)
    assert [task.kind for task in graph.tasks(plan)] == ["prepare", "train", "evaluate", "draw"]
    write_specs(plan)
    study = Study(beside.results_dir, "tiny", FIG2)
    assert [line.run_id for line in study.lines] == [run.spec.run_id] and study.whole().rows("per_token_loss")[
        "loss"
    ].mean() > 2
    publish(wanted.results_dir, tmp_path / "published", Console(file=io.StringIO()))
    with pytest.raises(ValueError, match=r"published is published and only read.*--from"):
        replace(beside, results_dir=tmp_path / "published")
    assert len(make_plan(replace(beside, beside=tmp_path / "published")).runs) == 2


def test_timings_have_the_machine_for_themselves_and_need_no_training(asked):
    """But those of generation, which is of trained models."""
    found = graph.tasks(make_plan(replace(asked, artefacts=("table6_throughput",))))
    assert {task.kind for task in found} == {"prepare", "time", "draw"}
    assert all(task.alone for task in found if task.kind == "time")
    found = {task.kind: task for task in graph.tasks(make_plan(replace(asked, artefacts=("generation",), only=("fox_pro",))))}
    assert found["time"].alone and found["train"].key in found["time"].needs and "evaluate" not in found


def test_another_corpus_is_another_run_and_needs_another_folder(asked, texts, tmp_path):
    wanted = replace(asked, artefacts=(FIG2,), only=("fox_pro",))
    (run,), (other,) = (make_plan(replace(wanted, tokenizer=each)).runs.values() for each in (None, "bytes"))
    assert run.spec.run_id != other.spec.run_id
    folder = RunFolder.create(asked.results_dir / "tiny" / "runs" / other.spec.folder_name, other.spec)
    values = json.loads(folder.spec_file.read_text())
    folder.spec_file.write_text(json.dumps(values | {"data": values["data"] | {"fingerprint": "another"}}))
    line = Line("more", {}, "fox_pro", 0, "tiny", other.spec.run_id, {})
    write_lines(asked.results_dir, Lines(FIG2, "tiny", (line,)))
    with pytest.raises(ValueError, match=r"another corpus .*--results-dir"):
        make_plan(wanted)
    assert make_plan(replace(wanted, results_dir=tmp_path / "other")).runs


@pytest.mark.parametrize(("changes", "labels"), [
    (dict(artefacts=("table_lr_grid",), line=("*, LR 0.008",)), [f"{model}, LR 0.008" for model in SEVEN]),
    (dict(artefacts=("fig7_gate_types",), line=("fixed, T_max 4",)), ["fixed, T_max 4"] * 2),
    (dict(artefacts=(FIG2,), only=("fox_pro",), seeds=(0, 1, 2)), ["fox_pro"] * 3),
    (dict(artefacts=(FIG2,), only=("fox_pro", "alibi"), also=("alibi",)), ["fox_pro", "alibi"]),
    (dict(artefacts=("table_lr_grid",), scale="mini", line=("*0.0005",)), ["fox_llama, LR 0.0005"]),
])  # fmt: skip
def test_lines_are_asked_for_by_model_label_and_seed(asked, changes, labels):
    plan = make_plan(replace(asked, **changes), rehearsal=True)
    ((_, lines),) = plan.drawings.items()
    assert [line.label for line in lines] == labels and len(plan.runs) == len(labels)


def test_models_besides_recall_in_the_sizes_of_recalls_own(asked):
    """ALiBi with the slopes of as many heads as it then has."""
    plan = make_plan(replace(asked, artefacts=("mqar",), also=NAMES))
    models = {run.spec.name: run.spec.model for run in plan.runs.values()}
    assert models.keys() == set(NAMES) and {model.hidden_size for model in models.values()} == {64}
    assert all(0.8 < model.num_params / models["fox_pro"].num_params < 1.5 for model in models.values())
    assert models["alibi"].decay_time_min == 2.0 ** (8 / models["alibi"].num_heads)


def test_a_name_is_told_by_its_beginning():
    assert list(chosen(["fig2", "table_lr"])) == [FIG2, "table_lr_grid"]
    assert set(chosen(["all"])) == set(artefacts()) and set(chosen([])) == set(MAIN)


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
            seq_len=16_384, batch_tokens=32 * 16_384, train_tokens=steps * 32 * 16_384, warmup_tokens=512 * 32 * 16_384,
            peak_lr=rate or TABLE_5[name],
        )  # fmt: skip
        assert (spec.seed, spec.data) == (3, text)


def test_the_papers_evaluations_at_the_papers_scale():
    scale, known = SCALES["760m-48b"], artefacts()
    (loss,), (longbench,), (harness,) = (known[stem].evals(scale) for stem in (FIG2, "table2_longbench", "table1_lm_eval"))
    assert (loss.context_len, loss.num_documents) == (65536, 32768)
    assert longbench.max_prompt_tokens == 15500 and longbench.dataset == "hub"
    assert (harness.max_length, harness.batch_size, harness.add_bos) == (16384, 16, True)
    easy, standard, *others = known["fig4_needle"].evals(scale)
    assert easy.lengths == standard.lengths == tuple(range(1000, 32001, 3100))
    assert (easy.mode, standard.mode, easy.max_new_tokens) == ("easy", "standard", 1024)
    assert [(spec.kind, spec.mode) for spec in others] == [
        (kind, mode) for kind in ("needle_recall", "needle_choice") for mode in ("easy", "standard")
    ]
    (context,) = known["context_use"].evals(get_scale("mini"))
    assert context.contexts == (64, 128, 256, 512, 1024, 2048, 2560, 3584, 7680, 15872)
    assert (context.places, context.targets) == ((16384, 14336, 12288, 10240), 512)


def test_comparisons_are_fair():
    """Ablated blocks keep their size, contexts train on the same text in every step, extrapolation reaches 16 times the
    training length, and recurrent models are tried at as many rates as FoX."""
    (ungated,) = recipes(SCALES["tiny"], "fox_pro", (0,), model=dict(use_output_gate=False))
    assert ungated.run_spec(data_at("tiny")).model.intermediate_size == 344
    found = {(recipe.name, recipe.axes["value"]): recipe for recipe in fig6_scale.runs(get_scale("mini"), (0,))
             if recipe.axes["varied"] == "context"}  # fmt: skip
    assert {value for _, value in found} == {1024, 4096, 16384} and len(found) == 6
    for (_, value), recipe in found.items():
        train = recipe.run_spec(data_at("mini")).train
        assert (train.seq_len, train.piece, train.batch_tokens) == (value, 16384, 2**17)
        assert (train.piece_len is None) == (value == 16384), "the longest is the run that other figures have"
    for scale in SCALES.values():
        assert far(scale).document_len == 16 * far(scale).seq_len
        tried = {model: len(rates_of(scale, model)) for model in SEVEN}
        assert min(tried[model] for model in SEVEN[4:]) >= max(tried["fox_pro"], tried["fox_llama"]), scale.name


def test_a_dry_run_at_the_papers_scale_says_what_it_takes(asked):
    """Every run with its cost and what it is for; GPU-hours and disk are the sums of the column."""
    plan = make_plan(replace(asked, scale="760m-48b", data=None, seeds=(0, 1)).on("cuda"), rehearsal=True)
    print_plan(plan, 0.4, Console(width=160, file=(shown := io.StringIO())))
    said, hours = shown.getvalue(), 0.0
    for run in plan.runs.values():
        own = re.search(rf"{run.spec.scale}/{run.spec.folder_name} +[\d,]+ +\S+ +\S+ +([\d.,]+) +[\d.]+ [GM]iB  nothing", said)
        hours += float(own[1].replace(",", ""))
    evaluations = sum(len(run.evals) for run in plan.runs.values())
    total = re.search(rf"{len(plan.runs)} runs, {evaluations} evaluations +([\d.,]+) +([\d.,]+) GiB", said)
    assert float(total[1].replace(",", "")) == pytest.approx(hours, rel=0.01) and hours > 2000


def test_micro_batches_are_those_of_the_scale_unless_asked_for(asked):
    def flags(tokens, processes=1):
        wanted = replace(asked, scale="760m-48b", data=None, artefacts=(FIG2,), only=("fox_pro",))
        wanted = replace(wanted, execution=replace(asked.execution, micro_batch_tokens=tokens))
        plan = make_plan(wanted.on("cuda"), rehearsal=True)
        args = graph.train_task(plan, *plan.runs.values(), processes).args
        return args[args.index("--micro-batch-tokens") + 1]

    assert (flags(None), flags(65536), flags(65536, 8)) == ("16384", "65536", "65536")


def test_counts_are_printed_in_the_largest_unit_that_they_reach():
    wanted = {0: "0", 999: "999", 1000: "1k", 1234: "1.23k", 999_499: "999k", 1e6: "1M", 2.5e8: "250M", 1e9: "1B", 48e9: "48B"}
    assert {number: count(number) for number in wanted} == wanted
