"""`python -m experiments`: every figure and table of the paper, planned, run and drawn.

list      the figures and tables, and the scales
plan      what a request would compute and cost, and what exists already (uses no GPU, writes nothing)
prepare   tokenise the corpus
run       do what is missing, then draw
collect   gather finished evaluations, draw, report (the last job of a SLURM graph)
render    draw from stored results alone
report    write results/SCALE/report.html from stored results
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from experiments.parser import EXIT_USER_ERROR, Parser

EXIT_INTERRUPTED = 130


def parser() -> Parser:
    main = Parser(prog="python -m experiments", description=__doc__, allow_abbrev=False,
                  formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    verbs = main.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    verbs.add_parser("list", help="the figures and tables, and the scales", allow_abbrev=False)
    for verb, about in (
        ("plan", "what a request would compute and cost"),
        ("prepare", "tokenise the corpus"),
        ("run", "do what is missing, then draw"),
    ):
        sub = verbs.add_parser(verb, help=about, allow_abbrev=False)
        _add_artefacts(sub)
        sub.add_argument("--data", metavar="SOURCE",
                         help="stdlib, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]")  # fmt: skip
        sub.add_argument("--tokenizer", metavar="NAME",
                         help="bpe-N, bytes, gpt2[:FOLDER] or gpt2-json[:FOLDER]; default: that of the scale")  # fmt: skip
        sub.add_argument("--only", metavar="MODEL", action="append", default=[], help="only this model (repeatable)")
        sub.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        sub.add_argument("--runs-dir", type=Path, default=Path("runs"), help="run folders (default: runs)")
        sub.add_argument("--corpora-dir", type=Path, default=Path("corpora"), help="tokenised corpora (default: corpora)")
        _add_sources(sub)
        if verb == "run":
            sub.add_argument("--launcher", choices=("local", "slurm"), default="local")
            sub.add_argument("--slots", type=int, help="jobs at a time (default: one a GPU, or one a CPU core)")
            sub.add_argument("--activation-checkpointing", action="store_true",
                             help="recompute activations instead of compiling, for GPUs below 48 GiB at 760M")  # fmt: skip
            sub.add_argument("--micro-batch-tokens", type=int, metavar="N",
                             help="tokens per forward pass and GPU: more is faster and takes memory")  # fmt: skip
            sub.add_argument("--cluster", type=Path, metavar="FILE", help="the cluster's TOML file, for --launcher slurm")
            sub.add_argument("--dry-run", action="store_true", help="print the graph and its sbatch scripts, submit nothing")
        if verb == "plan":
            sub.add_argument("--mfu", type=float, default=0.4, help="utilisation assumed for GPU-hours (default: 0.4)")
    collect = verbs.add_parser("collect", help="gather finished evaluations, draw, report", allow_abbrev=False)
    _add_artefacts(collect)
    collect.add_argument("--run", type=Path, action="append", default=[], dest="runs", metavar="FOLDER",
                         help="folder of a run to draw (repeatable)")  # fmt: skip
    _add_sources(collect)
    for verb, about in (
        ("render", "draw from stored results alone"),
        ("report", "write report.html from stored results"),
    ):
        sub = verbs.add_parser(verb, help=about, allow_abbrev=False)
        _add_artefacts(sub, artefacts=verb == "render")
    return main


def _add_sources(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--haystack", type=Path, help="folder of texts for the needle test (default: held-out text)")
    sub.add_argument("--prompts", type=Path, help="TOML file with the wording of the needle test")
    sub.add_argument("--longbench", type=Path, help="folder with LongBench data (default: the hub)")
    sub.add_argument("--include-path", type=Path, help="folder with lm-eval tasks and data (default: the hub)")
    sub.add_argument("--judge-url", help="OpenAI-compatible endpoint that scores needle answers (default: by match)")
    sub.add_argument("--judge-model", help="model to ask there")


def _add_artefacts(sub: argparse.ArgumentParser, artefacts: bool = True) -> None:
    if artefacts:
        sub.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help="e.g. fig2_per_token_loss; default: all")
    sub.add_argument("--scale", default="tiny", help="tiny, mini, 125m-2.7b, 360m-7.5b, 760m-16b or 760m-48b (default: tiny)")
    sub.add_argument("--results-dir", type=Path, default=Path("results"), help="stored results (default: results)")


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 some job failed, 2 an error to mend, 130 interrupted."""
    options = parser().parse_args(arguments)
    if options.verb is None:
        parser().print_help()
        return 0
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    try:
        return _VERBS[options.verb](options, console)
    except (ValueError, OSError) as error:
        if os.environ.get("FOX_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED


def _list(options: argparse.Namespace, console: Console) -> int:
    from experiments.overview import print_overview

    print_overview(console)
    return 0


def _plan(options: argparse.Namespace, console: Console) -> int:
    from experiments.overview import print_plan
    from experiments.plan import make_plan

    device = _device(options)
    print_plan(make_plan(_request(options, device), _precision(device), rehearsal=True), options.mfu, console)
    return 0


def _prepare(options: argparse.Namespace, console: Console) -> int:
    from experiments.execute import prepare_corpus
    from experiments.plan import make_plan

    device = _device(options)
    prepare_corpus(make_plan(_request(options, device), _precision(device)), console)
    return 0


def _run(options: argparse.Namespace, console: Console) -> int:
    from experiments.execute import execute
    from experiments.plan import make_plan

    if options.launcher == "slurm":
        return _submit(options, console)
    for flag, given in (("--dry-run", options.dry_run), ("--cluster", options.cluster is not None)):
        if given:
            raise ValueError(f"{flag} goes with --launcher slurm; `plan` shows what a local run would do.")
    device = _device(options)
    return execute(make_plan(_request(options, device), _precision(device)), device, options.slots, console)


def _submit(options: argparse.Namespace, console: Console) -> int:
    from experiments.plan import make_plan
    from slurm.cluster import read_cluster
    from slurm.submit import rehearse, submit

    if options.cluster is None:
        raise ValueError("--launcher slurm needs --cluster FILE; slurm/clusters/example.toml is one to copy and edit.")
    cluster = read_cluster(options.cluster)
    # The login node may have no GPU: what counts is where the jobs run.
    request = _request(options, cluster.device)
    plan = make_plan(request, _precision(cluster.device), rehearsal=options.dry_run)
    if options.dry_run:
        return rehearse(plan, cluster, console)
    return submit(plan, cluster, console)


def _collect(options: argparse.Namespace, console: Console) -> int:
    from experiments.collect import collect, render, write_report
    from experiments.plan import plan_of_runs

    options.data = options.tokenizer = None
    options.only, options.runs_dir, options.corpora_dir = [], Path("runs"), Path("corpora")
    plan = plan_of_runs(_request(options, "cpu"), options.runs)
    for name in plan.artefacts:
        if collect(plan, name) is not None:
            for path in render(name, plan.scale.name, options.results_dir):
                console.print(str(path))
    console.print(str(write_report(plan.scale.name, options.results_dir)))
    return 0


def _render(options: argparse.Namespace, console: Console) -> int:
    from experiments.artefact import artefact_names
    from experiments.collect import render
    from experiments.scales import get_scale

    get_scale(options.scale)
    stored = [n for n in artefact_names() if (options.results_dir / options.scale / f"{n}.parquet").exists()]
    for name in options.artefacts or stored or artefact_names():
        for path in render(name, options.scale, options.results_dir):
            console.print(str(path))
    return 0


def _report(options: argparse.Namespace, console: Console) -> int:
    from experiments.collect import write_report
    from experiments.scales import get_scale

    console.print(str(write_report(get_scale(options.scale).name, options.results_dir)))
    return 0


def _request(options: argparse.Namespace, device: str):  # type: ignore[no-untyped-def]
    from eval.sources import Sources
    from experiments.artefact import Options, artefact_names
    from experiments.plan import SOURCE_FLAGS, Request

    return Request(
        artefacts=tuple(options.artefacts or artefact_names()),
        scale=options.scale,
        data=options.data,
        tokenizer=options.tokenizer,
        only=tuple(options.only),
        device=device,
        runs_dir=options.runs_dir,
        results_dir=options.results_dir,
        corpora_dir=options.corpora_dir,
        options=Options(Sources(**{name: getattr(options, name) for name in SOURCE_FLAGS}), options.judge_model),
        activation_checkpointing=getattr(options, "activation_checkpointing", False),
        micro_batch_tokens=getattr(options, "micro_batch_tokens", None),
    )


def _device(options: argparse.Namespace) -> str:
    from training.distributed import pick_device

    return pick_device(options.device).type


def _precision(device: str) -> str:
    return "bf16" if device == "cuda" else "fp32"


_VERBS = {
    "list": _list,
    "plan": _plan,
    "prepare": _prepare,
    "run": _run,
    "collect": _collect,
    "render": _render,
    "report": _report,
}

if __name__ == "__main__":
    sys.exit(main())
