"""Claims C1 to C6 about per-token loss and perplexity (Figure 2), as predicates on curves L(i).

`losses` maps model keys to L(i), i = 1..N at index i - 1, all of one length; `train_len` is the training context length.
The grids scale with it: at 16,384 tokens they are {512, 1k, 2k, 4k, 8k, 16k}, {20k, 24k, 32k, 48k, 64k} and 2k steps.

Noise. A comparison that misses by less than two standard errors is called "within noise". The standard error comes from
the curves themselves: the scatter between neighbouring positions of what is compared (for two models, of the
difference of their losses, on the same documents), averaged over the positions used. It leaves out what is common to whole
documents and the spread over training seeds, so it is a lower bound on the real noise.
"""

import numpy as np

from analysis.names import RECURRENT, SEVEN, label
from analysis.rows import perplexity, smooth, smoothing_window
from analysis.style import tokens
from analysis.verdict import Verdict, not_applicable, status_of

Curves = dict[str, np.ndarray]

PAIRS = (("fox_pro", "transformer_pro"), ("fox_llama", "transformer_llama"))
SIGMAS = 2.0
C3_TOLERANCE = 0.003


def grid_inside(train_len: int) -> list[int]:
    """The paper's {512, 1k, 2k, 4k, 8k, 16k}, scaled to the training context length."""
    return [max(1, train_len // part) for part in (32, 16, 8, 4, 2, 1)]


def grid_beyond(train_len: int, longest: int) -> list[int]:
    """The paper's {20k, 24k, 32k, 48k, 64k}, scaled, as far as the evaluation reaches."""
    return [length for length in (train_len * quarter // 4 for quarter in (5, 6, 8, 12, 16)) if length <= longest]


def scatter(values: np.ndarray) -> float:
    """Standard deviation of one position's noise, from the differences of neighbours (a slow trend drops out)."""
    finite = values[np.isfinite(values)]
    return float(np.std(np.diff(finite)) / np.sqrt(2)) if len(finite) > 2 else 0.0


def _lower_everywhere(claim: str, losses: Curves, grid: list[int]) -> Verdict:
    """P of FoX < P of the Transformer of the same architecture at every length of the grid."""
    pairs = [pair for pair in PAIRS if pair[0] in losses and pair[1] in losses]
    violations: list[float] = []
    noises: list[float] = []
    numbers: dict[str, float] = {}
    worst = []
    for fox, transformer in pairs:
        ours, theirs = _perplexity(losses[fox]), _perplexity(losses[transformer])
        noise = scatter(losses[fox] - losses[transformer])
        gaps = {length: float(ours[length - 1] - theirs[length - 1]) for length in grid}
        violations += [_at_least(gap) for gap in gaps.values()]
        floor = {length: float(SIGMAS * noise / np.sqrt(length) * ours[length - 1]) for length in grid}
        noises += floor.values()
        numbers |= {f"P {label(fox)} - P {label(transformer)} at {length}": gap for length, gap in gaps.items()}
        won = sum(gap < 0 for gap in gaps.values())
        unclear = sum(abs(gap) <= floor[length] for length, gap in gaps.items())
        length = max(gaps, key=lambda length: np.inf if np.isnan(gaps[length]) else gaps[length])
        worst.append(
            f"{label(fox)} below {label(transformer)} at {won} of {len(grid)} lengths "
            f"(least favourable: {gaps[length]:+.3f} at {length}; gaps inside the noise: {unclear})"
        )
    return Verdict(claim, status_of(violations, noises), "; ".join(worst) + ".", numbers)


def _perplexity(losses: np.ndarray) -> np.ndarray:
    """P(l), infinite from where the model's output was not finite."""
    values = perplexity(losses)
    return np.where(np.isnan(values), np.inf, values)


def _at_least(gap: float) -> float:
    """The predicates are strict: equality is a miss, by the smallest of margins."""
    return gap if gap != 0 else 1e-12


def c1(losses: Curves, train_len: int) -> Verdict:
    """FoX beats the Transformer of the same architecture at every context length inside the training context."""
    if not any(pair[0] in losses and pair[1] in losses for pair in PAIRS):
        return not_applicable("C1", "Needs FoX and the Transformer of one architecture.")
    return _lower_everywhere("C1", losses, grid_inside(train_len))


def c2(losses: Curves, train_len: int) -> Verdict:
    """FoX extrapolates better than the Transformer of the same architecture."""
    if not any(pair[0] in losses and pair[1] in losses for pair in PAIRS):
        return not_applicable("C2", "Needs FoX and the Transformer of one architecture.")
    longest = len(next(iter(losses.values())))
    grid = grid_beyond(train_len, longest)
    if not grid:
        return not_applicable("C2", f"The evaluation ends at {longest} tokens, not beyond the training context of {train_len}.")
    return _lower_everywhere("C2", losses, grid)


def c3(losses: Curves, train_len: int) -> Verdict:
    """FoX uses its context to the end: smoothed L at steps of an eighth of the context is non-increasing within 0.003."""
    foxes = [model for model in ("fox_pro", "fox_llama") if model in losses]
    if not foxes:
        return not_applicable("C3", "Needs a FoX model.")
    window = smoothing_window(train_len)
    points = [train_len * eighth // 8 for eighth in range(1, 9)]
    violations: list[float] = []
    noises: list[float] = []
    numbers: dict[str, float] = {}
    sentences = []
    for model in foxes:
        values = smooth(losses[model], window)[np.array(points) - 1]
        rises = np.diff(values)
        noise = SIGMAS * scatter(losses[model][:train_len]) * np.sqrt(2 / window)
        violations += [float(rise - C3_TOLERANCE) for rise in rises]
        noises += [float(noise)] * len(rises)
        numbers |= {f"L {label(model)} at {point}": float(value) for point, value in zip(points, values, strict=True)}
        sentences.append(
            f"{label(model)}: L goes from {values[0]:.3f} at {points[0]} to {values[-1]:.3f} at {points[-1]}, "
            f"largest rise between points {rises.max():+.4f} (allowed {C3_TOLERANCE}, noise {noise:.4f})"
        )
    return Verdict("C3", status_of(violations, noises), "; ".join(sentences) + ".", numbers)


def c4(losses: Curves, train_len: int) -> Verdict:
    """Recurrent models gain less than half of what FoX (Pro) gains from the last three eighths of the context.

    Said only where FoX (Pro) gains at all, which the claim takes for granted.
    """
    recurrent = [model for model in RECURRENT if model in losses]
    if "fox_pro" not in losses or not recurrent:
        return not_applicable("C4", "Needs FoX (Pro) and a recurrent model.")
    window = smoothing_window(train_len)
    start = train_len * 5 // 8  # 10k of 16k

    def gain(model: str) -> float:
        values = smooth(losses[model], window)
        return float(values[start - 1] - values[train_len - 1])

    fox_gain = gain("fox_pro")
    gains = {model: gain(model) for model in recurrent}
    half = 0.5 * losses["fox_pro"][:train_len]
    noises = [float(SIGMAS * scatter(losses[model][:train_len] - half) * np.sqrt(2 / window)) for model in recurrent]
    violations = [_at_least(value - 0.5 * fox_gain) for value in gains.values()]
    violations.append(_at_least(-fox_gain))
    noises.append(float(SIGMAS * scatter(losses["fox_pro"][:train_len]) * np.sqrt(2 / window)))
    numbers = {f"gain of {label(model)}": value for model, value in {"fox_pro": fox_gain, **gains}.items()}
    of_others = ", ".join(f"{label(model)} {value:+.4f}" for model, value in gains.items())
    sentence = (
        f"From {start} to {train_len} tokens FoX (Pro) gains {fox_gain:+.4f} nats; {of_others}; allowed is half of "
        f"FoX (Pro)'s, noise {max(noises):.4f}."
    )
    return Verdict("C4", status_of(violations, noises), sentence, numbers)


def c5(losses: Curves, train_len: int) -> Verdict:
    """FoX (Pro) has the lowest perplexity of the seven models at the training context length."""
    missing = [label(model) for model in SEVEN if model not in losses]
    if missing:
        return not_applicable("C5", f"Needs all seven models; missing: {', '.join(missing)}.")
    values = {model: float(_perplexity(losses[model])[train_len - 1]) for model in SEVEN}
    others = [model for model in SEVEN if model != "fox_pro"]
    violations = [_at_least(values["fox_pro"] - values[model]) for model in others]
    noises = [_noise_at(losses, "fox_pro", model, train_len) for model in others]
    best = min(others, key=lambda model: values[model])
    sentence = (
        f"P({tokens(train_len)}) of FoX (Pro) is {values['fox_pro']:.3f}; the best of the others is {label(best)} with "
        f"{values[best]:.3f}."
    )
    return Verdict("C5", status_of(violations, noises), sentence, {f"P {label(m)}": v for m, v in values.items()})


def c6(losses: Curves, train_len: int) -> Verdict:
    """Pro beats LLaMA for FoX and for the Transformer, at the training context length."""
    pairs = [pair for pair in (("fox_pro", "fox_llama"), ("transformer_pro", "transformer_llama")) if set(pair) <= set(losses)]
    if not pairs:
        return not_applicable("C6", "Needs the Pro and the LLaMA model of one family.")
    models = [model for pair in pairs for model in pair]
    values = {model: float(_perplexity(losses[model])[train_len - 1]) for model in models}
    violations = [_at_least(values[pro] - values[llama]) for pro, llama in pairs]
    noises = [_noise_at(losses, pro, llama, train_len) for pro, llama in pairs]
    parts = [f"{label(pro)} {values[pro]:.3f} against {label(llama)} {values[llama]:.3f}" for pro, llama in pairs]
    sentence = f"P({tokens(train_len)}): {'; '.join(parts)}."
    return Verdict("C6", status_of(violations, noises), sentence, {f"P {label(m)}": v for m, v in values.items()})


def _noise_at(losses: Curves, one: str, other: str, length: int) -> float:
    """Two standard errors of the difference of two perplexities at `length`."""
    difference = scatter((losses[one] - losses[other])[:length])
    return float(SIGMAS * difference / np.sqrt(length) * _perplexity(losses[one])[length - 1])


def loss_verdicts(losses: Curves, train_len: int) -> list[Verdict]:
    """C1 to C6. Not applicable where the evaluation is shorter than the training context."""
    longest = len(next(iter(losses.values())))
    if longest < train_len:
        why = f"The evaluation ends at {longest} tokens, inside the training context of {train_len}."
        return [not_applicable(f"C{number}", why) for number in range(1, 7)]
    return [check(losses, train_len) for check in (c1, c2, c3, c4, c5, c6)]
