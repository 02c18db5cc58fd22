"""`python -m slurm`: how submitted runs are doing, and what to do about it.

status            one row a run: state, node, step, tokens/s, ETA, restarts, last error
watch             the same, renewed until no job is left
logs RUN          the logs of a run (or of `prepare`, `draw`, or any part of a name)
cancel [RUN...]   cancel all jobs, or those of some runs
resubmit          submit again what failed or was cancelled, as it was asked for
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from experiments.parser import EXIT_USER_ERROR, Parser
from slurm import client
from slurm.records import Submission, read_submissions
from slurm.status import OPEN, NodeState, node_states, table, wide

EXIT_INTERRUPTED = 130


def parser() -> Parser:
    main = Parser(prog="python -m slurm", description=__doc__, allow_abbrev=False,
                  formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    verbs = main.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for verb, about in (
        ("status", "one row a run"),
        ("watch", "the same, renewed until no job is left"),
        ("logs", "the logs of a run"),
        ("cancel", "cancel all jobs, or those of some runs"),
        ("resubmit", "submit again what failed or was cancelled"),
    ):
        sub = verbs.add_parser(verb, help=about, allow_abbrev=False)
        if verb == "logs":
            sub.add_argument("run", metavar="RUN", help="part of a run's name, or prepare, or draw")
            sub.add_argument("--lines", type=int, default=20, help="lines of each log (default: 20)")
        if verb == "cancel":
            sub.add_argument("run", metavar="RUN", nargs="*", help="part of a run's name (default: all)")
        if verb == "watch":
            sub.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="default: 10")
        sub.add_argument("--runs-dir", type=Path, default=Path("runs"), help="run folders (default: runs)")
        sub.add_argument("--scale", help="only this scale (default: all that were submitted)")
    return main


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 fine, 1 something failed (status, watch), 2 an error to mend, 130 interrupted."""
    options = parser().parse_args(arguments)
    if options.verb is None:
        parser().print_help()
        return 0
    console = wide(Console(soft_wrap=True, highlight=False))
    try:
        return _VERBS[options.verb](options, console)
    except (ValueError, OSError) as error:
        if os.environ.get("FOX_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _submissions(options: argparse.Namespace) -> list[Submission]:
    """Everything submitted from the runs folder. ValueError where nothing was."""
    client.require_slurm()
    folders = sorted(options.runs_dir.glob(f"{options.scale or '*'}/submissions"))
    queue = client.queue()
    found = [submission for folder in folders for submission in read_submissions(folder, queue)]
    if not found:
        raise ValueError(
            f"nothing was submitted from {options.runs_dir / (options.scale or '')}; "
            "`python -m experiments run ... --launcher slurm` submits, --runs-dir says where the runs are."
        )
    return found


def _states(options: argparse.Namespace) -> list[NodeState]:
    return node_states(_submissions(options), client.queue())


def _exit_code(states: list[NodeState]) -> int:
    return 0 if all(state.state in ("done", *OPEN) for state in states) else 1


def _status(options: argparse.Namespace, console: Console) -> int:
    states = _states(options)
    console.print(table(states))
    return _exit_code(states)


def _watch(options: argparse.Namespace, console: Console) -> int:
    states = _states(options)
    with Live(table(states), console=console, auto_refresh=False) as live:
        while any(state.state in OPEN for state in states):
            time.sleep(options.every)
            try:
                states = _states(options)
            except ValueError as error:  # the controller may be down for a while
                live.update(str(error), refresh=True)
                continue
            live.update(table(states), refresh=True)
    return _exit_code(states)


def _matching(states: list[NodeState], names: list[str]) -> list[NodeState]:
    """States whose key or run folder contains one of `names`; ValueError for a name that is nowhere."""
    for name in names:
        if not any(name in state.key for state in states):
            known = sorted({state.key.split(":")[1] for state in states})
            raise ValueError(f"{name}: no such run was submitted; there are {', '.join(known)}.")
    return [state for state in states if not names or any(name in state.key for name in names)]


def _logs(options: argparse.Namespace, console: Console) -> int:
    shown = set()
    for state in _matching(_states(options), [options.run]):
        log = Path(state.node["log"])
        for path in sorted(log.parent.glob(f"{log.stem}*{log.suffix}")):
            if path not in shown:
                shown.add(path)
                console.rule(str(path), align="left")
                lines = path.read_text(errors="replace").splitlines()
                console.print("\n".join(lines[-options.lines :]), markup=False)
        if not log.exists():
            console.print(f"{log}: not there yet; job {state.job} is {state.state} {state.error}".rstrip(), markup=False)
    return 0


def _cancel(options: argparse.Namespace, console: Console) -> int:
    states = [state for state in _matching(_states(options), options.run) if state.state in OPEN]
    client.cancel([state.job for state in states])
    console.print(f"cancelled {len(states)} jobs" if states else "no job is queued or running")
    return 0


def _resubmit(options: argparse.Namespace, console: Console) -> int:
    from experiments.plan import make_plan
    from slurm.cluster import CLUSTER
    from slurm.submit import REQUEST, submit

    wanted = {str(item.values["request"]): item.values for item in _submissions(options)}
    for values in wanted.values():
        os.chdir(values["cwd"])
        request = REQUEST.validate_json(json.dumps(values["request"]))
        cluster = CLUSTER.validate_json(json.dumps(values["cluster"]))
        submit(make_plan(request, "bf16" if cluster.gpus_per_node else "fp32"), cluster, console)
    return 0


_VERBS = {"status": _status, "watch": _watch, "logs": _logs, "cancel": _cancel, "resubmit": _resubmit}

if __name__ == "__main__":
    sys.exit(main())
