"""A plan as a graph of tasks, the same for the local launcher and for SLURM.

    prepare (a corpus) -> train (a run) -> evaluate (a run) -> draw (an artefact)

Each task can be restarted at any time. On a CPU, a timing has the machine to itself. A timing of an untrained model does not
need its training."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from data.plan import CorpusPlan
from eval.kinds import TIMED, eval_id
from eval.runner.spec import EvalSpec
from experiments.drawn import is_drawn
from experiments.plan import Plan, Run
from experiments.request import Corpora, Request
from experiments.scales import get_scale
from experiments.task import Task
from training.command_line import arguments_of
from training.spec import fitted, micro_batch_size


@dataclass(frozen=True)
class Planned(Task):
    """Task with its `run`. `alone`: nothing else may run at the same time."""

    run: Run | None = None
    alone: bool = False


def plans_dir(plan: Plan) -> Path:
    """Return the folder for everything that belongs to no single run: logs, submissions."""
    return plan.request.results_dir / plan.request.scale / "plans"


def tasks(plan: Plan, processes: int = 1) -> list[Planned]:
    """Return the tasks that remain to be done, each after the tasks that it needs. `processes`: the number that trains each
    run."""
    request, folder, found = plan.request, plans_dir(plan), []
    for corpus in plan.corpora:
        if isinstance(corpus, CorpusPlan) and not corpus.ready:
            args = ("prepare", *plan.drawings, "--corpora-only", *_options(request))
            key, makes = f"prepare:{corpus.folder.name}", (corpus.folder / "corpus.json",)
            found.append(Planned(key, "experiments", args, (), makes, folder))
    for run in plan.runs.values():
        missing = run.missing_evals
        if run.trains:
            found.append(train_task(plan, run, processes))
        for kind, fresh in (("evaluate", False), ("time", False), ("time", True)):
            wanted = [spec for spec in run.evals if (_task_kind(spec), spec.NEEDS == "spec") == (kind, fresh)]
            specs = [spec for spec in wanted if spec in missing]
            key = f"{kind}:{run.spec.folder_name}:{_digest(*sorted(map(eval_id, wanted)))}"  # the same when some are done
            found += [_eval_task(plan, run, specs, key, fresh)] if specs else []
    makers = {path: task.key for task in found for path in task.makes}
    for stem, lines in plan.drawings.items():
        files = (plan.runs[line.run_id].folder.evals / f"{each}.parquet" for line in lines for each in line.evals)
        needs = tuple(dict.fromkeys(makers[file] for file in files if file in makers))
        if needs or not is_drawn(request.results_dir, request.scale, stem):
            args = ("render", stem, "--scale", request.scale, "--results-dir", str(request.results_dir))
            found.append(Planned(f"draw:{stem}", "experiments", args, needs, (), folder))
    return found


def _options(request: Request) -> list[str]:
    """Return the options from which `prepare` makes the plan of `request` again. They leave out how trainings are executed."""
    words = ["--scale", request.scale, "--results-dir", str(request.results_dir)]
    words += ["--seeds", ",".join(map(str, request.seeds)), *arguments_of(request, Corpora), *arguments_of(request.user_data)]
    for name in ("only", "line", "also"):
        words += [word for value in getattr(request, name) for word in (f"--{name}", value)]
    words += ["--from", str(request.beside)] if request.beside is not None else []
    return words + (["--judge-model", request.judge_model] if request.judge_model is not None else [])


def _prepared(run: Run) -> tuple[str, ...]:
    return () if run.corpus.ready else (f"prepare:{run.corpus.folder.name}",)


def _corpus_args(run: Run, flag: str) -> tuple[str, ...]:
    """Return the option that names the corpus folder; none for synthetic tasks, which have no folder."""
    return () if run.spec.data.recall is not None else (flag, str(run.corpus.folder))


def train_task(plan: Plan, run: Run, processes: int = 1) -> Planned:
    """Return the task that trains `run`; settings that the request leaves open are those of its scale. ValueError for
    micro-batches that do not divide a step."""
    request, scale = plan.request, get_scale(run.spec.scale)
    execution = fitted(
        request.on(request.device).execution, run.spec.model, run.spec.train, request.device,
        micro_batch_tokens=scale.micro_batch_tokens, compile=scale.compile, processes=processes,
    )  # fmt: skip
    micro_batch_size(run.spec.train, processes, execution.micro_batch_tokens)
    named = request.tokenizer if run.spec.data.source == "longcrawl64" else None  # other corpora contain their tokeniser
    tokenizer = () if named is None else ("--tokenizer", named)
    args = (str(run.folder.path), "--quiet", *arguments_of(execution), *_corpus_args(run, "--corpus-dir"), *tokenizer)
    makes = (run.folder.export / "manifest.json",)
    return Planned(f"train:{run.spec.folder_name}", "training", args, _prepared(run), makes, run.folder.path, run)


def _task_kind(spec: EvalSpec) -> str:
    return "time" if spec.kind in TIMED or spec.NEEDS == "spec" else "evaluate"


def _eval_task(plan: Plan, run: Run, specs: list[EvalSpec], key: str, fresh: bool) -> Planned:
    """Return the task that evaluates `run`, or its untrained model (`fresh`), by `specs` in one process."""
    kind, device = key.split(":")[0], plan.request.device
    args = (str(run.folder.path), "--spec", *(str(run.spec_file(spec)) for spec in specs), *_corpus_args(run, "--corpus"),
            "--device", device, *arguments_of(plan.request.sources))  # fmt: skip
    needs = _prepared(run) + (() if fresh or run.folder.finished else (f"train:{run.spec.folder_name}",))
    makes = tuple(map(run.eval_file, specs))
    return Planned(key, "eval.job", args, needs, makes, run.folder.path, run, alone=kind == "time" and device == "cpu")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]
