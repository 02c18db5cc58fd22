"""The list of mutants does not rot: each is one line that is there once, still Python when changed, with tests that exist."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import KILLED, SURVIVED, copy_checkout, run_mutant
from tests.mutants.listed import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_mutant_applies_to_exactly_one_line(file):
    body = (ROOT / file).read_text()
    for mutant in MUTANTS:
        if mutant.file == file:
            assert body.count(mutant.old) == 1, mutant
            assert ast.dump(ast.parse(body.replace(mutant.old, mutant.new))) != ast.dump(ast.parse(body)), mutant
            files, _, _ = mutant.tests.partition(" -k ")
            assert all((ROOT / "tests" / each).is_file() for each in files.split()), mutant


def test_there_are_enough_and_no_two_are_alike():
    assert len(MUTANTS) >= 200
    assert all(count == 1 for count in Counter((m.file, m.old, m.new) for m in MUTANTS).values())
    rooms = {"kernels", "models", "data", "training", "eval", "results", "analysis", "experiments"}
    assert {mutant.room for mutant in MUTANTS} == rooms


def test_a_mutant_is_killed_or_survives_and_is_taken_out_again(tmp_path):
    copy = copy_checkout(tmp_path / "copy")
    file = "results/sealed.py"
    killed = Mutant(file, "if seal != _digest(values):", "if False:", "results/test_sealed.py")
    survives = killed._replace(old='"""The values of a sealed file.', new='"""Values of a sealed file.')
    assert run_mutant(copy, killed, 100).became == KILLED
    assert run_mutant(copy, survives, 100).became == SURVIVED
    assert (copy / file).read_text() == (ROOT / file).read_text()
