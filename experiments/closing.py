"""Last words of `run`: whether what was stored before has been met. On a CPU within rounding; on a GPU within seeds' noise."""

import math
from collections.abc import Sequence

from rich.console import Console

from experiments.collect import Collected
from experiments.compare import Compared, print_bands
from experiments.trainings import LARGEST

SHOWN = 5


def close(found: Sequence[Collected], banded: Sequence[Compared], console: Console) -> bool:
    """Say what was met, and return whether all was: `banded` are numbers that are compared with other seeds' (of a GPU)."""
    met = sum(each.met for each in found)
    differing = {name: difference for each in found for name, difference in each.differing.items()}
    beyond = {name: text for each in found for name, text in each.beyond.items()}
    left_out = {name for each in found for name in each.left_out}
    beside = list(dict.fromkeys(line for each in found for line in each.beside))
    if beside:
        some = "; ".join(beside[:SHOWN]) + " ..." * (len(beside) > SHOWN)
        console.print(
            f"{len(beside)} lines stay drawn from other trainings of their runs than these run folders hold; rows of both are "
            f"kept, and `--draw-these-trainings` draws from these: {some}"
        )
    if left_out:
        console.print(f"{len(left_out)} timings of this CPU stay in their run folders: those of another CPU are stored")
    fit = print_bands(banded, console, whole=False) if banded else True
    if met or differing or beyond:
        more = f", {len(beyond)} by more than rounding makes" if beyond else ""
        console.print(f"{met} stored evaluations were met within rounding, {len(differing) + len(beyond)} were not{more}")
    if differing:
        console.print(
            "another processor or library rounds otherwise, and training carries that on: by at most "
            f"{LARGEST} nats of loss so far (no bound is known of scores and texts); the most different:"
        )
    for name, difference in sorted(differing.items(), key=lambda item: -item[1])[:SHOWN]:
        how = f"by {difference:.1e} of the largest value" if math.isfinite(difference) else "in its texts"
        console.print(f"[yellow]differs[/] {name}: {how}; what was stored first is drawn")
    for name, text in list(beyond.items())[:SHOWN]:
        console.print(f"[red]not met[/] {name}: {text}")
    if beyond:
        console.print(
            f"that is no rounding, which made {LARGEST} nats at most: look at what changed in the code between the commits (+: "
            "changes that are in none), and with `python -m experiments compare FOLDER` at where the training parts"
        )
    return fit and not beyond
