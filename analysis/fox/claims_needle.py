"""Claims C22b, C22c and C23 on needles (Figure 4)."""

from analysis.names import PAIRS, RECURRENT, missing_of, pairs_in, title
from analysis.needles import difference, longest_inside, mean_of, needles, num_seeds
from analysis.study import Study
from analysis.verdict import Claim, Comparison, Verdict, decide, not_applicable, number

AT_FLOOR = "No model finds the needle anywhere (all scores are near the lowest), so there is no order."
PAPER_BEYOND = (19_600 / 16_384, 32_000 / 16_384)


def c22b(study: Study) -> Verdict:
    """Easy needle inside the training context: FoX and Transformer at least 9.5, each recurrent model lower by 2."""
    found = needles(study)
    if found.at_floor:
        return not_applicable(AT_FLOOR)
    longest = longest_inside(study.train_len)
    wanted = [model for pair in PAIRS for model in pair]
    cells = {model: found.of(model=model, mode="easy", high=longest) for model in (*wanted, *RECURRENT)}
    cells = {model: rows for model, rows in cells.items() if len(rows)}
    absent = missing_of((*wanted, *RECURRENT), cells)
    softmax = [model for model in wanted if model in cells]
    comparisons = [
        Comparison(f"mean of {title(model)}", mean_of(cells[model]), 9.5, strict=False, unit="points") for model in softmax
    ]
    comparisons += [
        Comparison(f"{title(one)} minus {title(other)}", difference(cells[one], cells[other]), 2.0, strict=False, unit="points")
        for one in softmax
        for other in RECURRENT
        if other in cells
    ]
    means = ", ".join(f"{title(model)} {mean_of(rows).effect:.2f}" for model, rows in cells.items())
    sentence = f"Easy mode, lengths up to {longest:,.0f}: {means} {found.unit}."
    return decide(sentence, comparisons, num_seeds(cells.values()) if cells else 0, absent)


def c22c(study: Study) -> Verdict:
    """Standard needle inside the training context: FoX at least as good as the Transformer of the same architecture."""
    return _compared(study, "standard", 0, longest_inside(study.train_len), PAIRS, strict=False)


def c23(study: Study) -> Verdict:
    """Easy needle beyond the training context: FoX and Transformer (Pro) above Transformer (LLaMA)."""
    low, high = (share * study.train_len for share in PAPER_BEYOND)
    others = ("fox_pro", "fox_llama", "transformer_pro")
    return _compared(study, "easy", low - 1, high + 1, [(model, "transformer_llama") for model in others])


def _compared(study: Study, mode: str, low: float, high: float, pairs, *, strict: bool = True) -> Verdict:
    """The first of each pair above the second, by score or, where all scores are at the floor, by recall."""
    found = needles(study)
    if found.at_floor and found.unit == "points":
        return not_applicable(AT_FLOOR)
    cells = {model: found.of(model=model, mode=mode, low=low, high=high) for pair in pairs for model in pair}
    there, others = pairs_in([model for model, rows in cells.items() if len(rows)], pairs)
    absent = [f"{words}, {mode} mode" for words in others]
    comparisons = [
        Comparison(f"{title(one)} minus {title(other)}", difference(cells[one], cells[other]), strict=strict, unit=found.unit)
        for one, other in there
    ]
    if not there:
        return decide("", [], 0, absent)
    parts = [f"{each.name} {number(each.estimate.effect, found.unit)}" for each in comparisons]
    measured = "score" if found.unit == "points" else "recall (no score leaves the floor)"
    sentence = f"{mode.capitalize()} mode, lengths {low:,.0f} to {high:,.0f}, mean {measured}: {'; '.join(parts)} {found.unit}."
    return decide(sentence, comparisons, num_seeds(cells[model] for pair in there for model in pair), absent)


STEM = "fig4_needle"
CLAIMS = (
    Claim(
        "C22b",
        "Easy needle inside the training context: FoX and Transformer near perfect, recurrent models well below",
        STEM,
        c22b,
    ),
    Claim("C22c", "Standard needle inside the training context: FoX at least as good as the Transformer", STEM, c22c),
    Claim("C23", "Easy needle beyond the training context: FoX and Transformer (Pro) above Transformer (LLaMA)", STEM, c23),
)
