"""No plan changes unnoticed: every run that a figure trains, with the changes to its model and its training, every evaluation
that it asks for, and every model's spec are written down at two scales. What is new need not be there yet."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from data.spec import DataSpec
from experiments.artefact import artefacts
from experiments.recipes import NAMES, Recipe
from experiments.scales import SCALES, get_scale

WRITTEN = Path(__file__).with_name("every_plan.txt")
AT = ("tiny", "760m-48b")


def changed(spec: object) -> str:
    return json.dumps(TypeAdapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True), sort_keys=True)


def data_at(scale: str) -> DataSpec:
    length = get_scale(scale).document_len
    return DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=length, fingerprint="f")


def stated() -> Iterator[str]:
    for at in AT:
        for name in NAMES:
            spec = Recipe(name, name, at).run_spec(data_at(at))
            yield f"{at}, {name}: {changed(spec.model)} {changed(spec.train)}"
        for stem, artefact in artefacts().items():
            found = list(artefact.runs(SCALES[at], (0, 1)))
            yield f"{at}, {stem}: {len(found)} runs with two seeds"
            for each in found:
                if each.seed == 0:
                    task = "" if each.task is None else f" {changed(each.task)}"
                    changes = json.dumps({**each.model, **each.train}, sort_keys=True)
                    yield f"{at}, {stem}, {each.name} {each.axes or ''}: {each.scale} {changes}{task}"
            for spec in dict.fromkeys(spec for each in found for spec in artefact.evals(each.sizes)):
                yield f"{at}, {stem} asks for {spec.kind} {changed(spec)}"


def test_every_plan_is_the_one_that_is_written_down(tmp_path):
    found = list(dict.fromkeys(stated()))
    (tmp_path / WRITTEN.name).write_text("\n".join(found) + "\n")
    gone = set(WRITTEN.read_text().splitlines()) - set(found)
    assert not gone, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"
