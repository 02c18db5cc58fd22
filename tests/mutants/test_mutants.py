"""The list of mutants does not rot: each is one line that is there once, still Python when changed, with tests that exist."""

import ast
import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.__main__ import ENOUGH, HUNG, KILLED, SURVIVED, Result, code, copy_checkout, digest, known, run_mutant
from tests.mutants.listed import MUTANTS, Mutant
from training.lines import line

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


def test_the_table_is_of_these_mutants_and_nine_in_ten_are_killed():
    said = (ROOT / "tests/mutants/table.md").read_text()
    became = [
        result
        for mutant in MUTANTS
        for result in (KILLED, SURVIVED, HUNG)
        if f"| {mutant.file} | {code(mutant.old)} | {code(mutant.new)} | {result} |" in said
    ]
    assert len(became) == len(MUTANTS), "judge what is new: python -m tests.mutants --out tests/mutants/table.md"
    assert became.count(SURVIVED) <= (1 - ENOUGH) * len(MUTANTS)


def test_a_kill_is_kept_until_the_file_or_its_tests_change(tmp_path, monkeypatch):
    journal, index = tmp_path / "table.jsonl", next(i for i, mutant in enumerate(MUTANTS) if mutant.room == "results")
    row = {"digest": digest(MUTANTS[index]), "mutant": list(MUTANTS[index]), "result": asdict(Result(KILLED, 1.0, "a test"))}
    journal.write_text(line(row) + line({**row, "digest": "of another file"})[:-9] + "\n")
    assert known(journal, [index, index + 1]) == {index: Result(KILLED, 1.0, "a test")}
    assert known(None, [index]) == {}
    (tmp_path / "other.jsonl").write_text(line({**row, "result": asdict(Result(SURVIVED, 1.0))}))
    assert known(tmp_path / "other.jsonl", [index]) == {}
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("tiny*", "mini*"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    assert known(journal, [index])
    with (tmp_path / "tests" / MUTANTS[index].tests.split()[0]).open("a") as file:
        file.write("\n")
    assert known(journal, [index]) == {}


def test_a_mutant_is_killed_or_survives_and_is_taken_out_again(tmp_path):
    copy = copy_checkout(tmp_path / "copy")
    file = "results/sealed.py"
    killed = Mutant(file, "if seal != _digest(values):", "if False:", "results/test_sealed.py")
    survives = killed._replace(old='"""The values of a sealed file.', new='"""Values of a sealed file.')
    assert run_mutant(copy, killed, 100).became == KILLED
    assert run_mutant(copy, survives, 100).became == SURVIVED
    assert (copy / file).read_text() == (ROOT / file).read_text()
