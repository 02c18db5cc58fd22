"""Pages of what is stored: results/README.md, how much of every figure and table at each scale, and results/SCALE/claims.md,
for who wants to see a claim again: the command, its minutes, the number to expect, where it was last seen. Torch-free."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from analysis.study import Study, read_lines
from analysis.verdict import Claim, Status, Verdict, judge
from experiments.artefact import Artefact, artefacts
from experiments.scales import SCALES, Scale, get_scale
from results.atomic import write_atomic
from results.provenance import commit_name
from results.store import trainings_of

HEAD = """\
# What is stored

This page is written by `python -m experiments render`, from the rows in this folder. A cell says how many of a figure's
lines have rows at a scale, and with how many seeds. An empty cell is a figure that is implemented and tested, and has no rows
at that scale yet.

    SCALE/README.md            the findings, where there is one, written from README.md.j2 and the rows
    SCALE/claims.md            every claim that was judged: its command and minutes, the number to expect, where it was seen
    SCALE/figures, tables      what is drawn; `render` adds PDFs and report.html, which are not kept in git
    SCALE/STEM.json            which rows of which runs a figure is drawn from
    SCALE/rows/KIND/           one evaluation of one run a file, with who made it beside it
    SCALE/runs/                what each run was: its config, all its starts, its final loss
    measurements/, kernels/    times and errors of kernels and training steps

Variants of a scale (`tiny-short`, `mini-narrow` and so on) hold runs that figures of the scale itself draw.
"""
CLAIMS_HEAD = """\
# Claims at scale `{scale}`

This page is written by `python -m experiments render --scale {scale}`, from the stored rows. Each figure or table has the
command that makes it again, with what its trainings took (one after another; evaluations come on top, and runs are shared
between figures), and where its newest evaluation was made. Each claim has the number that decides it, with its 95% interval.
`python -m experiments compare --scale {scale}` then says of your numbers whether they lie where one more seed would.
"""
UNSEEN = (Status.NOT_MEASURED, Status.NOT_APPLICABLE)
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


def write_claims(scale: str, results_dir: Path, read: Mapping[str, Study]) -> Path:
    """Write results/SCALE/claims.md, of the claims that were judged at a scale. `read`: studies that were just drawn."""
    path, parts, unseen = results_dir / scale / "claims.md", [CLAIMS_HEAD.format(scale=scale)], []
    for stem, artefact in artefacts().items():
        judged: list[tuple[Claim, Verdict]] = []
        with suppress(Exception):  # the report says what is wrong with it
            study = read.get(stem) or Study(results_dir, scale, stem).whole()
            judged = judge(artefact.claims, study)
        seen = [each for each in judged if each[1].status not in UNSEEN]
        if seen:
            parts += [f"\n## {artefact.paper}: {artefact.title}\n\n{_how(stem, scale, study)}\n\n"]
            parts += [_row(["claim", "the paper says", "number to expect", "verdict"]), _row(["---"] * 4)]
            parts += [_row(_claim(*each)) for each in seen]
        there = {claim.id for claim, _ in seen}
        unseen += [f"{claim.id} (`{stem}`)" for claim in artefact.claims if claim.id not in there]
    if unseen:
        parts.append(f"\nNothing to expect yet, for want of rows at this scale: {', '.join(unseen)}.\n")
    write_atomic(path, "".join(parts))
    return path


def _how(stem: str, scale: str, study: Study) -> str:
    """Return the command of an artefact, what its trainings took, and where it was last seen."""
    seeds = ",".join(map(str, sorted({line.seed for line in study.lines})))
    sources = {study.spec(line.run_id)["data"]["source"] for line in study.lines}
    data = "" if get_scale(scale).default_data or sources == {"recall"} else " --data text:FILES"
    command = f"python -m experiments run {stem} --scale {scale}{data}{f' --seeds {seeds}' * (seeds != '0')}"
    newest = max(study.all_metas, key=lambda meta: (meta["created"], meta["eval_id"]))
    made = newest["provenance"]
    seen = f"Last seen {newest['created'][:10]} on {made['device']}, commit {commit_name(made)}; corpus {study.corpora}."
    return f"`{command}`\n\n{_took(study)} {seen}"


def _took(study: Study) -> str:
    """Return how many minutes the trainings took that the lines are drawn from."""
    ends, devices = {}, set()
    for line in study.lines:
        known = trainings_of(study.runs[line.run_id]) if line.is_trained else []
        for training in [each for each in known if line.weights and each["weights"] == line.weights] or known[:1]:
            starts = [start for start in study.runs[line.run_id]["starts"] if start["date"] in training["starts"]]
            ends[line.run_id] = sum((start.get("end") or {}).get("wall_s") or 0.0 for start in starts)
            devices |= {str(start["device"]) for start in starts}
    if not ends:
        return "No training."
    return (
        f"{len(ends)} trainings, {sum(ends.values()) / 60:.0f} minutes on {' and '.join(sorted(devices)) or 'nothing known'}."
    )


def _claim(claim: Claim, verdict: Verdict) -> list[str]:
    expected = "" if verdict.decisive is None else str(verdict.decisive)
    return [claim.id, *(text.replace("|", "\\|") for text in (claim.sentence, expected)), str(verdict.status)]
