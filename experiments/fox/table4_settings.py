"""Table 4: Models and hyperparameters.

Layers, widths, heads, peak learning rate and training tokens of every model. In the paper, 760M models have 24 blocks of width
1536, 360M models 24 of 1024, 125M models 12 of 768; head size is 64 for FoX, and 128 for the Transformer at 760M."""

from analysis.names import rank
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Column, Table
from eval.parameters.spec import counted
from experiments.evaluations import parts as evals  # noqa: F401
from experiments.recipes import main_models_once as runs  # noqa: F401

COLUMNS = [
    Column("params_millions", "Params (M)", 3),
    Column("num_layers", "layers", 0),
    Column("hidden_size", "width", 0),
    Column("head_dim", "head size", 0),
    Column("mlp_width", "SwiGLU width", 0),
    Column("peak_lr", "peak LR", 4),
    Column("train_tokens_millions", "train tokens (M)", 2),
    Column("batch_tokens", "tokens per step", 0),
    Column("warmup_tokens_millions", "warm-up tokens (M)", 2),
]


def summary(study: Study) -> Table:
    """Tabulate one line per model. Mamba-2 has no MLP: its layers are half as large, and twice as many."""
    rows: dict[str, list[float | None]] = {}
    for line, parameters, _ in sorted(study.evaluations("parameters", "models"), key=lambda each: rank(each[0].model)):
        model, train = study.spec(line.run_id)["model"], study.spec(line.run_id)["train"]
        down = parameters[parameters["name"] == "layers.0.mlp.down_proj.weight"]["shape"]
        heads = model.get("num_heads")
        rows[line.label] = [
            counted(parameters) / 1e6,
            model["num_layers"],
            model["hidden_size"],
            model["hidden_size"] // heads if heads else model.get("head_dim", model.get("expand_ratio")),
            int(down.iloc[0].split()[-1]) if len(down) else None,
            train["peak_lr"],
            train["train_tokens"] / 1e6,
            train["batch_tokens"],
            train["warmup_tokens"] / 1e6,
        ]
    note = (
        f"{about(study, corpus=False)} Parameters without the input embedding; training length {tokens(study.train_len)}; "
        "AdamW (0.9, 0.95), weight decay 0.1, gradients clipped at 1, cosine to 0."
    )
    return Table("Models and their training", COLUMNS, rows, note)
