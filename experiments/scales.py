"""The scales: the paper's four settings (Tables 4 and 5; released configurations) and small ones with the same shape. Numbers
only; how they become runs is in recipes.py.

Every scale keeps the paper's proportions: evaluation at four times the training length, Pro with SwiGLU ratio 3.5 against
4, FoX with more and smaller heads than the Transformer where the paper has them, Mamba-2 with twice the layers.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from analysis.names import SEVEN

WITH_WINDOWS = (*SEVEN[:4], "samba", "transformer_swa", "mamba2")
"""The models of its tables with sliding windows (Tables 8 and 9)."""

Gi = 2**30


@dataclass(frozen=True)
class NeedleGrid:
    """The cells of the needle test at a scale: the paper's by default. Recall in nats asks shorter questions, which fit into
    shorter texts (`recall_lengths`). `longest`: of the longer texts of Appendix F.5."""

    lengths: tuple[int, ...] = tuple(range(1000, 32001, 3100))
    depths: tuple[float, ...] = tuple(float(depth) for depth in range(0, 101, 10))
    reserve: int = 200
    max_new_tokens: int = 1024
    recall_samples: int = 8
    recall_lengths: tuple[int, ...] | None = None
    recall_reserve: int = 200
    longest: int = 65536


@dataclass(frozen=True)
class RecallGrid:
    """The sizes of the synthetic recall task and the small models that are trained on it, whatever the scale's own are. A
    step has `batch_size` sequences. At such widths N(0, 0.02^2) is so small a beginning that thousands of steps go by before
    anything is learnt. `once`: the numbers of keys where each is assigned and asked for once."""

    num_keys: tuple[int, ...] = (8, 16, 32, 64)
    num_assignments: int = 4
    num_queries: int = 4
    num_symbols: int = 128
    hidden_size: int = 128
    num_heads: int = 2
    num_layers: int = 2
    initializer_range: float = 0.1
    batch_size: int = 64
    num_steps: int = 3000
    once: tuple[int, ...] = (32, 64, 128)
    peak_lr: float = 1e-3


@dataclass(frozen=True)
class Scale:
    """Sizes and budget shared by all models of one setting; lengths in tokens. `peak_lrs`: of the models whose
    peak learning rate is another than `peak_lr`.

    `ablation`: the scale of Table 3 and Figure 7 in this setting. `shorter`: the same models on fewer tokens (Figures 5 and
    6). `sizes`: the scales whose models Figure 6 compares. `rates`: the learning rates that are tried (Figure 5 and the
    grid); `edge_rates`: further ones in the grid, of models that were best at its edge. `decay_times`: the T_max of Figure
    7's constant gates. `stand_ins`: take tasks made from the held-out text for the public benchmarks. `timed_sequences`:
    sequences of a timed training step. `extrapolation`: the scale whose evaluations reach furthest beyond the training
    length, for the stick-breaking paper. `recall`: its synthetic task. `training_contexts`: training lengths that Figure 6
    compares. `pruning_contexts`: those of the pruned runs; shorter ones than four of the kernels' tiles of 128 prune nothing.
    `window_size`: of sliding-window attention. `packed`: the scale of Table 7, which is `short_documents`, packed.
    `ruler_lengths`, `generation_lengths`: of RULER's tasks, and of the prompts from which generation is timed.
    """

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
    ablation: str = "360m-7.5b"
    shorter: str | None = None
    sizes: tuple[str, ...] = ("125m-2.7b", "360m-7.5b", "760m-48b")
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3)
    edge_rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    decay_times: tuple[int, ...] = (256, 2048, 16384)
    timed_sequences: int = 1
    peak_lrs: dict[str, float] = field(default_factory=dict)
    extrapolation: str = "360m-extrapolation"
    recall: RecallGrid = RecallGrid()
    packed: str = "340m-slimpajama"
    short_documents: bool = False
    training_contexts: tuple[int, ...] = (4096, 8192, 16384)
    pruning_contexts: tuple[int, ...] = (4096, 8192, 16384)
    window_size: int = 2048
    ruler_lengths: tuple[int, ...] = (4096, 8192, 16384, 32768, 65536)
    generation_lengths: tuple[int, ...] = (16384, 32768, 65536)

    def rates_of(self, model: str) -> tuple[float, ...]:
        """The learning rates that the model is tried at, from low to high."""
        return tuple(sorted((*self.rates, *self.edge_rates.get(model, ()))))


def _paper(name: str, about: str, hidden_size: int, num_layers: int, transformer_head_dim: int, train_tokens: int,
           peak_lr: float, micro_batch_tokens: int) -> Scale:  # fmt: skip
    return Scale(
        name=name,
        about=about,
        hidden_size=hidden_size,
        num_layers=num_layers,
        fox_head_dim=64,
        transformer_head_dim=transformer_head_dim,
        seq_len=16384,
        document_len=65536,
        batch_tokens=2**19,
        train_tokens=train_tokens,
        warmup_tokens=256 * 2**20,
        peak_lr=peak_lr,
        default_data=None,
        default_tokenizer="gpt2-json",
        heldout_documents=32768,
        micro_batch_tokens=micro_batch_tokens,
        compile=True,
    )


TABLE_5_LR = {
    "fox_pro": 2e-3,
    "transformer_pro": 1e-3,
    "fox_llama": 1e-3,
    "transformer_llama": 5e-4,
    "mamba2": 2e-3,
    "hgrn2": 2e-3,
    "delta_net": 1e-3,
    "samba": 1e-3,  # from here on not in the table: the rates of the like blocks
    "transformer_swa": 5e-4,
    "stick_breaking": 5e-4,
    "stick_breaking_pro": 1e-3,
    "alibi": 1e-3,
}

TINY = Scale(
    name="tiny",
    about="minutes on two CPU cores; sources of pinned packages as text",
    hidden_size=128,
    num_layers=2,
    fox_head_dim=32,
    transformer_head_dim=64,
    seq_len=256,
    document_len=1024,
    batch_tokens=1024,
    train_tokens=1024 * 1000,
    warmup_tokens=1024 * 100,
    peak_lr=4e-3,
    default_data="packages",
    default_tokenizer="bpe-512",
    heldout_documents=192,
    precision="fp32",
    heldout_fraction=0.12,
    mlp_widths={"pro": 300, "llama": 344, "mamba": 258},
    needle=NeedleGrid(
        (304, 416, 528, 640, 752),
        (0.0, 25.0, 50.0, 75.0, 100.0),
        136,
        24,
        recall_lengths=(240, 256, 384, 512, 768),
        recall_reserve=80,
        longest=1024,
    ),
    stand_ins=True,
    prompt_tokens=242,
    ablation="tiny-short",
    shorter="tiny-short",
    sizes=("tiny-narrow", "tiny-short"),
    rates=(2e-3, 4e-3, 8e-3),
    decay_times=(4, 32, 256),
    timed_sequences=4,
    extrapolation="tiny-extrapolation",
    recall=RecallGrid((4, 8), 2, 4, 16, hidden_size=64, batch_size=32, num_steps=400, peak_lr=4e-3, once=(16,)),
    packed="tiny-packed",
    training_contexts=(64, 128, 256),
    pruning_contexts=(512, 1024),
    window_size=32,
    ruler_lengths=(448, 1024),
    generation_lengths=(256, 1024),
)
TINY_SHORT = replace(
    TINY, name="tiny-short", about="tiny with a quarter of the tokens, for ablations", train_tokens=1024 * 256,
    warmup_tokens=1024 * 32, heldout_documents=96, shorter=None, rates=(4e-3, 8e-3),
)  # fmt: skip
TINY_EXTRAPOLATION = replace(TINY_SHORT, name="tiny-extrapolation", about="tiny-short, evaluated at 16 times its length",
                             seq_len=64)  # fmt: skip
TINY_NARROW = replace(TINY_SHORT, name="tiny-narrow", about="tiny-short with half the width, for Figure 6", hidden_size=64,
                      fox_head_dim=32, transformer_head_dim=32, linear_head_dim=32,
                      mlp_widths={"pro": 150, "llama": 172, "mamba": 129})  # fmt: skip

MINI = Scale(
    name="mini",
    about="minutes on one GPU; bring a few hundred MB of long texts",
    hidden_size=512,
    num_layers=12,
    fox_head_dim=64,
    transformer_head_dim=64,
    seq_len=4096,
    document_len=16384,
    batch_tokens=2**17,
    train_tokens=2**17 * 1280,
    warmup_tokens=2**17 * 80,
    peak_lr=2e-3,
    default_data=None,
    default_tokenizer="bpe-16384",
    heldout_documents=128,
    micro_batch_tokens=2**16,
    compile=True,
    needle=NeedleGrid((512, 1024, 2048, 3072, 4096, 6144, 8192), (0.0, 20.0, 40.0, 60.0, 80.0, 100.0), 200, 32, longest=16384),
    stand_ins=True,
    prompt_tokens=3840,
    ablation="mini-short",
    shorter="mini-short",
    sizes=("mini-narrow", "mini"),
    rates=(1e-3, 2e-3, 4e-3),
    edge_rates={"fox_llama": (5e-4,), "mamba2": (8e-3,), "delta_net": (8e-3,)},
    peak_lrs={"mamba2": 4e-3, "delta_net": 4e-3},
    decay_times=(64, 512, 4096),
    timed_sequences=8,
    extrapolation="mini-extrapolation",
    packed="mini-packed",
    training_contexts=(1024, 4096, 16384),
    window_size=512,
    ruler_lengths=(1024, 2048, 4096, 8192, 16384),
    generation_lengths=(4096, 16384),
)
MINI_SHORT = replace(
    MINI, name="mini-short", about="mini with half the tokens, for ablations", train_tokens=2**17 * 640,
    warmup_tokens=2**17 * 40, shorter=None,
)  # fmt: skip
MINI_EXTRAPOLATION = replace(
    MINI, name="mini-extrapolation", about="mini with a sixth of the tokens, evaluated at 16 times its length", seq_len=2048,
    document_len=32768, batch_tokens=2**16, train_tokens=2**16 * 400, warmup_tokens=2**16 * 40, heldout_documents=64,
    shorter=None,
)  # fmt: skip
MINI_NARROW = replace(MINI, name="mini-narrow", about="mini with half the width, for Figure 6", hidden_size=256,
                      linear_head_dim=64)  # fmt: skip

# The closest to the paper's setting that one GPU reaches in a quarter of an hour.
BOOKS_125M = replace(
    _paper("125m-0.2b", "the paper's 125M blocks, batch, contexts; few tokens", 768, 12, 64, 2**19 * 400, 2e-3, 2**16),
    warmup_tokens=2**19 * 40, default_tokenizer="bpe-16384", heldout_documents=64, stand_ins=True, timed_sequences=4,
    needle=NeedleGrid(depths=(0.0, 20.0, 40.0, 60.0, 80.0, 100.0), max_new_tokens=32, recall_samples=4),
)  # fmt: skip

# Table 7: SlimPajama's documents, most of which are short, packed to rows of the training length. The paper leaves tokeniser,
# batch, learning rate and schedule open: a byte-level BPE of 32,000 (with which the models have about 340M parameters), and
# the rest as at 360M.
TINY_PACKED = replace(TINY_NARROW, name="tiny-packed", about="tiny-narrow on packed short documents, for Table 7",
                      short_documents=True)  # fmt: skip
MINI_PACKED = replace(MINI_NARROW, name="mini-packed", about="mini-narrow on packed short documents, for Table 7", seq_len=2048,
                      document_len=2048, heldout_documents=512, short_documents=True)  # fmt: skip
SLIMPAJAMA = replace(
    _paper("340m-slimpajama", "the paper's short-context setting (Table 7)", 1024, 24, 64, 15 * Gi, 2e-3, 2**15),
    seq_len=2048, document_len=2048, heldout_documents=8192, heldout_fraction=0.002, default_tokenizer="bpe-32000",
    default_data="hf:cerebras/SlimPajama-627B", short_documents=True,
)  # fmt: skip

SCALES = {
    scale.name: scale
    for scale in (
        TINY,
        TINY_SHORT,
        TINY_NARROW,
        TINY_PACKED,
        TINY_EXTRAPOLATION,
        MINI,
        MINI_SHORT,
        MINI_NARROW,
        MINI_PACKED,
        MINI_EXTRAPOLATION,
        BOOKS_125M,
        _paper("125m-2.7b", "the paper's 125M setting", 768, 12, 64, 5 * Gi // 2, 2e-3, 32768),
        _paper("360m-7.5b", "the paper's 360M setting (Table 3)", 1024, 24, 64, 7 * Gi, 2e-3, 16384),
        replace(
            _paper(
                "360m-extrapolation",
                "about the stick-breaking paper's: 350M, 15B tokens",
                1024,
                24,
                64,
                14 * Gi,
                2e-3,
                16384,
            ),
            seq_len=2048,
            document_len=32768,
        ),
        SLIMPAJAMA,
        _paper("760m-16b", "the paper's 760M setting, short", 1536, 24, 128, 15 * Gi, 1e-3, 16384),
        replace(
            _paper("760m-48b", "the paper's main setting", 1536, 24, 128, 45 * Gi, 1e-3, 16384),
            peak_lrs=TABLE_5_LR,
            shorter="760m-16b",
        ),
    )
}


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise ValueError(f"--scale {name}: no such scale; choose one of {', '.join(SCALES)}.")
    return SCALES[name]


def with_shorter(scale: Scale) -> tuple[Scale, ...]:
    """The scale, behind the one that has the same models and fewer tokens where there is one."""
    return (scale,) if scale.shorter is None else (get_scale(scale.shorter), scale)
