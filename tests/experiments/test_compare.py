"""Two results folders beside each other: equal up to rounding, where one more seed would lie, or not reproduced."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from experiments.compare import compare
from experiments.plan import make_plan, write_specs
from experiments.publish import publish
from tests.experiments.finished import finish

FIG2 = "fig2_per_token_loss"
SEEDS = {0: 2.00, 1: 2.01, 2: 1.99}


@pytest.fixture
def train(asked, tmp_path):
    """train(folder, {seed: held-out loss}) -> the folder."""

    def make(folder: str, losses: dict[int, float], device: str = "") -> Path:
        plan = make_plan(
            replace(asked, artefacts=(FIG2,), only=("fox_pro",), seeds=tuple(losses), results_dir=tmp_path / folder)
        )
        write_specs(plan)
        for run in plan.runs.values():
            loss = losses[run.spec.seed]
            finish(run, evaluations=True, loss=loss, weights=f"{loss}".encode(), device=device)
        return tmp_path / folder

    return make


def compared(one: Path, other: Path) -> tuple[int, str]:
    code = compare(one, other, "tiny", Console(file=(said := io.StringIO()), width=500))
    return code, said.getvalue()


@pytest.mark.parametrize(("losses", "code", "last"), [
    (SEEDS, 0, "reproduced: 3 of 3 evaluations are equal up to rounding\n"),
    ({0: 2.0001}, 0, "reproduced: 1 of 1 evaluations are equal up to rounding\n"),
    ({0: 2.005}, 0, "reproduced: 0 of 1 evaluations are equal up to rounding; 2 of 2 other numbers lie where"),
    ({7: 1.98}, 0, "reproduced: 0 of 1 evaluations are equal up to rounding; 2 of 2 other numbers"),  # a seed of its own
    ({0: 2.00, 1: 2.5}, 3, "not reproduced: 1 of 2 evaluations are equal up to rounding; 0 of 2 other numbers"),
])  # fmt: skip
def test_numbers_are_judged_by_the_seeds_of_the_other_folder(train, tmp_path, losses, code, last):
    train("theirs", SEEDS)
    publish(tmp_path / "theirs", tmp_path / "published", Console(file=io.StringIO()))
    mine = train("mine", losses, device="another CPU (1 thread, AVX2)")
    for other in ("theirs", "published"):
        found, said = compared(mine, tmp_path / other)
        assert found == code and said.splitlines()[-1].startswith(last.rstrip("\n")), said
        assert ("another CPU" in said) == ("0 of 1" in last or code == 3) and len(said.splitlines()) <= 5


def test_one_seed_is_not_judged_without_others_and_nothing_is_not_compared(train, tmp_path):
    other, mine = train("theirs", {0: 2.0}), train("mine", {0: 2.5})
    code, said = compared(mine, other)
    assert code == 0 and "2 numbers cannot be judged, as nothing like them was repeated" in said
    for nothing in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match=r"nothing to compare|no such folder"):
            compare(mine, nothing, "tiny", Console(file=io.StringIO()))


def test_two_run_folders_are_compared_step_by_step(train):
    one, other, third = (
        next(train(name, {0: loss}).glob("tiny/runs/*")) for name, loss in (("a", 2.0), ("b", 2.0), ("c", 3.0))
    )
    assert compared(one, other) == (0, "the losses of all 1000 common steps are equal to the bit\n")
    metrics = third / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:4] + [line.replace('"loss": 3.0', '"loss": 2.5') for line in lines[4:]]))
    assert "they part at step 5: loss 3 and 2.5" in compared(one, third)[1]
