"""Scales: the paper's four settings (Tables 4 and 5; released configurations) and small ones with the same shape. Numbers
only; recipes.py turns them into runs.

Scales keep the paper's proportions: evaluation at four times the training length (but for extrapolation and packed documents),
a SwiGLU ratio of 3.5 for Pro and 4 for others, FoX with more and smaller heads than the Transformer where the paper has them,
and Mamba-2 with twice the layers.

To add a scale, add one entry to SCALES: the main figures and tables can then be run at it. A figure with sizes of its own has
them under SIZES in its file, and ablations run at the scale that ABLATIONS names. `plan` reports sizes that do not fit together
and tables that lack the scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from analysis.names import SEVEN
from analysis.paper import read

WITH_WINDOWS = (*SEVEN[:4], "samba", "transformer_swa", "mamba2")
"""The models of the paper's tables with sliding windows (Tables 8 and 9)."""

Gi = 2**30


@dataclass(frozen=True)
class NeedleGrid:
    """The cells of the needle test at a scale; the defaults are the paper's. Recall in nats and the choice of a word have
    shorter questions, which fit into shorter texts (`recall_lengths`)."""

    lengths: tuple[int, ...] = tuple(range(1000, 32001, 3100))
    depths: tuple[float, ...] = tuple(float(depth) for depth in range(0, 101, 10))
    reserve: int = 200
    max_new_tokens: int = 1024
    recall_samples: int = 8
    choice_samples: int = 8
    recall_lengths: tuple[int, ...] | None = None
    recall_reserve: int = 200


@dataclass(frozen=True)
class Scale:
    """Sizes and budget shared by all models of one setting; lengths in tokens. `peak_lrs`: for models that override `peak_lr`.
    `stand_ins`: evaluate tasks made from held-out text instead of the public benchmarks. `window_size`: for sliding-window
    attention. `short_documents`: train on packed short documents (Table 7). `hgrn2_norm_eps`: eps of HGRN2's output norm, None:
    that of its other norms, as in the authors' code; 1e-5 where runs had fla's. `order_varies`: each seed has its own order of
    the text."""

    name: str
    about: str
    hidden_size: int
    num_layers: int
    fox_head_dim: int
    transformer_head_dim: int
    seq_len: int
    document_len: int
    batch_tokens: int
    train_tokens: int
    warmup_tokens: int
    peak_lr: float
    default_data: str | None
    default_tokenizer: str
    heldout_documents: int
    precision: Literal["fp32", "bf16"] = "bf16"
    heldout_fraction: float = 0.05
    micro_batch_tokens: int | None = None
    compile: bool = False
    mlp_widths: dict[str, int] = field(default_factory=dict)
    linear_head_dim: int = 128
    needle: NeedleGrid = NeedleGrid()
    stand_ins: bool = False
    prompt_tokens: int = 15500
    peak_lrs: dict[str, float] = field(default_factory=dict)
    short_documents: bool = False
    window_size: int = 2048
    hgrn2_norm_eps: float | None = None
    order_varies: bool = False


def _paper(name: str, about: str, hidden_size: int, num_layers: int, transformer_head_dim: int, train_tokens: int,
           peak_lr: float, micro_batch_tokens: int, **more: Any) -> Scale:  # fmt: skip
    values: dict[str, Any] = dict(
        fox_head_dim=64, seq_len=16384, document_len=65536, batch_tokens=2**19, warmup_tokens=256 * 2**20, default_data=None,
        default_tokenizer="gpt2-json", heldout_documents=32768, compile=True,
    )  # fmt: skip
    return Scale(
        name=name, about=about, hidden_size=hidden_size, num_layers=num_layers, transformer_head_dim=transformer_head_dim,
        train_tokens=train_tokens, peak_lr=peak_lr, micro_batch_tokens=micro_batch_tokens, **{**values, **more},
    )  # fmt: skip


TABLE_5_LR = {model: line["peak_lr"] for model, line in read("table5_peak_lr.csv").items()} | {
    # not in the table: the rates of similar blocks
    "samba": 1e-3, "transformer_swa": 5e-4, "stick_breaking": 5e-4, "stick_breaking_pro": 1e-3, "alibi": 1e-3,
    "alibi_pro": 2e-3, "gated_delta_net": 1e-3, "kimi_delta_attention": 1e-3, "gated_linear_attention": 1e-3,
    "fox_hybrid": 1e-3, "path_fox": 1e-3, "wall_attention": 1e-3, "mamba3": 1e-3,
}  # fmt: skip

TINY = Scale(
    name="tiny", about="minutes on two CPU cores; sources of pinned packages as text",
    default_data="packages", default_tokenizer="bpe-512", heldout_documents=192, heldout_fraction=0.12,
    hidden_size=128, num_layers=2, fox_head_dim=32, transformer_head_dim=64, window_size=32,
    mlp_widths={"pro": 300, "llama": 344, "mamba": 258}, seq_len=256, document_len=1024, batch_tokens=1024,
    train_tokens=1024 * 1000, warmup_tokens=1024 * 100, peak_lr=4e-3, precision="fp32", stand_ins=True, prompt_tokens=242,
    hgrn2_norm_eps=1e-5,
    needle=NeedleGrid((304, 416, 528, 640, 752), (0.0, 25.0, 50.0, 75.0, 100.0), 136, 24, choice_samples=2,
                      recall_lengths=(240, 256, 384, 512, 768), recall_reserve=80),
)  # fmt: skip
TINY_SHORT = replace(
    TINY, name="tiny-short", about="tiny with a quarter of the tokens, for ablations", train_tokens=1024 * 256,
    warmup_tokens=1024 * 32, heldout_documents=96,
)  # fmt: skip
TINY_EXTRAPOLATION = replace(TINY_SHORT, name="tiny-extrapolation", about="tiny-short, evaluated at 16 times its length",
                             seq_len=64)  # fmt: skip
TINY_NARROW = replace(TINY_SHORT, name="tiny-narrow", about="tiny-short with half the width, for Figure 6", hidden_size=64,
                      fox_head_dim=32, transformer_head_dim=32, linear_head_dim=32,
                      mlp_widths={"pro": 150, "llama": 172, "mamba": 129})  # fmt: skip

MINI = Scale(
    name="mini", about="minutes on one GPU; bring a few hundred MB of long texts",
    default_data=None, default_tokenizer="bpe-16384", heldout_documents=128,
    hidden_size=512, num_layers=12, fox_head_dim=64, transformer_head_dim=64, window_size=512,
    seq_len=4096, document_len=16384, batch_tokens=2**17, train_tokens=2**17 * 1280, warmup_tokens=2**17 * 80, peak_lr=2e-3,
    peak_lrs={"mamba2": 4e-3, "delta_net": 4e-3}, micro_batch_tokens=2**16, compile=True, stand_ins=True, prompt_tokens=3840,
    hgrn2_norm_eps=1e-5,
    needle=NeedleGrid((512, 1024, 2048, 3072, 4096, 6144, 8192), (0.0, 20.0, 40.0, 60.0, 80.0, 100.0), 200, 32,
                      choice_samples=64),
)  # fmt: skip
MINI_SHORT = replace(
    MINI, name="mini-short", about="mini with half the tokens, for ablations", train_tokens=2**17 * 640,
    warmup_tokens=2**17 * 40,
)  # fmt: skip
MINI_EXTRAPOLATION = replace(
    MINI, name="mini-extrapolation", about="mini with a sixth of the tokens, evaluated at 16 times its length", seq_len=2048,
    document_len=32768, batch_tokens=2**16, train_tokens=2**16 * 400, warmup_tokens=2**16 * 40, heldout_documents=64,
)  # fmt: skip
MINI_NARROW = replace(MINI, name="mini-narrow", about="mini with half the width, for Figure 6", hidden_size=256,
                      linear_head_dim=64)  # fmt: skip


def widths_of_mlps(hidden_size: int) -> dict[str, int]:
    """Return MLP widths with the ratios 3.5, 4 and 3, in multiples of 64: the rule of `swiglu_width` is too coarse for small
    models, whose Pro blocks would be the larger ones."""
    return {block: 64 * round(hidden_size * ratio / 96) for block, ratio in (("pro", 3.5), ("llama", 4), ("mamba", 3))}


def _small(hidden_size: int, num_layers: int, batch_tokens: int, train_tokens: int, peak_lr: float) -> Scale:
    steps = train_tokens // batch_tokens
    return replace(
        MINI, name="small", about="mini in steps of fewer tokens, as many steps as in the paper; each seed has its own order",
        hidden_size=hidden_size, num_layers=num_layers, mlp_widths=widths_of_mlps(hidden_size), batch_tokens=batch_tokens,
        train_tokens=batch_tokens * steps, warmup_tokens=batch_tokens * (steps // 16), peak_lr=peak_lr, micro_batch_tokens=None,
        hgrn2_norm_eps=None, order_varies=True,
    )  # fmt: skip


SMALL = _small(512, 12, 2**15, 2**15 * 5120, 2e-3)
SMALL_SHORT = replace(
    SMALL, name="small-short", about="small with half the tokens, for ablations", train_tokens=SMALL.train_tokens // 2,
    warmup_tokens=SMALL.warmup_tokens // 2,
)  # fmt: skip

# The setting closest to the paper's that one GPU can train in a quarter of an hour.
BOOKS_125M = _paper(
    "125m-0.2b", "the paper's 125M blocks, batch, contexts; few tokens", 768, 12, 64, 2**19 * 400, 2e-3, 2**16,
    warmup_tokens=2**19 * 40, default_tokenizer="bpe-16384", heldout_documents=64, stand_ins=True,
    needle=NeedleGrid(depths=(0.0, 20.0, 40.0, 60.0, 80.0, 100.0), max_new_tokens=32, recall_samples=4, choice_samples=16),
)  # fmt: skip
# The same with as many tokens as 3.5 epochs of a few hundred MB of books.
BOOKS_125M_LONGER = replace(
    BOOKS_125M, name="125m-0.5b", about="125m-0.2b with more than twice the tokens; an hour on one GPU",
    train_tokens=2**19 * 1032, warmup_tokens=2**19 * 104, heldout_documents=128,
)  # fmt: skip

# Table 7: SlimPajama's documents, most of them short, are packed into rows of the training length. The paper does not give the
# tokeniser, batch, learning rate and schedule; here a byte-level BPE of 32,000 tokens (with which the models have about 340M
# parameters), and the others as at 360M.
TINY_PACKED = replace(TINY_NARROW, name="tiny-packed", about="tiny-narrow on packed short documents, for Table 7",
                      short_documents=True)  # fmt: skip
MINI_PACKED = replace(MINI_NARROW, name="mini-packed", about="mini-narrow on packed short documents, for Table 7", seq_len=2048,
                      document_len=2048, heldout_documents=512, short_documents=True)  # fmt: skip
SLIMPAJAMA = _paper(
    "340m-slimpajama", "the paper's short-context setting (Table 7)", 1024, 24, 64, 15 * Gi, 2e-3, 2**15,
    seq_len=2048, document_len=2048, heldout_documents=8192, heldout_fraction=0.002, default_tokenizer="bpe-32000",
    default_data="hf:cerebras/SlimPajama-627B", short_documents=True,
)  # fmt: skip

SCALES = {
    scale.name: scale
    for scale in (
        TINY, TINY_SHORT, TINY_NARROW, TINY_PACKED, TINY_EXTRAPOLATION,
        MINI, MINI_SHORT, MINI_NARROW, MINI_PACKED, MINI_EXTRAPOLATION,
        SMALL, SMALL_SHORT,
        BOOKS_125M, BOOKS_125M_LONGER,
        _paper("125m-2.7b", "the paper's 125M setting", 768, 12, 64, 5 * Gi // 2, 2e-3, 32768),
        _paper("360m-7.5b", "the paper's 360M setting (Table 3)", 1024, 24, 64, 7 * Gi, 2e-3, 16384),
        _paper("360m-extrapolation", "about the stick-breaking paper's: 350M, 15B tokens", 1024, 24, 64, 14 * Gi, 2e-3, 16384,
               seq_len=2048, document_len=32768),
        SLIMPAJAMA,
        _paper("760m-16b", "the paper's 760M setting, short", 1536, 24, 128, 15 * Gi, 1e-3, 16384),
        _paper("760m-48b", "the paper's main setting", 1536, 24, 128, 45 * Gi, 1e-3, 16384, peak_lrs=TABLE_5_LR),
    )
}  # fmt: skip


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise ValueError(f"--scale {name}: no such scale; choose one of {', '.join(SCALES)}.")
    return SCALES[name]


TINIES = ("tiny", "tiny-short", "tiny-narrow", "tiny-packed", "tiny-extrapolation")
SMALLS = ("small", "small-short")
MINIS = ("mini", "mini-short", "mini-narrow", "mini-packed", "mini-extrapolation", *SMALLS)
PAPERS = ("125m-0.2b", "125m-0.5b", "125m-2.7b", "360m-7.5b", "360m-extrapolation", "340m-slimpajama", "760m-16b",
          "760m-48b")  # fmt: skip
"""Scales with the paper's context length, and scales with another of its settings."""
ABLATIONS = {TINIES: "tiny-short", SMALLS: "small-short", MINIS: "mini-short", PAPERS: "360m-7.5b"}
SHORTER = {"tiny": "tiny-short", "mini": "mini-short", "small": "small-short", "760m-48b": "760m-16b"}
"""Scales of the same models with fewer tokens; other scales have none."""

SIZE_OF = {
    **dict.fromkeys(TINIES, "tiny"), **dict.fromkeys(MINIS, "mini"), **dict.fromkeys(PAPERS[:3], "125m"),
    **dict.fromkeys(PAPERS[3:5], "360m"), **dict.fromkeys(PAPERS[6:], "760m"),
}  # fmt: skip
"""Sizes of scales: runs of one size tell the noise between its seeds (analysis/seeds.py)."""

Sizes = TypeVar("Sizes")


class NoSizes(ValueError):
    """Error for a figure without sizes of its own at a scale. `place`: the file and its table that lack them."""

    def __init__(self, place: str, scale: str) -> None:
        super().__init__(f'{place} has nothing for scale {scale}; add ("{scale}",) with its values there.')
        self.place = place


def sizes_at(scale: Scale, sizes: Mapping[tuple[str, ...], Sizes], module: str, table: str = "SIZES") -> Sizes:
    """Return a figure's own sizes at a scale. `module`: the figure's `__name__`. NoSizes for a scale without any."""
    for names, own in sizes.items():
        if scale.name in names:
            return own
    raise NoSizes(f"{module.replace('.', '/')}.py: {table}", scale.name)


def for_ablations(scale: Scale) -> Scale:
    """Return the scale for Table 3 and other comparisons of a model's parts in this setting. ValueError if there is none."""
    return get_scale(sizes_at(scale, ABLATIONS, __name__, "ABLATIONS"))


def with_shorter(scale: Scale) -> tuple[Scale, ...]:
    """Return the scale, preceded by the one with the same models and fewer tokens if there is one."""
    return (get_scale(SHORTER[scale.name]), scale) if scale.name in SHORTER else (scale,)
