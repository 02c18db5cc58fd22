"""From a request on the command line to jobs: what has to be computed, what is there already, and what waits for what.

    corpus -> train (one job a run) -> evaluate (one job a run) -> draw (one job an artefact)

Runs are shared: an artefact asks for runs by their spec, and equal specs are one run however many artefacts want it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from data.prepare import CorpusPlan, resolve
from data.source import parse_source
from data.spec import DataSpec
from eval.spec import EVAL_SPEC, EvalSpec, eval_id
from experiments.artefact import Artefact, Options, load_artefact
from experiments.scales import MODELS, Scale, get_scale, run_spec
from results.atomic import write_atomic
from training.run_folder import RunFolder
from training.spec import RunSpec, micro_batch_size

SOURCE_FLAGS = ("haystack", "prompts", "longbench", "include_path", "judge_url")
"""Fields of eval.sources.Sources that the command line of `run` passes on to evaluations."""


@dataclass(frozen=True)
class Request:
    """What the user asked for, as given on the command line."""

    artefacts: tuple[str, ...]
    scale: str
    data: str | None
    tokenizer: str | None
    only: tuple[str, ...]
    device: str
    runs_dir: Path
    results_dir: Path
    corpora_dir: Path
    options: Options = field(default_factory=Options)
    activation_checkpointing: bool = False
    micro_batch_tokens: int | None = None


@dataclass(frozen=True)
class KnownCorpus:
    """A corpus of which only the spec matters: that of finished runs, or LongCrawl64 in plans made where it is not."""

    spec: DataSpec
    folder: Path
    note: str = ""
    ready: bool = True


@dataclass(frozen=True)
class Run:
    """One run of the plan, its folder, and the evaluations that some artefact wants of it."""

    spec: RunSpec
    folder: RunFolder
    evals: tuple[EvalSpec, ...]

    def eval_file(self, spec: EvalSpec) -> Path:
        return self.folder.evals / f"{eval_id(spec)}.parquet"

    @property
    def missing_evals(self) -> tuple[EvalSpec, ...]:
        return tuple(spec for spec in self.evals if not self.eval_file(spec).exists())


@dataclass(frozen=True)
class Plan:
    """Everything that a request needs; `artefacts` by name. `others` are the runs that --only leaves as they are."""

    request: Request
    scale: Scale
    corpus: CorpusPlan | KnownCorpus
    artefacts: dict[str, Artefact]
    runs: dict[str, Run]
    others: dict[str, Run] = field(default_factory=dict)

    def runs_of(self, artefact: str) -> list[Run]:
        """The runs of `artefact` that the request computes."""
        return [self.runs[model] for model in self.artefacts[artefact].models if model in self.runs]

    def drawn_runs(self, artefact: str) -> list[Run]:
        """What `artefact` is drawn from: its runs, and those that --only left out but that are finished already."""
        known = {**{model: run for model, run in self.others.items() if run.folder.finished}, **self.runs}
        return [known[model] for model in self.artefacts[artefact].models if model in known]

    def eval_files(self, artefact: str) -> list[tuple[Run, Path]]:
        """A file for each of the runs and evaluations of `artefact`."""
        specs = self.artefacts[artefact].evals(self.scale, self.request.options)
        return [(run, run.eval_file(spec)) for run in self.drawn_runs(artefact) for spec in specs]


def check_names(request: Request) -> tuple[Scale, dict[str, Artefact]]:
    """The scale and artefacts of a request. ValueError for a name that does not exist."""
    scale = get_scale(request.scale)
    artefacts = {name: load_artefact(name) for name in request.artefacts}
    for model in request.only:
        if model not in MODELS:
            raise ValueError(f"--only {model}: no such model; choose from {', '.join(MODELS)}.")
    return scale, artefacts


def resolve_corpus(request: Request, scale: Scale) -> CorpusPlan:
    """Which corpus the request means; nothing is tokenised yet. ValueError where it cannot be read."""
    data = request.data or scale.default_data
    if data is None:
        raise ValueError(
            f"--scale {scale.name} needs --data: longcrawl64:FOLDER (the paper's), hf:NAME, or text:PATH with long documents."
        )
    return resolve(
        parse_source(data),
        tokenizer=request.tokenizer or (None if data.startswith("longcrawl64:") else scale.default_tokenizer),
        document_len=scale.document_len,
        cache_dir=request.corpora_dir,
        heldout_fraction=scale.heldout_fraction,
    )


def absent_longcrawl64(request: Request, scale: Scale) -> KnownCorpus | None:
    """A stand-in for LongCrawl64 where a paper's scale is planned on a machine that does not have it."""
    kind, _, folder = (request.data or "longcrawl64:FOLDER").partition(":")
    if scale.default_tokenizer != "gpt2-json" or kind != "longcrawl64" or Path(folder).expanduser().exists():
        return None
    spec = DataSpec(
        source=kind,
        tokenizer="gpt2-json",
        vocab_size=50257,
        bos_id=50256,
        document_len=scale.document_len,
        fingerprint="absent",
    )
    return KnownCorpus(spec, Path(folder), "LongCrawl64 is not here, so the ids of the runs are provisional")


def make_plan(request: Request, precision: str, *, rehearsal: bool = False) -> Plan:
    """Plan a request; touches no GPU and writes nothing. ValueError for anything the user can mend.

    A `rehearsal` is only looked at, never carried out, and does without LongCrawl64.
    """
    scale, artefacts = check_names(request)
    absent = absent_longcrawl64(request, scale) if rehearsal else None
    corpus = absent or resolve_corpus(request, scale)
    wanted: dict[str, dict[str, EvalSpec]] = {}
    for artefact in artefacts.values():
        for model in artefact.models:
            evals = wanted.setdefault(model, {})
            evals.update({eval_id(spec): spec for spec in artefact.evals(scale, request.options)})
    if request.only and not set(request.only) & wanted.keys():
        raise ValueError(f"--only {' '.join(request.only)}: none of these models is in {', '.join(artefacts)}.")
    runs: dict[str, Run] = {}
    others: dict[str, Run] = {}
    for model in sorted(wanted, key=MODELS.index):
        spec = run_spec(model, scale, corpus.spec, precision=precision)
        folder = RunFolder(request.runs_dir / scale.name / spec.folder_name)
        chosen = runs if not request.only or model in request.only else others
        chosen[model] = Run(spec, folder, tuple(wanted[model].values()))
    return Plan(request, scale, corpus, artefacts, runs, others)


@dataclass(frozen=True)
class Job:
    """One process to start: `python -m MODULE ARGS`. Done when every file of `makes` exists."""

    name: str
    module: str
    args: tuple[str, ...]
    needs: tuple[str, ...]
    makes: tuple[Path, ...]
    run: Run | None = None

    @property
    def done(self) -> bool:
        return all(path.exists() for path in self.makes)


def plan_of_runs(request: Request, folders: list[Path]) -> Plan:
    """The plan that made the run folders in `folders`, one a model; needs no corpus. ValueError for a folder without spec."""
    scale, artefacts = check_names(request)
    runs = {}
    for path in folders:
        folder = RunFolder.open(path)
        spec = folder.read_spec()
        wanting = [artefact for artefact in artefacts.values() if spec.name in artefact.models]
        evals = {eval_id(e): e for artefact in wanting for e in artefact.evals(scale, request.options)}
        runs[spec.name] = Run(spec, folder, tuple(evals.values()))
    if not runs:
        raise ValueError("collect needs the folders of finished runs: --run runs/SCALE/NAME-ID, once for each.")
    return Plan(request, scale, KnownCorpus(spec.data, request.corpora_dir), artefacts, runs)


def prepare_job(plan: Plan) -> Job:
    """Tokenise the plan's corpus."""
    request = plan.request
    args = ["prepare", *request.artefacts, "--scale", request.scale, "--corpora-dir", str(request.corpora_dir)]
    for flag, value in (("--data", request.data), ("--tokenizer", request.tokenizer)):
        args += [flag, value] if value is not None else []
    for model in request.only:
        args += ["--only", model]
    return Job("prepare corpus", "experiments", (*args, "--device", "cpu"), (), (plan.corpus.folder / "corpus.json",))


def collect_job(plan: Plan, artefact: str) -> Job:
    """Gather and draw one artefact."""
    request = plan.request
    args = ["collect", artefact, "--scale", request.scale, "--results-dir", str(request.results_dir), *_source_args(plan)]
    if request.options.judge_model is not None:
        args += ["--judge-model", request.options.judge_model]
    for run in plan.drawn_runs(artefact):
        args += ["--run", str(run.folder.path)]
    needs = tuple(f"evaluate {run.spec.name}" for run in plan.runs_of(artefact))
    made = request.results_dir / plan.scale.name / f"{artefact}.parquet"
    return Job(f"draw {artefact}", "experiments", tuple(args), needs, (made,))


def _source_args(plan: Plan) -> list[str]:
    given = {name: getattr(plan.request.options.sources, name) for name in SOURCE_FLAGS}
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items() if value is not None]
    return [text for flag in flags for text in flag]


def train_job(plan: Plan, run: Run, device: str, processes: int = 1) -> Job:
    """Train `run`, with the micro-batches asked for, or else those of its scale, smaller where `processes` share a step.
    ValueError for micro-batches that do not divide a step."""
    args = [str(run.folder.path), "--corpus-dir", str(plan.corpus.folder), "--device", device, "--quiet"]
    if plan.request.tokenizer is not None:
        args += ["--tokenizer", plan.request.tokenizer]
    micro_batch_tokens = plan.request.micro_batch_tokens
    if micro_batch_tokens is None and plan.scale.micro_batch_tokens is not None:
        micro_batch_tokens = min(plan.scale.micro_batch_tokens, run.spec.train.batch_tokens // processes)
    if micro_batch_tokens is not None:
        micro_batch_size(run.spec.train, processes, micro_batch_tokens)
        args += ["--micro-batch-tokens", str(micro_batch_tokens)]
    if plan.request.activation_checkpointing:
        args.append("--activation-checkpointing")
    elif plan.scale.compile and device == "cuda" and run.spec.model.kind == "forgetting_transformer":
        args.append("--compile")  # fla's layers launch their own fused kernels and gain nothing
    return Job(f"train {run.spec.name}", "training", tuple(args), (), (run.folder.export,), run)


def eval_job(plan: Plan, run: Run, device: str, specs: tuple[EvalSpec, ...] | None = None) -> Job:
    """Evaluate `run` by `specs`, or everything that is missing, in one process."""
    specs = run.missing_evals if specs is None else specs
    files = [str(_spec_file(run, spec)) for spec in specs]
    args = (str(run.folder.path), "--spec", *files, "--corpus", str(plan.corpus.folder), "--device", device)
    args += tuple(_source_args(plan))
    makes = tuple(run.eval_file(spec) for spec in specs)
    return Job(f"evaluate {run.spec.name}", "eval.job", args, (f"train {run.spec.name}",), makes, run)


def jobs(plan: Plan, device: str) -> list[Job]:
    """The jobs that are not done, in an order in which they can be run one after another."""
    found = []
    for run in plan.runs.values():
        found += [train_job(plan, run, device), eval_job(plan, run, device)]
    return [job for job in found if not job.done]


def write_specs(plan: Plan) -> None:
    """Make the run folders and put the specs of their evaluations where the jobs read them."""
    for run in plan.runs.values():
        RunFolder.create(run.folder.path, run.spec)
        for spec in run.missing_evals:
            write_atomic(_spec_file(run, spec), EVAL_SPEC.dump_json(spec, indent=1).decode() + "\n")


def _spec_file(run: Run, spec: EvalSpec) -> Path:
    return run.folder.evals / f"{eval_id(spec)}.spec.json"
