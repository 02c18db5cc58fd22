"""What one sees before anything runs: the artefacts and scales, and the cost of a plan."""

from rich.console import Console
from rich.table import Table

from experiments.artefact import artefact_names, load_artefact
from experiments.plan import KnownCorpus, Plan, Run
from experiments.scales import SCALES
from training.hardware import DENSE_BF16_PEAK

GPU = "H100"


def print_overview(console: Console) -> None:
    """`list`: every artefact and every scale."""
    table = Table("artefact", "paper", "shows", "models", box=None, pad_edge=False)
    for name in artefact_names():
        artefact = load_artefact(name)
        table.add_row(name, artefact.paper, artefact.title, str(len(artefact.models)))
    console.print(table)
    console.print()
    scales = Table("scale", "train tokens", "training length", "evaluation length", "about", box=None, pad_edge=False)
    for scale in SCALES.values():
        scales.add_row(scale.name, count(scale.train_tokens), f"{scale.seq_len:,}", f"{scale.document_len:,}", scale.about)
    console.print(scales)


def print_plan(plan: Plan, mfu: float, console: Console) -> None:
    """`plan`: per run its size, its cost at `mfu` of a GPU's peak, and what exists."""
    if not 0 < mfu <= 1:
        raise ValueError(f"--mfu {mfu}: give a share between 0 and 1, such as 0.4.")
    corpus = plan.corpus.spec
    state = f"ready in {plan.corpus.folder}" if plan.corpus.ready else "to be prepared"
    state = plan.corpus.note or state if isinstance(plan.corpus, KnownCorpus) else state
    console.print(f"scale {plan.scale.name}; corpus {corpus.source}, {corpus.tokenizer} ({corpus.vocab_size} tokens): {state}")
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "parameters", "tokens", "steps", "FLOPs", f"{GPU}-hours", "disk", "exists"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("run", "exists") else "right")
    hours_in_all = disk_in_all = 0.0
    for run in plan.runs.values():
        params = run.spec.model.num_params
        train = run.spec.train
        flops = train_flops(run)
        hours = flops / (mfu * DENSE_BF16_PEAK[GPU]) / 3600
        disk = 4 * params * (3 * 3 + 1)  # fp32 weights and two moments, two kept and one being written, and the export
        hours_in_all, disk_in_all = hours_in_all + hours, disk_in_all + disk
        table.add_row(
            run.spec.folder_name, f"{params:,}", count(train.train_tokens), f"{train.num_steps:,}",
            f"{flops:.2e}", f"{hours:,.2f}", size(disk), _state(run),
        )  # fmt: skip
    table.add_row("in all", "", "", "", "", f"{hours_in_all:,.2f}", size(disk_in_all), "", style="bold")
    console.print(table)
    console.print(
        "parameters as the paper counts them (without the input embedding); "
        "FLOPs are three forward passes by Table 6's formulas; "
        f"hours at {mfu:.0%} of an {GPU}'s {DENSE_BF16_PEAK[GPU] / 1e12:.0f} TFLOP/s (bf16), evaluation not counted"
    )


def train_flops(run: Run) -> float:
    """FLOPs of a training: three forward passes over its tokens."""
    train = run.spec.train
    return 3 * run.spec.model.flops_per_token(train.seq_len) * train.train_tokens


def _state(run: Run) -> str:
    done = len(run.evals) - len(run.missing_evals)
    if run.folder.finished:
        return f"trained, {done}/{len(run.evals)} evaluations"
    rows = run.folder.read_metrics()
    return f"step {rows[-1]['step']}" if rows else "nothing"


def count(number: float) -> str:
    for unit, value in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= value:
            return f"{number / value:.3g}{unit}"
    return f"{number:.0f}"


def size(num_bytes: float) -> str:
    for unit, value in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= value:
            return f"{num_bytes / value:,.1f} {unit}"
    return f"{num_bytes / 2**10:.0f} KiB"
