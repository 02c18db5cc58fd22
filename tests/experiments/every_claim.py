"""Made-up rows for every artefact that has claims: numbers that all differ, so that they tell what is compared."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.harness import ACCURACIES, PERPLEXITIES, SIX
from analysis.names import FAMILIES, PAIRS
from analysis.study import Study
from analysis.tables import Table
from experiments.artefact import Artefact, artefacts
from experiments.fox.fig7_gate_types import DATA_DEPENDENT, SIZES, Gate
from experiments.fox.table2_longbench import TASKS
from experiments.fox.table3_ablation import PRINTED
from experiments.scales import MINIS, WITH_WINDOWS
from experiments.stick_breaking.stick_remainder import WITH
from results import measured
from tests import synthetic
from tests.synthetic import SEVEN, Store

BANDS, TRAIN_LEN = 64, 256
FOUR = tuple(dict.fromkeys(model for pair in (*PAIRS, *FAMILIES) for model in pair))


class Made:
    """A store that is being filled with rows of its own random numbers."""

    def __init__(self, folder: Path, stem: str, train_len: int = TRAIN_LEN):
        self.store, self.stem = Store(folder, "mini", train_len), stem
        self.rng = np.random.default_rng(sum(map(ord, stem)))

    def losses(self, level: float | None = None, *, train_len: int = TRAIN_LEN, times: int = 4) -> pd.DataFrame:
        """Six documents whose loss is another in every band."""
        level = 3 + 0.5 * self.rng.random() if level is None else level
        bands_K = level + 0.1 * self.rng.normal(size=BANDS)
        bands_DK = bands_K + 0.05 * self.rng.normal(size=(6, BANDS))
        return synthetic.loss_rows(np.repeat(bands_DK.mean(axis=0), times * train_len // BANDS), bands_DK)

    def add(self, label: str, *rows: tuple[str, pd.DataFrame], model: str | None = None, **how) -> None:
        self.store.add(self.stem, label, rows, model=model, name=f"{model} {label}", **how)

    def needles(self, lengths: tuple[int, ...]) -> pd.DataFrame:
        rows = synthetic.needle_rows("fox_pro", self.rng, train_len=self.store.train_len, lengths=lengths, samples=2)
        return rows.assign(score=self.rng.choice([1.0, 3.0, 5.0, 7.0, 10.0], size=len(rows)))

    def harness(self, columns: dict) -> pd.DataFrame:
        line = {column: float(30 + 20 * self.rng.random()) for column in columns}
        return synthetic.lm_eval_rows(line, columns, stderr=1.0)

    def longbench(self) -> pd.DataFrame:
        return synthetic.longbench_rows({task: float(40 * self.rng.random()) for task in TASKS}, self.rng, 3)

    def step(self) -> pd.DataFrame:
        speed, params, flops = (float(1 + self.rng.random()) for _ in range(3))
        return synthetic.throughput_row(int(1e6 * params), 4e4 * speed, 0.01, flops=1e9 * flops)


def models(made: Made, names: tuple[str, ...], kind: str, rows: Callable[[], pd.DataFrame], **how) -> None:
    for model in names:
        made.add(model, (kind, rows()), model=model, **how)


def fig2(made: Made) -> None:
    models(made, SEVEN, "per_token_loss", made.losses, extras={"unigram_entropy": 7.0})


def contexts(made: Made) -> None:
    def rows() -> pd.DataFrame:
        loss = {context: 3 + 0.2 * made.rng.random() for context in synthetic.CONTEXTS}
        return synthetic.context_rows(lambda context: loss[context], made.rng, noise=0.01)

    models(made, SEVEN, "context_use", rows, evaluation={"targets": 32})


def fig4(made: Made) -> None:
    models(made, SEVEN, "needle", lambda: made.needles((205, 215, 300, 310, 500, 510)))


def fig5(made: Made) -> None:
    for tokens, rate in ((1000, 1e-3), (2000, 1e-3), (2000, 2e-3), (4000, 1e-3)):
        kinds = ("per_token_loss", made.losses()), ("needle", made.needles((100, 250, 260)))
        axes = {"train_tokens": tokens, "peak_lr": rate}
        made.add(f"{tokens} tokens, LR {rate:g}", *kinds, model="fox_pro", axes=axes, train=axes)


def fig6(made: Made) -> None:
    for panel, values in (("context", (64, 128, 256)), ("size", ("25M", "50M"))):
        for value in values:
            length = value if isinstance(value, int) else TRAIN_LEN
            for model in ("fox_pro", "transformer_pro"):
                rows = ("per_token_loss", made.losses(train_len=length))
                train = {"seq_len": length, "batch_tokens": 8 * length}
                made.add(f"{panel} {value}", rows, model=model, axes={"varied": panel, "value": value}, train=train)


def fig7(made: Made) -> None:
    constant = [Gate(kind, longest) for kind in ("bias_only", "fixed") for longest in SIZES[MINIS]]
    for model in ("fox_llama", "fox_pro"):
        for gate in (DATA_DEPENDENT, *constant):
            axes = {"gate": gate.kind} | ({} if gate.longest is None else {"longest": gate.longest})
            made.add(str(gate), ("per_token_loss", made.losses()), model=model, axes=axes)


def rates(made: Made) -> None:
    best = dict(zip(FOUR, (2e-3, 1e-3, 1e-3, 5e-4), strict=True))
    for model in FOUR:
        for rate in (5e-4, 1e-3, 2e-3, 4e-3):
            rows = made.losses(3 + 0.1 * abs(math.log2(rate / best[model])))
            axes = {"peak_lr": rate}
            made.add(f"{model}, LR {rate:g}", ("per_token_loss", rows), model=model, axes=axes, train=axes)


def table1(made: Made) -> None:
    models(made, SEVEN, "lm_eval", lambda: made.harness(PERPLEXITIES | ACCURACIES), evaluation={"include": "harness"})


def table2(made: Made) -> None:
    models(made, SEVEN, "longbench", made.longbench, evaluation={"dataset": "hub"})


def table3(made: Made) -> None:
    for label in PRINTED:
        made.add(label, ("per_token_loss", made.losses()), model="fox_pro", axes={"label": label})


def table6(made: Made) -> None:
    models(made, SEVEN, "throughput", made.step, evaluation={"mode": "train"}, final_loss=None)


def table7(made: Made) -> None:
    columns = {name: column for name, column in (PERPLEXITIES | ACCURACIES).items() if name in (*PERPLEXITIES, *SIX)}
    models(made, SEVEN[:5], "lm_eval", lambda: made.harness(columns), evaluation={"include": "harness"})


def table8(made: Made) -> None:
    models(made, WITH_WINDOWS, "lm_eval", lambda: made.harness(PERPLEXITIES | ACCURACIES), evaluation={"include": "harness"})


def table9(made: Made) -> None:
    models(made, WITH_WINDOWS, "longbench", made.longbench, evaluation={"dataset": "hub"})


def quality(made: Made) -> None:
    for context in (64, 128):
        for rule in ("pruned", "unpruned"):
            kinds = ("per_token_loss", made.losses(train_len=context)), ("lm_eval", made.harness(PERPLEXITIES | ACCURACIES))
            how = dict(train={"seq_len": context}, evaluation={"include": "harness"})
            made.add(f"{rule}, context {context}", *kinds, model="fox_pro", axes={"pruning": rule, "context": context}, **how)


def pruned(made: Made) -> None:
    for context in (512, 1024):
        skipped = synthetic.pruning_rows(
            [*made.rng.random(8), 0.97, 0.93, 0.87, 0.47], context=context, noise=0.05, documents=4
        )
        own = (skipped["quantity"] == "dropped", skipped["quantity"] == "tiles_pruned")
        skipped.loc[own[0], "value"] = 4e-5 * made.rng.random(own[0].sum())
        ratios = dict(zip(("attention_forward", "attention", "step"), made.rng.random(3), strict=True))
        kinds = ("pruning", skipped), ("attention_speed", synthetic.speed_rows(ratios, spread=0.02))
        how = dict(train={"seq_len": context}, evaluation={"context_len": context, "tile": 32, "log_tolerance": -10.0})
        made.add(f"pruned, context {context}", *kinds, model="fox_pro", axes={"pruning": "pruned", "context": context}, **how)


def stick_far(made: Made) -> None:
    for model in ("stick_breaking", "transformer_llama", "fox_llama"):
        weights = 0.5 ** np.arange(32) * (1 + 0.001 * made.rng.random(32))
        equal = pd.DataFrame({"head": 0, "distance": np.arange(32), "weight": weights})
        made.add(model, ("per_token_loss", made.losses(times=16)), ("equal_logits", equal), model=model)


def stick_recall(made: Made) -> None:
    for num_keys in (4, 8):
        for model in ("stick_breaking", "transformer_llama", "fox_llama"):
            correct = made.rng.binomial(num_keys, 0.5 + 0.5 * made.rng.random(), size=50)
            rows = pd.DataFrame({"sequence": np.arange(50), "num_queries": num_keys, "num_correct": correct,
                                 "num_stale": (num_keys - correct) // 2})  # fmt: skip
            made.add(f"{num_keys} keys", ("recall", rows), model=model, axes={"num_keys": num_keys})


def stick_remainder(made: Made) -> None:
    for label, axes in (("stick_breaking", {}), (WITH, {"stick_remainder": True})):
        made.add(label, ("per_token_loss", made.losses()), model="stick_breaking", axes=axes)


def stick_cost(made: Made) -> None:
    models(made, ("stick_breaking", "transformer_llama"), "throughput", made.step, evaluation={"mode": "train"})
    providers = (("softmax cuDNN + RoPE", "any"), ("softmax flash-2 + RoPE", "any"), ("ours", "short"), ("ours", "long"))
    rows = []
    for shape in ((4, 2048, 12, 64), (4, 4096, 12, 64), (2, 16384, 24, 128), (1, 32768, 24, 128)):
        for provider, logits in providers:
            times = sorted(1 + made.rng.random(3))
            values = ("today", provider, "forward+backward", logits, "bfloat16", *shape, times[1], times[0], times[2], 1.0, 0.0)
            rows.append(dict(zip(measured.SCHEMAS["stick_breaking"].columns, values, strict=True)))
    measured.add("stick_breaking", rows, "GPU", folder=made.store.folder / measured.FOLDER.name)


ROWS: dict[str, Callable[[Made], None]] = {
    "fig2_per_token_loss": fig2, "context_use": contexts, "fig4_needle": fig4, "fig5_tokens_and_lr": fig5,
    "fig6_scale": fig6, "fig7_gate_types": fig7,
    "table_lr_grid": rates, "table1_lm_eval": table1, "table2_longbench": table2, "table3_ablation": table3,
    "table6_throughput": table6, "table7_slimpajama": table7, "table8_lm_eval": table8, "table9_longbench": table9,
    "acp_quality": quality, "acp_pruned_share": pruned, "acp_speed": pruned, "stick_extrapolation": stick_far,
    "stick_recall": stick_recall, "stick_remainder": stick_remainder, "stick_cost": stick_cost,
}  # fmt: skip


def made_up(folder: Path, stem: str) -> Made:
    made = Made(folder, stem)
    ROWS[stem](made)
    return made


def said(folder: Path, stem: str) -> Iterator[str]:
    """Return what an artefact's claims compare on its made-up rows, which of them need a line, and the numbers of its table."""
    made, artefact = made_up(folder, stem), artefacts()[stem]
    yield f"{stem}"
    study = _study(made)
    for claim in artefact.claims:
        verdict = claim.predicate(study)
        decisive = "" if verdict.decisive is None else f", by {verdict.decisive.name}"
        yield f"  {claim.id} {verdict.status}, p {verdict.p:.3g}, {verdict.seeds} seed{decisive}"
        for each in verdict.comparisons:
            size = "" if each.size is None else f", size {each.size:.5g}"
            error = "" if each.estimate.error is None else f" ± {each.estimate.error:.3g}"
            ceiling = ", ceiling" if each.ceiling else ""
            asked = f"{each.asked[0]} {each.bound:.3g}".replace("-", "\N{MINUS SIGN}")
            paper = f", paper {each.paper}" if each.paper else ""
            yield f"    {each.name}: {each.estimate.effect:.5g}{error} {each.unit}, {asked}{size}{ceiling}{paper}"
    yield from _needed(made, artefact)
    yield from _numbers(artefact.summary(study))


def _study(made: Made, without: tuple[str, str] | None = None) -> Study:
    lines = [line for line in made.store.lines[made.stem] if (line.model, line.label) != without]
    study = replace(made.store, lines={made.stem: lines}).study(made.stem)
    for record in study.runs.values():
        record["spec"]["data"]["recall"] = {"num_keys": 4, "num_assignments": 2, "num_queries": 2, "num_symbols": 16}
    return study


def _needed(made: Made, artefact: Artefact) -> Iterator[str]:
    """Return which claims compare otherwise, or are no longer whole, where a line is away."""
    whole = {claim.id: claim.predicate(_study(made)).comparisons for claim in artefact.claims}
    for line in made.store.lines[made.stem]:
        study, touched = _study(made, (line.model, line.label)), []
        for claim in artefact.claims:
            try:
                verdict = claim.predicate(study)
            except ValueError:
                touched.append(f"{claim.id} (refused)")
                continue
            gone = len(whole[claim.id]) - len(verdict.comparisons)
            if gone or not verdict.whole:
                touched.append(f"{claim.id} ({gone} less{'' if verdict.whole else ', not whole'})")
        yield f"  without {line.model}, {line.label}: {', '.join(touched) or 'as before'}"


def _numbers(table: Table) -> Iterator[str]:
    yield f"  {' '.join(f'{column.key}{column.better[:1]}' for column in table.columns)}"
    for label, cells in table.rows.items():
        yield f"    {label}: {' '.join('-' if cell is None else f'{float(cell):.5g}' for cell in cells)}"
