"""Table 6: Parameters, FLOPs and training throughput.

Parameters without the input embedding, forward FLOPs per token, and training tokens per second on four L40S GPUs. The recurrent
models are fastest; among the softmax models only Transformer (LLaMA) used a tuned kernel, so only ratios between models with
the same kernel can be compared."""

import math
from functools import partial
from typing import Any

import pandas as pd

from analysis.names import PAIRS, missing_of, title
from analysis.paper import paper_scores
from analysis.paper import read as read_paper
from analysis.statistics import TWENTY_TO_EIGHTY, Estimate
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Column, Table
from analysis.training_curves import measured
from analysis.verdict import RATIO, Claim, Comparison, Verdict, by_construction, decide
from experiments.evaluations import step_times as evals  # noqa: F401
from experiments.recipes import main_models_once as runs  # noqa: F401
from experiments.recipes import model_spec
from experiments.scales import get_scale
from results.measured import FOLDER, has, read

BASE = "transformer_llama"
PRINTED = read_paper("table6_throughput_760m.csv")
Line = dict[str, Any]  # by column
ORDER = (
    ("delta_net", "hgrn2"), ("hgrn2", "mamba2"), ("mamba2", "transformer_llama"), ("transformer_llama", "fox_llama"),
    ("transformer_llama", "transformer_pro"), ("fox_llama", "fox_pro"), ("transformer_pro", "fox_pro"),
)  # fmt: skip


def summary(study: Study) -> Table:
    """Tabulate one line per label. Only speeds relative to Transformer (LLaMA), timed in alternating steps, are ranked."""
    rows = measured(study, "fox_pro")
    large = bool(rows["params"].max() >= 1e8)
    columns = [
        Column("params_millions", "Params (M)", 0 if large else 3),
        Column("fwd_gflops_per_token", "Forward GFLOPs/token", 2 if large else 5),
        Column("tokens_per_s", "Throughput (tokens/s)", 0),
        Column("relative", "relative to Transformer (LLaMA)", 2, "higher"),
        Column("mfu_percent", "MFU (%)", 1),
        Column("mfu_dense_percent", "MFU, pruned work counted (%)", 1),
        Column("peak_memory_gib", "Peak memory (GiB)", 1, "lower"),
    ]
    lines = {row["label"]: _line(row, columns) for row in rows.to_dict("records")}
    kept = [column for column in columns if _is_shown(column.key, list(lines.values()))]
    values = {label: [line[column.key] for column in kept] for label, line in lines.items()}
    ends = {label: [[line.get(f"{column.key}_{end}", math.nan) for end in ("low", "high")] for column in kept]
            for label, line in lines.items()}  # fmt: skip
    ranges = {label: [None if math.isnan(low) else (low, high) for low, high in own] for label, own in ends.items()}
    printed = _printed(study.scale)
    theirs = {label: printed[line["model"]] for label, line in lines.items() if line["model"] in printed}
    paper = {label: [line.get(column.key) for column in kept] for label, line in theirs.items()}
    note = (
        f"{about(study, corpus=False)} Measured on {_place(rows)}, context {tokens(rows['seq_len'].iloc[0])}, "
        "with untrained weights; in square brackets the range of the repetitions. Relative speeds are those of steps that "
        "alternated with Transformer (LLaMA)'s in one process. Speeds depend on the GPU and its kernels: only ratios between "
        "models can be compared with the paper's (760M, context 16k, four L40S). Counts "
        "are truncated as in the paper (which rounds the FLOPs of HGRN2)."
    )
    return Table("Parameters, FLOPs and training throughput", kept, values, note, paper, ranges=ranges)


def _place(rows: pd.DataFrame) -> str:
    """Name the machine of `rows`, and on a GPU the version of Triton."""
    triton = "" if rows["peak_memory_gib"].isna().all() else f", Triton {' or '.join(sorted(rows['triton'].unique()))}"
    return f"{rows['machine'].iloc[0]}{triton}"


def _is_shown(key: str, lines: list[Line]) -> bool:
    """Return whether a column is shown: not if it was not measured (a CPU has no peak), nor the second MFU without pruning."""
    if key == "mfu_dense_percent" and all(line[key] == line["mfu_percent"] for line in lines):
        return False
    return any(line[key] is not None and not math.isnan(line[key]) for line in lines)


def _line(row: dict[Any, Any], columns: list[Column]) -> Line:
    """Return one model's row with the table's values. Counts are truncated to the printed digits, as in the paper."""
    printed = {}
    for column, count in zip(columns[:2], (row["params"] / 1e6, row["fwd_flops_per_token"] / 1e9), strict=True):
        printed[column.key] = math.floor(count * 10**column.decimals) / 10**column.decimals
    return {"relative": None, **row, **printed, "mfu_percent": 100 * row["mfu"], "mfu_dense_percent": 100 * row["mfu_dense"]}


def _printed(scale: str) -> dict[str, Line]:
    """Return the paper's values by model; at other scales than the paper's only relative speeds, which are of 760M models."""
    values = {model: {"relative": _papers(model, BASE)} for model in PRINTED}
    for model, line in paper_scores("table6_throughput", scale).items():
        values[model] |= {"params_millions": line["params_millions"], "tokens_per_s": line["throughput_tokens_per_s"],
                          "fwd_gflops_per_token": line["fwd_flops_per_token"] / 1e9}  # fmt: skip
    return values


def _papers(one: str, other: str, column: str = "throughput_tokens_per_s") -> float:
    """Ratio of two models in the paper: of their training speeds, or of another column."""
    return PRINTED[one][column] / PRINTED[other][column]


def _timed(study: Study) -> dict[str, pd.Series]:
    return {str(row["model"]): row for _, row in measured(study, "fox_pro").iterrows()}


def _paired(study: Study) -> dict[str, pd.Series]:
    """Return the models that were timed in alternation with Transformer (LLaMA)."""
    return {model: row for model, row in _timed(study).items() if not math.isnan(row.get("relative", math.nan))}


def _counted(study: Study, column: str, printed: str, bound: float, words: str) -> Verdict:
    """Judge whether FoX's count exceeds that of the Transformer of the same architecture by less than `bound` percent. Counts
    are exact, without noise; those of models that were not timed follow from the scale."""
    rows, comparisons, parts = _timed(study), [], []

    def count(model: str) -> float:
        if model in rows:
            return float(rows[model][column])
        scale, sizes = get_scale(study.scale), study.spec(study.lines[0].run_id)["model"]
        spec = model_spec(model, scale, sizes["vocab_size"])
        return spec.num_params if column == "params" else spec.flops_per_token(scale.seq_len)

    for fox, other in PAIRS:
        share = 100 * (count(fox) / count(other) - 1)
        name, paper = f"{words}, {title(fox)} above {title(other)}", f"{100 * (_papers(fox, other, printed) - 1):+.2f}%"
        comparisons.append(Comparison(name, Estimate(share, 0.0), bound, below=True, unit="%", paper=paper))
        parts.append(f"{title(fox)} has {share:.2f}% more {words} than {title(other)}")
    sentence = f"{'; '.join(parts)} (counted, not estimated; the claim is about 760M parameters)."
    fixed = "The models' sizes are fixed by their configurations: no run could have missed this."
    return by_construction(decide(sentence, comparisons), fixed)


c27 = partial(_counted, column="params", printed="params_millions", bound=0.3, words="parameters")
c28 = partial(_counted, column="fwd_flops_per_token", printed="fwd_flops_per_token", bound=0.5, words="FLOPs per token")
"""FLOPs per token equal the Transformer's to the three digits that the paper prints."""


def _faster(rows: dict[str, pd.Series], one: str, other: str, bound: float = 0.0, strict: bool = True) -> Comparison:
    """Compare the log ratio of two speeds, each relative to Transformer (LLaMA) in the same process, with a lower bound. Its
    error is that of single repetitions, so that overlapping ranges are not ranked."""
    speeds = [float(rows[model]["relative"]) for model in (one, other)]
    ends = [(rows[model]["relative_high"], rows[model]["relative_low"]) for model in (one, other)]
    error = math.hypot(*(math.log(high / low) / TWENTY_TO_EIGHTY for high, low in ends))
    ratio = Estimate(math.log(speeds[0] / speeds[1]), error)
    name = f"training speed at context {tokens(rows[one]['seq_len'])}, {title(one)} over {title(other)}"
    return Comparison(name, ratio, bound, strict=strict, unit=RATIO, paper=f"{_papers(one, other):.2f}")


def c29(study: Study) -> Verdict:
    """Throughput falls from DeltaNet via HGRN2, Mamba-2 and Transformer (LLaMA) to FoX (Pro)."""
    rows = _paired(study)
    comparisons = [_faster(rows, *pair) for pair in ORDER if set(pair) <= set(rows)]
    fastest = sorted(rows, key=lambda model: -float(rows[model]["relative"]))
    sentence = "From fast to slow: " + ", ".join(f"{title(model)} {rows[model]['relative']:.2f}" for model in fastest)
    absent = missing_of((model for pair in ORDER for model in pair), rows)
    return decide(f"{sentence} times the speed of Transformer (LLaMA).", comparisons, absent)


def at_longer_contexts(study: Study) -> str:
    """Say how the claim's pairs compare in stored training steps with the longest context."""
    nothing, folder = "No steps with a longer context are stored.", study.results_dir / FOLDER.name
    if not has("training_steps", folder):
        return nothing
    rows = read("training_steps", folder)
    rows = rows[(rows["gpus"] == 1) & (rows["sequences_per_gpu"] * rows["micro_batches"] == 1) & ~rows["prune"]]
    rows = rows[rows["model"].isin([model for pair in ORDER for model in pair]) & ~rows["activation_checkpointing"]]
    settings = [own for _, own in rows[rows["seq_len"] > study.train_len].groupby(["scale", "seq_len", "gpu"])]
    if not settings:
        return nothing
    rows = max(settings, key=lambda own: (own["model"].nunique(), own["seq_len"].iloc[0]))
    newest = rows.drop_duplicates("model", keep="last").sort_values("tokens_per_s", ascending=False)
    speed = dict(zip(newest["model"], newest["tokens_per_s"], strict=True))
    here = {model: row["relative"] for model, row in _paired(study).items()}
    pairs = [(one, other) for one, other in ORDER if {one, other} <= set(speed) & set(here)]
    there, as_here = (sum(values[one] > values[other] for one, other in pairs) for values in (speed, here))
    first = rows.iloc[0]
    speeds = ", ".join(f"{title(model)} {value:,.0f}" for model, value in speed.items())
    return (
        f"Steps of one sequence of {tokens(first['seq_len'])} tokens at {first['scale']} on {first['gpu']}: {speeds} tokens/s. "
        f"Of the claim's {len(pairs)} pairs that were timed at both lengths, {there} are in the claimed order there, {as_here} "
        + f"at {tokens(study.train_len)} tokens here"
        + (": the order appears in longer contexts, where attention's share of a step grows." if there > as_here else ".")
    )


def c30(study: Study) -> Verdict:
    rows = _paired(study)
    if absent := missing_of(("fox_pro", "transformer_pro"), rows):
        return decide("", [], absent)
    comparison = _faster(rows, "fox_pro", "transformer_pro", math.log(0.85), strict=False)
    speed = math.exp(comparison.estimate.effect)
    return decide(f"FoX (Pro) trains at {speed:.2f} of Transformer (Pro)'s speed.", [comparison])


CLAIMS = (
    Claim("C27", "The forget gate costs next to no parameters (below 0.3%)", c27),
    Claim("C28", "FoX needs as many FLOPs as the Transformer", c28),
    Claim(
        "C29", "Throughput: DeltaNet, HGRN2, Mamba-2, Transformer (LLaMA), FoX (LLaMA) and Transformer (Pro), FoX (Pro)", c29
    ),
    Claim("C30", "The gate's overhead in the same kernel is small: 0.85 of the Transformer's throughput or more", c30),
)
LOOKS = {"C29": at_longer_contexts}
