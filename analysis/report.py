"""Report of one scale, results/SCALE/report.html: contents with all verdicts in brief, every artefact with its provenance,
then the verdicts on the papers' claims in full.

One file, no requests, no script: pictures are embedded and styles are inline, so it can be mailed, opened offline and printed.
Equal stored results give equal bytes."""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from analysis.names import rank, title
from analysis.study import Study
from analysis.style import DPI, PAPER_SCALE, WIDTH
from analysis.tables import Table, read_off, to_html
from analysis.verdict import PERPLEXITY, RATIO, Claim, Comparison, Look, Status, Verdict, judge, not_measured, number
from results.atomic import write_atomic
from results.provenance import commit_name

MISSED = (Status.FAILS, Status.EXCEEDS)
TEMPLATE = Path(__file__).with_name("report.html.j2")
BESIDE = 4
"""Most columns of a table that has claims beside it; they stand above wider tables."""
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
    """One artefact of the report. `study`: None if nothing is stored, or if it cannot be read, which `fault` explains. `looks`:
    explanations of failing claims, of this artefact or another, by the claim's id. `missing`: planned but not stored.
    `run` and `why`: the commands that make it and that name its rows."""

    stem: str
    title: str
    paper: str
    shows: str
    claims: tuple[Claim, ...]
    looks: Mapping[str, Look]
    summary: Callable[[Study], Table]
    study: Study | None
    missing: Sequence[str] = ()
    fault: str = ""
    run: str = field(kw_only=True)
    why: str = field(kw_only=True)


def build(folder: Path, sections: Sequence[Section]) -> Path:
    """Write folder/report.html from the stored rows and drawn figures of results/SCALE and return its path. An artefact that
    cannot be drawn is shown with its fault, and none of its claims is judged. ValueError if nothing is stored, or nothing of it
    can be read."""
    studies = [section.study for section in sections if section.study is not None]
    if not studies:
        if faults := [f"{section.stem}: {section.fault}" for section in sections if section.fault]:
            raise ValueError(f"{folder}: no report, as none of the stored results can be read; {faults[0]}")
        raise ValueError(f"{folder}: no results to report on; run an experiment at this scale first")
    with ThreadPoolExecutor() as pool:  # mostly compresses pictures, which threads do in parallel
        there = [*pool.map(lambda each: _artefact(folder, each, each.study), (each for each in sections if each.study))]
    absent = [section for section in sections if section.study is None]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Callable[..., Any]] = {
        "sign": _sign,
        "slug": lambda status: status.replace(" ", "-"),
        "statistic": _statistic,
        "printed": title,
        "code": lambda text: Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text)))),
    }
    environment.filters |= filters
    nothing = not_measured("Nothing is stored for this artefact.")
    verdicts = [(artefact["section"], *judged) for artefact in there for judged in artefact["verdicts"]]
    verdicts += [(each, claim, nothing) for each in absent for claim in each.claims if not each.fault]

    def order(judged: tuple[Section, Claim, Verdict]) -> tuple[bool, tuple[str, int, str]]:
        _, claim, verdict = judged  # claims without rows come last
        return verdict.status is Status.NOT_MEASURED and not verdict.comparisons, _place(claim)

    looks = _looks([claim for _, claim, verdict in verdicts if verdict.status in MISSED], sections)
    counts = Counter(verdict.status for _, _, verdict in verdicts)
    page = environment.from_string(TEMPLATE.read_text()).render(
        scale=folder.name,
        paper_scale=PAPER_SCALE,
        trained=any(run.get("final_loss") is not None for study in studies for run in study.runs.values()),
        seeds=sorted({count for study in studies for count in study.seed_counts.values()}),
        trainings={(line.run_id, line.weights): line for study in studies for line in study.lines if line.is_trained}.values(),
        sizes=_sizes(studies),
        artefacts=there,
        verdicts=sorted(verdicts, key=order),
        missed=MISSED,
        counts=[(status, counts[status]) for status in Status if status in counts],
        looks=looks,
        looked_into={claim: section.stem for section, _, claims in looks for claim in claims},
        absent=absent,
        texts=any("text:FILES" in section.run for section in sections),
        newest=max(study.created for study in studies)[:10],
        runs=_runs(studies),
        spent=_spent(studies),
    )
    path = folder / "report.html"
    write_atomic(path, page)
    return path


def _sign(status: Status, words: bool = True) -> Markup:
    return Markup('<span class="status {}">{} {}</span>').format(*SIGNS[status], status if words else "")


def _artefact(folder: Path, section: Section, study: Study) -> dict[str, Any]:
    shown: dict[str, Any] = {"table": "", "caption": "", "wide": False, "verdicts": [], "pictures": []}
    fault = ""
    try:
        summary = section.summary(study)
        verdicts, pictures = judge(section.claims, study), _pictures(folder, section)
        shown = {"table": to_html(summary), "caption": summary.caption, "wide": len(summary.columns) > BESIDE}
        shown |= {"verdicts": verdicts, "pictures": pictures}
    except Exception as error:  # whatever is wrong with one artefact, the others are reported
        fault = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    files = [str(path.relative_to(folder)) for path in sorted((folder / "tables").glob(f"{section.stem}.*"))]
    made = {"made_from": _made_from(study), "changed_trees": _changed_trees(study)}
    return {"section": section, "files": files, "fault": fault, **shown, **made}


def _looks(missed: Iterable[Claim], sections: Iterable[Section]) -> list[tuple[Section, str, list[str]]]:
    """Return the explanations of missed claims, in the order of the claims: (section, sentence, ids of its claims)."""
    ids = [claim.id for claim in sorted(missed, key=_place)]
    found = []
    for section in sections:
        for look in dict.fromkeys(section.looks.values()):
            asked = [claim for claim in ids if section.looks.get(claim) is look]
            if asked and section.study is not None:
                try:
                    sentence = look(section.study)
                except ValueError as error:
                    sentence = f"Unknown: {error}."
                found.append((section, sentence, asked))
    return sorted(found, key=lambda each: ids.index(each[2][0]))


def _pictures(folder: Path, section: Section) -> list[dict[str, Any]]:
    """Return the artefact's own picture, then those called STEM-SOMETHING; none for tables."""
    own = folder / "figures" / f"{section.stem}.png"
    if not own.is_file() and not (folder / "tables" / f"{section.stem}.md").is_file():
        raise ValueError(f"{own}: not drawn yet; render {section.stem} first")
    return [_picture(path) for path in [own, *sorted(own.parent.glob(f"{section.stem}-*.png"))] if path.is_file()]


def _picture(path: Path) -> dict[str, Any]:
    """Return a picture with its note (analysis/style.py), its share of the page's width in percent (so that text has one size
    in all pictures), and the values of its curves."""
    with Image.open(path) as image:
        note, size = str(image.info.get("Description", "")), image.size
    files = [each for each in map(path.with_suffix, (".csv", ".png", ".pdf")) if each.is_file()]
    read = read_off(files[0]) if files[0].suffix == ".csv" else None
    return {
        "name": path.stem,
        "data": base64.b64encode(path.read_bytes()).decode(),
        "note": note,
        "size": size,
        "share": min(100, round(100 * size[0] / (WIDTH * DPI))),
        "files": [f"{path.parent.name}/{each.name}" for each in files],
        "read": to_html(read) if read else "",
    }


def _statistic(decisive: Comparison) -> str:
    """Print the test behind a number: the required inequality, the effect as tested, and the smallest detectable effect."""
    estimate, logs = decisive.estimate, decisive.unit in (RATIO, PERPLEXITY)
    text = f"{decisive.name}; asked for {decisive.asked}"
    if logs or decisive.shown:
        text += f"; {'log ' if logs else ''}{number(estimate.effect)}{'' if logs else ' ' + decisive.unit}"
    return f"{text}; detectable {decisive.detectable}" if decisive.detectable else text


def _place(claim: Claim) -> tuple[str, int, str]:
    """Return a sorting key: C2 before C10, C22 before C22b."""
    letter, digits, rest = re.fullmatch(r"(\D+)(\d+)(.*)", claim.id).groups()  # type: ignore[union-attr]
    return letter, int(digits), rest


def _sizes(studies: Iterable[Study]) -> dict[str, dict[str, int]]:
    """Return the parameters of the models that are drawn under their own name, by scale, in the paper's order."""
    found: dict[str, dict[str, int]] = {}
    for study in studies:
        for line in study.lines:
            count = _params(study.runs[line.run_id])
            if line.label == line.model and count:
                found.setdefault(line.scale, {})[line.model] = count
    return {scale: {model: params[model] for model in sorted(params, key=rank)} for scale, params in found.items()}


def _params(run: dict[str, Any]) -> int | None:
    """Return a run's parameters (input embedding excluded), as its record or a start of it has them."""
    return run.get("params") or next((start["params"] for start in run["starts"] if start.get("params")), None)


def _made_from(study: Study) -> dict[str, Any]:
    """Return the provenance of an artefact, as a summary and line by line."""
    ids = [list(line.evals) for line in study.lines]
    metas = study.all_metas
    return {
        "lines": list(zip(study.lines, ids, strict=True)),
        "runs": len({line.run_id for line in study.lines}),
        "evaluations": sum(len(line.evals) for line in study.lines),
        "corpora": study.corpora,
        "devices": _distinct(meta["provenance"].get("device") for meta in metas),
        "commits": _distinct(commit_name(meta["provenance"]) for meta in metas),
        "dates": _distinct(meta["created"][:10] for meta in metas),
    }


def _changed_trees(study: Study) -> str:
    """Describe how many trainings and evaluations of an artefact had uncommitted changes; empty if none had."""
    trained = {line.run_id: study.runs[line.run_id]["starts"] for line in study.lines if line.is_trained}
    made = [[meta["provenance"]] for meta in study.all_metas]
    parts = []
    for what, each in (("runs were trained", [*trained.values()]), ("evaluations were made", made)):
        changed = [some for some in ([one for one in starts if one.get("git_dirty")] for starts in each) if some]
        if changed:
            commits = ", ".join(_distinct(commit_name(one) for some in changed for one in some))
            parts.append(f"{len(changed)} of {len(each)} {what} ({commits})")
    return f"From a changed working tree {' and '.join(parts)}." if parts else ""


def _distinct(texts: Iterable[str | None]) -> list[str]:
    return sorted({text for text in texts if text})


def _runs(studies: Iterable[Study]) -> list[dict[str, Any]]:
    """Return every run once: its settings, its provenance, and the artefacts that draw it."""
    found: dict[str, dict[str, Any]] = {}
    for study in studies:
        for line in study.lines:
            record = study.runs[line.run_id]
            starts = record["starts"]
            last = starts[-1] if starts else {}
            versions = {"python": last.get("python"), **(last.get("versions") or {})}
            about = {
                "line": line,
                "adopted": record["spec"].get("weights") is not None,
                "params": _params(record),
                "train": record["spec"]["train"],
                "loss": record.get("final_loss"),
                "commits": _distinct(commit_name(start) for start in starts),
                "devices": _distinct(start.get("device") for start in starts),
                "starts": len(starts),
                "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
                "date": last.get("date", "")[:10],
                "labels": {},
                "artefacts": {},
            }
            run = found.setdefault(line.run_id, about)
            run["labels"][title(line.label)] = run["artefacts"][study.stem] = True

    def order(run: dict[str, Any]) -> tuple[Any, ...]:
        line = run["line"]
        return line.scale, rank(line.model), list(run["labels"]), line.seed

    return sorted(found.values(), key=order)


def _spent(studies: Iterable[Study]) -> str:
    """Print the tokens of all trainings, and their hours by device."""
    records = {line.run_id: study.runs[line.run_id] for study in studies for line in study.lines}
    tokens, hours = 0, Counter[str]()
    for start in (start for record in records.values() for start in record["starts"]):
        end = start.get("end") or {}
        tokens += end.get("tokens") or 0
        hours[start.get("device") or "?"] += start.get("world_size", 1) * (end.get("wall_s") or 0) / 3600
    parts = [f"{spent:.1f} hours on {device}" for device, spent in sorted(hours.items()) if spent]
    return f"{len(records)} runs, {tokens / 1e6:,.1f} million tokens, {' and '.join(parts) or 'no time known'}"
