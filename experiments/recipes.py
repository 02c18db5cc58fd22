"""Recipes: a model's name, a scale and changes define a run of an artefact. Artefacts' files call `recipes`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from typing import Any

from analysis.names import SEVEN
from analysis.study import Axes, Series, series_of
from data.recall import RecallTask
from data.spec import DataSpec
from experiments.scales import Scale, get_scale
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec import KINDS, ModelSpec
from models.spec_parts import swiglu_width
from training.spec import RunSpec, TrainSpec

Changes = dict[str, Any]
"""Fields of a spec to change, with their new values."""


@dataclass(frozen=True)
class Recipe:
    """One run of an artefact, before its corpus is known: the model `name` at `scale`, with changes to its ModelSpec (`model`)
    and TrainSpec (`train`), trained on `task` instead of a text if there is one.

    `axes` say how the run differs from the plain model; the artefact's `draw` groups by them. `label` shows them to readers."""

    label: str
    name: str
    scale: str
    seed: int = 0
    model: Changes = field(default_factory=dict)
    train: Changes = field(default_factory=dict)
    task: RecallTask | None = None
    axes: Axes = field(default_factory=dict)

    @property
    def series(self) -> Series:
        return series_of(self.axes, self.name, self.scale)

    @property
    def sizes(self) -> Scale:
        """The scale for its evaluations, with this recipe's training length."""
        scale = get_scale(self.scale)
        return replace(scale, seq_len=self.train.get("seq_len", scale.seq_len))

    def run_spec(self, text: DataSpec | None) -> RunSpec:
        """Return the spec of the run on this text. ValueError for a change that specs do not allow."""
        data = text if self.task is None else DataSpec.of_recall(self.task)
        assert data is not None
        scale = get_scale(self.scale)
        model = model_spec(self.name, scale, data.vocab_size, self.model)
        own = {name: getattr(scale, name) for name in ("seq_len", "batch_tokens", "train_tokens", "warmup_tokens", "precision")}
        own |= {"order_seed": self.seed} if scale.order_varies else {}
        train = TrainSpec(**{**own, "peak_lr": scale.peak_lrs.get(self.name, scale.peak_lr), **self.train})
        return RunSpec(name=self.name, scale=self.scale, model=model, data=data, train=train, seed=self.seed)


def recipes(
    scale: Scale, names: str | Iterable[str], seeds: Sequence[int], *, label: str | None = None, **more: Any
) -> Iterator[Recipe]:
    """Yield one recipe per model and seed; the default `label` is the model's name. `more`: the other fields of a recipe."""
    for name, seed in product([names] if isinstance(names, str) else names, seeds):
        yield Recipe(label or name, name, scale.name, seed, **more)


def lines(*names: str, once: bool = False) -> Callable[[Scale, Sequence[int]], Iterator[Recipe]]:
    """Return the `runs` of an artefact whose lines are these plain models; `once`: only with the first seed, for counts and
    timings that do not depend on it."""
    return lambda scale, seeds: recipes(scale, names, seeds[:1] if once else seeds)


main_models, main_models_once = lines(*SEVEN), lines(*SEVEN, once=True)
"""The models of the paper's main experiments: the lines of most figures and tables."""


def model_spec(name: str, scale: Scale, vocab_size: int, changes: Changes | None = None) -> ModelSpec:
    """Return the spec of a model at a scale, with some of its fields changed."""
    check_name(name)
    kind, changes = KINDS.get(name, ForgettingTransformerSpec), changes or {}
    values: Changes = dict(vocab_size=vocab_size, hidden_size=scale.hidden_size, num_layers=scale.num_layers)
    if "mlp_width" in (field.name for field in fields(kind)):
        values["mlp_width"] = scale.mlp_widths.get("llama")
    return kind(**{**values, **(_OWN[name](scale, changes) if name in _OWN else {}), **changes})


def check_name(name: str, flag: str = "") -> None:
    """Raise ValueError for a model without a recipe; the message names the option `flag`."""
    if name not in NAMES:
        raise ValueError(f"{flag}{name}: no such model; choose from {', '.join(NAMES)}.")


def _attention(scale: Scale, changes: Changes, *, pro: bool = False, fox: bool = False, stick: bool = False) -> Changes:
    """Fields of softmax, forgetting and stick-breaking attention. The SwiGLU is narrower (ratio 3.5, not 4) if and only if the
    block has an output gate, so that ablated blocks keep their size (the paper leaves this open)."""
    gated = changes.get("use_output_gate", pro)
    return dict(
        num_heads=scale.hidden_size // (scale.fox_head_dim if fox else scale.transformer_head_dim),
        mlp_ratio=3.5 if gated else 4.0,
        mlp_width=scale.mlp_widths.get("pro" if gated else "llama"),
        attention="stick_breaking" if stick else "softmax",
        forget_gate="full" if fox else "none",
        use_rope=not (fox or stick),
        **dict.fromkeys(("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm"), pro),
    )


def _alibi(scale: Scale, changes: Changes, *, pro: bool = False) -> Changes:
    """FoX with a fixed gate equal to ALiBi: slopes 2^(-8 h / H) of heads h = 1 .. H."""
    fox = {**_attention(scale, changes, pro=pro, fox=True), **changes}
    return {**fox, "forget_gate": "fixed", "decay_time_min": 2.0 ** (8 / fox["num_heads"]), "decay_time_max": 256.0}


def _constant(scale: Scale, changes: Changes, gate: str) -> Changes:
    """FoX (Pro) with constant gates whose decay times reach up to the training length, the longest of Figure 7."""
    fox = _attention(scale, changes, pro=True, fox=True)
    return {**fox, "forget_gate": gate, "decay_time_min": 2.0, "decay_time_max": float(scale.seq_len)}


def _samba(scale: Scale, changes: Changes) -> Changes:
    heads = scale.hidden_size // scale.transformer_head_dim
    return dict(num_heads=heads, window_size=scale.window_size, mamba_mlp_width=scale.mlp_widths.get("mamba"))


def _half_keys(scale: Scale, changes: Changes) -> Changes:
    return dict(head_dim=min(scale.linear_head_dim, scale.hidden_size // 2))


def _fox_hybrid(scale: Scale, changes: Changes) -> Changes:
    """Three layers of Gated DeltaNet for each layer of FoX; with only two layers, one of each."""
    fox = dict(num_heads=scale.hidden_size // scale.fox_head_dim, fox_mlp_width=scale.mlp_widths.get("pro"))
    return {**_half_keys(scale, changes), **fox, "fox_every": min(4, scale.num_layers)}


def _narrower(scale: Scale, changes: Changes, by: float) -> int:
    """Return an MLP width, a multiple of 8, that is narrower by `by`: this makes up for a mixer with more than 4 d^2
    parameters, so that the model is as large as the others."""
    width = scale.mlp_widths.get("llama") or swiglu_width(scale.hidden_size, changes.get("mlp_ratio", 4.0))
    return round((width - by) / 8) * 8


def _kimi_delta_attention(scale: Scale, changes: Changes) -> Changes:
    """The two gates have rank head_dim."""
    head_dim = changes.get("head_dim", scale.linear_head_dim)
    return dict(head_dim=head_dim, mlp_width=_narrower(scale, changes, 4 * head_dim / 3))


def _path_fox(scale: Scale, changes: Changes) -> Changes:
    """Each token's map has low rank, and is convolved."""
    width = _narrower(scale, changes, (2 * KINDS["path_fox"].RANK + 3) / 3)
    return dict(num_heads=scale.hidden_size // scale.fox_head_dim, mlp_width=width)


def _wall_attention(scale: Scale, changes: Changes) -> Changes:
    """The gates have d^2 parameters."""
    width = _narrower(scale, changes, scale.hidden_size / 3)
    return dict(num_heads=scale.hidden_size // scale.fox_head_dim, mlp_width=width)


def _mamba3(scale: Scale, changes: Changes) -> Changes:
    """The mixer is twice as wide as the model."""
    d = scale.hidden_size
    mixer = KINDS["mamba3"](vocab_size=1, hidden_size=d, num_layers=1).mixer_params
    return dict(mlp_width=_narrower(scale, changes, (mixer - 4 * d * d) / (3 * d)))


_OWN: dict[str, Callable[[Scale, Changes], Changes]] = {
    "fox_pro": partial(_attention, pro=True, fox=True),
    "transformer_pro": partial(_attention, pro=True),
    "fox_llama": partial(_attention, fox=True),
    "transformer_llama": _attention,
    "stick_breaking": partial(_attention, stick=True),
    "stick_breaking_pro": partial(_attention, pro=True, stick=True),
    "alibi": _alibi,
    "alibi_pro": partial(_alibi, pro=True),
    "fixed_pro": partial(_constant, gate="fixed"),
    "learned_pro": partial(_constant, gate="bias_only"),
    "transformer_swa": lambda scale, changes: {**_attention(scale, changes), "window_size": scale.window_size},
    "samba": _samba,
    "mamba2": lambda scale, _: dict(num_layers=2 * scale.num_layers),
    "hgrn2": lambda scale, _: dict(expand_ratio=scale.linear_head_dim, output_norm_eps=scale.hgrn2_norm_eps),
    "delta_net": lambda scale, _: dict(head_dim=scale.linear_head_dim),
    **dict.fromkeys(("gated_delta_net", "gated_linear_attention"), _half_keys),
    "fox_hybrid": _fox_hybrid,
    "path_fox": _path_fox,
    "wall_attention": _wall_attention,
    "mamba3": _mamba3,
    "kimi_delta_attention": _kimi_delta_attention,
}
"""Fields that a model sets besides its kind's defaults and the scale's width, depth and MLP."""
NAMES = (*_OWN, *(name for name in KINDS if name not in _OWN and name != "forgetting_transformer"))
"""Names of recipes: those above, and every other kind under its own name."""
