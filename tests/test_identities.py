"""Every field that changes a result changes an identity, and identities last: through JSON, and from checkout to checkout."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.plan import resolve
from data.recall import RecallTask
from data.spec import DataSpec
from eval.kinds import EVAL_SPEC, KINDS, eval_id
from eval.runner.sources import digest
from experiments.artefact import artefacts
from experiments.recipes import NAMES, Recipe
from experiments.scales import SCALES
from models.spec import KINDS as MODELS
from tests import equal
from training import manifest
from training.spec import RunSpec

TEXT = DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=65536, fingerprint="aa")
TASK = RecallTask(num_keys=4, num_assignments=1, num_queries=1, num_symbols=128)
FOR_PEOPLE = {"name", "scale"}
"""Fields of a run that change no result."""


def planned() -> list[RunSpec]:
    """Return every distinct run of every figure at the smallest scale, and one of every model."""
    recipes = [recipe for each in artefacts().values() for recipe in each.runs(SCALES["tiny"], (0, 1))]
    recipes += [Recipe(name, name, "tiny") for name in NAMES]
    runs = [each.run_spec(TEXT if each.task is None else DataSpec.of_recall(each.task)) for each in recipes]
    return list({run.run_id: run for run in runs}.values())


RUNS = planned()
EVALS = list({spec: None for each in artefacts().values() for spec in each.evals(SCALES["tiny"])})


def changes(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of every field, those of specs within the spec included, and the spec with another value there. These are
    not checked: few would be valid alone."""
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            others = changes(value)
        elif isinstance(value, bool):
            others = iter([("", not value)])
        elif isinstance(value, int | float):
            others = iter([("", value + 1)])
        elif isinstance(value, tuple):
            others = iter([("", (*value, 7))])
        else:
            others = iter([("", 7 if value is None else f"{value}, changed")])
        for name, other in others:
            if field.name != "kind":
                changed = object.__new__(type(spec))
                changed.__dict__.update({**spec.__dict__, field.name: other})
                yield f"{field.name}.{name}".rstrip("."), changed


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_field_of_a_run_changes_its_id():
    bases = [max((r for r in RUNS if r.model.kind == kind), key=lambda r: len(repr(r.model))) for kind in MODELS]
    recall = next(run for run in RUNS if run.data.recall is not None)
    for base in (*bases, recall):
        found = {name: other.run_id for name, other in changes(base)}
        assert {name for name, run_id in found.items() if run_id == base.run_id} == FOR_PEOPLE
        assert len(set(found.values())) == len(found) - len(FOR_PEOPLE) + 1


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_an_evaluation_changes_its_id(kind):
    base = object.__new__(KINDS[kind])
    for field in dataclasses.fields(base):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        is_bound = value not in (dataclasses.MISSING, None, "heldout", "local")
        base.__dict__[field.name] = value if is_bound else 7
    found = [eval_id(base), *(eval_id(other) for _, other in changes(base))]
    assert len(set(found)) == len(found)


def test_every_field_of_a_recall_task_changes_its_corpus():
    found = [DataSpec.of_recall(TASK), *(DataSpec.of_recall(task) for _, task in changes(TASK))]
    assert len({each.fingerprint for each in found}) == len(found) == 6


def test_runs_and_evaluations_come_back_from_json():
    assert len(RUNS) > 100 and len(EVALS) > 20
    for run in RUNS:
        again = RunSpec.from_json(run.to_json())
        assert again == run and again.run_id == run.run_id
    for spec in EVALS:
        assert EVAL_SPEC.validate_json(EVAL_SPEC.dump_json(spec)) == spec


@given(st.sampled_from(RUNS), st.floats(0, 1e300, exclude_min=True), st.integers(0, 2**63 - 1))
def test_any_number_comes_back_from_json(run, rate, seed):
    run = dataclasses.replace(run, seed=seed, train=dataclasses.replace(run.train, peak_lr=rate))
    again = RunSpec.from_json(run.to_json())
    assert again == run and again.run_id == run.run_id
    higher = dataclasses.replace(run, train=dataclasses.replace(run.train, peak_lr=math.nextafter(rate, math.inf)))
    assert higher.run_id != run.run_id


def test_stored_ids_are_those_of_their_specs_and_what_is_planned_is_stored():
    assert [*equal.ids(), *equal.plans(equal.ROOT)] == []


def test_everything_that_decides_a_corpus_changes_its_fingerprint(tmp_path):
    texts, other, copy = (tmp_path / f"{name}.txt" for name in "abc")
    texts.write_text("one")
    other.write_text("two")
    copy.write_text("one")

    def fingerprint(source=f"text:{texts}", **how):
        how = dict(cache_dir=tmp_path, tokenizer="bpe-512", document_len=64) | how
        return resolve(source, **how).spec.fingerprint

    hows = [
        dict(source=f"text:{other}"), dict(source=f"text:{texts},{other}"), dict(source=f"text:{other},{texts}"),
        dict(tokenizer="bpe-513"), dict(tokenizer="bytes"), dict(document_len=65), dict(heldout_fraction=0.1),
        dict(heldout=str(other)), dict(max_documents=9), dict(packed=True), dict(packed=True, max_tokens=99),
    ]  # fmt: skip
    assert len({fingerprint(), *(fingerprint(**how) for how in hows)}) == 1 + len(hows)
    assert fingerprint(f"text:{copy}") == fingerprint(cache_dir=tmp_path / "elsewhere") == fingerprint()


def test_folders_are_known_by_names_and_contents(tmp_path):
    contents = ({"a": "one", "b": "two"}, {"a": "two", "b": "one"}, {"a": "one", "c": "two"}, {"a": "onet", "b": "wo"},
                {"a": "one"})  # fmt: skip
    found = []
    for number, files in enumerate((*contents, contents[0])):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        found.append(digest(folder))
    assert len(set(found)) == len(contents) and found[0] == found[-1]
    one, two = "11" * 32, "22" * 32
    weights = [
        {"a.safetensors": one},
        {"b.safetensors": one},
        {"a.safetensors": two},
        {"a.safetensors": one, "b.safetensors": two},
    ]
    assert len({manifest.weights_digest(files) for files in weights}) == 4
    assert manifest.weights_digest({"a.safetensors": one, "config.json": two}) == manifest.weights_digest(weights[0])
