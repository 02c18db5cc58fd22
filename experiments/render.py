"""Rendering of every figure and table of a scale from its stored rows, and of the pages about them. Torch-free.

RESULTS/SCALE/claims.md lists the commands that check a claim again. The report is built by analysis/report.py, the pages of the
checkout's own results by pages.py."""

import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.mathtext import MathTextParser
from rich.console import Console
from rich.markup import escape

from analysis import report
from analysis.statistics import LEVEL, POWER
from analysis.study import NothingStored, Study, study_file
from analysis.verdict import JUDGED, Claim, Status, Verdict, judge
from data.spec import DataSpec
from experiments.artefact import Artefact, artefacts
from experiments.drawn import drawn_files, mark_drawn, unmark
from experiments.forks import begin
from experiments.pages import RESULTS, ROOT, UNSEEN, write_pages
from experiments.scales import get_scale
from results.atomic import write_atomic
from results.provenance import commit_name

TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
                               trim_blocks=True, keep_trailing_newline=True)  # fmt: skip
TEXTS = " --data text:FILES"


def render_all(stems: Iterable[str], scale: str, results_dir: Path, console: Console) -> list[str]:
    """Draw artefacts, and write the report and all pages. Returns the artefacts that failed; their errors are printed."""
    known, broken, studies, stems = artefacts(), [], dict[str, Study](), list(stems)
    before = {stem: drawn_files(results_dir, scale, stem) for stem in stems}

    def works() -> Iterator[Callable[[], Any]]:
        MathTextParser("agg").parse("$i$")  # load fonts and grammar once, before forking
        for stem in [*stems, *(each for each in stored(scale, results_dir) if each not in stems)]:
            with suppress(Exception):  # drawing or the report raises the same error again
                studies[stem] = Study(results_dir, scale, stem).whole()
                known[stem].summary(studies[stem])  # cached before forking, for the report, too
                judge(known[stem].claims, studies[stem])
            if stem in stems:
                unmark(results_dir, scale, stem)
                yield partial(lambda stem: known[stem].draw(studies.get(stem) or Study(results_dir, scale, stem)), stem)

    drawings = begin(works())
    whole = dict[str, list[Path]]()
    for stem, drawn in zip(stems, drawings, strict=True):
        try:
            whole[stem] = drawn()
            for path in before[stem] - {*whole[stem]}:  # what is not drawn again must leave the report
                path.unlink(missing_ok=True)
            for path in whole[stem]:
                console.print(f"[green]drawn[/] {escape(str(path))}")
        except OSError:
            raise  # such as a full disk: no other figure could be written, either
        except Exception as error:  # one figure's error must not stop the others
            broken.append(stem)
            mistake = isinstance(error, ValueError)
            kind = "" if mistake else f"{type(error).__name__}: "
            print(f"error: {stem} at {scale} is not drawn: {kind}{error}", file=sys.stderr)
            if not mistake:
                traceback.print_exc()
    console.print(f"[green]report[/] {escape(str(write_report(scale, results_dir, studies)))}")
    write_claims(scale, results_dir, studies)
    if results_dir.resolve().is_relative_to(RESULTS):
        write_pages()
    for stem, paths in whole.items():
        mark_drawn(studies[stem], paths)
    return broken


def has_rows(stem: str, scale: str, results_dir: Path) -> bool:
    """Return whether an artefact has rows at a scale; they may be damaged, which drawing reports."""
    try:
        return bool(Study(results_dir, scale, stem).lines)
    except ValueError as error:
        return not isinstance(error, NothingStored)


def stored(scale: str, results_dir: Path) -> list[str]:
    """Return the artefacts that have rows at a scale."""
    return [stem for stem in artefacts() if has_rows(stem, scale, results_dir)]


def write_report(scale: str, results_dir: Path, read: Mapping[str, Study] | None = None) -> Path:
    """Write results/SCALE/report.html from everything stored at that scale. `read`: studies that were just drawn."""
    sections = [_section(artefact, scale, results_dir, (read or {}).get(artefact.stem)) for artefact in artefacts().values()]
    return report.build(results_dir / scale, sections)


def _section(artefact: Artefact, scale: str, results_dir: Path, read: Study | None) -> report.Section:
    study, missing, fault = None, [], ""
    if has_rows(artefact.stem, scale, results_dir):
        try:
            study = (read or Study(results_dir, scale, artefact.stem)).whole()
            there = {line.series for line in study.lines}
            missing = [each.label for each in artefact.runs(get_scale(scale), (0,)) if each.series not in there]
        except ValueError as error:
            study, fault = None, str(error)
    return report.Section(
        stem=artefact.stem, title=artefact.title, paper=artefact.paper, shows=artefact.shows, claims=artefact.claims,
        looks=artefact.looks, summary=artefact.summary, study=study, missing=tuple(dict.fromkeys(missing)), fault=fault,
        run=_run(artefact, scale, results_dir, study),
        why=f"python -m experiments why {artefact.stem} --scale {scale}{_folder(results_dir)}",
    )  # fmt: skip


def write_claims(scale: str, results_dir: Path, read: Mapping[str, Study]) -> Path:
    """Write results/SCALE/claims.md about the claims that were judged at a scale. `read`: studies that were just drawn."""
    path, page = results_dir / scale / "claims.md", TEMPLATES.get_template("claims.md.j2")
    seen: list[tuple[Artefact, str, list[tuple[Claim, Verdict]]]] = []
    unseen: dict[str, list[str]] = {}
    for stem, artefact in artefacts().items():
        verdicts: list[tuple[Claim, Verdict]] = []
        why = "No rows"
        with suppress(Exception):  # the report shows the error
            if study_file(results_dir, scale, stem).is_file():
                why = "Rows that cannot be read"
            study = read.get(stem) or Study(results_dir, scale, stem).whole()
            verdicts = judge(artefact.claims, study)
        if judged := [each for each in verdicts if each[1].status not in UNSEEN]:
            seen.append((artefact, _how(artefact, scale, study), judged))
        reasons = {claim.id: _first(verdict.sentence) if verdict.status in UNSEEN else "" for claim, verdict in verdicts}
        for claim in artefact.claims:
            if reason := reasons.get(claim.id, why):
                unseen.setdefault(reason, []).append(f"{claim.id} (`{stem}`)")
    texts = any(TEXTS in how for _, how, _ in seen)
    by_noise = (*JUDGED, Status.UNDECIDED)
    families = sum(any(verdict.status in by_noise for _, verdict in judged) for _, _, judged in seen)
    said = dict(folder=_folder(results_dir), texts=texts, families=families, chance=1 - LEVEL, power=f"{POWER:.0%}")
    write_atomic(path, page.render(scale=scale, seen=seen, unseen=unseen, **said))
    return path


def _first(words: str) -> str:
    """Return the first of several sentences, without its full stop."""
    return words.split(". ")[0].removesuffix(".")


def _folder(results_dir: Path) -> str:
    """Return the option of a command that names a results folder; empty if it is the checkout's own."""
    whole = results_dir.resolve()
    shown = whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else results_dir
    return "" if shown == Path("results") else f" --results-dir {shlex.quote(str(shown))}"


def _how(artefact: Artefact, scale: str, study: Study) -> str:
    """Return the command of an artefact, the time that its trainings took, and where it was last made."""
    command = _run(artefact, scale, study.results_dir, study)
    newest = max(study.all_metas, key=lambda meta: (meta["created"], meta["eval_id"]))
    made = newest["provenance"]
    seen = f"Last seen {newest['created'][:10]} on {made['device']}, commit {commit_name(made)}; corpus {study.corpora}."
    return f"`{command}`\n\n{_took(study, _makes(artefact, scale, study))} {seen}"


def _run(artefact: Artefact, scale: str, results_dir: Path, study: Study | None) -> str:
    """Return the command that makes an artefact, with the seeds and the models that are stored. `study`: None if none are."""
    if study is None:
        seeds, also, recalled = "0", "", False
        with suppress(ValueError):  # it has no sizes for this scale, which the command says
            recalled = all(recipe.task for recipe in artefact.runs(get_scale(scale), (0,)))
    else:
        seeds = ",".join(map(str, sorted({line.seed for line in study.lines})))
        sources = {study.spec(line.run_id)["data"]["source"] for line in study.lines}
        also, recalled = _also(artefact, scale, study), sources == {"recall"}
    data = "" if get_scale(scale).default_data or recalled else TEXTS
    options = f"{data}{f' --seeds {seeds}' * (seeds != '0')}{also}{_folder(results_dir)}"
    return f"python -m experiments run {artefact.stem} --scale {scale}{options}"


def _makes(artefact: Artefact, scale: str, study: Study) -> int:
    """Count the runs that an artefact's command makes."""
    seeds = tuple(sorted({line.seed for line in study.lines}))
    text = DataSpec(source="any", tokenizer="bytes", vocab_size=512, bos_id=0, document_len=2**20, fingerprint="any")
    recipes = artefact.recipes(get_scale(scale), seeds, _more(artefact, scale, study))
    return len({recipe.run_spec(text).run_id for recipe in recipes})


def _also(artefact: Artefact, scale: str, study: Study) -> str:
    """Return the --also options for stored models that the artefact does not declare."""
    return "".join(f" --also {model}" for model in _more(artefact, scale, study))


def _more(artefact: Artefact, scale: str, study: Study) -> list[str]:
    declared = list(artefact.runs(get_scale(scale), (0,)))
    if artefact.more:
        names = {recipe.name for recipe in declared}
        return [*dict.fromkeys(line.model for line in study.lines if line.model not in names)]
    series = {recipe.series for recipe in declared}
    return [*dict.fromkeys(line.model for line in study.lines if not line.axes and line.series not in series)]


def _took(study: Study, makes: int) -> str:
    """Return a sentence on how many of the command's trainings the lines are drawn from, and how many minutes they took."""
    starts = {line.run_id: _last(study.starts(line)) for line in study.lines if study.starts(line)}
    if not starts:
        return "No training."
    devices = sorted({str(start["device"]) for own in starts.values() for start in own})
    seconds = sum((start.get("end") or {}).get("wall_s") or 0.0 for own in starts.values() for start in own)
    count = f"{len(starts)} of the {makes} trainings that it makes" if makes > len(starts) else f"{len(starts)} trainings"
    return f"{count}, {seconds / 60:.0f} minutes on {' and '.join(devices) or 'nothing known'}."


def _last(starts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the starts of a training from the last one that began with its first step."""
    begun = [index for index, start in enumerate(starts) if start.get("first_step") == 0]
    return starts[begun[-1] if begun else 0 :]
