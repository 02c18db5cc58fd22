"""Examples that evaluations make of a text are what they were: rows are stored under an identity that does not hold them, only
the text's, the wording's and the version's.

Where a change is meant, the version of the examples goes up with the digests (`VERSION` of eval/runner/stand_ins.py), or the
evaluation gets another name.
"""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

from data.tokenizer import parse_tokenizer
from eval.kinds import KINDS
from eval.lm_eval.spec import TASKS as HARNESS
from eval.longbench.spec import TASKS as LONGBENCH
from eval.needle.haystack import CellBuilder
from eval.needle.wording import DEFAULT_WORDING, Wording, read_facts
from eval.needle_choice.measure import needles
from eval.runner import stand_ins
from eval.runner.text import TextCodec
from tests.eval.conftest import sentences

TEXTS = ["".join(sentences(np.random.default_rng(seed), 12) for _ in range(25)) for seed in range(3)]
CODEC = TextCodec(parse_tokenizer("bytes").load())
WRITTEN = {
    "lm_eval wikitext": "88b8f15d477c", "lm_eval lambada_openai": "ede88658dbeb", "lm_eval piqa": "26d4c3bea90d",
    "lm_eval hellaswag": "f68c67a07529", "lm_eval winogrande": "1bf39bf54fe7", "lm_eval arc_easy": "4a0a6ca389d2",
    "lm_eval arc_challenge": "89c39de7fc04", "lm_eval copa": "58f2992ff11d", "lm_eval openbookqa": "2890378afba3",
    "lm_eval sciq": "57e0ba51792e", "lm_eval boolq": "0db00f3b70c4", "longbench narrativeqa": "4b55808459ba",
    "longbench qasper": "333e72eafced", "longbench multifieldqa_en": "dd28cc53c749", "longbench hotpotqa": "a48fa1f2fdc0",
    "longbench 2wikimqa": "2070a82327d2", "longbench musique": "3a17966d3250", "longbench gov_report": "45ceb94aad41",
    "longbench qmsum": "b9c8f141389b", "longbench multi_news": "e2d5b7fb5e20", "longbench trec": "c04a1c1b9820",
    "longbench triviaqa": "85b6f143689e", "longbench samsum": "a18aa45ac8e4", "longbench lcc": "24d2feb69bd5",
    "longbench repobench_p": "90edf419ce0b", "needle_choice": "ef3b271e424a",
    "needle easy": "c9c1569e7e6a", "needle standard": "d1a4143b06ca",
    "needle_recall easy": "76cfa0c71178", "needle_recall standard": "e18a49795ed6",
}  # fmt: skip


def digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def cells(kind: str, monkeypatch, **given) -> CellBuilder:
    monkeypatch.setattr("eval.needle.haystack.haystack_texts", lambda name, context: iter(TEXTS))
    return CellBuilder(CODEC, KINDS[kind](lengths=(900, 1400), depths=(0.0, 40.0, 100.0), samples_per_cell=2, **given), None)


def made(kind: str, monkeypatch) -> object:
    monkeypatch.setattr(stand_ins, "heldout_texts", lambda corpus: iter(TEXTS))
    own = stand_ins.StandIns(SimpleNamespace(spec=SimpleNamespace(fingerprint="0123456789abcdef")))
    room, _, task = kind.partition(" ")
    if room == "lm_eval":
        return own.lm_eval(task)
    if room == "longbench":
        return own.longbench(task)
    if room == "needle_choice":
        hidden = needles(CODEC, 12)
        found = cells(room, monkeypatch, mode="easy").cells_of_ids([wording for wording, _ in hidden])
        return [[vars(cell) for cell in found], [ids for _, ids in hidden]]
    builder = cells(room, monkeypatch, mode=task)
    wordings = read_facts() if room == "needle_recall" else [Wording.read(DEFAULT_WORDING)]
    return [[vars(cell) for cell in builder.cells(wordings)], builder.without_needle(wordings[0], 900, 1)]


@pytest.mark.parametrize("kind", WRITTEN)
def test_examples_are_what_they_were(kind, monkeypatch):
    assert digest(made(kind, monkeypatch)) == WRITTEN[kind]


def test_versions_are_those_of_the_digests():
    """All tasks have one."""
    assert stand_ins.VERSION == 1
    for room, tasks in (("lm_eval", HARNESS), ("longbench", LONGBENCH)):
        assert {f"{room} {task}" for task in tasks} == {each for each in WRITTEN if each.startswith(f"{room} ")}
