"""Every claim on the paper's own numbers and on rows made to break it, on both sides of each of its bounds: one table."""

import copy
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis.harness import ACCURACIES, COLUMNS, PERPLEXITIES
from analysis.names import RECURRENT
from analysis.paper import paper_scores
from analysis.verdict import Status, judge
from experiments.acp.acp_quality import LOSS_MARGIN
from experiments.artefact import artefacts, claims
from experiments.fox.fig7_gate_types import CONSTANT, DATA_DEPENDENT, SIZES, Gate
from experiments.fox.table2_longbench import TASKS
from experiments.fox.table3_ablation import PRINTED
from experiments.scales import MINIS
from experiments.stick_breaking.stick_remainder import WITH
from results import measured
from tests import synthetic
from tests.synthetic import SEVEN, Store

HOLDS, FAILS, EXCEEDS, NOISE = Status.HOLDS, Status.FAILS, Status.EXCEEDS, Status.WITHIN_NOISE
ABSENT, OPEN, BUILT, OTHER = Status.NOT_MEASURED, Status.UNDECIDED, Status.BY_CONSTRUCTION, Status.NOT_APPLICABLE
LENGTH = 64
PAPER, LOCAL = {"include": "harness", "dataset": "hub"}, {"include": "local:1f", "dataset": "local:1f"}


def losses(folder, stem, levels, *, models=None, axes=None, lens=None, train=None, noise=0.0, seeds=1, times=16, kinds=None):
    """Curves of one document, or of 16 with noise in every band: a level by label, or one for every eighth of the training
    context, of which the last goes on to 16 `times` its length; or those and another one beyond."""
    store, rng = Store(folder, "mini", LENGTH), np.random.default_rng(0)
    for label, level in levels.items():
        length, level = (lens or {}).get(label, LENGTH), np.asarray(level, float)
        inside, beyond = (level[0], level[1, 0]) if level.ndim > 1 else (np.broadcast_to(level, 8), level.flat[-1])
        bands_K = np.concatenate([np.repeat(inside, 2), np.full(16 * (times - 1), beyond)])
        for seed in range(seeds):
            bands_DK = bands_K + noise * rng.normal(size=(16 if noise else 1, len(bands_K)))
            rows = [("per_token_loss", synthetic.loss_rows(np.repeat(bands_DK.mean(axis=0), length // 16), bands_DK))]
            spec = {"seq_len": length, "batch_tokens": 8 * length} | (train or {}).get(label, {})
            how = dict(model=(models or {}).get(label, label), axes=(axes or {}).get(label), train=spec, seed=seed)
            store.add(stem, label, rows + (kinds or {}).get(label, []), **how)
    return store.study(stem)


def seven(folder, changes=lambda levels: {}, without=(), **how):
    """FoX 0.1 below the Transformer and Pro 0.2 below LLaMA, all falling alike; the recurrent models last and flat."""
    fall = np.linspace(0.08, 0, 8)
    base = {"fox_pro": 3.0, "transformer_pro": 3.1, "fox_llama": 3.2, "transformer_llama": 3.3}
    levels = {model: level + fall for model, level in base.items()} | dict.fromkeys(RECURRENT, np.full(8, 3.5))
    levels = {model: level for model, level in (levels | changes(levels)).items() if model not in without}
    return losses(folder, "fig2_per_token_loss", levels, **how)


def shifted(model, other, by):
    """`model` apart from `other` by so much, everywhere or by eighths."""
    return lambda levels: {model: levels[other] + np.asarray(by)}


def beyond(model, level):
    """`model` with another level beyond the training context."""
    return lambda levels: {model: np.stack([levels[model], np.full(8, level)])}


def given(folder, fox=(0.0, -0.01, -0.02, -0.03, -0.04), share=0.4, far=0.0, before=0.0, without=(), noise=0.0):
    """Losses given 32, 64, 128, 160 and 224 tokens; of the recurrent models a share of what FoX gains from 160 on, and HGRN2
    `before` more until then; FoX `far` higher beyond the training context."""
    store, rng = Store(folder), np.random.default_rng(0)
    recurrent = (0.0, 0.0, 0.0, 0.0, share * (fox[4] - fox[3]))
    for model, by in {"fox_pro": fox, "fox_llama": fox, **dict.fromkeys(RECURRENT, recurrent)}.items():
        by = np.add(by, [before, 0, 0, 0, 0]) if model == "hgrn2" else by
        loss = {context: 3.0 + far * (context > 256 and model == "fox_pro") for context in synthetic.CONTEXTS}
        loss |= {context: 3.0 + each for context, each in zip((32, 64, 128, 160, 224), by, strict=True)}
        rows = synthetic.context_rows(loss.__getitem__, rng, noise=noise)
        if model not in without:
            store.add("context_use", model, [("context_use", rows)], evaluation={"targets": 32})
    return store.study("context_use")


def scores(folder, score_by_model, stem="table2_longbench"):
    store = Store(folder, "760m-48b", 16_384)
    for model, score in score_by_model.items():
        store.add(stem, model, [("longbench", synthetic.longbench_rows(dict.fromkeys(TASKS, score)))], evaluation=PAPER)
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
        store.add(stem, name, [("lm_eval", synthetic.lm_eval_rows(line, columns))], evaluation=PAPER)
    return store.study(stem)


def printed(folder, stem, scale="760m-48b", change=lambda table: None, stderr=math.nan, examples=1, evaluation=PAPER):
    """The paper's own table, changed."""
    table, store, rng = copy.deepcopy(paper_scores(stem, scale)), Store(folder, scale, 16_384), np.random.default_rng(0)
    change(table)
    for model, line in table.items():
        if "longbench" in stem:
            rows = ("longbench", synthetic.longbench_rows(line, rng if examples > 1 else None, examples))
        else:
            rows = ("lm_eval", synthetic.lm_eval_rows(line, PERPLEXITIES | ACCURACIES, stderr))
        store.add(stem, model, [rows], evaluation=evaluation)
    return store.study(stem)


def equal(*columns, one="fox_pro", other="transformer_pro"):
    """Ties, which are no wins."""
    return lambda table: table[one].update({column: table[other][column] for column in columns})


def moved(model, by, columns=None):
    return lambda table: table[model].update({c: v + by for c, v in table[model].items() if c in (columns or table[model])})


def only(*models):
    return lambda table: [table.pop(model) for model in [*table] if model not in models]


def without_column(column):
    return lambda table: [line.pop(column) for line in table.values()]


def ablation(folder, changes=None, noise=0.0, seeds=1):
    """Table 3's own perplexities, changed or (None) left out."""
    values = {label: line["ppl"] for label, line in PRINTED.items()} | (changes or {})
    levels = {label: math.log(value) for label, value in values.items() if value is not None}
    return losses(folder, "table3_ablation", levels, models=dict.fromkeys(levels, "fox_pro"), noise=noise, seeds=seeds)


def needles(folder, change=lambda model, rows: rows, recall=None, choices=None):
    """The paper's shapes, changed; recall that falls from model to model; shares of choices by model."""
    store, rng = Store(folder, "760m-48b", 16_384), np.random.default_rng(1)
    grid = dict(train_len=16_384, lengths=(1000, 7200, 25800), depths=(0.0, 50.0))
    for place, model in enumerate(SEVEN):
        kinds = [("needle", change(model, synthetic.needle_rows(model, rng)))]
        if recall is not None:
            kinds.append(("needle_recall", synthetic.recall_rows(rng, recall - 0.6 * place, samples=64, **grid)))
        if choices is not None:
            kinds.append(("needle_choice", synthetic.choice_rows(rng, choices(model), samples=64, **grid)))
        store.add("fig4_needle", model, kinds)
    return store.study("fig4_needle")


def scored(score, where=lambda model, rows: True):
    """Scores that are all the same where it says so."""
    return lambda model, rows: rows.assign(score=np.where(where(model, rows), score, rows["score"]))


def all_scored(softmax, recurrent):
    return lambda model, rows: rows.assign(score=recurrent if model in RECURRENT else softmax)


def leads(folder, panel, values, noise=0.0, **train):
    """FoX's lead by what is varied; `train` of what is shorter than the longest."""
    levels, models, axes, lens, specs = {}, {}, {}, {}, {}
    for place, (value, lead) in enumerate(values.items()):
        for model, level in (("fox_pro", 3.0), ("transformer_pro", 3.0 + lead)):
            label = f"{model} {value}"
            levels[label], models[label], axes[label] = level, model, {"varied": panel, "value": value}
            lens[label] = LENGTH * 2**place if panel == "context" else LENGTH
            specs[label] = {key: each for key, each in train.items() if key != "piece_len" or place < len(values) - 1}
    return losses(folder, "fig6_scale", levels, models=models, axes=axes, lens=lens, train=specs, noise=noise)


def more_tokens(folder, inside, beyond, recall=None):
    axes = {f"{tokens} tokens": {"train_tokens": tokens, "peak_lr": 1e-3} for tokens in (1000, 2000)}
    levels = {"1000 tokens": np.full((2, 8), 3.0), "2000 tokens": np.array([[3 + inside] * 8, [3 + beyond] * 8])}
    how = dict(train_len=LENGTH, lengths=(32, 96, 128), modes=("easy",))
    kinds = {label: [("needle_recall", synthetic.recall_rows(np.random.default_rng(1), each, **how))]
             for label, each in zip(axes, recall or (), strict=False)}  # fmt: skip
    models = dict.fromkeys(axes, "fox_pro")
    return losses(folder, "fig5_tokens_and_lr", levels, models=models, axes=axes, train=axes, kinds=kinds)


def gates(folder, changes, without=()):
    """Losses of FoX with its gate 0.1 below those with constant gates, changed by (model, gate)."""
    levels, models, axes = {}, {}, {}
    for model in ("fox_pro", "fox_llama"):
        constant = [Gate(kind, longest) for kind in CONSTANT for longest in SIZES[MINIS]]
        for gate, level in ((DATA_DEPENDENT, 3.0), *((gate, 3.1) for gate in constant)):
            if (model, gate) not in without:
                label = f"{model} {gate}"
                levels[label], models[label] = level + changes.get((model, gate), 0.0), model
                axes[label] = {"gate": gate.kind} | ({} if gate.longest is None else {"longest": gate.longest})
    return losses(folder, "fig7_gate_types", levels, models=models, axes=axes)


BEST = {"fox_pro": 2e-3, "transformer_pro": 1e-3, "fox_llama": 1e-3, "transformer_llama": 5e-4}


def rates(folder, changes=None, noise=1e-3, models=tuple(BEST)):
    """The lowest losses at the best rates of Table 5, changed, 0.05 nats a doubling away."""
    best, levels, axes = BEST | (changes or {}), {}, {}
    for model in models:
        for rate in (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3):
            levels[f"{model}, LR {rate:g}"], axes[f"{model}, LR {rate:g}"] = 3 + 0.05 * abs(math.log2(rate / best[model])), rate
    own = {label: {"peak_lr": rate} for label, rate in axes.items()}
    named = {label: label.partition(",")[0] for label in levels}
    return losses(folder, "table_lr_grid", levels, models=named, axes=own, train=own, noise=noise)


def steps(folder, changes=None, spread=0.0, models=SEVEN):
    """Table 6, changed."""
    store, flops = Store(folder, "760m-48b", 16_384), (2.7268, 2.7233, 2.7232, 2.7215, 1.6546, 1.5372, 1.5436)
    order = ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama", "mamba2", "hgrn2", "delta_net")
    for model, each in zip(order, flops, strict=True):
        line = paper_scores("table6_throughput", "760m-48b")[model]
        how = {"params": int(line["params_millions"] * 1e6), "speed": line["throughput_tokens_per_s"], "flops": each * 1e9}
        if model in models:
            row = synthetic.throughput_row(**how | (changes or {}).get(model, {}), spread=spread)
            own = dict(evaluation={"mode": "train"}, spec={"vocab_size": 50257}, final_loss=None)
            store.add("table6_throughput", model, [("throughput", row)], **own)
    return store.study("table6_throughput")


def others(**how):
    """The same of all that FoX (Pro) is compared with."""
    return dict.fromkeys(SEVEN[1:4], how)


def pruning(folder, heads=(0.7,) * 4, attention=0.4, step=0.8, dropped=0.5, longer=0.01, longer_time=0.9, noise=0.0, on="GPU"):
    """Shares of tiles that heads skip, and of time that is left, at two contexts."""
    store = Store(folder, "760m-16b", 16_384)
    for place, context in enumerate((1024, 2048)):
        own = [share + place * longer for share in heads]
        rows = synthetic.pruning_rows(own, context=context, dropped=dropped * math.exp(-10), noise=noise)
        times = {"attention_forward": 0.4, "attention": attention * longer_time**place, "step": step}
        kinds = [("pruning", rows), ("attention_speed", synthetic.speed_rows(times, spread=0.0, machine=on))]
        spec = {"context_len": context, "tile": 32, "log_tolerance": -10.0}
        axes = {"pruning": "pruned", "context": context}
        store.add("acp", f"context {context}", kinds, model="fox_pro", evaluation=spec, axes=axes)
    return store.study("acp")


def quality(folder, loss=0.0, wikitext=0.0, average=0.0, noise=0.0, evaluation=PAPER):
    """The paper's pair at 16k with equal losses, changed by so much where it is pruned."""
    store, rng = Store(folder, "760m-16b", LENGTH), np.random.default_rng(0)
    for rule in ("pruned", "unpruned"):
        by = float(rule == "pruned")
        bands_DK = 3 + by * loss + noise * rng.normal(size=(16 if noise else 1, 16))
        line = {name: 40 + by * (wikitext if name == "wikitext_ppl" else average) for name in COLUMNS}
        kinds = [("per_token_loss", synthetic.loss_rows(np.repeat(bands_DK.mean(axis=0), 4), bands_DK)),
                 ("lm_eval", synthetic.lm_eval_rows(line, PERPLEXITIES | ACCURACIES))]  # fmt: skip
        axes = {"pruning": rule, "context": LENGTH}
        store.add("acp_quality", rule, kinds, model="fox_pro", evaluation=evaluation, axes=axes)
    return store.study("acp_quality")


def far(folder, stick=-0.1, softmax=0.1, apart=0.0, ratio=0.5, models=("stick_breaking", "transformer_llama"), times=16):
    store = Store(folder, "mini", LENGTH)
    for model, rise, level in (("stick_breaking", stick, 3 + apart), ("transformer_llama", softmax, 3.0)):
        bands = level + np.repeat([0.0, rise], [1, times - 1])
        weights = pd.DataFrame({"head": 0, "distance": np.arange(16), "weight": ratio ** np.arange(16)})
        kinds = [("per_token_loss", synthetic.loss_rows(np.repeat(bands, LENGTH), bands[None])), ("equal_logits", weights)]
        if model in models:
            store.add("stick_extrapolation", model, kinds)
    return store.study("stick_extrapolation")


def kernels(folder, factor=None, length=4096):
    """Times of ours that are so many times those of FlashAttention-2."""
    store = Store(folder, "mini", LENGTH)
    store.add("stick_cost", "stick_breaking", [("throughput", synthetic.throughput_row())], evaluation={"mode": "train"})
    times = (
        ("softmax cuDNN + RoPE", "any", 1.0),
        ("softmax flash-2 + RoPE", "any", 1.5),
        ("ours", "long", 1.5 * (factor or 0)),
    )
    names = measured.SCHEMAS["stick_breaking"].columns
    rows = [
        dict(zip(names, ("today", provider, "forward+backward", logits, "bfloat16", 4, length, 12, 64, ms, ms, ms, 1.0, 0.0),
                 strict=True))
        for provider, logits, ms in times
    ]  # fmt: skip
    if factor:
        measured.add("stick_breaking", rows, "GPU", folder=folder / measured.FOLDER.name)
    return store.study("stick_cost")


def recall(folder, *shares):
    """Right answers of 100, of stick-breaking and of softmax, by number of keys; None: not trained."""
    store = Store(folder)
    for num_keys, each in enumerate(shares, 8):
        for model, correct in zip(("stick_breaking", "transformer_llama"), each, strict=True):
            rows = pd.DataFrame({"sequence": np.arange(4), "num_queries": 100, "num_correct": correct, "num_stale": 0})
            name, axes = f"{model} {num_keys}", {"num_keys": num_keys}
            if correct is not None:
                store.add("stick_recall", f"{num_keys} keys", [("recall", rows)], model=model, name=name, axes=axes)
    study = store.study("stick_recall")
    for record in study.runs.values():
        record["spec"]["data"]["recall"] = {"num_keys": 8, "num_assignments": 2, "num_queries": 2, "num_symbols": 16}
    return study


def remainder(folder, by, noise=0.0):
    axes = {"stick_breaking": {}, WITH: {"stick_remainder": True}}
    levels, models = {"stick_breaking": 3.0, WITH: 3.0 + by}, dict.fromkeys(axes, "stick_breaking")
    return losses(folder, "stick_remainder", levels, models=models, axes=axes, noise=noise)


LM = {
    "C17": ("table1_lm_eval", SEVEN),
    "C20": ("table8_lm_eval", SEVEN[:4]),
    "C20b": ("table8_lm_eval", ("fox_pro", "fox_llama", "samba", "transformer_swa", "mamba2")),
    "C20c": ("table7_slimpajama", SEVEN[:5]),
}
TABLES = {
    "C17": ("table1_lm_eval", "760m-48b"), "C18": ("table1_lm_eval", "760m-48b"), "C19": ("table1_lm_eval", "760m-48b"),
    "C20": ("table8_lm_eval", "760m-16b"), "C20b": ("table8_lm_eval", "760m-16b"),
    "C20c": ("table7_slimpajama", "340m-slimpajama"), "C21": ("table2_longbench", "760m-48b"),
    "C22": ("table2_longbench", "760m-48b"), "C24b": ("table9_longbench", "760m-16b"),
}  # fmt: skip
FLOOR, TEN = scored(1.0), COLUMNS[2:]


def paper(claim, status=HOLDS, **how):
    stem, scale = TABLES[claim]
    return claim, partial(printed, **{"stem": stem, "scale": scale} | how), status


def lm(claim, model, column, by):
    stem, models = LM[claim]
    return partial(harness, stem=stem, model=model, column=column, by=by, models=models)


def guessing(**shares):
    """At the floor, with these shares of right choices, and others that guess."""
    return partial(needles, change=FLOOR, choices=lambda model: shares.get(model, 0.1))


CASES = [
    # claim, rows, verdict
    *((f"C{n}", partial(seven, changes=shifted(a, b, by)), status)
      for n, a, b in ((1, "fox_pro", "transformer_pro"), (1, "fox_llama", "transformer_llama"),
                      (2, "fox_pro", "transformer_pro"), (2, "fox_llama", "transformer_llama"),
                      (6, "fox_pro", "fox_llama"), (6, "transformer_pro", "transformer_llama"))
      for by, status in ((-1e-4, HOLDS), (1e-4, FAILS))),
    *(("C5", partial(seven, changes=shifted(other, "fox_pro", by)), status)
      for other in SEVEN[1:] for by, status in ((1e-4, HOLDS), (-1e-4, FAILS))),
    *((f"C{n}", partial(seven, **how), status) for n, how, status in (
        (1, dict(changes=shifted("fox_llama", "fox_llama", [0.3, 0.3, 0, 0, 0, 0, 0, 0])), FAILS),
        (1, dict(changes=shifted("transformer_pro", "fox_pro", 0.0)), FAILS),
        (1, dict(changes=shifted("transformer_pro", "fox_pro", 0.002), noise=0.1), NOISE),
        *((n, dict(without=("fox_pro",)), ABSENT) for n in (1, 2, 6)),
        (1, dict(without=("fox_pro",), changes=shifted("fox_llama", "fox_llama", 9.0)), FAILS),
        (1, dict(times=1), HOLDS), (2, dict(times=1), OTHER), (5, dict(without=("delta_net",)), ABSENT),
        (2, dict(changes=beyond("transformer_pro", math.inf)), HOLDS), (2, dict(changes=beyond("fox_pro", math.inf)), FAILS),
        (2, dict(changes=beyond("transformer_pro", 0.5)), FAILS), (1, dict(changes=beyond("transformer_pro", 0.5)), HOLDS),
        (5, dict(changes=beyond("fox_pro", 50.0)), HOLDS), (6, dict(changes=beyond("fox_pro", 50.0)), HOLDS))),
    *((claim, partial(given, **how), status) for claim, how, status in (
        ("C3", {"fox": (0.0, -0.01, -0.0071, -0.02, -0.03)}, HOLDS),
        ("C3", {"fox": (0.0, -0.01, -0.0069, -0.02, -0.03)}, FAILS),
        ("C3", {"fox": (0.0, 0.002, 0.004, 0.001, -1e-4)}, HOLDS), ("C3", {"fox": (0.0, 0.002, 0.004, 0.001, 1e-4)}, FAILS),
        ("C3", {"fox": (0.01, 0.002, 0.0, -2e-3, -1e-4)}, HOLDS), ("C3", {"fox": (0.01, 0.002, 0.0, -2e-3, 1e-4)}, FAILS),
        ("C3", {"far": 5.0}, HOLDS), ("C3", {"without": ("fox_llama",)}, ABSENT),
        ("C3", {"fox": (0.0,) * 5, "noise": 1e-3}, NOISE),
        ("C4", {"share": 0.499}, HOLDS), ("C4", {"share": 0.501}, FAILS), ("C4", {"before": 0.5}, HOLDS),
        ("C4", {"fox": (0.0,) * 5, "noise": 1e-3}, OPEN), ("C4", {"without": ("hgrn2",)}, ABSENT))),
    *((f"C{n}", ablation, HOLDS) for n in range(7, 17)),
    *((claim, partial(ablation, changes={label: ppl}), status) for claim, label, ppl, status in (
        ("C7", "FoX (Pro) + RoPE", 6.605, HOLDS), ("C7", "FoX (Pro) + RoPE", 6.59, FAILS),
        ("C8", "FoX (LLaMA) + RoPE", 7.16, HOLDS), ("C8", "FoX (LLaMA) + RoPE", 7.14, FAILS),
        ("C8", "FoX (LLaMA) + RoPE", 7.26, EXCEEDS), ("C9", "FoX (LLaMA)", 7.50, FAILS),
        ("C10", "FoX (LLaMA) + RoPE", 7.50, FAILS), ("C11", "Transformer (LLaMA) w/o RoPE", 15.1, HOLDS),
        ("C11", "Transformer (LLaMA) w/o RoPE", 14.9, FAILS), ("C12", "FoX (Pro) - forget gate", 7.99, HOLDS),
        ("C12", "FoX (Pro) - forget gate", 8.01, FAILS), ("C12", "FoX (Pro) - forget gate", 6.81, FAILS),
        ("C13", "FoX (LLaMA) + QK-norm", 7.26, FAILS),
        ("C13", "FoX (LLaMA) + QK-norm + output gate + output norm", 6.61, FAILS),
        ("C14", "FoX (Pro) - output norm", 6.61, FAILS), ("C15", "FoX (Pro) - output norm", 6.80, FAILS),
        ("C15", "FoX (Pro) - QK-norm", 6.87, FAILS), ("C16", "FoX (Pro) - forget gate + RoPE", 6.73, FAILS),
        ("C16", "FoX (Pro) - forget gate + RoPE", 6.89, HOLDS), ("C16", "FoX (Pro) - forget gate + RoPE", 6.91, EXCEEDS))),
    ("C11", partial(ablation, noise=0.4, seeds=2), HOLDS), ("C7", partial(ablation, noise=0.4, seeds=2), NOISE),
    *(paper(claim) for claim in TABLES), paper("C21", scale="760m-16b", stem="table9_longbench"),
    *(paper(claim, OTHER, evaluation=LOCAL) for claim in TABLES),
    *(paper(claim, NOISE, stderr=1.0) for claim in ("C17", "C20", "C20b", "C20c")),
    paper("C17", FAILS, change=moved("fox_pro", -1, ACCURACIES)), paper("C17", ABSENT, change=without_column("copa_acc")),
    paper("C18", change=equal(*TEN[:2])), paper("C18", FAILS, change=equal(*TEN[:3])),
    paper("C18", NOISE, change=equal(*TEN[:3]), stderr=1.0),
    paper("C18", ABSENT, change=only("fox_llama", "transformer_llama")),
    paper("C19", FAILS, change=equal(*TEN[:3], other="fox_llama")), paper("C19", ABSENT, change=without_column("copa_acc")),
    paper("C20", FAILS, change=moved("transformer_pro", 2.0, ACCURACIES)),
    paper("C20b", FAILS, change=moved("mamba2", -6.0, ("wikitext_ppl",))),
    paper("C20b", ABSENT, change=lambda table: table.pop("samba")),
    paper("C20c", FAILS, change=moved("transformer_pro", -1.0, ("wikitext_ppl",))),
    paper("C21", NOISE, change=only(*SEVEN[:4]), examples=200), paper("C21", change=only(*SEVEN[:4]), examples=2000),
    paper("C22", ABSENT, scale="760m-16b", stem="table9_longbench"),
    paper("C22", change=moved("hgrn2", 50, ("lcc", "repobench_p"))),
    paper("C22", FAILS, change=lambda table: (moved("hgrn2", 5)(table), moved("hgrn2", -15, ("lcc", "repobench_p"))(table))),
    paper("C24b", FAILS, change=moved("samba", 9)), paper("C24b", ABSENT, change=only("fox_pro", "samba")),
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
    *((claim, needles, HOLDS) for claim in ("C22b", "C22c", "C23")),
    *(("C22b", partial(needles, change=all_scored(a, b)), status) for a, b, status in (
        (9.5, 7.0, HOLDS), (9.49, 7.0, FAILS), (10.0, 8.0, HOLDS), (10.0, 8.01, FAILS))),
    *((claim, partial(needles, change=scored(score, where)), status) for claim, score, where, status in (
        ("C22b", 1, lambda m, r: m.startswith("fox") & ((r["mode"] == "standard") | (r["length"] > 13_400)), HOLDS),
        ("C22b", 1, lambda m, r: (m == "fox_llama") & (r["length"] <= 5000), FAILS),
        ("C22b", 9, lambda m, r: m == "mamba2", FAILS), ("C22c", 10, lambda m, r: True, HOLDS),
        ("C22c", 5, lambda m, r: (m == "fox_pro") & (r["mode"] == "standard"), FAILS),
        ("C23", 10, lambda m, r: (m == "transformer_llama") & (r["length"] > 19_000), FAILS))),
    ("C22c", partial(needles, change=lambda m, r: r.assign(
        score=np.where((m == "fox_pro") & (r["length"] == 1000) & (r["depth"] == 0), 7.0, 10.0))), NOISE),
    *((claim, partial(needles, change=FLOOR), OTHER) for claim in ("C22b", "C22c", "C23")),
    ("C22b", partial(needles, change=FLOOR, recall=3.0), OTHER), ("C22c", partial(needles, change=FLOOR, recall=3.0), HOLDS),
    ("C22b", guessing(**dict.fromkeys(SEVEN[:4], 1.24), **dict.fromkeys(RECURRENT, 0.3)), HOLDS),
    ("C22b", guessing(**dict.fromkeys(SEVEN, 0.9)), FAILS),
    ("C22c", guessing(**dict.fromkeys(SEVEN, 0.9) | {"fox_pro": 0.3}), FAILS),
    *((claim, guessing(), OTHER) for claim in ("C22b", "C22c", "C23")),
    *((claim, guessing(fox_pro=0.9, transformer_pro=0.5), status) for claim, status in (
        ("C22b", FAILS), ("C22c", OPEN), ("C23", OPEN))),
    ("C22b", guessing(fox_pro=1.24, transformer_pro=1.24), OPEN),
    *(("C24", partial(more_tokens, inside=a, beyond=b, recall=c), status) for a, b, c, status in (
        (-1e-3, 1e-3, None, HOLDS), (1e-3, 1e-3, None, FAILS), (-1e-3, -1e-3, None, FAILS),
        (-1e-3, -1e-3, (9.0, 3.0), HOLDS), (-1e-3, -1e-3, (3.0, 9.0), FAILS))),
    *(("C25", partial(leads, panel="context", values=values, **how), status) for values, how, status in (
        ({"1k": 0.1, "2k": 0.101}, {}, HOLDS), ({"1k": 0.1, "2k": 0.099}, {}, FAILS), ({"1k": 0.1}, {}, ABSENT),
        ({"1k": 0.1, "2k": 0.1}, {"noise": 1e-3}, NOISE), ({"1k": 0.1, "2k": 0.101}, {"batch_tokens": 512}, OPEN),
        ({"1k": 0.1, "2k": 0.099}, {"batch_tokens": 512}, FAILS),
        ({"1k": 0.1, "2k": 0.101}, {"batch_tokens": 512, "piece_len": 128}, HOLDS))),
    *(("C25b", partial(leads, panel="size", values={"25M": 0.1, "50M": by}), status)
      for by, status in ((1e-3, HOLDS), (-1e-3, FAILS))), ("C25b", partial(leads, panel="size", values={"25M": 0.1}), ABSENT),
    *((claim, partial(gates, changes={("fox_pro", gate): by}), status) for claim, gate, by, status in (
        ("C26", DATA_DEPENDENT, 0.099, HOLDS), ("C26", DATA_DEPENDENT, 0.101, FAILS),
        ("C26b", Gate("bias_only", 64), 0.0, HOLDS), ("C26b", Gate("bias_only", 64), 1e-3, FAILS))),
    *((claim, partial(gates, changes=changes, without=without), status) for claim, changes, without, status in (
        ("C26", {}, {("fox_pro", Gate("fixed", 64))}, OPEN), ("C26b", {}, {("fox_pro", Gate("fixed", 64))}, OPEN),
        ("C26", {("fox_llama", Gate("fixed", 64)): -1.0}, {("fox_pro", Gate("fixed", 64))}, FAILS),
        ("C26", {}, {("fox_pro", DATA_DEPENDENT)}, OPEN),
        ("C26b", {}, {(m, Gate("fixed", n)) for m in ("fox_pro", "fox_llama") for n in SIZES[MINIS]}, ABSENT))),
    *((claim, partial(steps, **how), status) for claim, how, status in (
        ("C27", {}, BUILT), ("C28", {}, BUILT), ("C29", {}, HOLDS), ("C30", {}, HOLDS),
        *((claim, {"models": SEVEN[:2]}, BUILT) for claim in ("C27", "C28")),
        ("C29", {"models": SEVEN[:2]}, ABSENT), ("C30", {"models": SEVEN[:2]}, HOLDS),
        ("C29", {"spread": 0.005}, HOLDS), ("C29", {"spread": 0.03}, NOISE), ("C30", {"spread": 0.1}, NOISE),
        *(("C30", {"changes": {"fox_pro": {"speed": own}, "transformer_pro": {"speed": 30_000}}}, status)
          for own, status in ((25_501, HOLDS), (25_499, FAILS))),
        ("C27", {"changes": others(params=10**7) | {"fox_pro": {"params": 10_029_000}}}, BUILT),
        ("C27", {"changes": others(params=10**7) | {"fox_pro": {"params": 10_031_000}}}, FAILS),
        ("C28", {"changes": others(flops=1e9) | {"fox_pro": {"flops": 1.0049e9}}}, BUILT),
        ("C28", {"changes": others(flops=1e9) | {"fox_pro": {"flops": 1.0051e9}}}, FAILS),
        *(("C29", {"changes": {slow: {"speed": 100.0}}}, FAILS) for slow in (*RECURRENT, "transformer_llama")),
        ("C29", {"changes": {"fox_pro": {"speed": 31_000.0}}}, FAILS))),
    *(("C31", partial(rates, **how), status) for how, status in (
        ({}, HOLDS), ({"changes": {"fox_pro": 1e-3}}, FAILS), ({"changes": {"transformer_pro": 2e-3}}, FAILS),
        ({"changes": {"fox_llama": 5e-4}}, FAILS), ({"noise": 3.0}, NOISE),
        ({"changes": {"transformer_pro": 4e-3}, "models": SEVEN[:2]}, ABSENT))),
    *((claim, partial(pruning, **how), status) for claim, how, status in (
        ("A1", {"heads": (0.601,)}, HOLDS), ("A1", {"heads": (0.599,)}, FAILS), ("A1", {"heads": (0.839,)}, HOLDS),
        ("A1", {"heads": (0.841,)}, EXCEEDS), ("A1", {"heads": (0.68,), "noise": 0.2}, NOISE),
        ("A3", {"attention": 0.499, "longer_time": 1}, HOLDS),
        ("A3", {"attention": 0.501, "longer_time": 1}, FAILS), ("A3", {"attention": 0.301, "longer_time": 1}, HOLDS),
        ("A3", {"attention": 0.299, "longer_time": 1}, EXCEEDS), ("A4", {"step": 1 / 1.101}, HOLDS),
        ("A4", {"step": 1 / 1.099}, FAILS), ("A4", {"step": 1 / 1.399}, HOLDS), ("A4", {"step": 1 / 1.401}, EXCEEDS),
        ("A5", {"longer": 0.001, "longer_time": 0.999}, HOLDS), ("A5", {"longer": -0.001, "longer_time": 0.999}, FAILS),
        ("A5", {"longer": 0.001, "longer_time": 1.001}, FAILS), ("A7", {"dropped": 0.999}, BUILT),
        ("A7", {"dropped": 1.001}, FAILS), ("A8", {"heads": ((0.95,) * 4 + (0.7,) * 4 + (0.2,) * 2) * 10, "longer": 0}, HOLDS),
        ("A8", {"heads": (0.7,) * 20}, FAILS), ("A8", {"heads": (0.95,) * 4 + (0.7,) * 4 + (0.2,) * 2, "longer": 0}, NOISE),
        ("A3", {"on": "Some CPU, 2 cores"}, OTHER), ("A4", {"on": "Some CPU, 2 cores"}, OTHER),
        ("A5", {"on": "Some CPU, 2 cores"}, ABSENT))),
    *(("A6", partial(quality, **{name: sign * part * margin}), status)
      for name, margin in (("loss", LOSS_MARGIN), ("loss", math.log1p(0.5 / 28)), ("wikitext", 0.5), ("average", 1.0))
      for sign in (1, -1) for part, status in ((0.99, HOLDS), (1.01, FAILS))),
    ("A6", partial(quality, noise=0.5), NOISE), ("A6", partial(quality, evaluation=LOCAL), ABSENT),
    *((claim, partial(far, **how), status) for claim, how, status in (
        ("S1", {}, ABSENT), ("S2", {"stick": -1e-3}, HOLDS), ("S2", {"stick": 1e-3}, FAILS), ("S3", {"softmax": 1e-3}, HOLDS),
        ("S3", {"softmax": -1e-3}, FAILS), ("S4", {"apart": 0.049}, HOLDS), ("S4", {"apart": 0.051}, FAILS),
        ("S6", {"ratio": 0.509}, BUILT), ("S6", {"ratio": 0.511}, FAILS), ("S6", {"ratio": 0.489}, FAILS),
        ("S2", {"times": 4}, OTHER), ("S3", {"times": 4}, OTHER), ("S2", {"models": ("transformer_llama",)}, ABSENT),
        ("S3", {"models": ("stick_breaking",)}, ABSENT), ("S4", {"models": ("stick_breaking",)}, ABSENT))),
    *(("S5", partial(kernels, factor=factor, length=length), status) for factor, length, status in (
        (1.39, 4096, HOLDS), (1.41, 4096, FAILS), (1.41, 16_384, FAILS), (1.41, 2048, ABSENT), (1.41, 32_768, ABSENT),
        (None, 4096, ABSENT))),
    *(("S7", lambda folder, shares=shares: recall(folder, *shares), status) for shares, status in (
        ([(51, 50)], HOLDS), ([(50, 50)], HOLDS), ([(49, 50)], FAILS), ([(51, 49)], OPEN), ([(90, 70), (51, 50)], HOLDS),
        ([(90, 70), (49, 50)], FAILS), ([(90, 70), (90, None)], ABSENT))),
    *(("S8", partial(remainder, **how), status) for how, status in (
        ({"by": 1e-3}, HOLDS), ({"by": -1e-3}, FAILS), ({"by": 0.0, "noise": 1e-3}, NOISE))),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "rows", "status"), CASES, ids=[f"{case[0]}-{place}" for place, case in enumerate(CASES)])
def test_what_a_claim_says_of_rows(claim, rows, status, tmp_path):
    assert claims()[claim].predicate(rows(tmp_path)).status is status


def test_every_claim_is_tried_and_declared_once():
    assert {claim for claim, _, _ in CASES} == set(claims())
    assert len(claims()) == sum(len(artefact.claims) for artefact in artefacts().values()) == 53


@pytest.mark.parametrize("label", PRINTED)
def test_no_claim_on_table_3_holds_without_a_line_that_it_needs(label, tmp_path):
    found = judge(artefacts()["table3_ablation"].claims, ablation(tmp_path, {label: None}))
    assert {verdict.status for _, verdict in found} == {HOLDS, ABSENT}
