"""Beyond the papers: Learning rates of FoX's successors.

The figure of FoX among its successors trains these models at one learning rate. Here each model is trained at as many rates as
FoX (Pro), on as many tokens as the ablations. Which models does the shared rate hold back, and how far are they from FoX (Pro)
if each model has its best rate? Not in the paper, and no claim is judged."""

from analysis.curves import LossCurve, difference
from analysis.names import ordered, title
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import about, millions, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from beyond.figures.successors import FOX, SUCCESSORS
from experiments.fox.table_lr_grid import AXES, Rates, best_of, by_rate, evals, rates_of  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import for_ablations, get_scale

MODELS = (FOX, "alibi_pro", "alibi", *SUCCESSORS)


def runs(scale, seeds):
    at = for_ablations(scale)
    for model in MODELS:
        for rate in rates_of(scale, model):
            axes = dict(peak_lr=rate)
            yield from recipes(at, model, seeds, axes=axes, label=f"{model}, LR {rate:g}", train=axes)


def _at_best(rates: Rates, model: str) -> LossCurve:
    return rates[model][best_of(rates[model])]


def _behind(rates: Rates, model: str) -> Estimate | None:
    """Return the loss above FoX (Pro)'s, both at their best rates; None for FoX (Pro) itself, or if it is missing."""
    return difference(_at_best(rates, model), _at_best(rates, FOX)) if FOX in rates and model != FOX else None


def summary(study: Study) -> Table:
    """Tabulate each model's loss at each rate, its best rate, and how far it is behind FoX (Pro) with both at their best."""
    found = by_rate(study)
    rates = sorted({rate for own in found.values() for rate in own})
    columns = [Column(f"lr_{rate:g}", f"LR {rate:g}", 3) for rate in rates]
    columns += [Column("best", "best LR", 4), Column("behind", "above FoX (Pro), both at their best", 3, style="signed")]
    cells: dict[str, list[Cell]] = {}
    for model in ordered(found):
        own = found[model]
        losses: list[Cell] = [own[rate].log_p(own[rate].train_len) if rate in own else None for rate in rates]
        cells[title(model)] = [*losses, best_of(own), _behind(found, model)]
    note = f"{about(study)} In square brackets: 95% intervals over documents by source and seeds, which do not include that "
    whole = get_scale(study.scale)
    here, there = (millions(each.train_tokens) for each in (for_ablations(whole), whole))
    note += f"best rates were picked by the same losses. Trained on {here} tokens; the figure of FoX among its successors has "
    note += f"{there}, where the order may differ."
    return over_seeds(f"Mean loss up to {tokens(study.train_len)} (nats) by peak learning rate", columns, cells, note)
