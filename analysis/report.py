"""results/SCALE/report.html: every artefact of one scale beside what the paper shows, with a verdict per claim.

One file, no requests: pictures are embedded and styles are inline, so it can be mailed, opened offline and printed.
"""

import base64
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from analysis.artefacts import ARTEFACTS
from analysis.claims import CLAIMS, judge
from analysis.names import label, ordered
from analysis.style import PAPER_SCALE, scale_note
from analysis.tables import to_html
from results.atomic import write_atomic
from results.store import read_rows

TEMPLATE = Path(__file__).with_name("report.html.j2")


def build(folder: Path) -> Path:
    """Write folder/report.html from the stored rows and drawn figures of results/SCALE and return its path.

    ValueError: nothing stored there, a result that cannot be read, a figure that was not drawn.
    """
    stored = [name for name in ARTEFACTS if (folder / f"{name}.parquet").is_file()]
    if not stored:
        raise ValueError(f"{folder}: no results to report on; run an experiment at this scale first")
    sections = [_section(folder, name) for name in stored]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text()).render(
        scale=folder.name,
        is_paper_scale=folder.name == PAPER_SCALE,
        note=scale_note(folder.name),
        sections=sections,
        absent=[(name, module) for name, module in ARTEFACTS.items() if name not in stored],
        newest=max(section["created"] for section in sections),
        runs=_runs(sections),
    )
    path = folder / "report.html"
    write_atomic(path, page)
    return path


def _section(folder: Path, name: str) -> dict[str, Any]:
    rows, meta = read_rows(folder / f"{name}.parquet")
    module = ARTEFACTS[name]
    if meta["scale"] != folder.name:
        raise ValueError(f"{folder / name}.parquet: holds results of scale {meta['scale']}; it does not belong here")
    picture = folder / "figures" / f"{name}.png"
    is_figure = name.startswith("fig")
    if is_figure and not picture.is_file():
        raise ValueError(f"{picture}: not drawn yet; render {name} first")
    verdicts = [verdict for verdict in judge(meta["kind"], rows, meta) if verdict.claim in module.CLAIMS]
    return {
        "name": name,
        "title": module.TITLE,
        "paper": module.PAPER,
        "shows": module.SHOWS,
        "scale": meta["scale"],
        "created": meta["created"],
        "picture": base64.b64encode(picture.read_bytes()).decode() if is_figure else None,
        "table": Markup(to_html(module.summary(rows, meta))),  # escapes its own cells
        "verdicts": [(verdict, CLAIMS[verdict.claim]) for verdict in verdicts],
        "missing": [label(model) for model in module.MODELS if model not in set(rows["model"].unique())],
        "meta": meta,
    }


def _runs(sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who made the rows: one line per run, over all artefacts."""
    runs: dict[str, dict[str, Any]] = {}
    for section in sections:
        for run_id, run in section["meta"]["runs"].items():
            line = runs.setdefault(run_id, {"id": run_id, **run, "artefacts": [], "evaluated": ""})
            line["artefacts"].append(section["name"])
        for evaluation in section["meta"]["evals"].values():
            for run_id, made in evaluation["runs"].items():
                runs[run_id]["evaluated"] = max(runs[run_id]["evaluated"], made["created"])
                runs[run_id].setdefault("provenance", made["provenance"])
    order = ordered(run["model"] for run in runs.values())
    for run in runs.values():
        provenance = run.get("provenance") or {}
        run["label"] = label(run["model"])
        run["tokens"] = (run.get("spec") or {}).get("train", {}).get("train_tokens")  # a benchmark's run has no spec
        run["git"] = str(provenance.get("git_sha") or "unknown")[:10] + ("+" if provenance.get("git_dirty") else "")
        run["device"] = provenance.get("device", "unknown")
        versions = {"python": provenance.get("python"), **(provenance.get("versions") or {})}
        run["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return sorted(runs.values(), key=lambda run: (order.index(run["model"]), run["id"]))
