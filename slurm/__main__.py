"""Submit runs to SLURM, watch them, cancel or resubmit them: `python -m slurm run`, `status`, `resubmit` ..."""

import training.interrupted  # noqa: F401  # isort: skip  (before the slow imports)
import json
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from tyro.conf import OmitArgPrefixes, Positional

from experiments import restarts
from experiments.request import Request
from slurm import client, efficiency
from slurm.job import Submission, adopt, read_submissions, users
from slurm.status import BROKEN, ENDS, OPEN, JobState, job_states, now, rows, summary, table, wide
from training.command_line import guarded, parse
from training.signals import EXIT_INTERRUPTED


@dataclass(frozen=True, kw_only=True)
class Run:
    """Submit what is not done, queued or running, and return at once. If SLURM accepts only a part, run the command again."""

    cluster: Path
    """The cluster's TOML file; slurm/clusters has some to copy and edit."""
    dry_run: bool = False
    """Print the graph and its sbatch scripts, and submit nothing."""
    request: OmitArgPrefixes[Request] = field(default_factory=Request)

    def run(self, console: Console) -> int:
        from slurm.cluster import read_cluster
        from slurm.submit import planned, rehearse, submit, whole_paths

        cluster = read_cluster(self.cluster)
        self._check_device(cluster.gpus_per_node)
        plan = planned(whole_paths(self.request), cluster, rehearsal=self.dry_run)
        return (rehearse if self.dry_run else submit)(plan, cluster, console)

    def _check_device(self, gpus_per_node: int) -> None:
        """Raise ValueError for a --device that contradicts the cluster file, which says where jobs run."""
        device = self.request.execution.device
        if device == "cpu" and gpus_per_node:
            reason = f"{self.cluster} has gpus_per_node {gpus_per_node}, so its jobs run on GPUs"
            remedy = "or use a cluster file without gpus_per_node and gpus"
        elif device == "cuda" and not gpus_per_node:
            reason = f"{self.cluster} has no gpus_per_node, so its jobs run without GPUs"
            remedy = "or set gpus_per_node and gpu_tflops there"
        else:
            return
        raise ValueError(f"--device {device}: {reason}. Leave --device out, {remedy}.")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Names of runs, and the folder that they are in."""

    runs_dir: Path = Path("runs")
    """Run folders."""
    scale: str | None = None
    """Only this scale; default: all that were submitted."""
    names: Positional[tuple[str, ...]] = ()
    """Parts of the names of runs, corpora or artefacts; default: all."""

    def submissions(self) -> list[Submission]:
        """Return all submissions from the runs folder. Raises ValueError if there are none."""
        client.require_slurm()
        folders = [path for path in sorted(self.runs_dir.glob("*/plans/submissions")) if self.scale in (None, path.parts[-3])]
        found = [submission for folder in folders for submission in read_submissions(folder)]
        if not found:
            remedy = "`python -m slurm run` submits, --runs-dir says where the runs are"
            raise ValueError(f"nothing was submitted from {self.runs_dir / (self.scale or '')}; {remedy}.")
        return found

    def look(self) -> tuple[list[list[JobState]], set[str], set[str]]:
        """Return the jobs of the chosen runs, grouped by run; SLURM's ids of those that are active; and ids of surplus jobs,
        which nobody waits for. Raises ValueError for an unknown name."""
        submissions = self.submissions()
        others = users(submissions)
        queue = client.queue(others)
        surplus = adopt(submissions, queue)
        found = rows(job_states(submissions, queue, client.unseen(others, queue)))
        known = {members[0].job.about for members in found}
        for name in self.names:
            if not any(name in each for each in known):
                raise ValueError(f"{name}: no such run was submitted; there are {', '.join(sorted(known)[:20])}.")
        about = {each for each in known if not self.names or any(name in each for name in self.names)}
        chosen = [members for members in found if members[0].job.about in about]
        active = {job_id for submission in submissions for key, job_id in submission.job_ids().items()
                  if job_id in queue and queue[job_id].active and submission.jobs[key].about in about}  # fmt: skip
        return chosen, active, surplus


@dataclass(frozen=True, kw_only=True)
class Status(Asked):
    """Show one line per run: state, node, step, tokens/s, time left, restarts, error."""

    state: str | None = None
    """Only runs in these states, STATE[,STATE...]: done, running, waiting, pending, requeued, held, hidden, failed,
    cancelled, lost."""

    def chosen(self) -> tuple[list[list[JobState]], set[str]]:
        known = (*ENDS, *OPEN)
        wanted = self.state.split(",") if self.state is not None else known
        for state in wanted:
            if state not in known:
                raise ValueError(f"--state {state}: choose from {', '.join(known)}.")
        found, _, surplus = self.look()
        return [members for members in found if now(members).state in wanted], surplus

    def run(self, console: Console) -> int:
        found, surplus = self.chosen()
        console.print(table(found))
        console.print(summary(found) or "none", style="dim")
        if surplus:
            late = "not waited for, as sbatch answered too late; `cancel` or the next `run` cancels them"
            console.print(f"[yellow]note:[/] SLURM also has {', '.join(sorted(surplus))}: {late}")
        return _exit_code(found)


@dataclass(frozen=True, kw_only=True)
class Watch(Status):
    """Show `status`, refreshed until no job is left."""

    every: float = 10.0
    """Seconds between refreshes."""

    def run(self, console: Console) -> int:
        found, _ = self.chosen()
        try:
            with Live(_shown(found), console=console, auto_refresh=False) as live:
                while any(state.state in OPEN for members in found for state in members):
                    time.sleep(self.every)
                    try:
                        found, _ = self.chosen()
                        live.update(_shown(found), refresh=True)
                    except ValueError as error:  # the controller may be down for a while
                        live.update(escape(str(error)), refresh=True)
        except KeyboardInterrupt:
            console.print("the jobs keep running; `python -m slurm cancel` cancels them")
            return EXIT_INTERRUPTED
        return _exit_code(found)


@dataclass(frozen=True, kw_only=True)
class Logs(Asked):
    """Show the logs of runs: of their tasks, and of the batch script if a task never began."""

    lines: int = 20
    """Last lines of each log to show."""

    def run(self, console: Console) -> int:
        if not self.names:
            raise ValueError("logs of which run? Give a part of its name; `status` lists them.")
        shown: set[Path] = set()
        for state in (state for members in self.look()[0] for state in members):
            log = state.job.log
            logs = sorted(log.parent.glob(f"{log.stem}*{log.suffix}")) + ([state.shell_log] if state.shell_log else [])
            for path in (path for path in logs if path not in shown and path.exists()):
                shown.add(path)
                console.rule(escape(str(path)), align="left")
                console.print("\n".join(path.read_text(errors="replace").splitlines()[-self.lines :]), markup=False)
            if not log.exists():
                console.print(f"{log}: not there yet; job {state.id} is {state.state} {state.error}".rstrip(), markup=False)
        return 0


@dataclass(frozen=True, kw_only=True)
class Cancel(Asked):
    """Cancel all jobs, or those of some runs."""

    def run(self, console: Console) -> int:
        found, active, surplus = self.look()
        client.cancel(active | surplus)
        states = [state for members in found for state in members]
        for state in states:
            if state.id in active and state.state != "running":
                # Nothing else records its end, and SLURM forgets it within minutes.
                by = f"cancelled by {client.me()}"
                restarts.append(state.job.journal, "end", job=state.id, code=0, action="cancelled", reason=by)
        console.print(f"cancelled {len(active | surplus)} jobs" if active or surplus else "no job is queued or running")
        hidden = {state.user for state in states if state.state == "hidden"}
        if hidden:
            console.print(f"SLURM hides the jobs of {', '.join(sorted(hidden))}; only they can cancel them")
        return 0


@dataclass(frozen=True, kw_only=True)
class Resubmit(Asked):
    """Resubmit what failed, was cancelled or was not accepted, with the same options: everything, or some runs."""

    cluster: Path | None = None
    """The cluster's TOML file; default: the settings that it was submitted with."""

    def run(self, console: Console) -> int:
        from slurm.cluster import CLUSTER, read_cluster
        from slurm.submit import REQUEST, planned, submit

        if self.names:
            self.look()  # raises for unknown names
        given = read_cluster(self.cluster.absolute()) if self.cluster is not None else None
        wanted = {str(submission.request): submission for submission in self.submissions() if not submission.withdrawn}
        if given is None:
            console.print("with the cluster settings of the earlier submission; --cluster FILE uses new ones")
        codes = set()
        for submission in wanted.values():
            os.chdir(submission.cwd)
            request = REQUEST.validate_json(json.dumps(submission.request))
            cluster = given or CLUSTER.validate_json(json.dumps(submission.cluster))
            codes.add(submit(planned(request, cluster), cluster, console, self.names))
        return max(codes, default=0)


@dataclass(frozen=True, kw_only=True)
class Efficiency(Asked):
    """Show GPU-hours requested, used, and lost in starts without progress, and hours in the queue, by kind of job. Without
    GPUs: process-hours."""

    def run(self, console: Console) -> int:
        chosen = {state.job.about for members in self.look()[0] for state in members}
        console.print(efficiency.table(efficiency.hours(self.submissions(), chosen, datetime.now(UTC))))
        return 0


Command = Run | Status | Watch | Logs | Cancel | Resubmit | Efficiency


def _shown(found: list[list[JobState]]) -> Group:
    """Return the summary, then failed, open and done runs, in this order as a terminal may be too short for all."""
    order = (*BROKEN, *OPEN, "done")
    return Group(summary(found), table(sorted(found, key=lambda members: order.index(now(members).state))))


def _exit_code(found: list[list[JobState]]) -> int:
    return 0 if all(state.state in ("done", *OPEN) for members in found for state in members) else 1


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 fine, 1 a job failed, was cancelled or is lost (status, watch), 2 an error to fix, 75 SLURM did
    not accept all, 130 interrupted."""
    command = parse(Command, arguments, "python -m slurm", __doc__)
    console = wide(Console(soft_wrap=True, highlight=False))
    return guarded(lambda: command.run(console))


if __name__ == "__main__":
    sys.exit(main())
