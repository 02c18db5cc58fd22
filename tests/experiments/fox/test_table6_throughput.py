"""C27 to C30 on the paper's numbers and on spoilt ones."""

import pytest

from analysis.paper import paper_scores
from analysis.verdict import Status
from experiments.fox import table6_throughput
from experiments.fox.table6_throughput import at_longer_contexts, c27, c28, c29, c30
from results import measured, schema
from tests import synthetic

FLOPS = {
    "fox_pro": 2726843520.0, "transformer_pro": 2723309568.0, "fox_llama": 2723224704.0, "transformer_llama": 2721454080.0,
    "mamba2": 1654599168.0, "hgrn2": 1537234944.0, "delta_net": 1543581696.0,
}  # fmt: skip


def timed(tmp_path, changes=None, spread=0.0, models=synthetic.SEVEN):
    printed = paper_scores("table6_throughput", "760m-48b")
    store = synthetic.Store(tmp_path, "760m-48b", 16_384)
    for model in models:
        line = printed[model]
        how = dict(params=int(line["params_millions"] * 1e6), speed=line["throughput_tokens_per_s"], flops=FLOPS[model])
        row = synthetic.throughput_row(**how | (changes or {}).get(model, {}), spread=spread)
        store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"}, final_loss=None)
    return store.study("table6_throughput")


def test_c27_to_c30_hold_on_the_papers_numbers(tmp_path):
    study = timed(tmp_path)
    verdicts = [claim.predicate(study) for claim in table6_throughput.CLAIMS]
    assert [claim.id for claim in table6_throughput.CLAIMS] == ["C27", "C28", "C29", "C30"]
    assert [verdict.status for verdict in verdicts] == [Status.BY_CONSTRUCTION] * 2 + [Status.HOLDS] * 2
    assert "FoX (Pro) has 0.26% more parameters than Transformer (Pro)" in verdicts[0].sentence
    assert "0.90 of Transformer (Pro)'s speed" in verdicts[3].sentence


@pytest.mark.parametrize(("check", "changes"), [
    (c27, {"fox_pro": {"params": 760_000_000}}),
    (c28, {"fox_llama": {"flops": 2.75e9}}),
    (c29, {"delta_net": {"speed": 45_000.0}}),
    (c29, {"fox_pro": {"speed": 31_000.0}}),
    (c30, {"fox_pro": {"speed": 25_000.0}}),
])  # fmt: skip
def test_each_fails_where_it_is_spoilt(tmp_path, check, changes):
    assert check(timed(tmp_path, changes)).status is Status.FAILS


def test_speeds_whose_ranges_cover_the_difference_are_not_ranked(tmp_path):
    assert c29(timed(tmp_path / "a", spread=0.005)).status is Status.HOLDS
    assert c29(timed(tmp_path / "b", spread=0.03)).status is Status.WITHIN_NOISE
    assert c30(timed(tmp_path / "c", spread=0.1)).status is Status.WITHIN_NOISE


def test_all_timed_models_are_needed(tmp_path):
    study = timed(tmp_path, models=("fox_pro", "transformer_pro"))
    assert [check(study).status for check in (c27, c28, c29)] == [Status.NOT_MEASURED] * 3
    assert c30(study).status is Status.HOLDS


def test_the_look_at_longer_contexts_counts_pairs_timed_at_both(tmp_path, monkeypatch):
    study = timed(
        tmp_path, {"delta_net": {"speed": 20_000.0}}, models=("delta_net", "mamba2", "transformer_llama", "fox_llama")
    )
    assert "No steps with a longer context are stored" in at_longer_contexts(study)
    setting = dict(scale="760m-48b", gpus=1, seq_len=65_536, sequences_per_gpu=1, micro_batches=1,
                   activation_checkpointing=False, prune=False)  # fmt: skip
    columns = dict.fromkeys(("model", "scale"), schema.text()) | dict.fromkeys(
        ("activation_checkpointing", "prune"), schema.flag()
    )
    columns |= dict.fromkeys(("gpus", "seq_len", "sequences_per_gpu", "micro_batches"), schema.integer(1))
    steps = schema.Schema({**columns, "tokens_per_s": schema.number(0)}, key=("model", "seq_len", "prune"))
    monkeypatch.setitem(measured.SCHEMAS, "training_steps", steps)
    speeds = {"hgrn2": 5.0, "mamba2": 4.0, "transformer_llama": 3.0, "fox_llama": 2.0}
    rows = [{**setting, "model": model, "tokens_per_s": 1000 * speed} for model, speed in speeds.items()]
    rows += [{**row, "seq_len": 4096, "tokens_per_s": 99_000.0} for row in [*rows, rows[0] | {"model": "delta_net"}]]
    rows.append({**rows[0], "model": "fox_pro", "prune": True})
    measured.add("training_steps", rows, "GPU", folder=tmp_path / measured.FOLDER.name)
    text = at_longer_contexts(study)
    assert text.startswith("Steps of one sequence of 64k tokens at 760m-48b on GPU: HGRN2 5,000, Mamba-2 4,000, ")
    assert "FoX (LLaMA) 2,000 tokens/s" in text
    assert "2 pairs that were timed at both lengths, 2 are in the claimed order there, 2 at 16k tokens here." in text
    slow = timed(tmp_path, {"mamba2": {"speed": 9_000.0}}, models=("delta_net", "mamba2", "transformer_llama", "fox_llama"))
    assert "2 are in the claimed order there, 1 at 16k tokens here: the order appears in" in at_longer_contexts(slow)
