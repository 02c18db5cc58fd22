"""Commands that answer like SLURM's and run nothing: for what sbatch says on its bad days."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")


@dataclass
class FakeJob:
    """One task of what was submitted."""

    id: str
    name: str
    comment: str
    dependency: str
    state: str = "PENDING"
    reason: str = "None"
    user: str = "me"


@dataclass
class State:
    """`fails`: share of sbatch calls that go wrong, of which every second one has made its job. `limit`: tasks that may be
    submitted at a time. `lasting`: a limit that each job breaks by itself. `says`: what sbatch prints before its answer.
    `config`: what scontrol shows. `cancels`: arguments of each scancel. `refuse`: an option that is refused for good.
    `kill_after`: the sbatch call upon which the submitter is killed. `environments`: what each sbatch found of SLURM's own
    variables."""

    fails: float = 0.0
    limit: int | None = None
    arrays: bool = True
    kill_after: int | None = None
    refuse: str = ""
    says: str = ""
    lasting: str = ""
    config: str = ""
    cancels: list[list[str]] = field(default_factory=list)
    calls: int = 0
    jobs: list[dict] = field(default_factory=list)
    environments: list[dict] = field(default_factory=list)


class FakeSlurm:
    """Commands in `folder`, to be put in front of PATH."""

    def __init__(self, folder: Path, **settings: object):
        self.folder, self.file = folder, folder / "state.json"
        folder.mkdir()
        for name in COMMANDS:
            path = folder / name
            source = shlex.quote(str(Path(__file__)))
            path.write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {source} {name} {shlex.quote(str(self.file))} "$@"\n'
            )
            path.chmod(0o755)
        self.write(State(**settings))  # type: ignore[arg-type]

    def read(self) -> State:
        return State(**json.loads(self.file.read_text()))

    def write(self, state: State) -> None:
        self.file.write_text(json.dumps(asdict(state)))

    @property
    def jobs(self) -> list[FakeJob]:
        return [FakeJob(**job) for job in self.read().jobs]

    def change(self, **settings: object) -> None:
        state = self.read()
        for name, value in settings.items():
            setattr(state, name, value)
        self.write(state)

    def end(self, state: str, *ids: str) -> None:
        """Let jobs end in `state`; all of them if none is named."""
        now = self.read()
        for job in now.jobs:
            if not ids or job["id"] in ids:
                job["state"] = state
        self.write(now)


def main(command: str, file: Path, arguments: list[str]) -> int:
    state = State(**json.loads(file.read_text()))
    code = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol}.get(command, lambda *_: 0)(
        state, arguments
    )
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(state)))
    temporary.replace(file)
    if command == "sbatch" and state.kill_after == state.calls:
        os.kill(os.getppid(), 9)
    return code


def sbatch(state: State, arguments: list[str]) -> int:
    import random

    state.calls += 1
    state.environments.append({name: value for name, value in os.environ.items() if name.startswith(("SBATCH", "SLURM"))})
    options = dict(read_options(Path(arguments[-1]).read_text()))
    tasks = list(indices(options["array"])) if "array" in options else [None]
    active = sum(job["state"] in ("PENDING", "RUNNING") for job in state.jobs)
    if state.refuse and state.refuse in "".join(f"{name}={value} " for name, value in options.items()):
        return said("Batch job submission failed: Invalid partition name specified")
    if "array" in options and not state.arrays:
        return said("Batch job submission failed: Invalid job array specification")
    if state.limit is not None and active + len(tasks) > state.limit:
        return said("AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
                    "(job submit limit, user's size and/or time limits)")  # fmt: skip
    known = {job["id"] for job in state.jobs} | {job["id"].split("_")[0] for job in state.jobs}
    waits = [part.split(":") for part in options.get("dependency", "").split(",")]
    if any(kind in ("afterok", "aftercorr") and not known.issuperset(ids) for kind, *ids in waits):
        return said("Batch job submission failed: Job dependency problem")
    if state.lasting:
        return said(f"{state.lasting}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
                    "(job submit limit, user's size and/or time limits)")  # fmt: skip
    chance = random.Random(1000 * state.calls)
    fails, lost = chance.random() < state.fails, chance.random() < 0.5
    if not fails or lost:
        number = 100 + state.calls
        for task in tasks:
            job = FakeJob(str(number) if task is None else f"{number}_{task}", options["job-name"], options["comment"],
                          options.get("dependency", ""))  # fmt: skip
            state.jobs.append(asdict(job))
    if fails:
        return said(chance.choice([
            "Batch job submission failed: Socket timed out on send/recv operation",
            "Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "Batch job submission failed: something that nobody has seen before",
        ]))  # fmt: skip
    print(state.says, end="")
    print(number)
    return 0


def said(text: str) -> int:
    print(f"sbatch: error: {text}", file=sys.stderr)
    return 1


def read_options(script: str) -> Iterator[tuple[str, str]]:
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            name, _, value = shlex.split(line.removeprefix("#SBATCH "))[0].removeprefix("--").partition("=")
            yield name, value


def indices(array: str) -> Iterator[int]:
    for span in re.sub("%.*", "", array).split(","):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def squeue(state: State, arguments: list[str]) -> int:
    asked = (
        {"me"}
        if "PrivateData" in state.config or "--me" in arguments
        else {"me", *arguments[arguments.index("--user") + 1].split(",")}
    )
    for job in (job for job in state.jobs if job["user"] in asked):
        print("|".join([job["id"], job["state"], job["reason"], "", job["user"], job["name"], job["comment"]]))
    return 0


def scontrol(state: State, arguments: list[str]) -> int:
    if arguments[0] == "show":
        print(state.config)
    return 0


def scancel(state: State, arguments: list[str]) -> int:
    state.cancels.append(arguments)
    wanted = {f"{array}_{index}" for array, _, tasks in (word.partition("_") for word in arguments) if tasks
              for index in indices(tasks.strip("[]"))} | set(arguments)  # fmt: skip
    for job in state.jobs:
        if {job["id"], job["id"].split("_")[0]} & wanted and job["state"] in ("PENDING", "RUNNING"):
            job["state"] = "CANCELLED"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
