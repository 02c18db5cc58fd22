"""Recipes: from a model's name, a scale and changes to the run that an artefact wants. Declarations call `recipes`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from analysis.names import SEVEN
from analysis.study import Axes, Place, Series, series_of
from data.recall import RecallTask
from data.spec import DataSpec
from experiments.scales import Scale, get_scale
from models.spec import (
    KINDS,
    DeltaNetSpec,
    ForgettingTransformerSpec,
    GatedDeltaNetSpec,
    HGRN2Spec,
    KimiDeltaAttentionSpec,
    Mamba2Spec,
    ModelSpec,
    SambaSpec,
)
from training.spec import RunSpec, TrainSpec


@dataclass(frozen=True)
class Recipe:
    """One run of an artefact, before its corpus is known: the model `name` at `scale`, with fields of its ModelSpec and
    TrainSpec changed, trained on `task` in place of a text where there is one.

    `axes` say in what the run differs from the model as it is; the artefact's `draw` groups by them. `label` is their print.
    """

    label: str
    name: str
    scale: str
    seed: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    task: RecallTask | None = None
    axes: Axes = field(default_factory=dict)

    @property
    def series(self) -> Series:
        """The same for all seeds of a line."""
        return series_of(self.axes, self.name, self.scale)

    @property
    def place(self) -> Place:
        """The place that the run takes in an artefact."""
        return self.series, self.seed

    @property
    def sizes(self) -> Scale:
        """The scale that its evaluations go by: with the training length that this recipe has."""
        scale = get_scale(self.scale)
        return replace(scale, seq_len=self.train.get("seq_len", scale.seq_len))

    def run_spec(self, text: DataSpec | None) -> RunSpec:
        """Return the spec of the run on this text. ValueError for a change that no spec can have."""
        data = text if self.task is None else DataSpec.of_recall(self.task)
        assert data is not None
        scale = get_scale(self.scale)
        model = model_spec(self.name, scale, data.vocab_size, self.model)
        train = TrainSpec(
            seq_len=scale.seq_len,
            batch_tokens=scale.batch_tokens,
            train_tokens=scale.train_tokens,
            warmup_tokens=scale.warmup_tokens,
            peak_lr=scale.peak_lrs.get(self.name, scale.peak_lr),
            precision=scale.precision,
        )
        return RunSpec(
            name=self.name,
            scale=self.scale,
            model=model,
            data=data,
            train=replace(train, **self.train),
            seed=self.seed,
        )


def recipes(
    scale: Scale,
    names: str | Iterable[str],
    seeds: Sequence[int],
    *,
    axes: Mapping[str, Any] | None = None,
    label: str | None = None,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    task: RecallTask | None = None,
) -> Iterator[Recipe]:
    """Yield one recipe per seed. Without a `label` the model's own name stands in the artefact."""
    for name, seed in product([names] if isinstance(names, str) else names, seeds):
        yield Recipe(label or name, name, scale.name, seed, model or {}, train or {}, task, dict(axes or {}))


def main_models(scale: Scale, seeds: Sequence[int]) -> Iterator[Recipe]:
    """Yield the models of the paper's main experiments, as they are: the lines of most figures and tables."""
    return recipes(scale, SEVEN, seeds)


def main_models_once(scale: Scale, seeds: Sequence[int]) -> Iterator[Recipe]:
    """Yield them with the first seed alone, on which nothing depends that is counted or timed."""
    return recipes(scale, SEVEN, seeds[:1])


def model_spec(name: str, scale: Scale, vocab_size: int, changes: dict[str, Any] | None = None) -> ModelSpec:
    """Return the spec of a model at a scale, with some of its fields changed. An attention block's SwiGLU is narrower (ratio
    3.5, not 4) exactly when it has an output gate, so that ablated blocks keep their size (the paper leaves this open)."""
    check_name(name)
    if name in _BUILDERS:
        return _BUILDERS[name](scale, vocab_size, changes or {})
    return KINDS[name](**{**_linear(scale, vocab_size), **(changes or {})})


def check_name(name: str, flag: str = "") -> None:
    """Raise ValueError for a model that there is no recipe for, named with the option that gave it."""
    if name not in NAMES:
        raise ValueError(f"{flag}{name}: no such model; choose from {', '.join(NAMES)}.")


def _attention(
    scale: Scale, vocab_size: int, changes: dict[str, Any], *, pro: bool, fox: bool = False, stick: bool = False
) -> ModelSpec:
    head_dim = scale.fox_head_dim if fox else scale.transformer_head_dim
    gated = changes.get("use_output_gate", pro)
    values: dict[str, Any] = dict(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        num_heads=scale.hidden_size // head_dim,
        mlp_ratio=3.5 if gated else 4.0,
        mlp_width=scale.mlp_widths.get("pro" if gated else "llama"),
        attention="stick_breaking" if stick else "softmax",
        forget_gate="full" if fox else "none",
        use_rope=not (fox or stick),
        use_k_shift=pro,
        use_v_shift=pro,
        qk_norm=pro,
        use_output_gate=pro,
        use_output_norm=pro,
    )
    return ForgettingTransformerSpec(**{**values, **changes})


def _alibi(scale: Scale, vocab_size: int, changes: dict[str, Any], *, pro: bool) -> ModelSpec:
    """FoX with the fixed gate that is ALiBi: slopes 2^(-8 h / H) of heads h = 1 .. H."""
    heads = scale.hidden_size // scale.fox_head_dim
    slopes = dict(forget_gate="fixed", decay_time_min=2.0 ** (8 / heads), decay_time_max=256.0)
    return _attention(scale, vocab_size, {**slopes, **changes}, pro=pro, fox=True)


def _mamba2(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    values: dict[str, Any] = dict(vocab_size=vocab_size, hidden_size=scale.hidden_size, num_layers=2 * scale.num_layers)
    return Mamba2Spec(**{**values, **changes})


def _samba(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    values: dict[str, Any] = dict(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        num_heads=scale.hidden_size // scale.transformer_head_dim,
        window_size=scale.window_size,
        mlp_width=scale.mlp_widths.get("llama"),
        mamba_mlp_width=scale.mlp_widths.get("mamba"),
    )
    return SambaSpec(**{**values, **changes})


def _hgrn2(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    return HGRN2Spec(**{**_linear(scale, vocab_size), "expand_ratio": scale.linear_head_dim, **changes})


def _delta_net(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    return DeltaNetSpec(**{**_linear(scale, vocab_size), "head_dim": scale.linear_head_dim, **changes})


def _gated_delta_net(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    head_dim = min(scale.linear_head_dim, scale.hidden_size // 2)
    return GatedDeltaNetSpec(**{**_linear(scale, vocab_size), "head_dim": head_dim, **changes})


def _kimi_delta_attention(scale: Scale, vocab_size: int, changes: dict[str, Any]) -> ModelSpec:
    """An MLP narrower by what the two gates of rank head_dim take, in eights: as many parameters as the other models."""
    spec = KimiDeltaAttentionSpec(**{**_linear(scale, vocab_size), "head_dim": scale.linear_head_dim, **changes})
    narrower = round((spec.intermediate_size - 4 * spec.head_dim / 3) / 8) * 8
    return replace(spec, mlp_width=changes.get("mlp_width", narrower))


def _linear(scale: Scale, vocab_size: int) -> dict[str, Any]:
    return dict(
        vocab_size=vocab_size,
        hidden_size=scale.hidden_size,
        num_layers=scale.num_layers,
        mlp_width=scale.mlp_widths.get("llama"),
    )


_BUILDERS: dict[str, Callable[[Scale, int, dict[str, Any]], ModelSpec]] = {
    "fox_pro": lambda *what: _attention(*what, pro=True, fox=True),
    "transformer_pro": lambda *what: _attention(*what, pro=True),
    "fox_llama": lambda *what: _attention(*what, pro=False, fox=True),
    "transformer_llama": lambda *what: _attention(*what, pro=False),
    "stick_breaking": lambda *what: _attention(*what, pro=False, stick=True),
    "stick_breaking_pro": lambda *what: _attention(*what, pro=True, stick=True),
    "alibi": lambda *what: _alibi(*what, pro=False),
    "alibi_pro": lambda *what: _alibi(*what, pro=True),
    "transformer_swa": lambda scale, vocab_size, changes: _attention(
        scale, vocab_size, {"window_size": scale.window_size, **changes}, pro=False
    ),
    "samba": _samba,
    "mamba2": _mamba2,
    "hgrn2": _hgrn2,
    "delta_net": _delta_net,
    "gated_delta_net": _gated_delta_net,
    "kimi_delta_attention": _kimi_delta_attention,
}
NAMES = (*_BUILDERS, *(name for name in KINDS if name not in _BUILDERS and name != "forgetting_transformer"))
"""A kind that has no builder is a recipe by its own name."""
