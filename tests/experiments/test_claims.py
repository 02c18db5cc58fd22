"""Every claim with a margin, on both sides of it: rows without noise, a little inside and a little outside.

Claims of Table 3 have theirs in fox/test_ablations.py. Bounds of 0 are tried, too: a little ahead and a little behind.
"""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis.harness import ACCURACIES, PERPLEXITIES
from analysis.names import RECURRENT
from analysis.verdict import Status
from experiments.acp.acp_quality import LOSS_MARGIN
from experiments.artefact import claims
from experiments.fox.fig7_gate_types import CONSTANT, DATA_DEPENDENT, SIZES, Gate
from experiments.fox.table2_longbench import TASKS
from experiments.scales import MINIS
from experiments.stick_breaking.stick_remainder import WITH
from results import measured
from tests import synthetic
from tests.synthetic import SEVEN, Store

HOLDS, FAILS, EXCEEDS = Status.HOLDS, Status.FAILS, Status.EXCEEDS
LENGTH = 64


def losses(folder, stem, levels, *, models=None, axes=None, train_lens=None, train=None):
    """Curves of one document: a level by label, or one for every eighth of the training context, of which the last goes on."""
    store = Store(folder, "mini", LENGTH)
    for label, level in levels.items():
        length = (train_lens or {}).get(label, LENGTH)
        eighths = np.broadcast_to(np.asarray(level, float), (8,)) if np.ndim(level) < 2 else np.asarray(level[0])
        beyond = level[1][0] if np.ndim(level) > 1 else eighths[-1]
        bands = np.concatenate([np.repeat(eighths, 2), np.full(16 * 15, beyond)])
        rows = synthetic.loss_rows(np.repeat(bands, length // 16), bands[None])
        own = (axes or {}).get(label)
        spec = {"seq_len": length, "batch_tokens": 8 * length} | (train or {}).get(label, {})
        store.add(stem, label, [("per_token_loss", rows)], model=(models or {}).get(label, label), axes=own, train=spec)
    return store.study(stem)


def seven(folder, changes):
    """FoX 0.1 below the Transformer and Pro 0.2 below LLaMA, all falling alike; the recurrent models last and flat."""
    fall = np.linspace(0.08, 0, 8)
    base = {"fox_pro": 3.0, "transformer_pro": 3.1, "fox_llama": 3.2, "transformer_llama": 3.3}
    levels = {model: level + fall for model, level in base.items()} | dict.fromkeys(RECURRENT, 3.5)
    return losses(folder, "fig2_per_token_loss", levels | changes(levels))


def shifted(model, other, by):
    """`model` apart from `other` by so much, everywhere."""
    return lambda levels: {model: levels[other] + by}


def given(folder, fox=(0.0, -0.01, -0.02, -0.03, -0.04), share=0.4):
    """Losses given 32, 64, 128, 160 and 224 tokens; of the recurrent models a share of what FoX gains from 160 on."""
    store, rng = Store(folder), np.random.default_rng(0)
    asked = (32, 64, 128, 160, 224)
    recurrent = (0.0, 0.0, 0.0, 0.0, share * (fox[4] - fox[3]))
    for model, losses in {"fox_pro": fox, "fox_llama": fox, **dict.fromkeys(RECURRENT, recurrent)}.items():
        loss = dict.fromkeys(synthetic.CONTEXTS, 3.0) | {c: 3.0 + by for c, by in zip(asked, losses, strict=True)}
        rows = synthetic.context_rows(loss.__getitem__, rng, noise=0.0)
        store.add("context_use", model, [("context_use", rows)], evaluation={"targets": 32})
    return store.study("context_use")


def scores(folder, task_by_model, stem="table2_longbench"):
    store = Store(folder, "760m-48b", 16_384)
    for model, score in task_by_model.items():
        rows = synthetic.longbench_rows(dict.fromkeys(TASKS, score))
        store.add(stem, model, [("longbench", rows)], evaluation={"dataset": "hub"})
    return store.study(stem)


def on_par(folder, gap):
    return scores(folder, {"fox_pro": 20 + gap, "transformer_pro": 20, "fox_llama": 18, "transformer_llama": 18})


def softmax_ahead(folder, gap):
    return scores(folder, dict.fromkeys(SEVEN[:4], 20) | dict.fromkeys(RECURRENT, 20 - gap))


def windowed(folder, gap):
    ahead = {"fox_pro": 20, "transformer_pro": 20 + gap, "samba": 20 - abs(gap) / 2, "transformer_swa": 20}
    return scores(folder, ahead, "table9_longbench")


def harness(folder, stem, model, column, by, models):
    """All models equal, but FoX (Pro) ahead everywhere and FoX (LLaMA) of the Transformer; then one value is changed."""
    store, columns = Store(folder, "760m-48b", 16_384), PERPLEXITIES | ACCURACIES
    for name in models:
        lead = {"fox_pro": 2.0, "fox_llama": 1.0}.get(name, 0.0)
        line = {each: 40 - lead if each in PERPLEXITIES else 40 + lead for each in columns}
        for each in [column] if column in line else ACCURACIES if name == model else ():
            line[each] += by if name == model else 0.0
        store.add(stem, name, [("lm_eval", synthetic.lm_eval_rows(line, columns))], evaluation={"include": "harness"})
    return store.study(stem)


def needles(folder, softmax, recurrent):
    store, rng = Store(folder, "760m-48b", 16_384), np.random.default_rng(0)
    for model in SEVEN:
        rows = synthetic.needle_rows(model, rng).assign(score=recurrent if model in RECURRENT else softmax)
        store.add("fig4_needle", model, [("needle", rows)])
    return store.study("fig4_needle")


def leads(folder, panel, values):
    """FoX's lead by what is varied."""
    levels, models, axes, lens = {}, {}, {}, {}
    for place, (value, lead) in enumerate(values.items()):
        for model, level in (("fox_pro", 3.0), ("transformer_pro", 3.0 + lead)):
            label = f"{model} {value}"
            levels[label], models[label], axes[label] = level, model, {"varied": panel, "value": value}
            lens[label] = LENGTH * 2**place if panel == "context" else LENGTH
    return losses(folder, "fig6_scale", levels, models=models, axes=axes, train_lens=lens)


def more_tokens(folder, inside, beyond):
    axes = {f"{tokens} tokens": {"train_tokens": tokens, "peak_lr": 1e-3} for tokens in (1000, 2000)}
    levels = {"1000 tokens": np.full((2, 8), 3.0), "2000 tokens": np.array([[3 + inside] * 8, [3 + beyond] * 8])}
    return losses(folder, "fig5_tokens_and_lr", levels, models=dict.fromkeys(axes, "fox_pro"), axes=axes, train=axes)


def gates(folder, changed, by):
    levels, models, axes = {}, {}, {}
    for model in ("fox_pro", "fox_llama"):
        constant = [Gate(kind, longest) for kind in CONSTANT for longest in SIZES[MINIS]]
        for gate, level in ((DATA_DEPENDENT, 3.0), *((gate, 3.1) for gate in constant)):
            label = f"{model} {gate}"
            levels[label] = level + (by if (model, gate) == ("fox_pro", changed) else 0.0)
            models[label] = model
            axes[label] = {"gate": gate.kind} | ({} if gate.longest is None else {"longest": gate.longest})
    return losses(folder, "fig7_gate_types", levels, models=models, axes=axes)


def steps(folder, changes):
    store = Store(folder, "760m-48b", 16_384)
    speeds = dict(zip(("delta_net", "hgrn2", "mamba2", "transformer_llama", "transformer_pro", "fox_llama", "fox_pro"),
                      (7e4, 6e4, 5e4, 4e4, 3e4, 3e4, 2.8e4), strict=True))  # fmt: skip
    for model, speed in speeds.items():
        how = {"params": 10_000_000, "speed": speed, "flops": 1e9} | changes.get(model, {})
        row = synthetic.throughput_row(**how, spread=0.0)
        store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"}, final_loss=None)
    return store.study("table6_throughput")


def pruning(folder, share=0.7, attention=0.4, step=0.8, dropped=0.5, longer=0.01, longer_time=0.9):
    store = Store(folder, "760m-16b", 16_384)
    for place, context in enumerate((1024, 2048)):
        rows = synthetic.pruning_rows([share + place * longer] * 4, context=context, dropped=dropped * math.exp(-10))
        times = {"attention_forward": 0.4, "attention": attention * longer_time**place, "step": step}
        kinds = [("pruning", rows), ("attention_speed", synthetic.speed_rows(times, spread=0.0))]
        spec = {"context_len": context, "tile": 32, "log_tolerance": -10.0}
        axes = {"pruning": "pruned", "context": context}
        store.add("acp", f"context {context}", kinds, model="fox_pro", evaluation=spec, axes=axes)
    return store.study("acp")


def quality(folder, loss=0.0, wikitext=0.0, average=0.0):
    store, columns = Store(folder, "760m-16b", LENGTH), PERPLEXITIES | ACCURACIES
    for rule in ("pruned", "unpruned"):
        by = float(rule == "pruned")
        curve = np.full(16, 3 + by * loss)
        line = {name: 40 + by * (wikitext if name == "wikitext_ppl" else average) for name in columns}
        kinds = [("per_token_loss", synthetic.loss_rows(np.repeat(curve, 4), curve[None])),
                 ("lm_eval", synthetic.lm_eval_rows(line, columns))]  # fmt: skip
        axes = {"pruning": rule, "context": LENGTH}
        store.add("acp_quality", rule, kinds, model="fox_pro", evaluation={"include": "harness"}, axes=axes)
    return store.study("acp_quality")


def far(folder, stick=-0.1, softmax=0.1, apart=0.0, ratio=0.5):
    store = Store(folder, "mini", LENGTH)
    for model, rise, level in (("stick_breaking", stick, 3 + apart), ("transformer_llama", softmax, 3.0)):
        bands = level + np.repeat([0.0, rise], [1, 15])
        weights = pd.DataFrame({"head": 0, "distance": np.arange(16), "weight": ratio ** np.arange(16)})
        kinds = [("per_token_loss", synthetic.loss_rows(np.repeat(bands, LENGTH), bands[None])), ("equal_logits", weights)]
        store.add("stick_extrapolation", model, kinds)
    return store.study("stick_extrapolation")


def kernels(folder, factor, length=4096):
    store = Store(folder, "mini", LENGTH)
    store.add("stick_cost", "stick_breaking", [("throughput", synthetic.throughput_row())], evaluation={"mode": "train"})
    times = (("softmax cuDNN + RoPE", "any", 1.0), ("softmax flash-2 + RoPE", "any", 1.5), ("ours", "long", 1.5 * factor))
    names = measured.SCHEMAS["stick_breaking"].columns
    rows = [
        dict(zip(names, ("today", provider, "forward+backward", logits, "bfloat16", 4, length, 12, 64, ms, ms, ms, 1.0, 0.0),
                 strict=True))
        for provider, logits, ms in times
    ]  # fmt: skip
    measured.add("stick_breaking", rows, "GPU", folder=folder / measured.FOLDER.name)
    return store.study("stick_cost")


def recall(folder, stick, softmax):
    store = Store(folder)
    for model, correct in (("stick_breaking", stick), ("transformer_llama", softmax)):
        rows = pd.DataFrame({"sequence": np.arange(4), "num_queries": 100, "num_correct": correct, "num_stale": 0})
        store.add("stick_recall", "8 keys", [("recall", rows)], model=model, name=model, axes={"num_keys": 8})
    study = store.study("stick_recall")
    for record in study.runs.values():
        record["spec"]["data"]["recall"] = {"num_keys": 8, "num_assignments": 2, "num_queries": 2, "num_symbols": 16}
    return study


def remainder(folder, by):
    axes = {"stick_breaking": {}, WITH: {"stick_remainder": True}}
    levels = {"stick_breaking": 3.0, WITH: 3.0 + by}
    return losses(folder, "stick_remainder", levels, models=dict.fromkeys(axes, "stick_breaking"), axes=axes)


LM = {
    "C17": ("table1_lm_eval", SEVEN),
    "C20": ("table8_lm_eval", SEVEN[:4]),
    "C20b": ("table8_lm_eval", ("fox_pro", "fox_llama", "samba", "transformer_swa", "mamba2")),
    "C20c": ("table7_slimpajama", SEVEN[:5]),
}


def lm(claim, model, column, by):
    stem, models = LM[claim]
    return partial(harness, stem=stem, model=model, column=column, by=by, models=models)


CASES = [
    # claim, rows, verdict
    *((f"C{n}", partial(seven, changes=shifted(a, b, by)), status)
      for n, a, b in ((1, "fox_pro", "transformer_pro"), (1, "fox_llama", "transformer_llama"),
                      (2, "fox_pro", "transformer_pro"), (2, "fox_llama", "transformer_llama"),
                      (6, "fox_pro", "fox_llama"), (6, "transformer_pro", "transformer_llama"))
      for by, status in ((-1e-4, HOLDS), (1e-4, FAILS))),
    *(("C5", partial(seven, changes=shifted(other, "fox_pro", by)), status)
      for other in SEVEN[1:] for by, status in ((1e-4, HOLDS), (-1e-4, FAILS))),
    *(("C3", partial(given, fox=losses), status) for losses, status in (
        ((0.0, -0.01, -0.0071, -0.02, -0.03), HOLDS), ((0.0, -0.01, -0.0069, -0.02, -0.03), FAILS),
        ((0.0, 0.002, 0.004, 0.001, -1e-4), HOLDS), ((0.0, 0.002, 0.004, 0.001, 1e-4), FAILS),
        ((0.01, 0.002, 0.0, -2e-3, -1e-4), HOLDS), ((0.01, 0.002, 0.0, -2e-3, 1e-4), FAILS))),
    *(("C4", partial(given, share=share), status) for share, status in ((0.499, HOLDS), (0.501, FAILS))),
    *(("C21", partial(on_par, gap=gap), status) for gap, status in (
        (1.99, HOLDS), (2.01, FAILS), (-1.99, HOLDS), (-2.01, FAILS))),
    *(("C22", partial(softmax_ahead, gap=gap), status) for gap, status in ((3.01, HOLDS), (2.99, FAILS))),
    *(("C24b", partial(windowed, gap=gap), status) for gap, status in ((-0.01, FAILS), (0.01, FAILS))),
    *((claim, lm(claim, model, column, by), status) for claim, model, column, by, status in (
        ("C17", "hgrn2", "wikitext_ppl", -1.99, HOLDS), ("C17", "hgrn2", "wikitext_ppl", -2.01, FAILS),
        ("C17", "fox_llama", "lambada_ppl", -0.99, HOLDS), ("C17", "fox_llama", "lambada_ppl", -1.01, FAILS),
        ("C17", "mamba2", "avg_acc", 1.99, HOLDS), ("C17", "mamba2", "avg_acc", 2.01, FAILS),
        ("C20", "transformer_pro", "avg_acc", 1.99, HOLDS), ("C20", "transformer_pro", "avg_acc", 2.01, FAILS),
        ("C20", "transformer_llama", "wikitext_ppl", -0.99, HOLDS), ("C20", "transformer_llama", "wikitext_ppl", -1.01, FAILS),
        ("C20b", "samba", "avg_acc", 0.99, HOLDS), ("C20b", "samba", "avg_acc", 1.01, FAILS),
        ("C20b", "transformer_swa", "wikitext_ppl", -0.99, HOLDS), ("C20b", "transformer_swa", "wikitext_ppl", -1.01, FAILS),
        ("C20c", "mamba2", "wikitext_ppl", -1.99, HOLDS), ("C20c", "mamba2", "wikitext_ppl", -2.01, FAILS),
        ("C20c", "transformer_llama", "avg_acc", 0.99, HOLDS), ("C20c", "transformer_llama", "avg_acc", 1.01, FAILS))),
    *(("C22b", partial(needles, softmax=a, recurrent=b), status) for a, b, status in (
        (9.5, 7.0, HOLDS), (9.49, 7.0, FAILS), (10.0, 8.0, HOLDS), (10.0, 8.01, FAILS))),
    *(("C24", partial(more_tokens, inside=a, beyond=b), status) for a, b, status in (
        (-1e-3, 1e-3, HOLDS), (1e-3, 1e-3, FAILS), (-1e-3, -1e-3, FAILS))),
    *(("C25", partial(leads, panel="context", values={"1k": 0.1, "2k": 0.1 + by}), status)
      for by, status in ((1e-3, HOLDS), (-1e-3, FAILS))),
    *(("C25b", partial(leads, panel="size", values={"25M": 0.1, "50M": by}), status)
      for by, status in ((1e-3, HOLDS), (-1e-3, FAILS))),
    *(("C26", partial(gates, changed=DATA_DEPENDENT, by=by), status) for by, status in ((0.099, HOLDS), (0.101, FAILS))),
    *(("C26b", partial(gates, changed=Gate("bias_only", 64), by=by), status) for by, status in ((0.0, HOLDS), (1e-3, FAILS))),
    *((claim, partial(steps, changes={"fox_pro": change}), status) for claim, change, status in (
        ("C27", {"params": 10_029_000}, Status.BY_CONSTRUCTION), ("C27", {"params": 10_031_000}, FAILS),
        ("C28", {"flops": 1.0049e9}, Status.BY_CONSTRUCTION), ("C28", {"flops": 1.0051e9}, FAILS),
        ("C30", {"speed": 25_501.0}, HOLDS), ("C30", {"speed": 25_499.0}, FAILS), ("C29", {}, HOLDS))),
    *(("C29", partial(steps, changes={slow: {"speed": speed}}), FAILS) for slow, speed in (
        ("delta_net", 5.9e4), ("hgrn2", 4.9e4), ("mamba2", 3.9e4), ("transformer_llama", 2.9e4), ("fox_llama", 2.7e4),
        ("transformer_pro", 2.7e4))),
    *((claim, partial(pruning, **how), status) for claim, how, status in (
        ("A1", {"share": 0.601}, HOLDS), ("A1", {"share": 0.599}, FAILS), ("A1", {"share": 0.839}, HOLDS),
        ("A1", {"share": 0.841}, EXCEEDS), ("A3", {"attention": 0.499, "longer_time": 1}, HOLDS),
        ("A3", {"attention": 0.501, "longer_time": 1}, FAILS), ("A3", {"attention": 0.301, "longer_time": 1}, HOLDS),
        ("A3", {"attention": 0.299, "longer_time": 1}, EXCEEDS), ("A4", {"step": 1 / 1.101}, HOLDS),
        ("A4", {"step": 1 / 1.099}, FAILS), ("A4", {"step": 1 / 1.399}, HOLDS), ("A4", {"step": 1 / 1.401}, EXCEEDS),
        ("A5", {"longer": 0.001, "longer_time": 0.999}, HOLDS), ("A5", {"longer": -0.001, "longer_time": 0.999}, FAILS),
        ("A5", {"longer": 0.001, "longer_time": 1.001}, FAILS), ("A7", {"dropped": 0.999}, Status.BY_CONSTRUCTION),
        ("A7", {"dropped": 1.001}, FAILS))),
    *(("A6", partial(quality, **{name: sign * part * margin}), status)
      for name, margin in (("loss", LOSS_MARGIN), ("loss", math.log1p(0.5 / 28)), ("wikitext", 0.5), ("average", 1.0))
      for sign in (1, -1) for part, status in ((0.99, HOLDS), (1.01, FAILS))),
    *((claim, partial(far, **how), status) for claim, how, status in (
        ("S2", {"stick": -1e-3}, HOLDS), ("S2", {"stick": 1e-3}, FAILS), ("S3", {"softmax": 1e-3}, HOLDS),
        ("S3", {"softmax": -1e-3}, FAILS), ("S4", {"apart": 0.049}, HOLDS), ("S4", {"apart": 0.051}, FAILS),
        ("S6", {"ratio": 0.509}, Status.BY_CONSTRUCTION), ("S6", {"ratio": 0.511}, FAILS),
        ("S6", {"ratio": 0.489}, FAILS))),
    *(("S5", partial(kernels, factor=factor, length=length), status) for factor, length, status in (
        (1.39, 4096, HOLDS), (1.41, 4096, FAILS), (1.41, 16_384, FAILS), (1.41, 2048, Status.NOT_MEASURED),
        (1.41, 32_768, Status.NOT_MEASURED))),
    *(("S7", partial(recall, stick=a, softmax=b), status) for a, b, status in (
        (51, 50, HOLDS), (50, 50, HOLDS), (49, 50, FAILS), (51, 49, Status.UNDECIDED))),
    *(("S8", partial(remainder, by=by), status) for by, status in ((1e-3, HOLDS), (-1e-3, FAILS))),
]  # fmt: skip
ELSEWHERE = {
    *(f"C{n}" for n in range(7, 17)), "C31", "C18", "C19",
    "C22c", "C23",  # fox/test_tasks.py and test_scale.py
    "A8", "S1",  # acp/test_pruning.py; S1 compares nothing
}  # fmt: skip


@pytest.mark.parametrize(("claim", "rows", "status"), CASES, ids=[f"{place}-{case[0]}" for place, case in enumerate(CASES)])
def test_boundaries(claim, rows, status, tmp_path):
    assert claims()[claim].predicate(rows(tmp_path)).status is status


def test_every_claim_has_one():
    assert {claim for claim, _, _ in CASES} | ELSEWHERE == set(claims())
