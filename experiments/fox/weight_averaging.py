"""What evaluating the mean of a training's last weights changes; Figure 2 and all others evaluate those after the last step."""

from analysis.curves import LossCurve, compare, loss_curves
from analysis.names import title
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Column, Table
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Averaging the last weights"
PAPER = "beyond the paper"
SHOWS = (
    "The same trainings evaluated with their weights after the last step, and with the mean of the weights after each of the "
    "last steps, a share of all. Every other figure and table evaluates the former, unless it names a share (run --average). "
    "Each line is a training of its own. On a GPU two of one seed end as far apart as the sums in their kernels take them, but "
    "for those with run --deterministic; the intervals, over documents, do not hold this. Not in the paper."
)
SHARES = (0.05, 0.2)


def runs(scale, seeds):
    at = get_scale(scale.ablation)
    for model in ("fox_pro", "transformer_pro"):
        yield from recipes(at, model, seeds, label="last weights")
        for share in SHARES:
            axes, label = dict(averaged_share=share), f"mean over the last {share:.0%} of the steps"
            yield from recipes(at, model, seeds, axes=axes, label=label, train=axes)


LAST = "last weights"


def summary(study: Study) -> Table:
    """A line per model and weights; the change is the mean's loss minus that of the last weights of the same model, with its
    95% interval. ValueError: no run is stored."""
    curves = loss_curves(study)
    if not curves:
        raise ValueError(f"{study.stem}: no runs are stored; run its experiment first")
    last = {curve.model: curve for curve in curves if curve.label == LAST}
    models = list(dict.fromkeys(curve.model for curve in curves))
    rows: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for curve in sorted(curves, key=lambda curve: models.index(curve.model)):
        change = _change(curve, last.get(curve.model))
        label = f"{title(curve.model)}, {curve.label}"
        rows[label] = [float(curve.mean_N[: curve.train_len].mean()), change.effect if change else None, len(curve.seeds)]
        ranges[label] = [None, change.interval if change else None, None]
    columns = [Column("loss", "mean loss (nats)", 4), Column("change", "change (nats)", 4, style="signed")]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}."
    note += " In square brackets: 95% intervals, of one seed over documents."
    caption = f"Held-out loss over {tokens(study.train_len)} tokens, by the weights that are evaluated"
    return Table(caption, [*columns, Column("seeds", "seeds", 0)], rows, note, ranges=ranges)


def _change(curve: LossCurve, last: LossCurve | None) -> Estimate | None:
    if last is None or last is curve:
        return None
    whole = 1, curve.train_len
    return compare((1.0, curve, *whole), (-1.0, last, *whole))
