"""The scales: the paper's four settings (Tables 4 and 5; released configurations) and two small ones with the same shape.

Every scale keeps the paper's proportions: evaluation at four times the training length, Pro with SwiGLU ratio 3.5 against
4, FoX with more and smaller heads than the Transformer where the paper has them, Mamba-2 with twice the layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from data.spec import DataSpec
from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec
from training.spec import RunSpec, TrainSpec

MODELS = ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama", "mamba2", "hgrn2", "delta_net")
"""The seven models of the paper's main experiments."""

Gi = 2**30


@dataclass(frozen=True)
class Scale:
    """Sizes and budget shared by all models of one setting; lengths in tokens. `peak_lr` is by model."""

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
    peak_lr: dict[str, float]
    default_data: str | None
    default_tokenizer: str
    heldout_documents: int
    heldout_fraction: float = 0.05
    micro_batch_tokens: int | None = None
    compile: bool = False
    mlp_widths: dict[str, int] = field(default_factory=dict)
    linear_head_dim: int = 128


def _same(rate: float) -> dict[str, float]:
    return dict.fromkeys(MODELS, rate)


def _paper(name: str, about: str, hidden_size: int, num_layers: int, transformer_head_dim: int, train_tokens: int,
           peak_lr: dict[str, float], micro_batch_tokens: int) -> Scale:  # fmt: skip
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
}

TINY = Scale(
    name="tiny",
    about="minutes on two CPU cores; the standard library's source code as text",
    hidden_size=128,
    num_layers=2,
    fox_head_dim=32,
    transformer_head_dim=64,
    seq_len=256,
    document_len=1024,
    batch_tokens=1024,
    train_tokens=1024 * 1000,
    warmup_tokens=1024 * 100,
    peak_lr=_same(4e-3),
    default_data="stdlib",
    default_tokenizer="bpe-512",
    heldout_documents=192,
    heldout_fraction=0.12,
    mlp_widths={"pro": 300, "llama": 344},
)

MINI = Scale(
    name="mini",
    about="minutes on one GPU; bring a few hundred MB of long texts",
    hidden_size=512,
    num_layers=8,
    fox_head_dim=64,
    transformer_head_dim=64,
    seq_len=4096,
    document_len=16384,
    batch_tokens=2**17,
    train_tokens=2**17 * 640,
    warmup_tokens=2**17 * 40,
    peak_lr=_same(2e-3),
    default_data=None,
    default_tokenizer="bpe-16384",
    heldout_documents=256,
    micro_batch_tokens=2**16,
    compile=True,
)

SCALES = {
    scale.name: scale
    for scale in (
        TINY,
        MINI,
        _paper("125m-2.7b", "the paper's 125M setting", 768, 12, 64, 5 * Gi // 2, _same(2e-3), 32768),
        _paper("360m-7.5b", "the paper's 360M setting (Table 3)", 1024, 24, 64, 7 * Gi, _same(2e-3), 16384),
        _paper("760m-16b", "the paper's 760M setting, short", 1536, 24, 128, 15 * Gi, _same(1e-3), 16384),
        _paper("760m-48b", "the paper's main setting", 1536, 24, 128, 45 * Gi, TABLE_5_LR, 16384),
    )
}


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise ValueError(f"--scale {name}: no such scale; choose one of {', '.join(SCALES)}.")
    return SCALES[name]


def model_spec(model: str, scale: Scale, vocab_size: int) -> ModelSpec:
    """The spec of one of MODELS at a scale."""
    return _BUILDERS[model](scale, vocab_size)


def run_spec(model: str, scale: Scale, data: DataSpec, *, precision: str, seed: int = 0) -> RunSpec:
    """The run of one of MODELS at a scale on a corpus."""
    train = TrainSpec(
        seq_len=scale.seq_len,
        batch_tokens=scale.batch_tokens,
        train_tokens=scale.train_tokens,
        warmup_tokens=scale.warmup_tokens,
        peak_lr=scale.peak_lr[model],
        precision="bf16" if precision == "bf16" else "fp32",
    )
    return RunSpec(
        name=model, scale=scale.name, model=model_spec(model, scale, data.vocab_size), data=data, train=train, seed=seed
    )


def _attention(scale: Scale, vocab_size: int, *, pro: bool, fox: bool) -> ForgettingTransformerSpec:
    head_dim = scale.fox_head_dim if fox else scale.transformer_head_dim
    return ForgettingTransformerSpec(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        num_heads=scale.hidden_size // head_dim,
        mlp_ratio=3.5 if pro else 4.0,
        mlp_width=scale.mlp_widths.get("pro" if pro else "llama"),
        forget_gate="full" if fox else "none",
        use_rope=not fox,
        use_k_shift=pro,
        use_v_shift=pro,
        qk_norm=pro,
        use_output_gate=pro,
        use_output_norm=pro,
    )


def _mamba2(scale: Scale, vocab_size: int) -> Mamba2Spec:
    return Mamba2Spec(vocab_size=vocab_size, hidden_size=scale.hidden_size, num_layers=2 * scale.num_layers)


def _hgrn2(scale: Scale, vocab_size: int) -> HGRN2Spec:
    return HGRN2Spec(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        expand_ratio=scale.linear_head_dim,
        mlp_width=scale.mlp_widths.get("llama"),
    )


def _delta_net(scale: Scale, vocab_size: int) -> DeltaNetSpec:
    return DeltaNetSpec(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        head_dim=scale.linear_head_dim,
        mlp_width=scale.mlp_widths.get("llama"),
    )


_BUILDERS: dict[str, Callable[[Scale, int], ModelSpec]] = {
    "fox_pro": lambda scale, vocab: _attention(scale, vocab, pro=True, fox=True),
    "transformer_pro": lambda scale, vocab: _attention(scale, vocab, pro=True, fox=False),
    "fox_llama": lambda scale, vocab: _attention(scale, vocab, pro=False, fox=True),
    "transformer_llama": lambda scale, vocab: _attention(scale, vocab, pro=False, fox=False),
    "mamba2": _mamba2,
    "hgrn2": _hgrn2,
    "delta_net": _delta_net,
}
