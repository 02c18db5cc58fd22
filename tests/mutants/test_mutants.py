"""The list of mutants does not rot: each is in one place, still Python when changed, with tests that exist."""

import ast
from collections import Counter

import pytest

from tests.mutants.__main__ import KILLED, SURVIVED, copy_checkout, run_mutant
from tests.mutants.listed import MUTANTS, Mutant
from tests.mutants.place import ROOMS, ROOT, Code, files_of_tests, parsed, replacement

MOVED = """
class A:
    size: int = 8

    def b(self):
        return f(  # ü
            x=1,
            y=(2 *
  self.size))
"""
SEAL = Mutant("read_sealed", "seal != _digest(values)", "False", "test_sealed")


@pytest.fixture(scope="module")
def code() -> Code:
    return Code()


def test_every_mutant_is_in_one_place_and_changes_it(code):
    for mutant in MUTANTS:
        places = code.places(mutant)
        assert len(places) == 1, f"{mutant} is in {len(places)} places: {places}"
        text = code.texts[places[0].file]
        assert ast.dump(ast.parse(places[0].changed(text, replacement(mutant)))) != ast.dump(ast.parse(text)), mutant
        assert files_of_tests(mutant)


def test_they_are_few_and_different_and_in_every_room(code):
    assert 100 <= len(MUTANTS) <= 130
    assert all(count == 1 for count in Counter(each[:3] for each in MUTANTS).values())
    assert {code.places(mutant)[0].file.split("/")[0] for mutant in MUTANTS} == set(ROOMS)


def test_a_mutant_is_found_wherever_its_function_goes_and_however_it_is_laid_out(tmp_path):
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "moved.py"
    file.write_text(MOVED)
    faults = (("A.b", "2 * self.size", "3"), ("A.b", "x=1", "x=2"), ("A.size", "8", "9"))
    for fault, line in zip(faults, ("y=((3)))", "x=2,", "= (9)"), strict=True):
        mutant = Mutant(*fault, "test_sealed")
        (place,) = Code(tmp_path).places(mutant)
        assert line in place.changed(file.read_text(), replacement(mutant))
    assert not Code(tmp_path).places(Mutant("A.c", "2 * self.size", "3", ""))
    assert isinstance(parsed("x = 1"), ast.Assign) and isinstance(parsed("x=1"), ast.keyword)


def test_tests_that_are_nowhere_or_in_several_places_are_refused():
    for name in ("test_nothing", "test_without_gpu"):
        with pytest.raises(ValueError, match=f"{name}: tests/ has . files"):
            files_of_tests(SEAL._replace(tests=name))


def test_a_mutant_is_killed_or_survives_and_is_taken_out_again(tmp_path, code):
    copy, (place,) = copy_checkout(tmp_path / "copy"), code.places(SEAL)
    assert SEAL in MUTANTS
    survives = SEAL._replace(new="not seal == _digest(values)")
    assert run_mutant(copy, SEAL, place, 100).became == KILLED
    assert run_mutant(copy, survives, place, 100).became == SURVIVED
    assert (copy / "results/sealed.py").read_text() == (ROOT / "results/sealed.py").read_text()
