"""Judge-free scores of an answer whose beginning the prompt already holds: does the continuation go on as the sentence does?"""

import re

UNRELATED_BELOW = 1 / 3  # shares of common words that unrelated English reaches by chance


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def exact_match(prediction: str, expected: str) -> bool:
    """Tell whether the prediction begins with the expected words; case, punctuation and what follows do not count."""
    wanted = words(expected)
    return bool(wanted) and words(prediction)[: len(wanted)] == wanted


def fuzzy_match(prediction: str, expected: str) -> float:
    """Return the share of expected words found in order (longest common subsequence) among twice as many of the prediction."""
    wanted = words(expected)
    given = words(prediction)[: 2 * len(wanted)]
    previous = [0] * (len(given) + 1)
    for word in wanted:
        row = [0]
        for j, other in enumerate(given):
            row.append(previous[j] + 1 if word == other else max(previous[j + 1], row[j]))
        previous = row
    return previous[-1] / len(wanted) if wanted else 0.0


def match_score(exact: bool, fuzzy: float) -> float:
    """Return 1 to 10: 10 for an exact match, 1 up to a third of the words, a straight line between."""
    return 10.0 if exact else 1.0 + 9.0 * max(0.0, (fuzzy - UNRELATED_BELOW) / (1.0 - UNRELATED_BELOW))
