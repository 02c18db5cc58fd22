"""Submit runs to SLURM, show their state, cancel them: `python -m slurm run`, `status`, `cancel`.

All three take the same options and plan again: `status` also shows what was never submitted."""

import training.interrupted  # noqa: F401  # isort: skip  (before the slow imports)
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from tyro.conf import OmitArgPrefixes

from experiments.overview import uncut
from experiments.request import Request
from slurm import status
from slurm.cluster import Cluster, read_cluster
from slurm.jobs import jobs
from slurm.submit import ask, planned, queue, rehearse, submit
from training.command_line import guarded, parse


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for, and of which cluster."""

    cluster: Path
    """The cluster's TOML file; slurm/clusters has some to copy and edit."""
    request: OmitArgPrefixes[Request] = field(default_factory=Request)

    def read(self) -> Cluster:
        return read_cluster(self.cluster)


@dataclass(frozen=True, kw_only=True)
class Run(Asked):
    """Submit what is not done, queued or running, and return at once. If SLURM refuses a job, say the command again: nothing is
    submitted twice."""

    dry_run: bool = False
    """Show the jobs and their cost, and submit nothing."""
    scripts: bool = False
    """With --dry-run: print the sbatch scripts, too."""

    def run(self, console: Console) -> int:
        cluster = self.read()
        plan = planned(self.request, cluster, rehearsal=self.dry_run)
        return rehearse(plan, cluster, console, self.scripts) if self.dry_run else submit(plan, cluster, console)


@dataclass(frozen=True, kw_only=True)
class Status(Asked):
    """Show one line per run: state, node, step, tokens/s, time left, restarts, error. Exit code 1 if a job has failed."""

    def run(self, console: Console) -> int:
        cluster = self.read()
        plan = planned(self.request, cluster)
        there = queue()
        found = {job: status.state(job, cluster, there) for job in jobs(plan, cluster)}
        rows = status.rows(plan, found)
        uncut(console).print(status.table(rows))
        counts = Counter(state.name for state in found.values())
        jobs_said = "; jobs: " * bool(counts) + ", ".join(f"{number} {name}" for name, number in counts.items())
        console.print(f"{sum(row[2].name == 'done' for row in rows)} of {len(rows)} done{jobs_said}")
        return int(any(name in counts for name in status.BROKEN))


@dataclass(frozen=True, kw_only=True)
class Cancel(Asked):
    """Cancel the jobs that are queued or running. Trainings save first; `run` goes on from there."""

    def run(self, console: Console) -> int:
        cluster, there = self.read(), queue()
        names = {job.name for job in jobs(planned(self.request, cluster), cluster)}
        ids = [queued.id for name, queued in there.items() if name in names]
        if ids:
            ask("scancel", *ids)
        console.print(f"cancelled {len(ids)} jobs")
        return 0


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 fine, 1 a job has failed (status), 2 an error to fix, 75 SLURM did not accept all, 130 interrupted."""
    command = parse(Run | Status | Cancel, arguments, "python -m slurm", __doc__)
    console = Console(soft_wrap=True, highlight=False)
    return guarded(lambda: command.run(console))


if __name__ == "__main__":
    sys.exit(main())
