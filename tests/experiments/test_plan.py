import dataclasses
import json
from pathlib import Path

import pytest

from data.source import parse_source
from eval.spec import eval_id
from experiments.artefact import Options, artefact_names, load_artefact
from experiments.plan import Request, jobs, make_plan, train_job, write_specs
from experiments.scales import MODELS, SCALES
from training.provenance import provenance


@pytest.fixture
def request_all(tmp_path: Path) -> Request:
    return Request(
        tuple(artefact_names()), "tiny", None, None, (), "cpu", tmp_path / "runs", tmp_path / "results", tmp_path / "corpora"
    )


def test_every_artefact_is_declared_at_every_scale():
    for name in artefact_names():
        artefact = load_artefact(name)
        assert set(artefact.models) <= set(MODELS)
        for scale in SCALES.values():
            specs = artefact.evals(scale, Options())
            assert len({spec.kind for spec in specs}) == 1
            assert len({eval_id(spec) for spec in specs}) == len(specs)


def test_the_papers_evaluations_at_the_papers_scale():
    scale = SCALES["760m-48b"]
    (loss,) = load_artefact("fig2_per_token_loss").evals(scale, Options())
    assert (loss.context_len, loss.num_documents) == (65536, 32768)
    easy, standard = load_artefact("fig4_needle").evals(scale, Options())
    assert easy.lengths == standard.lengths == tuple(range(1000, 32001, 3100))
    (longbench,) = load_artefact("table2_longbench").evals(scale, Options())
    assert longbench.max_prompt_tokens == 15500
    assert not longbench.original_cut
    (harness,) = load_artefact("table1_lm_eval").evals(scale, Options())
    assert (harness.max_length, harness.batch_size, harness.add_bos) == (16384, 16, True)


def test_a_model_is_trained_once_for_all_artefacts(request_all):
    plan = make_plan(request_all, "fp32")
    names = [job.name for job in jobs(plan, "cpu")]
    assert names == [f"{what} {model}" for model in MODELS for what in ("train", "evaluate")]
    assert len(plan.runs["fox_pro"].evals) == 7
    assert len(plan.runs["mamba2"].evals) == 6  # no gates to map


def test_what_exists_is_not_planned_again(request_all):
    plan = make_plan(request_all, "fp32")
    write_specs(plan)
    run = plan.runs["hgrn2"]
    run.folder.export.mkdir()
    assert "train hgrn2" not in [job.name for job in jobs(plan, "cpu")]
    for spec in run.evals:
        run.eval_file(spec).write_bytes(b"")
    assert not [job for job in jobs(plan, "cpu") if job.name.endswith("hgrn2")]


def test_only_computes_the_chosen_and_draws_the_finished_too(request_all):
    plan = make_plan(request_all, "fp32")
    write_specs(plan)
    plan.runs["mamba2"].folder.export.mkdir()
    only = make_plan(dataclasses.replace(request_all, only=("fox_pro",)), "fp32")
    assert {job.name for job in jobs(only, "cpu")} == {"train fox_pro", "evaluate fox_pro"}
    assert [run.spec.name for run in only.drawn_runs("fig2_per_token_loss")] == ["fox_pro", "mamba2"]


def test_precision_is_part_of_the_identity(request_all):
    exact, rounded = make_plan(request_all, "fp32"), make_plan(request_all, "bf16")
    assert exact.runs["fox_pro"].spec.run_id != rounded.runs["fox_pro"].spec.run_id


def test_stdlib_text_needs_no_download():
    assert sum(map(len, parse_source("stdlib").documents())) > 1_000_000


def test_provenance_names_the_code_and_the_versions():
    line = json.loads(json.dumps(provenance("CPU")))
    assert line["versions"]["torch"]
    assert set(line) >= {"date", "git_sha", "git_dirty", "python", "device", "world_size"}


def test_attention_models_are_compiled_on_gpus_unless_memory_is_short(request_all):
    plan = make_plan(dataclasses.replace(request_all, scale="760m-48b"), "bf16", rehearsal=True)
    flags = {model: train_job(plan, run, "cuda").args for model, run in plan.runs.items()}
    assert {model for model, args in flags.items() if "--compile" in args} == set(MODELS[:4])
    short = make_plan(dataclasses.replace(request_all, scale="760m-48b", activation_checkpointing=True), "bf16", rehearsal=True)
    args = train_job(short, short.runs["fox_pro"], "cuda").args
    assert "--activation-checkpointing" in args
    assert "--compile" not in args


def test_micro_batches_are_those_of_the_scale_unless_asked_for(request_all):
    def flags(tokens: int | None, processes: int = 1) -> list[str]:
        request = dataclasses.replace(request_all, scale="760m-48b", micro_batch_tokens=tokens)
        plan = make_plan(request, "bf16", rehearsal=True)
        args = train_job(plan, plan.runs["fox_pro"], "cuda", processes).args
        return [args[i + 1] for i, arg in enumerate(args) if arg == "--micro-batch-tokens"]

    assert flags(None) == ["16384"]
    assert flags(65536) == flags(65536, processes=8) == ["65536"]
    for bad, processes in ((0, 1), (-16384, 1), (10000, 1), (3 * 16384, 1), (131072, 8)):
        with pytest.raises(ValueError, match=f"micro_batch_tokens {bad} must be a multiple of seq_len 16384"):
            flags(bad, processes)
