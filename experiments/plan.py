"""Plans: from a request on the command line to the corpora, runs, evaluations and lines that it needs.

Runs are shared: artefacts request runs by their spec, and equal specs are one run, however many artefacts request it."""

import json
import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from analysis.study import Line, Lines, joined, read_lines, write_lines
from data.corpus import Counts
from data.plan import CorpusPlan, resolve
from data.spec import DataSpec
from data.tokenizer import parse_tokenizer
from eval.kinds import EVAL_SPEC, eval_id, unread
from eval.needle import spec as needle
from eval.runner.spec import EvalSpec, Setting
from experiments.adopt import adopted_run
from experiments.artefact import Artefact, chosen
from experiments.recipes import Recipe, check_name
from experiments.request import Corpora, Request
from experiments.scales import SIZE_OF, NoSizes, Scale, get_scale
from results.atomic import alone, write_atomic
from results.store import POOLS, open_store
from training.command_line import short
from training.run_folder import RunFolder
from training.spec import MAX_SEED, RunSpec, check_device, micro_batch_size


@dataclass(frozen=True)
class KnownCorpus:
    """A corpus without files: LongCrawl64 in plans made on machines without it, or a task generated on the fly."""

    spec: DataSpec
    folder: Path
    note: str
    ready: bool = True

    def counts(self) -> Counts | None:
        return None


Corpus = CorpusPlan | KnownCorpus


@dataclass(frozen=True)
class Run:
    """One run of the plan, its folder, its corpus, and all evaluations that artefacts request of it. `beside`: another results
    folder whose rows count as done, too."""

    spec: RunSpec
    folder: RunFolder
    corpus: Corpus
    evals: tuple[EvalSpec, ...]
    beside: Path | None = None

    def eval_file(self, spec: EvalSpec) -> Path:
        return self.folder.evals / f"{eval_id(spec)}.parquet"

    def spec_file(self, spec: EvalSpec) -> Path:
        return self.folder.evals / f"{eval_id(spec)}.spec.json"

    @property
    def missing_evals(self) -> tuple[EvalSpec, ...]:
        stored = self._stored()
        names = {spec: eval_id(spec) for spec in self.evals}
        return tuple(spec for spec in self.evals if names[spec] not in stored and self.folder.evaluation_fault(names[spec]))

    def _stored(self) -> set[str]:
        """Return the evaluations that are done beside: of fresh weights any, of trained ones all or none, since the rows of a
        line are of one training."""
        if self.beside is None:
            return set()
        store = open_store(self.beside, self.spec.scale)
        wanted = {eval_id(spec): spec.NEEDS != "spec" for spec in self.evals}
        there = {name for name in wanted if store.find(self.spec.run_id, name, None) is not None}
        trained = {name for name in wanted if wanted[name]}
        begun = self.folder.provenance_file.exists() or self.folder.export.exists()
        return there if trained <= there and not begun else there - trained

    @property
    def trains(self) -> bool:
        """Return whether the run is not finished, and a missing evaluation needs the trained model or its metrics."""
        needed = self.spec.weights is None and any(spec.NEEDS != "spec" for spec in self.missing_evals)
        return needed and not self.folder.finished


@dataclass(frozen=True)
class Plan:
    """Everything that a request needs. `drawings`: the requested lines, by artefact stem; `runs`: by run id."""

    request: Request
    drawings: dict[str, tuple[Line, ...]]
    runs: dict[str, Run]

    @property
    def corpora(self) -> list[Corpus]:
        """All corpora, each once."""
        return list({run.corpus.spec.fingerprint: run.corpus for run in self.runs.values()}.values())

    @property
    def idle(self) -> list[str]:
        """Artefacts without any requested line."""
        return [stem for stem, lines in self.drawings.items() if not lines]

    @property
    def unread(self) -> list[str]:
        """Options for a text that were given although no run reads a text: all generate their own sequences."""
        made = [run.spec.data.recall is not None for run in self.runs.values()]
        given = [flag for flag in ("data", "heldout", "tokenizer") if getattr(self.request, flag) is not None]
        return [f"--{flag}" for flag in given] if made and all(made) else []


def make_plan(request: Request, *, machine: str = "any", rehearsal: bool = False) -> Plan:
    """Plan a request; uses no GPU and writes only a cache of files' digests. ValueError for anything the user can fix.
    `machine`: name of the GPU or CPU for timings. A `rehearsal` is only shown, never executed, and does not need LongCrawl64
    to be there."""
    _check_names(request)
    artefacts = chosen(request.artefacts)
    recipes = _all_recipes(artefacts, request)
    _check_lines(request, artefacts, recipes)
    corpora: dict[str, Corpus] = {}
    drawings: dict[str, tuple[Line, ...]] = dict.fromkeys(artefacts, ())
    runs: dict[str, Run] = {}
    corpus: Corpus
    for stem, artefact in artefacts.items():
        for recipe in (each for each in recipes[stem] if _is_asked_for(each, request)):
            if recipe.task is not None:
                note = f"{recipe.task.num_keys} keys, generated on the fly"
                corpus = KnownCorpus(DataSpec.of_recall(recipe.task), Path(), note)
            else:
                at = get_scale(recipe.scale)
                if _corpus_key(at) not in corpora:
                    corpora[_corpus_key(at)] = corpus_at(request, at, rehearsal=rehearsal)
                corpus = corpora[_corpus_key(at)]
            spec = adopted_run(request.results_dir, recipe, corpus.spec) or _spec_of(recipe, corpus.spec, stem)
            spec = runs[spec.run_id].spec if spec.run_id in runs else _as_found(request, spec)
            wanted = [_bound(each, spec, request, machine) for each in artefact.evals(recipe.sizes)]
            ids = dict.fromkeys(map(eval_id, wanted))
            line = Line(recipe.label, recipe.axes, recipe.name, recipe.seed, recipe.scale, spec.run_id, ids)
            drawings[stem] += (line,)
            before = runs[spec.run_id].evals if spec.run_id in runs else ()
            evals = tuple(dict.fromkeys((*before, *wanted)))
            runs[spec.run_id] = Run(spec, request.run_folder(spec), corpus, evals, request.beside)
    if not runs:
        asked = [*(f"--only {model}" for model in request.only), *(f"--line {label!r}" for label in request.line)]
        raise ValueError(f"{' '.join(asked)}: no line of {', '.join(artefacts)} matches.")
    plan = Plan(request, drawings, runs)
    check(plan)
    return plan


def _spec_of(recipe: Recipe, data: DataSpec, stem: str) -> RunSpec:
    """Return the spec of a line's run. ValueError, naming the artefact, if the scale has no such run."""
    try:
        return recipe.run_spec(data)
    except ValueError as error:
        remedy = f"leave the line out with --only or --line, or leave out {stem}"
        raise ValueError(f"{stem}, {recipe.label!r}, at {recipe.scale}: {short(error)}; {remedy}.") from None


def _as_found(request: Request, spec: RunSpec) -> RunSpec:
    """Return the spec with the name of its existing run folder. One run can be a line of several models (a Transformer is a FoX
    without its gate), and is named after the model that requested it first."""
    folders = sorted(request.run_folder(spec).path.parent.glob(f"*-{spec.run_id}"))
    names = [folder.name.removesuffix(f"-{spec.run_id}") for folder in folders if (folder / "spec.json").is_file()]
    return spec if spec.name in names or not names else replace(spec, name=names[0])


def _all_recipes(artefacts: dict[str, Artefact], request: Request) -> dict[str, list[Recipe]]:
    """Return the recipes of each artefact. ValueError that names all tables without sizes for the scale, not just the first."""
    found: dict[str, list[Recipe]] = {}
    lacking: dict[str, NoSizes] = {}
    for stem, artefact in artefacts.items():
        try:
            found[stem] = artefact.recipes(get_scale(request.scale), request.seeds, request.also)
            for sizes in {each.scale: each.sizes for each in found[stem] if _is_asked_for(each, request)}.values():
                artefact.evals(sizes)
        except NoSizes as error:
            lacking.setdefault(error.place, error)
    if lacking:
        first, *others = lacking
        raise ValueError(f"{lacking[first]}" + (f" The same holds for {', '.join(others)}." if others else ""))
    return found


def _is_asked_for(recipe: Recipe, request: Request) -> bool:
    named = any(fnmatchcase(recipe.label, label) for label in request.line or ("*",))
    return named and (not request.only or recipe.name in request.only)


def _bound(spec: EvalSpec, run: RunSpec, request: Request, machine: str) -> EvalSpec:
    """Return the spec of an evaluation of `run`, with everything that it reads identified by content."""
    if isinstance(spec, needle.Spec) and request.judge_model is not None:
        spec = replace(spec, judge=request.judge_model)
    return spec.bound(Setting(run.data, request.sources, run.train.precision, machine))


def _check_names(request: Request) -> None:
    for flag, models in (("--only ", request.only), ("--also ", request.also)):
        for model in models:
            check_name(model, flag)
    if len(set(request.seeds)) < len(request.seeds) or not all(0 <= seed < MAX_SEED for seed in request.seeds or (-1,)):
        raise ValueError(f"--seeds {' '.join(map(str, request.seeds))}: give different numbers from 0 on, below 2^63.")


def _check_lines(request: Request, artefacts: dict[str, Artefact], recipes: dict[str, list[Recipe]]) -> None:
    """Raise ValueError for a line that its artefact cannot draw, for a requested label or model that no line has, and for a
    model in --also that no artefact can add, or that --only or --line leaves out."""
    for stem, artefact in artefacts.items():
        artefact.check(recipes[stem])
    labels = dict.fromkeys(recipe.label for found in recipes.values() for recipe in found)
    names = {recipe.name for found in recipes.values() for recipe in found}
    kept = {recipe.name for found in recipes.values() for recipe in found if _is_asked_for(recipe, request)}
    for model in request.only:
        if model not in names:
            remedy = f"--also {model} adds it where there is a line per model"
            raise ValueError(f"--only {model}: no line of {', '.join(artefacts)} matches; {remedy}.")
    for model in request.also:
        if model not in names:
            raise ValueError(f"--also {model}: the lines of {', '.join(artefacts)} are not one per model; leave it out.")
        if kept and model not in kept:
            raise ValueError(f"--also {model}: --only or --line leaves it out; name it there, too, or leave out --also.")
    for asked in request.line:
        if not any(fnmatchcase(label, asked) for label in labels):
            raise ValueError(
                f"--line {asked!r}: no line of {', '.join(artefacts)} has this label; there are: {'; '.join(labels)}."
            )


def _corpus_key(scale: Scale) -> str:
    """Return those fields of a scale that determine its corpus (`corpus_at`)."""
    packed = scale.train_tokens if scale.short_documents else None
    return f"{scale.default_data} {scale.default_tokenizer} {scale.document_len} {scale.heldout_fraction} {packed}"


def corpus_at(request: Corpora, scale: Scale, *, rehearsal: bool = True) -> Corpus:
    """Find the corpus of a request at a scale; in a rehearsal it need not be on this machine. ValueError if there is none."""
    absent, (data, tokenizer) = _absent(request, scale) if rehearsal else None, _data(request, scale)
    if absent is not None:
        return absent
    if data is None:
        choices = "longcrawl64:FOLDER (the paper's), hf:NAME, or text:PATH with long documents"
        raise ValueError(f"--scale {scale.name} needs --data: {choices}.")
    return resolve(
        data,
        tokenizer=tokenizer,
        document_len=scale.document_len,
        cache_dir=request.corpora_dir,
        heldout_fraction=scale.heldout_fraction,
        heldout=request.heldout if data == (request.data or data) else None,
        packed=scale.short_documents,
        max_tokens=scale.train_tokens if scale.short_documents else None,
    )


def _data(request: Corpora, scale: Scale) -> tuple[str | None, str | None]:
    """Return data and tokeniser in the form of `--data` and `--tokenizer`. LongCrawl64 has no short documents: a scale that
    needs them uses its default data instead."""
    if scale.short_documents and (request.data or "longcrawl64:").startswith("longcrawl64:"):
        return scale.default_data, scale.default_tokenizer
    data = request.data or scale.default_data
    own = None if data is not None and data.startswith("longcrawl64:") else scale.default_tokenizer
    return data, request.tokenizer or own


def _absent(request: Corpora, scale: Scale) -> KnownCorpus | None:
    """Return a placeholder for a corpus that a plan need not read, else None: LongCrawl64 if a paper's scale is planned on a
    machine without it, and the hub's short documents if no commit of theirs was named."""
    kind, _, folder = (request.data or "longcrawl64:FOLDER").partition(":")
    data, tokenizer = _data(request, scale)
    if scale.default_tokenizer == "gpt2-json" and kind == "longcrawl64" and not Path(folder).expanduser().exists():
        source, choice, note = kind, parse_tokenizer("gpt2-json"), "LongCrawl64 is not here"
    elif scale.short_documents and data is not None and data.startswith("hf:") and "@" not in data:
        source, choice, note = data, parse_tokenizer(tokenizer or scale.default_tokenizer), "not asked of the hub"
        folder = data
    else:
        return None
    spec = DataSpec(source=source, tokenizer=choice.kind, vocab_size=choice.vocab_size, bos_id=choice.vocab_size - 1,
                    document_len=scale.document_len, fingerprint="absent")  # fmt: skip
    return KnownCorpus(spec, Path(folder), f"{note}, so the ids of the runs are provisional")


def check(plan: Plan) -> None:
    """Raise ValueError for every foreseeable failure. Called before the first job, and again once the corpora are prepared."""
    for run in plan.runs.values():
        check_device(run.spec, plan.request.device)
        if run.trains:
            micro_batch_size(run.spec.train, 1, plan.request.execution.micro_batch_tokens)
        for spec in run.evals:
            try:
                spec.check(run.spec, run.corpus.counts())
            except ValueError as error:
                reason = f"{spec.kind} of {run.spec.name} at {run.spec.scale}: {error}"
                raise ValueError(reason + _without(plan, run, spec)) from None
    ignored = unread((spec for run in plan.runs.values() for spec in run.evals), plan.request.sources)
    needles = any(isinstance(spec, needle.Spec) for run in plan.runs.values() for spec in run.evals)
    if plan.request.judge_model is not None and not needles:
        ignored.append("--judge-model")
    if "--judge-url" in ignored and needles:
        raise ValueError("--judge-url: read only with --judge-model MODEL; give that, too.")
    if ignored:
        need, them = "needs" if len(plan.drawings) == 1 else "need", "it" if len(ignored) == 1 else "them"
        nothing = f"no evaluation that {', '.join(plan.drawings)} {need} at {plan.request.scale} reads {them}"
        raise ValueError(f"{', '.join(ignored)}: {nothing}.")
    for stem in plan.drawings:
        _check_corpora(plan, stem)


def _without(plan: Plan, run: Run, spec: EvalSpec) -> str:
    """Return the remedy that names the artefacts to leave out to avoid an evaluation; empty if none would remain."""
    line, found = (run.spec.run_id, eval_id(spec)), []
    for stem, lines in plan.drawings.items():
        if line in ((each.run_id, name) for each in lines for name in each.evals):
            found.append(stem)
    return "" if len(found) == len(plan.drawings) else f"; or leave out {', '.join(found)}"


def _lines_there(plan: Plan, stem: str) -> tuple[Line, ...]:
    """Return the lines of an artefact that are planned or stored in the results folder and beside it."""
    request = plan.request
    own = read_lines(request.results_dir, request.scale, stem).lines
    return joined(read_lines(request.beside, request.scale, stem).lines, own) if request.beside else own


def _check_corpora(plan: Plan, stem: str) -> None:
    """Raise ValueError if a figure would mix runs on several corpora: of one scale, or of one tokeniser and document length."""
    request, runs = plan.request, [plan.runs[line.run_id].spec for line in plan.drawings[stem]]
    ours: dict[Any, str] = {run.scale: run.data.fingerprint for run in runs}
    ours |= {(run.data.tokenizer, run.data.document_len): run.data.fingerprint for run in runs if run.data.recall is None}
    for line in _lines_there(plan, stem):
        folders = [request.results_dir, *([request.beside] if request.beside else [])]
        record = next(filter(None, (open_store(each, line.scale).run(line.run_id, line.weights) for each in folders)), None)
        data = record["spec"]["data"] if record else {"recall": True}
        if data.get("recall"):  # one figure may show recall tasks of several sizes
            continue
        own = ours.get(line.scale, ours.get((data.get("tokenizer"), data.get("document_len")), data["fingerprint"]))
        if data["fingerprint"] != own != "absent":
            other = f"{data['source']}, {data['fingerprint']}; this is {own}"
            remedy = "keep the two apart with --results-dir FOLDER."
            raise ValueError(f"{stem} at {request.scale} is drawn from runs on another corpus ({other}): {remedy}")


def write_specs(plan: Plan) -> None:
    """Create the run folders, write the specs of missing evaluations into them for the jobs, and the lines of the artefacts."""
    for run in plan.runs.values():
        missing = run.missing_evals
        if missing:
            RunFolder.create(run.folder.path, run.spec)
        for spec in missing:
            write_atomic(run.spec_file(spec), EVAL_SPEC.dump_json(spec, indent=1).decode() + "\n")
    request = plan.request
    with alone(request.results_dir / ".lock", lambda: None, needed=False):
        write_atomic(request.results_dir / POOLS, json.dumps(SIZE_OF, indent=1) + "\n")
        for stem, lines in plan.drawings.items():
            before = read_lines(request.results_dir, request.scale, stem).beside
            beside = os.path.relpath(request.beside, request.results_dir) if request.beside else before
            write_lines(request.results_dir, Lines(stem, request.scale, joined(_lines_there(plan, stem), lines), beside))
