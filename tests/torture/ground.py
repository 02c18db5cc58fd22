"""A whole experiment of seconds, as `python -m experiments run` does it: what it made, and in which states it can be met."""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)

# Everything that a run imports on its way is imported here, once: what is forked from here begins at once.
import lm_eval  # noqa: F401
import numpy as np
import pandas as pd
import transformers.models.auto.modeling_auto
import zarr
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

import analysis.report
import training.loop
from eval import job
from eval.runner import partial as partial_files
from experiments import execute, graph, render, scales
from experiments.artefact import artefacts
from experiments.plan import make_plan, write_specs
from experiments.request import Request
from models.build import build_model
from models.spec import ForgettingTransformerSpec
from results.store import meta_path
from tests.texts import write_texts
from training.__main__ import main as train_main
from training.command_line import guarded
from training.lines import read_lines

build_model(ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2), device="meta")
assert SummaryWriter and transformers and analysis.report
gc.freeze()  # what is forked from here need not look for waste in it, nor copy its pages

SCALE = replace(
    scales.TINY,
    name="torture",
    about="seconds",
    hidden_size=32,
    fox_head_dim=16,
    transformer_head_dim=16,
    mlp_widths={"pro": 64, "llama": 64},
    seq_len=128,
    document_len=512,
    batch_tokens=256,
    train_tokens=256 * 12,
    warmup_tokens=512,
    heldout_documents=2,
    needle=scales.NeedleGrid(
        (304,), (0.0, 100.0), 136, 8, recall_samples=2, choice_samples=2, recall_lengths=(240,), recall_reserve=80
    ),
)
scales.SCALES[SCALE.name] = SCALE
ARTEFACTS = ("fig2_per_token_loss", "fig4_needle", "appendix_training_curves")
HUNG_S = 300.0
TIMINGS = ["wall_s", "tokens_per_s", "mfu", "mfu_dense"]
PLAIN = ("git_sha", "git_dirty", "python", "versions", "device", "world_size", "params", "epochs")


@dataclass(frozen=True)
class Ground:
    """A folder with texts/, corpora/, runs/, results/ and what was said in it."""

    path: Path

    @property
    def request(self) -> Request:
        return Request(
            artefacts=ARTEFACTS, scale=SCALE.name, data=f"text:{self.path / 'texts'}", only=("fox_pro",),
            runs_dir=self.path / "runs", results_dir=self.path / "results", corpora_dir=self.path / "corpora",
            execution=training.loop.Execution(checkpoint_minutes=0),
        )  # fmt: skip

    @property
    def run_folder(self) -> Path:
        return next((self.path / "runs" / SCALE.name).glob("fox_pro-*"))

    @property
    def results(self) -> Path:
        return self.path / "results" / SCALE.name

    def copy(self, target: Path) -> "Ground":
        shutil.copytree(self.path, target, symlinks=True)
        return Ground(target)


def carry_out(ground: Ground) -> int:
    """Return what `run` does, task after task in this process. Returns an exit code as a shell sees it."""

    def everything() -> int:
        plan = make_plan(ground.request)
        console = Console(file=sys.stderr, width=400, soft_wrap=True)
        execute.prepare_corpora(plan, console)
        write_specs(plan)
        mains: dict[str, Callable[[list[str]], int]] = {"training": train_main, "eval.job": job.main}
        for task in graph.tasks(plan):
            if task.kind != "draw":
                code = mains[task.module](list(task.args))
                if code != 0:
                    return code
        # Where a figure is not drawn, the others are, and the command ends with 1: here it counts as refused.
        return 2 if execute.draw([*plan.drawings.values()], console) == 1 else 0

    return guarded(everything)


def facts(ground: Ground) -> dict[str, Any]:
    """Every number and name that a run of this kind determines, read without the suite's own readers and checks."""
    run, found = ground.run_folder, {}
    for split in ("train", "heldout"):
        [corpus] = [path for path in (ground.path / "corpora").iterdir() if path.is_dir()]
        found[f"corpus {split}"] = _tokens(corpus / f"{split}.zarr")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "run_spec.json"):
        found[f"export {name}"] = _digest((run / "export" / name).read_bytes())
    found["spec"] = _unsealed(run / "spec.json")
    run_id = run.name.rpartition("-")[2]
    found["metrics"] = [_without(row, TIMINGS) for row in read_lines(run / "metrics.jsonl", run_id)[0]]
    found["starts"] = _distinct(read_lines(run / "provenance.jsonl", run_id)[0])
    for path in sorted([*(run / "evals").glob("*.parquet"), *ground.results.glob("rows/*/*.parquet")]):
        name = f"{path.parent.name}/{path.name}"
        found[f"rows {name}"] = _digest(pd.read_parquet(path).drop(columns=TIMINGS, errors="ignore").to_csv().encode())
        meta = _without(_unsealed(meta_path(path)), ["created", "rows_sha256"])
        meta["extras"] = {key: value for key, value in meta["extras"].items() if not key.startswith("seconds")}
        found[f"meta {name}"] = {**meta, "provenance": _distinct([meta["provenance"]])}
    for path in sorted((ground.results / "runs").glob("*.json")):
        record = _unsealed(path)
        trainings = [_without(training, ["starts"]) for training in record["trainings"]]
        found[f"record {path.name}"] = {**record, "starts": _distinct(record["starts"]), "trainings": trainings}
    for stem in ARTEFACTS:
        lines = _unsealed(ground.results / f"{stem}.json")["lines"]
        found[f"lines {stem}"] = [{**line, "files": sorted(line["files"])} for line in lines]
    for path in sorted(ground.results.glob("*/*.csv")):
        body = pd.read_csv(path).drop(columns=TIMINGS, errors="ignore").to_csv()
        found[f"drawn {path.name}"] = _digest(body.encode())
    return found


def _tokens(array: Path) -> str:
    try:
        return _digest(np.asarray(zarr.open_array(array, mode="r")[:]).tobytes())
    except Exception as error:  # whatever zarr and its codecs say of a damaged one
        return f"unreadable: {type(error).__name__}: {error}"


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of the facts that are not equal or not in both."""
    return [name for name in sorted(one.keys() | other.keys()) if str(one.get(name)) != str(other.get(name))]


def _distinct(starts: list[dict[str, Any]]) -> list[str]:
    """Return what all starts of a run in one environment have in common, once."""
    return sorted({json.dumps({name: start[name] for name in PLAIN if name in start}) for start in starts})


def _unsealed(path: Path) -> dict[str, Any]:
    return _without(json.loads(path.read_text()), ["sha256"])


def _without(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


class Child:
    """A function in a process of its own, forked from this one; what it says goes to a file."""

    def __init__(self, action: Callable[[], int]):
        self.log = Path(tempfile.mkstemp(prefix="said-")[1])
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.setsid()
                handle = os.open(self.log, os.O_WRONLY | os.O_APPEND)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
                code = action()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 98
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    @property
    def ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> tuple[int, str]:
        """Exit code (negative: the signal) and everything that was said."""
        end = time.monotonic() + HUNG_S
        while not self.ended and time.monotonic() < end:
            time.sleep(0.005)
        self.kill()
        _, status = os.waitpid(self.pid, 0)
        said = self.log.read_text(errors="replace")
        self.log.unlink()
        return os.waitstatus_to_exitcode(status), said

    def kill(self) -> None:
        """SIGKILL to it and to what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def call(action: Callable[[], int]) -> tuple[int, str]:
    return Child(action).end()


@contextmanager
def kept_partials() -> Any:
    """Evaluations leave behind what they had put by for an interruption."""
    discard = partial_files.Partial.discard
    partial_files.Partial.discard = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        partial_files.Partial.discard = discard  # type: ignore[method-assign]


STATES = ("half trained", "trained", "half evaluated", "evaluated", "drawn")


def make_states(folder: Path) -> dict[str, Ground]:
    """The experiment undisturbed, and as it would be met at five moments. `drawn` is the whole of it."""
    whole = Ground(folder / "drawn")
    write_texts(whole.path / "texts", documents=6, sentences_each=120)

    def with_partials() -> int:
        with kept_partials():
            return carry_out(whole)

    def half() -> int:
        """SIGTERM before the seventh step: the training saves and leaves."""
        learning_rate = training.loop.learning_rate

        def stop_at(tokens: int, spec: Any) -> float:
            if tokens == 6 * spec.batch_tokens:
                os.kill(os.getpid(), signal.SIGTERM)
            return learning_rate(tokens, spec)

        training.loop.learning_rate = stop_at
        return carry_out(half_trained)

    code, said = call(with_partials)
    assert code == 0, said
    states = {"drawn": whole}
    for name, drops in (
        ("half evaluated", ("results", "runs/*/*/evals/*.parquet", "runs/*/*/evals/*.meta.json")),
        ("evaluated", ("results", "runs/*/*/evals/*.partial.*")),
        ("trained", ("results", "runs/*/*/evals/*.parquet", "runs/*/*/evals/*.meta.json", "runs/*/*/evals/*.partial.*")),
    ):
        states[name] = whole.copy(folder / name.replace(" ", "-"))
        _drop(states[name].path, *drops)
    _drop(whole.path, "runs/*/*/evals/*.partial.*")
    half_trained = Ground(folder / "half-trained")
    write_texts(half_trained.path / "texts", documents=6, sentences_each=120)
    code, said = call(half)
    assert code == 75, said
    states["half trained"] = half_trained
    return states


def _drop(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


assert set(ARTEFACTS) <= set(artefacts()) and render
