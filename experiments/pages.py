"""Pages: NAME.md is written from the words of NAME.md.in beside it. Torch-free.

A template holds words and `{{ names }}` alone: names of NUMBERS, or FOLDER/SCALE/STEM for the table of an artefact. A word
that depends on a verdict is the verdict. A user's folder has no templates and gets its report alone."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from analysis.names import SEVEN
from analysis.study import Study, study_file
from analysis.style import millions, tokens
from analysis.tables import to_markdown
from analysis.verdict import Claim, Status, Verdict, judge
from experiments.artefact import artefacts
from experiments.recipes import model_spec
from experiments.scales import SCALES
from results.atomic import write_atomic
from training.hardware import DENSE_BF16_PEAK

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
NAME = re.compile(r"\{\{ ([\w./-]+) \}\}")
UNSEEN = (Status.NOT_MEASURED, Status.NOT_APPLICABLE)
EVIDENCE = ("760m-48b", "unseen_books/mini", "mini", "125m-0.2b")
"""Folders in which a claim is judged: the first that measured it counts."""
SCOREBOARD = {
    "C1": "FoX has a lower perplexity than the Transformer",
    "C9": "the gate replaces RoPE and does better (LLaMA)",
    "C16": "the gate is worth about 3% of perplexity (Pro)",
    "C5": "FoX (Pro) is the best of seven models",
    "C6": "Pro beats LLaMA",
    "C26": "learned, data-dependent gates beat constant ones",
    "C3": "FoX uses its whole training context",
    "C2": "FoX keeps its lead beyond the training context",
    "C22b": "easy needles are found",
    "A1": "pruning skips most of attention",
    "A4": "pruned training is faster",
    "C30": "the gate costs little training speed",
}
"""Rows of the first screen."""
MFU, GPU = 0.4, "H100"


class Judged(NamedTuple):
    """A claim with the verdict of the best evidence, and the folder that has it; both None if it was measured nowhere."""

    claim: Claim
    verdict: Verdict | None = None
    place: str = ""


def write_pages() -> list[Path]:
    """Write the published pages. ValueError for a name that no number has."""
    written = []
    for template in sorted({*ROOT.glob("*.md.in"), *RESULTS.rglob("*.md.in")}):
        path = template.with_suffix("")
        write_changed(path, NAME.sub(lambda name: text_of(name[1]), template.read_text()))
        written.append(path)
    return written


def write_changed(path: Path, text: str) -> None:
    """Write a file unless it has this text already."""
    if not path.is_file() or path.read_text() != text:
        write_atomic(path, text)


def text_of(name: str) -> str:
    """Return the text of a name in a template."""
    if name in NUMBERS:
        return NUMBERS[name]()
    folder, _, stem = name.rpartition("/")
    if not (RESULTS / folder / f"{stem}.json").is_file():
        raise ValueError(f"{{{{ {name} }}}}: no such number or table; the numbers are {', '.join(NUMBERS)}")
    return to_markdown(artefacts()[stem].summary(study(folder, stem)))


@cache
def study(place: str, stem: str) -> Study:
    """Return the study of an artefact in FOLDER/SCALE below results/."""
    folder = RESULTS / place
    return Study(folder.parent, folder.name, stem)


@cache
def verdicts() -> tuple[Judged, ...]:
    """Return every claim with its best evidence, in the order of their figures."""
    found = []
    for stem, artefact in artefacts().items():
        there = [place for place in EVIDENCE if study_file(RESULTS / Path(place).parent, Path(place).name, stem).is_file()]
        judged = {place: {claim.id: own for claim, own in judge(artefact.claims, study(place, stem))} for place in there}
        for claim in artefact.claims:
            best = next((place for place in there if judged[place][claim.id].status not in UNSEEN), "")
            found.append(Judged(claim, judged[best][claim.id] if best else None, best))
    return tuple(found)


def _row(each: Judged, words: str) -> str:
    if each.verdict is None:
        return f"| {each.claim.id} | {words} | | | | {Status.NOT_MEASURED} |"
    number = each.verdict.decisive
    paper, ours = (number.paper, number.ours) if number else ("", "")
    seeds = f", {each.verdict.seeds} seed{'s' if each.verdict.seeds > 1 else ''}" if each.verdict.seeds else ""
    cells = (each.claim.id, words, paper, ours, f"[{each.place}](results/{each.place}){seeds}", f"**{each.verdict.status}**")
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _table(rows: Iterable[str], below: str = "") -> str:
    """Return a table of claims; links are relative to the folder `below` of the checkout."""
    head = "| | the paper says | its number | ours | where | verdict |\n|---|---|---:|---:|---|---|"
    return "\n".join([head, *(row.replace("](results/", f"]({below or 'results/'}") for row in rows)])


def scoreboard() -> str:
    """Return the table of the first screen."""
    known = {each.claim.id: each for each in verdicts()}
    return _table(_row(known[claim], words) for claim, words in SCOREBOARD.items())


def all_claims() -> str:
    """Return the table of all claims for results/README.md."""
    return _table((_row(each, each.claim.sentence.replace("|", "\\|")) for each in verdicts()), below="./")


def not_reproduced() -> str:
    """Return the table of the claims that fail."""
    failed = [each for each in verdicts() if each.verdict and each.verdict.status is Status.FAILS]
    return _table((_row(each, each.claim.sentence) for each in failed), below="./")


def tally() -> str:
    """Return the number of claims by verdict: "holds 12, fails 5"."""
    counts = Counter(each.verdict.status if each.verdict else Status.NOT_MEASURED for each in verdicts())
    return ", ".join(f"{status} {counts[status]}" for status in Status if counts[status])


def scale_table() -> str:
    """Return a table of the scales with stored trainings: their sizes, and the median minutes of a training."""
    lines = ["| scale | models | training tokens | context, evaluation | minutes a run |", "|---|---|---:|---|---:|"]
    for name, place in {"tiny": "tiny", "mini": "unseen_books/mini", "125m-0.2b": "125m-0.2b"}.items():
        scale, drawn = SCALES[name], study(place, "fig2_per_token_loss")
        starts = [start for line in drawn.lines for start in drawn.starts(line)[-1:]]
        sizes = sorted(start["params"] for start in starts)
        minutes = median((start["end"] or {}).get("wall_s") or 0.0 for start in starts) / 60
        sizes_ = f"{millions(sizes[0])} to {millions(sizes[-1])}"
        lengths = f"{tokens(scale.seq_len)}, {tokens(scale.document_len)}"
        lines.append(f"| `{name}` | {sizes_} | {millions(scale.train_tokens)} | {lengths} | {minutes:.0f} |")
    return "\n".join(lines)


def paper_cost() -> str:
    """Return a table of what a training takes at the paper's sizes."""
    lines = [f"| scale | training tokens | {GPU}-hours a run at {MFU:.0%} MFU |", "|---|---:|---:|"]
    for name in ("125m-2.7b", "360m-7.5b", "760m-16b", "760m-48b"):
        scale = SCALES[name]
        flops = [3 * model_spec(model, scale, 50257).flops_per_token(scale.seq_len) * scale.train_tokens for model in SEVEN]
        low, high = (each / (3600 * MFU * DENSE_BF16_PEAK[GPU]) for each in (min(flops), max(flops)))
        lines.append(f"| `{name}` | {scale.train_tokens / 1e9:.1f}B | {low:.3g} to {high:.3g} |")
    return "\n".join(lines)


NUMBERS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (scoreboard, all_claims, not_reproduced, tally, scale_table, paper_cost)
}
