"""The page results/README.md: every figure and table, and how much of it is stored at each scale. Torch-free."""

from pathlib import Path

from analysis.study import read_lines
from experiments.artefact import Artefact, artefacts
from experiments.scales import SCALES, Scale
from results.atomic import write_atomic

HEAD = """\
# What is stored

This page is written by `python -m experiments render`, from the rows in this folder. A cell says how many of a figure's
lines have rows at a scale, and with how many seeds. An empty cell is a figure that is implemented and tested, and has no rows
at that scale yet.

    SCALE/README.md            the findings, where there is one
    SCALE/figures, tables      what is drawn; `render` adds PDFs and report.html, which are not kept in git
    SCALE/STEM.json            which rows of which runs a figure is drawn from
    SCALE/rows/KIND/           one evaluation of one run a file, with who made it beside it
    SCALE/runs/                what each run was: its config, all its starts, its final loss
    measurements/, kernels/    times and errors of kernels and training steps

Variants of a scale (`tiny-short`, `mini-narrow` and so on) hold runs that figures of the scale itself draw.
"""
TITLES = {
    "fox": "Forgetting Transformer",
    "acp": "Adaptive computation pruning",
    "stick_breaking": "Stick-breaking attention",
    "beyond": "Beyond the papers",
}


def write_status(results_dir: Path) -> Path:
    """Write results/README.md; untouched if it says so already."""
    path, text = results_dir / "README.md", status_page(results_dir)
    if not path.is_file() or path.read_text() != text:
        write_atomic(path, text)
    return path


def status_page(results_dir: Path) -> str:
    """Return the page for a results folder."""
    known = artefacts()
    scales = [
        scale for scale in SCALES.values() if any((results_dir / scale.name / f"{stem}.json").is_file() for stem in known)
    ]
    parts = [HEAD]
    for folder, title in TITLES.items():
        heading = ["name", "paper", "shows", *(f"`{scale.name}`" for scale in scales)]
        parts += [f"\n## {title}\n\n", _row(heading), _row(["---"] * len(heading))]
        for artefact in known.values():
            if artefact.folder == folder:
                name = f"[`{artefact.stem}`](../experiments/{folder}/{artefact.stem}.py)"
                cells = [_cell(artefact, scale, results_dir) for scale in scales]
                parts.append(_row([name, artefact.paper, artefact.title, *cells]))
    return "".join(parts)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _cell(artefact: Artefact, scale: Scale, results_dir: Path) -> str:
    """Lines with rows, of those declared, and the range of their seeds."""
    seeds: dict[object, set[int]] = {}
    try:
        lines_there = read_lines(results_dir, scale.name, artefact.stem)
    except ValueError:  # rendering names it, and goes on
        return "damaged"
    for line in lines_there:
        seeds.setdefault(line.series, set()).add(line.seed)
    if not seeds:
        return ""
    declared = {recipe.series for recipe in artefact.runs(scale, (0,))} | seeds.keys()
    lines = f"{len(seeds)}" if len(seeds) == len(declared) else f"{len(seeds)} of {len(declared)}"
    fewest, most = min(map(len, seeds.values())), max(map(len, seeds.values()))
    numbers = f"{fewest} to {most}" if fewest < most else f"{most}"
    return f"{lines} line{'s' * (len(declared) > 1)}, {numbers} seed{'s' * (most > 1)}"
