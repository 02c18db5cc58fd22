"""Pages of prose whose numbers come from rows: README.md of the checkout and of kernels/, and pages in results/. Torch-free.

Jinja writes NAME.md from NAME.md.j2 beside it, with every number from `Facts`. Words that depend on a number stand before
`| when(...)`: if the rows no longer support them, the page is left unchanged and the words are reported.
tests/experiments/test_pages.py refuses numbers that are typed into a template."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jinja2
import numpy as np

from analysis.curves import LossCurve, by_model, compare, context_losses, difference, loss_curves, perplexity
from analysis.names import title
from analysis.pruning import skipped
from analysis.seeds import family_of
from analysis.statistics import LEVEL, POWER, Estimate
from analysis.study import Study
from analysis.style import millions, tokens, trained_elsewhere
from analysis.verdict import Comparison, Verdict
from beyond.figures import gate_by_tokens, gate_starts, last_words, mqar, mqar_gates, output_gates
from beyond.figures.acp_tight import by_code
from beyond.figures.cache_eviction import remaining
from experiments.acp.acp_speed import LEAST_GAIN, MOST_GAIN, timed
from experiments.facts import Facts
from experiments.fox import context_use
from experiments.fox.gate_worth import PAPERS_BUDGET, papers, worths
from experiments.fox.table_lr_grid import best_of, by_rate
from experiments.scales import SCALES
from results.atomic import write_atomic

ROOT = Path(__file__).parents[1]
GATED = family_of({"kind": "forgetting_transformer", "forget_gate": "full"})
WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()


def templates_of(results_dir: Path) -> list[Path]:
    """Return the templates in a results folder and, if it is the checkout's own, in the checkout."""
    own = [ROOT, ROOT / "kernels"] if results_dir.resolve() == ROOT / "results" else []
    return sorted(path for folder in (*own, *results_dir.glob("*")) for path in folder.glob("*.md.j2"))


def write_pages(results_dir: Path, studies: Iterable[Study] = ()) -> dict[Path, str]:
    """Write every page; `studies` were read already. Returns the pages that were left unchanged, each with the reason."""
    facts, left = Facts(results_dir, studies), {}
    for template in templates_of(results_dir):
        path = template.with_suffix("")
        try:
            write_changed(path, fill(template, facts))
        except (ValueError, LookupError, TypeError, jinja2.TemplateError) as error:  # the prose does not fit these rows
            left[path] = f"{type(error).__name__}: {error}"
    return left


def write_changed(path: Path, text: str) -> None:
    """Write a file unless it has this text already."""
    if not path.is_file() or path.read_text() != text:
        write_atomic(path, text)


def fill(template: Path, facts: Facts) -> str:
    """Return a page. ValueError for words that the rows do not support."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    filters = (nats, times, percent, measured, millions, words, when, title, tokens)
    shared = (best_of, by_code, by_model, by_rate, change, compare, context_losses, difference, gated, last_words.last_words,
              loss_curves, order, papers, perplexity, remaining, seeds_apart, shrinks, skipped, timed, trained_elsewhere,
              worths, zip)  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    environment.globals |= {function.__name__: function for function in shared}
    constants = {
        "scales": SCALES,
        "given_more": context_use.change,
        "gate_by_tokens": gate_by_tokens,
        "in_words": last_words.compare,
        "recalled": mqar.shares,
        "recalled_by_rate": mqar.shares_by_rate,
        "recalled_from": mqar_gates.shares,
        "gate_starts": mqar_gates.STARTS,
        "by_start": gate_starts.by_start,
        "by_gate": output_gates.by_gate,
        "level": f"{LEVEL:.0%}",
        "power": f"{POWER:.0%}",
        "papers_budget": PAPERS_BUDGET,
        "papers_step": (-math.log(MOST_GAIN), -math.log(LEAST_GAIN)),
    }
    return environment.from_string(template.read_text()).render(facts=facts, **constants)


def nats(estimate: Estimate, signed: bool = False) -> str:
    """Print an effect with its interval."""
    return _in_brackets(estimate, lambda value: f"{value:{'+' if signed else ''}.3f}", " nats")


def times(estimate: Estimate) -> str:
    """Print a ratio with its interval; `estimate` is of its log."""
    return _in_brackets(estimate, lambda value: f"{math.exp(value):.2f}")


def percent(estimate: Estimate) -> str:
    """Print a share with its interval."""
    return _in_brackets(estimate, lambda value: f"{100 * value:.1f}", "%")


def _in_brackets(estimate: Estimate, form: Callable[[float], str], unit: str = "") -> str:
    ends = f" [{', '.join(map(form, estimate.interval))}]" if estimate.error and estimate.interval else ""
    return f"{form(estimate.effect)}{unit}{ends}".replace("-", "\N{MINUS SIGN}")


def measured(verdict: Verdict, like: Comparison | None = None) -> str:
    """Print the number that decides a claim, or that of the comparison of the same name and unit as `like`, with its interval
    and the fewest seeds; nothing if there is none."""
    alike = (each for each in verdict.comparisons if like and (each.name, each.unit) == (like.name, like.unit))
    shown = next(alike, None) if like else verdict.decisive
    seeds = f" ({verdict.seeds})" if verdict.seeds else ""
    return f": {shown.ours}{seeds}" if shown else ""


def words(count: int) -> str:
    """Print a count as in prose: small ones as words."""
    return WORDS[count] if count < len(WORDS) else f"{count:,}"


def when(text: str, condition: bool) -> str:
    """Return `text` if `condition` holds, else raise ValueError."""
    if not condition:
        raise ValueError(f"the rows do not support {text!r}: rewrite that sentence of the template")
    return text


def change(one: LossCurve, other: LossCurve | None = None) -> Estimate:
    """Return the change in loss from the last quarter of the training context to all tokens beyond it, less that of `other`."""
    last, end = one.train_len * 3 // 4 + 1, one.train_len
    signs = [(1.0, one)] + ([(-1.0, other)] if other else [])
    beyond = [(sign, curve, end + 1, curve.length) for sign, curve in signs]
    return compare(*beyond, *((-sign, curve, last, end) for sign, curve in signs))


def shrinks(pairs: Iterable[tuple[LossCurve, LossCurve]], early: int, late: int) -> tuple[int, int]:
    """Count the pairs of runs whose first leads by less from `late` to the training length than up to `early`; and all."""
    gaps_SN = np.concatenate([(other.losses_SN - one.losses_SN)[:, : one.train_len] for one, other in pairs])
    return int((gaps_SN[:, late - 1 :].mean(axis=1) < gaps_SN[:, :early].mean(axis=1)).sum()), len(gaps_SN)


def gated(study: Study) -> list[LossCurve]:
    """Return the curves of attention with a forget gate, whose seeds alone give the noise of FoX."""
    return [curve for curve in loss_curves(study) if family_of(study.spec(curve.run_ids[0])["model"]) == GATED]


def seeds_apart(curves: Iterable[LossCurve]) -> float:
    """Between-seed standard deviation of the mean loss inside the training context, pooled over curves with several seeds."""
    own = [curve.log_p(curve.train_len) for curve in curves if len(curve.seeds) > 1]
    return math.sqrt(sum(len(each) * each.var() for each in own) / sum(len(each) - 1 for each in own))


def order(curves: Mapping[str, LossCurve]) -> list[str]:
    """Models sorted by their mean loss inside the training context, the best first."""
    return sorted(curves, key=lambda model: curves[model].mean_N[: curves[model].train_len].mean())
