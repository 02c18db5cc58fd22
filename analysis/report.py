"""results/SCALE/report.html: its contents with all verdicts in short, every artefact of one scale and what it was made from,
then the verdicts on the paper's claims in full.

One file, no requests, no script: pictures are embedded and styles are inline, so it can be mailed, opened offline and printed.
It is a function of what is stored: equal results give equal bytes. Pictures are packed anew without loss, which halves them.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from PIL import Image

from analysis.history import changes
from analysis.names import rank, title
from analysis.readings import read_off
from analysis.study import Study
from analysis.style import DPI, PAPER_SCALE, WIDTH
from analysis.tables import Table, to_html
from analysis.verdict import PERPLEXITY, RATIO, Claim, Comparison, Look, Status, Verdict, amount, judge, not_measured, number
from results.atomic import write_atomic
from results.provenance import commit_name

MISSED = (Status.FAILS, Status.EXCEEDS)
TEMPLATE = Path(__file__).with_name("report.html.j2")
BESIDE = 4
"""Columns of a table that findings stand beside; they stand above wider ones."""
ENDINGS = ("csv", "png", "pdf")
SIGNS = {
    Status.HOLDS: ("holds", "\N{CHECK MARK}"),
    Status.EXCEEDS: ("holds", "\N{GREATER-THAN SIGN}"),
    Status.FAILS: ("fails", "\N{BALLOT X}"),
    Status.WITHIN_NOISE: ("noise", "\N{ALMOST EQUAL TO}"),
    Status.UNDECIDED: ("noise", "?"),
    Status.BY_CONSTRUCTION: ("none", "\N{IDENTICAL TO}"),
    Status.NOT_MEASURED: ("none", "\N{EN DASH}"),
    Status.NOT_APPLICABLE: ("none", "\N{EN DASH}"),
}


@dataclass(frozen=True)
class Section:
    """One artefact of the report. `study` is None where nothing is stored, or `fault` says why it cannot be read; `looks` into
    failing claims, of this artefact or another, by the claim's id; `command` makes it; `missing`: declared, but not stored."""

    stem: str
    title: str
    paper: str
    shows: str
    claims: tuple[Claim, ...]
    looks: Mapping[str, Look]
    summary: Callable[[Study], Table]
    study: Study | None
    command: str
    missing: Sequence[str] = ()
    fault: str = ""


def build(folder: Path, sections: Sequence[Section]) -> Path:
    """Write folder/report.html from the stored rows and drawn figures of results/SCALE and return its path. An artefact that
    cannot be drawn stands in it with its fault, and none of its claims is judged.

    ValueError: nothing is stored.
    """
    there = [_artefact(folder, section, section.study) for section in sections if section.study is not None]
    if not there:
        raise ValueError(f"{folder}: no results to report on; run an experiment at this scale first")
    absent = [section for section in sections if section.study is None]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["sign"] = lambda status, words=True: Markup('<span class="status {}">{} {}</span>').format(
        *SIGNS[status], status if words else ""
    )
    environment.filters["name"] = lambda artefact: artefact["paper"][:1].upper() + artefact["paper"][1:]
    environment.filters["slug"] = lambda status: status.replace(" ", "-")
    environment.filters["statistic"] = _statistic
    studies = [section.study for section in sections if section.study is not None]
    verdicts = [(artefact, *judged) for artefact in there for judged in artefact["verdicts"]]
    nothing = not_measured("Nothing is stored for this artefact.")
    verdicts += [
        ({"stem": each.stem, "paper": each.paper}, claim, nothing) for each in absent for claim in each.claims if not each.fault
    ]
    looks = _looks([claim for _, claim, verdict in verdicts if verdict.status in MISSED], sections)
    page = environment.from_string(TEMPLATE.read_text()).render(
        scale=folder.name,
        paper_scale=PAPER_SCALE,
        trained=any(run.get("final_loss") is not None for study in studies for run in study.runs.values()),
        seeds=_seeds(studies),
        nameless=_nameless(studies),
        sizes=_sizes(studies),
        artefacts=there,
        halves=_halves(there),
        verdicts=sorted(verdicts, key=lambda each: (_unknown(each[2]), _place(each[1]))),
        missed=MISSED,
        counts=_counts(verdict for _, _, verdict in verdicts),
        changes=changes(folder, {claim.id: str(verdict.status) for _, claim, verdict in verdicts}, studies),
        looks=looks,
        looked_into={claim: section.stem for section, _, claims in looks for claim in claims},
        absent=absent,
        newest=max(study.created for study in studies)[:10],
        runs=_runs(studies),
        spent=_spent(studies),
    )
    path = folder / "report.html"
    write_atomic(path, page)
    return path


def _artefact(folder: Path, section: Section, study: Study) -> dict[str, Any]:
    try:
        summary = section.summary(study)
        table, caption, fault = Markup(to_html(summary)), summary.caption, ""  # escapes its cells
        wide = len(summary.columns) > BESIDE
        verdicts = judge(section.claims, study)
        pictures = _pictures(folder, section)
    except Exception as error:  # whatever is wrong with one artefact, the others are reported
        table, caption, verdicts, pictures, wide = Markup(), "", [], [], False
        fault = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return {
        "section": section,
        "stem": section.stem,
        "paper": section.paper,
        "fault": fault,
        "pictures": pictures,
        "table": table,
        "caption": caption,
        "wide": wide,
        "verdicts": verdicts,
        "files": _files(folder, section.stem),
        "made_from": _made_from(study),
        "changed_trees": _changed_trees(study),
    }


def _halves(artefacts: Sequence[dict[str, Any]]) -> set[str]:
    """Return the artefacts that stand side by side: two neighbours, each of pictures without claims."""
    found: set[str] = set()
    for one, other in pairwise(artefacts):
        if one["stem"] not in found and all(each["pictures"] and not each["section"].claims for each in (one, other)):
            found |= {one["stem"], other["stem"]}
    return found


def _looks(missed: Iterable[Claim], sections: Iterable[Section]) -> list[tuple[Section, str, list[str]]]:
    """Return what looks into missed claims say: the section that they are from, the sentence, and the claims it is of."""
    ids = [claim.id for claim in sorted(missed, key=_place)]
    found = []
    for section in sections:
        if section.study is None:
            continue
        for look in dict.fromkeys(section.looks.values()):
            asked = [claim for claim in ids if section.looks.get(claim) is look]
            if asked:
                found.append((section, _sentence(look, section.study), asked))
    return sorted(found, key=lambda each: ids.index(each[2][0]))


def _sentence(look: Look, study: Study) -> str:
    try:
        return look(study)
    except ValueError as error:
        return f"Cannot be told: {error}."


def _pictures(folder: Path, section: Section) -> list[dict[str, Any]]:
    """The artefact's own picture first, then those called STEM-SOMETHING; none for tables."""
    paths = sorted((folder / "figures").glob(f"{section.stem}-*.png"))
    own = folder / "figures" / f"{section.stem}.png"
    if own.is_file():
        paths.insert(0, own)
    elif not (folder / "tables" / f"{section.stem}.md").is_file():
        raise ValueError(f"{own}: not drawn yet; render {section.stem} first")
    return [_picture(path) for path in paths]


def _picture(path: Path) -> dict[str, Any]:
    """A picture with the note that it holds (analysis/style.py), its share of the page's width in percent (letters of one size
    in all of them), and the values of its curves."""
    packed = BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(packed, "WEBP", lossless=True, quality=0)
        note, size = str(image.info.get("Description", "")), image.size
    csv = path.with_suffix(".csv")
    read = read_off(csv) if csv.is_file() else None
    return {
        "name": path.stem,
        "data": base64.b64encode(packed.getvalue()).decode(),
        "note": note,
        "size": size,
        "share": min(100, round(100 * size[0] / (WIDTH * DPI))),
        "files": [f"{path.parent.name}/{path.stem}.{ending}" for ending in ENDINGS if path.with_suffix(f".{ending}").is_file()],
        "read": Markup(to_html(read)) if read else "",
    }


def _files(folder: Path, stem: str) -> list[str]:
    """Files of a table, relative to the report."""
    return [str(path.relative_to(folder)) for path in sorted((folder / "tables").glob(f"{stem}.*"))]


def _statistic(decisive: Comparison) -> str:
    """Print what stands behind the number that the paper gives: what was asked for, the effect as it is tested, and the
    smallest effect that could be seen."""
    estimate, logs = decisive.estimate, decisive.unit in (RATIO, PERPLEXITY)
    text = f"{decisive.name}; asked for {decisive.asked}"
    if logs or decisive.shown:
        text += f"; {'log ' if logs else ''}{number(estimate.effect)}{'' if logs else ' ' + decisive.unit}"
    if estimate.detectable:
        text += f"; detectable {amount(estimate.detectable, decisive.unit)}"
    return text


def _place(claim: Claim) -> tuple[str, int, str]:
    """C2 before C10, C22 before C22b."""
    letter, digits, rest = re.fullmatch(r"(\D+)(\d+)(.*)", claim.id).groups()  # type: ignore[union-attr]
    return letter, int(digits), rest


def _counts(verdicts: Iterable[Verdict]) -> list[tuple[Status, int]]:
    found = [verdict.status for verdict in verdicts]
    return [(status, found.count(status)) for status in Status if status in found]


def _seeds(studies: Iterable[Study]) -> str:
    counts = sorted({count for study in studies for count in study.seed_counts.values()})
    if counts == [1]:
        return "Every model was trained once, with one seed"
    return f"Models were trained with {' or '.join(map(str, counts))} seeds"


def _sizes(studies: Iterable[Study]) -> list[tuple[str, str]]:
    """Parameters of the models that stand under their own name, by scale, and how far the largest is above the smallest."""
    found: dict[str, dict[str, int]] = {}
    for study in studies:
        for line in study.lines:
            count = _params(study.runs[line.run_id])
            if line.label == line.model and count:
                found.setdefault(line.scale, {})[line.model] = count
    texts = []
    for scale, params in found.items():
        names = [f"{title(model)} {params[model]:,}" for model in sorted(params, key=rank)]
        above = 100 * (max(params.values()) / min(params.values()) - 1)
        texts.append((scale, f"{', '.join(names)}; the largest is {above:.1f}% above the smallest"))
    return texts


def _params(run: dict[str, Any]) -> int | None:
    """Parameters of a run (input embedding excluded), as it or its starts recorded them."""
    return run.get("params") or next((start["params"] for start in run.get("starts", []) if start.get("params")), None)


def _made_from(study: Study) -> dict[str, Any]:
    """Return what an artefact was drawn from, in short and line by line."""
    lines = []
    for line in study.lines:
        ids = [f"{path.parent.name}-{path.stem.split('-')[1]}" for path in map(Path, line.files)]
        about = {"seed": line.seed, "scale": line.scale, "run": line.run_id, "weights": line.trained_weights, "evals": ids}
        lines.append({"label": title(line.label), **about})
    metas = study.all_metas
    return {
        "lines": lines,
        "runs": len({line.run_id for line in study.lines}),
        "evaluations": sum(len(line.files) for line in study.lines),
        "corpora": study.corpora,
        "devices": _distinct(meta["provenance"].get("device") for meta in metas),
        "commits": _distinct(commit_name(meta["provenance"]) for meta in metas),
        "dates": _distinct(meta["created"][:10] for meta in metas),
    }


def _changed_trees(study: Study) -> str:
    """Say of how many trainings and evaluations of an artefact the working tree had changes; empty of none."""
    trained = {line.run_id: study.runs[line.run_id].get("starts", []) for line in study.lines if line.is_trained}
    changed = [[start for start in starts if start.get("git_dirty")] for starts in trained.values()]
    metas = [meta["provenance"] for meta in study.all_metas]
    parts = []
    for what, there, found in (
        ("runs were trained", len(trained), [starts for starts in changed if starts]),
        ("evaluations were made", len(metas), [[each] for each in metas if each.get("git_dirty")]),
    ):
        if found:
            parts.append(
                f"{len(found)} of {there} {what} ({', '.join(_distinct(commit_name(each) for some in found for each in some))})"
            )
    return f"From a changed working tree {' and '.join(parts)}." if parts else ""


def _nameless(studies: Iterable[Study]) -> str:
    """Say of how many trained runs the weights are not recorded; empty of none."""
    trained = {(line.run_id, line.training): line for study in studies for line in study.lines if line.is_trained}
    count = sum(line.weights is None for line in trained.values())
    return f"{count} of {len(trained)}" if count else ""


def _distinct(texts: Iterable[str | None]) -> list[str]:
    return sorted({text for text in texts if text})


def _runs(studies: Iterable[Study]) -> list[dict[str, Any]]:
    """Every run once: what it is, who made it, and the artefacts that draw it."""
    found: dict[str, dict[str, Any]] = {}
    for study in studies:
        for line in study.lines:
            run = found.setdefault(line.run_id, {"id": line.run_id, "model": line.model, "labels": [], "artefacts": []})
            record = study.runs[line.run_id]
            starts = record.get("starts", [])
            run["labels"] += [title(line.label)] if title(line.label) not in run["labels"] else []
            run["artefacts"] += [study.stem] if study.stem not in run["artefacts"] else []
            run |= {
                "scale": line.scale,
                "seed": line.seed,
                "params": _params(record),
                "tokens": record["spec"]["train"].get("train_tokens"),
                "rate": record["spec"]["train"].get("peak_lr"),
                "loss": record.get("final_loss"),
                "commits": _distinct(commit_name(start) for start in starts),
                "devices": _distinct(start.get("device") for start in starts),
                "starts": len(starts),
                "versions": _versions(starts[-1]) if starts else "",
                "date": starts[-1].get("date", "")[:10] if starts else "",
            }
    return sorted(found.values(), key=lambda run: (run["scale"], rank(run["model"]), run["labels"], run["seed"]))


def _spent(studies: Iterable[Study]) -> str:
    """Tokens and hours of all trainings, by device."""
    records = {line.run_id: study.runs[line.run_id] for study in studies for line in study.lines}
    tokens, hours = 0, Counter[str]()
    for record in records.values():
        for start in record.get("starts", []):
            end = start.get("end") or {}
            tokens += end.get("tokens") or 0
            hours[start.get("device") or "?"] += start.get("world_size", 1) * (end.get("wall_s") or 0) / 3600
    parts = [f"{spent:.1f} hours on {device}" for device, spent in sorted(hours.items()) if spent]
    return f"{len(records)} runs, {tokens / 1e6:,.1f} million tokens, {' and '.join(parts) or 'no time known'}"


def _unknown(verdict: Verdict) -> bool:
    """Nothing can be said and no effect shown: the rows are not there."""
    return verdict.status is Status.NOT_MEASURED and not verdict.comparisons


def _versions(start: dict[str, Any]) -> str:
    versions = {"python": start.get("python"), **(start.get("versions") or {})}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
