"""LongBench with its archive and models played: prompts, scores, what it is bound to."""

import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.kinds import KINDS
from eval.longbench import measure as longbench
from eval.longbench import spec as longbench_spec
from eval.shell.context import Context
from eval.shell.sources import UserData, digest
from eval.shell.spec import Setting

TREC = {"input": "", "context": "c", "answers": ["x"], "all_classes": ["x", "y"]}


def test_longbench_is_read_from_the_hubs_archive(monkeypatch, tmp_path):
    """Examples of each task are the first so many; its commit is the folder's name."""
    (tmp_path / "commit").mkdir()
    archive = tmp_path / "commit" / "data.zip"
    lines = "".join(f"{json.dumps(TREC | {'n': number})}\n \n\n" for number in range(3))
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("repobench-p", "trec"):
            file.writestr(f"data/{name}.jsonl", lines)
    monkeypatch.setattr(longbench, "hub_archive", lambda: archive)
    context = Context()
    found = longbench.load_examples(["repobench_p", "trec"], KINDS["longbench"](max_examples=2), context)
    assert {name: [each["n"] for each in own] for name, own in found.items()} == {"repobench_p": [0, 1], "trec": [0, 1]}
    assert context.extras == {"dataset_commit": "commit"}
    assert len(longbench.load_examples(["trec"], KINDS["longbench"](), context)["trec"]) == 3
    for body, why in ((b"[" * 100_000, "cannot be read as LongBench data"), (b"\xff", "cannot be read"),
                      (b"3", "cannot be read"),
                      (b"\n \n", "has no examples"),
                      *((json.dumps({k: v for k, v in TREC.items() if k != name}).encode(),
                         f"lacks the LongBench fields {name}$")
                        for name in longbench.FIELDS)):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            longbench._parsed(body, "where", "trec")


def test_the_hub_is_asked_for_the_data_set(monkeypatch):
    asked = []
    longbench_spec.hub_archive.cache_clear()
    fetched = lambda *given, **how: asked.append((given, how)) or "there/data.zip"  # noqa: E731
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    KINDS["longbench"]().fetch(UserData())
    assert asked == [(("THUDM/LongBench", "data.zip"), {"repo_type": "dataset"})] and longbench_spec.hub_archive() == Path(
        "there/data.zip"
    )
    longbench_spec.hub_archive.cache_clear()
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *given, **how: (_ for _ in ()).throw(KeyError("odd")))
    with pytest.raises(ValueError, match=r"neither in the local cache nor available from the hub \(KeyError\)"):
        longbench_spec.hub_archive()
    assert [longbench_spec.hub_name(name) for name in ("multi_news", "multifieldqa_en")] == ["multi_news", "multifieldqa_en"]


def test_longbench_is_bound_to_a_folder_that_has_the_tasks(tmp_path):
    (tmp_path / "trec.jsonl").write_text("{}")
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(longbench=tmp_path), "bf16", "m")
    assert KINDS["longbench"](tasks=("trec",)).bound(setting).dataset == digest(tmp_path)
    assert KINDS["longbench"](tasks=("trec",), dataset="0123").bound(setting).dataset == "0123", "what is bound stays"
    with pytest.raises(ValueError, match=r"has no lcc\.jsonl"):
        KINDS["longbench"](tasks=("trec", "lcc")).bound(setting)
    read = lambda **given: KINDS["longbench"](tasks=("trec",), max_prompt_tokens=9, **given).tokens_read()  # noqa: E731
    assert read(max_examples=3, max_new_tokens=5) == [(3 * 14, 9)] and read(max_examples=999, max_new_tokens=99) == [
        (200 * 73, 9)
    ]


def test_scores_leave_the_depth_of_recursion_as_it_is(monkeypatch):
    """It is raised to 20,000, never lowered; without a reference there is no score."""
    seen = []
    monkeypatch.setattr(longbench, "_metrics", lambda: SimpleNamespace(
        qa_f1_score=None, classification_score=None,
        rouge_score=lambda *given, **how: seen.append(sys.getrecursionlimit()) or 0.5,
    ))  # fmt: skip
    limit = sys.getrecursionlimit()
    try:
        for own, raised in ((limit, max(limit, 20_000)), (30_000, 30_000)):
            sys.setrecursionlimit(own)
            assert longbench.score("gov_report", "p", TREC) == 50.0
            assert seen.pop() == raised and sys.getrecursionlimit() == own
    finally:
        sys.setrecursionlimit(limit)
    assert longbench.score("gov_report", "p", TREC | {"answers": []}) == 0.0


def test_prompts_of_longbench_are_cut_in_their_middle_and_answers_short(monkeypatch):
    codec = SimpleNamespace(
        bos_id=0, encode=lambda text: [ord(sign) for sign in text], decode=lambda ids: "".join(map(chr, filter(None, ids)))
    )
    whole = [0, *map(ord, "abcdefg")]
    for most, ids in ((8, whole), (7, [0, *map(ord, "abefg")]), (6, [0, *map(ord, "abefg")]), (4, [0, *map(ord, "afg")])):
        assert longbench.prompt_ids("abcdefg", TREC, codec, most) == ids
    assert len(longbench.prompt_ids("abcdefgh", TREC, codec, 9)) == 9
    asked = []
    monkeypatch.setattr(longbench, "load_examples", lambda names, spec, context: {name: [TREC] * 2 for name in names})
    monkeypatch.setattr(longbench, "template_of", lambda task: "{{context}}ab")

    def answered(what, prompts, loaded, context, precision, limit):
        asked.append((what, prompts, precision, limit))
        return {key: {"prediction": "\nx\ny"} for key in prompts}

    monkeypatch.setattr(longbench, "answered", answered)
    monkeypatch.setattr(longbench, "score", lambda task, cut, example: len(cut))
    for most, limits in ((None, [64, 512]), (100, [64, 100]), (9, [9, 9])):
        for original, scores in ((False, [1, 1, 1, 1]), (True, [1, 1, 4, 4])):
            asked.clear()
            context = Context()
            spec = KINDS["longbench"](
                tasks=("trec", "gov_report"), max_new_tokens=most, original_cut=original, precision="bf16", max_prompt_tokens=2
            )
            rows = longbench.evaluate(SimpleNamespace(tokenizer=codec), spec, context)
            assert [limit for *_, limit in asked] == limits and rows["score"].tolist() == scores
            assert asked[0] == ("LongBench (trec)", {"trec/0": [0, ord("b")], "trec/1": [0, ord("b")]}, "bf16", limits[0])
            assert context.extras == {"num_examples": {"trec": 2, "gov_report": 2}}


def test_a_template_that_changed_is_noticed(monkeypatch):
    monkeypatch.setattr("lm_eval.tasks._yaml_loader.load_yaml", lambda path, resolve_func: {"doc_to_text": f"of {path.stem}"})
    assert longbench.template_of("trec") == "of trec"
    with pytest.raises(AssertionError, match="template of repobench-p has changed"):
        longbench.template_of("repobench_p")


@pytest.mark.parametrize(("prediction", "line"), [
    ("x = 1\ny", "x = 1"), ("# a\nx", "x"), ("// a\nx", "x"), ("```\nx", "x"), ("a # b\na // b\n`a`\nx\ny", "x"),
    ("\n\nx", "x"), ("# a", ""), ("a / b\nx", "a / b"),
])  # fmt: skip
def test_the_line_of_code_that_is_compared(prediction, line, monkeypatch):
    compared = []
    fuzz = SimpleNamespace(ratio=lambda *given: compared.append(given) or 40)
    monkeypatch.setattr(longbench, "_metrics", lambda: SimpleNamespace(fuzz=fuzz))
    assert longbench._code_similarity(prediction, "truth", all_classes=None) == 0.4 and compared == [(line, "truth")]


def test_data_of_longbench_have_all_fields():
    whole = TREC
    assert longbench._parsed(json.dumps(whole).encode() + b"\n\n", "f", "trec") == [whole]
    for name in whole:
        line = json.dumps({key: value for key, value in whole.items() if key != name})
        with pytest.raises(ValueError, match=f"f lacks the LongBench fields {name}$"):
            longbench._parsed(f"{json.dumps(whole)}\n{line}".encode(), "f", "trec")
    for body, told in ((b"", "f has no examples"), (b"\xff", "cannot be read as LongBench data"), (b"3", "cannot be read"),
                       (b"{", r"cannot be read as LongBench data .*: fetch it again")):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            longbench._parsed(body, "f", "trec")


@pytest.mark.parametrize(("name", "value", "told"), [
    ("input", None, "string"), ("context", ["c d"], "string"), ("answers", "the answer", "list of strings"),
    ("answers", [], "list of strings"), ("answers", [1], "list of strings"), ("all_classes", None, "list of strings"),
    ("all_classes", "xy", "list of strings"),
])  # fmt: skip
def test_data_of_longbench_are_texts(name, value, told):
    """A string in the place of a list would be scored letter by letter; only classification needs classes."""
    body = f"{json.dumps(TREC)}\n\n{json.dumps(TREC | {name: value})}".encode()
    with pytest.raises(ValueError, match=f"^f, line 3: `{name}` must be a {told}$"):
        longbench._parsed(body, "f", "trec")
    if name == "all_classes":
        assert len(longbench._parsed(body, "f", "qasper")) == 2
