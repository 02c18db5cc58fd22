"""Mistakes at random: whatever a command line, a spec, a TOML or a JSON file says, it is carried out, or it ends with exit code
2 and at most two lines, without a traceback, and leaves nothing behind. Nothing is computed here."""

import contextlib
import gzip
import io
import json
import lzma
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.prepare import prepare
from data.text_files import read_documents
from eval import __main__ as evaluate
from eval import job
from eval.needle.wording import DEFAULT_WORDING, Wording
from experiments import __main__ as experiments
from experiments import execute
from experiments.plan import make_plan, write_specs
from experiments.request import Request
from models.build import build_model, load_model
from results.sealed import read_sealed, write_sealed
from slurm import __main__ as slurm_commands
from slurm.cluster import read_cluster
from tests.texts import write_texts
from training import __main__ as training_command
from training import loop
from training.distributed import World
from training.export import export_model

ROOT = Path(__file__).parent.parent
FIG2 = "fig2_per_token_loss"
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD = (
    *("", "0", "-1", "-0.5", "1e400", "nan", "-inf", "1e-320", "9" * 25, "0x10", "1_000", "true", "None", "a b", "ä→🦊", "."),
    *("/dev/null", "x" * 300, "{}", "[]", "*", "--", "-", "text:", "text:.", "hf:", "longcrawl64:.", "bpe-0", "bpe-300", "0,1"),
    *(",", "0,0", "cpu", "cuda:7", "tiny", "760m-48b", "fox_pro", "bf16", "RUN", "CORPUS", "TEXTS", "FILE", "BINARY"),
)


@dataclass(frozen=True)
class Place:
    """A finished run of a fresh model on a small corpus, with its specs, and an empty folder to work in."""

    folder: Path
    run: Path
    corpus: Path
    texts: Path

    def filled(self, word: str) -> str:
        """With paths for the names in capitals."""
        names = {"RUN": self.run, "CORPUS": self.corpus, "TEXTS": self.texts, "FILE": self.texts / "text-00.txt",
                 "BINARY": self.run / "export" / "model.safetensors"}  # fmt: skip
        return re.sub("|".join(names), lambda name: str(names[name[0]]), word)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    texts = write_texts(folder / "texts", documents=12, sentences_each=200)
    request = Request(artefacts=(FIG2,), only=("fox_llama",), data=f"text:{texts}", corpora_dir=folder / "corpora",
                      runs_dir=folder / "runs", results_dir=folder / "results")  # fmt: skip
    plan = make_plan(request)
    (run,) = plan.runs.values()
    corpus = prepare(run.corpus)
    write_specs(plan)
    export_model(build_model(run.spec.model), corpus, run.spec, run.folder, World(0, 1, torch.device("cpu")))
    return Place(folder, run.folder.path, corpus.folder, texts)


@pytest.fixture(autouse=True)
def nothing_is_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    def stop(*arguments: Any, **named: Any) -> Any:
        raise ValueError("here the work would begin")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "execute", stop)
    monkeypatch.setattr(execute, "prepare_corpora", stop)
    monkeypatch.setattr(loop, "_train", stop)
    monkeypatch.setattr(loop, "StopRequest", lambda max_hours: None)
    # tyro's hints at options of like names, which `parse` cuts off, and which take two thirds of the time.
    monkeypatch.setattr("tyro._backends._tyro_help_formatting.recursive_arg_search", lambda **_: ([], False, False))
    monkeypatch.setattr(evaluate, "run", stop)
    monkeypatch.setattr(job, "run", stop)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def carried_out(action: Callable[[], int], *folders: Path) -> str:
    """Return what is said, after the checks that hold for every command and file."""
    before = [sorted(folder.rglob("*")) for folder in folders]
    said, printed = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = action()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    text = said.getvalue()
    assert code in (0, 1, 2), (code, text)
    if code == 2:
        errors = text[text.index("error: ") :] if "error: " in text else ""
        assert errors.startswith("error: ") and "Traceback" not in text, text
        assert len(errors.strip().splitlines()) <= 2 * errors.count("error: "), text
        assert re.sub("error: ", "", errors).strip(), "nothing is said"
        assert [sorted(folder.rglob("*")) for folder in folders] == before, "something is left behind"
    return text


def flags_of(main: Callable[[list[str]], int], *command: str) -> list[str]:
    """The options that a command has, from its help."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        main([*command, "--help"])
    return sorted(set(re.findall(r"--[a-z][a-z-]+", printed.getvalue())) - {"--help"})


COMMANDS = {
    "plan": (experiments.main, ("plan", FIG2, "--data", "text:TEXTS")),
    "run": (experiments.main, ("run", FIG2, "--data", "text:TEXTS")),
    "prepare": (experiments.main, ("prepare", FIG2, "--data", "text:TEXTS")),
    "adopt": (experiments.main, ("adopt", "RUN/export", "--as", "fox_llama", "--data", "text:TEXTS")),
    "render": (experiments.main, ("render", FIG2)),
    "why": (experiments.main, ("why", FIG2)),
    "compare": (experiments.main, ("compare", "RUN")),
    "training": (training_command.main, ("RUN", "--corpus-dir", "CORPUS", "--device", "cpu")),
    "per_token_loss": (evaluate.main, ("per_token_loss", "--model", "RUN", "--corpus", "CORPUS")),
    "needle": (evaluate.main, ("needle", "--model", "RUN", "--corpus", "CORPUS")),
    "throughput": (evaluate.main, ("throughput", "--model", "RUN")),
    "job": (job.main, ("RUN", "--spec", "FILE")),
    "slurm run": (slurm_commands.main, ("run", "--cluster", "FILE")),
    "slurm": (slurm_commands.main, ("status",)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_lines(name, place, tmp_path):
    main, words = COMMANDS[name]
    own = [place.filled(word) for word in words]
    flags = flags_of(main, *(words[:1] if words[0] not in ("RUN",) else ()))
    assert flags

    @FEW
    @given(st.lists(st.tuples(st.sampled_from([*flags, "--seed", "-x"]), st.sampled_from(ODD)), min_size=1, max_size=3))
    def check(options):
        given = [part for flag, value in options for part in (flag, place.filled(value))]
        carried_out(lambda: main([*own, *given]), tmp_path, place.run)

    check()


Json = Any
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**40, -(2**70), 0.5, 1e300]),
    st.sampled_from(["", "x", "ä", "9", "/"]),
    st.sampled_from([[], {}, [1], [None], {"a": 1}, [[]], {"": None}]),
)


def spots(value: Json, path: tuple = ()) -> list[tuple]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, each in inner for spot in spots(each, (*path, key)))]


def changed(value: Json, path: tuple, action: str, new: Json) -> Json:
    """A copy in which the place is replaced, removed, or followed by a surplus entry."""
    if not path:
        return new
    copy = json.loads(json.dumps(value))
    target = copy
    for key in path[:-1]:
        target = target[key]
    if action == "remove":
        del target[path[-1]]
    elif action == "add" and isinstance(target, dict):
        target["surplus"] = new
    else:
        target[path[-1]] = new
    return copy


def altered(file: Path, check: Callable[[], object], *, depth: int = 99) -> None:
    """Call `check` for contents of a JSON file that differ from the file's in one place; down to `depth` with a seal that fits
    them, as another version of the suite would have written them, else with the seal of the whole."""
    whole = file.read_bytes()
    values = json.loads(whole)
    old_seal = {"sha256": values.pop("sha256")} if "sha256" in values else {}

    @FEW
    @given(st.sampled_from(spots(values)), st.sampled_from(["replace", "remove", "add"]), ANYTHING)
    def one(path: tuple, action: str, new: Json) -> None:
        content = changed(values, path, action, new)
        if old_seal and isinstance(content, dict) and len(path) <= depth:
            write_sealed(file, content)
        else:
            file.write_text(json.dumps({**content, **old_seal} if isinstance(content, dict) else content))
        check()

    try:
        one()
    finally:
        file.write_bytes(whole)


def test_run_specs(place, tmp_path):
    """For a spec of another run the export is another's, hence damaged: it is moved aside, and the work would begin."""

    def check() -> None:
        carried_out(lambda: training_command.main(command), tmp_path)
        if (aside := place.run / "export.damaged").exists():
            aside.rename(place.run / "export")

    command = [str(place.run), "--corpus-dir", str(place.corpus), "--device", "cpu"]
    altered(place.run / "spec.json", check)


def test_manifests(place, tmp_path):
    """One of another shape makes an export damaged: it is moved aside, and the work would begin."""

    def check() -> None:
        said = carried_out(lambda: training_command.main(command))
        aside = place.run / "export.damaged"
        if aside.exists():
            assert "is damaged" in said
            aside.rename(place.run / "export")

    command = [str(place.run), "--corpus-dir", str(place.corpus), "--device", "cpu"]
    altered(place.run / "export" / "manifest.json", check)


def test_corpora(place, tmp_path):
    command = [str(place.run), "--corpus-dir", str(place.corpus), "--device", "cpu"]
    shutil.rmtree(place.run / "aside", ignore_errors=True)
    (place.run / "export").rename(place.run / "aside")  # unfinished: the corpus is opened
    try:
        for name in ("corpus.json", "tokenizer/kind.json"):
            altered(place.corpus / name, lambda: carried_out(lambda: training_command.main(command), tmp_path))
    finally:
        (place.run / "aside").rename(place.run / "export")


def test_evaluation_specs(place, tmp_path):
    (spec,) = (place.run / "evals").glob("per_token_loss-*.spec.json")
    command = [str(place.run), "--spec", str(spec), "--corpus", str(place.corpus)]
    altered(spec, lambda: carried_out(lambda: job.main(command), tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"])
def test_model_folders(name, place, tmp_path):
    folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "model"
    shutil.copytree(place.run / "export", folder)
    (folder / "manifest.json").unlink()  # it would tell of each change
    command = ["per_token_loss", "--model", str(folder), "--corpus", str(place.corpus), "--context-len", "64"]
    altered(folder / name, lambda: carried_out(lambda: evaluate.main(command), tmp_path))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """One line of a committed figure."""
    lines = read_sealed(ROOT / "results" / "tiny" / f"{FIG2}.json", "")["lines"][:1]
    for line in lines:
        for name in (*line["files"], f"tiny/runs/{line['run_id']}.json"):
            for path in {ROOT / "results" / name, (ROOT / "results" / name).with_suffix(".meta.json")}:
                if path.is_file():
                    (tmp_path / "results" / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, (tmp_path / "results" / name).parent)
    write_sealed(tmp_path / "results" / "tiny" / f"{FIG2}.json", {"stem": FIG2, "scale": "tiny", "lines": lines})
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("pattern", "depth"), [(f"tiny/{FIG2}.json", 99), ("tiny/runs/*.json", 1), ("tiny/rows/*/*.meta.json", 1)]
)
def test_the_store(pattern, depth, stored, place):
    (file,) = stored.glob(pattern)
    why = ["why", FIG2, "--results-dir", str(stored)]
    plan = ["plan", FIG2, "--data", f"text:{place.texts}", "--results-dir", str(stored)]

    def check() -> None:
        for command in (why, plan):
            carried_out(lambda: experiments.main(command), stored)  # noqa: B023

    altered(file, check, depth=depth)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Contents that are the whole but for its end, some bytes in the middle, or the order of its halves."""
    place = st.integers(0, len(whole) - 1)
    cut = place.map(lambda end: whole[:end])
    over = st.builds(lambda at, new: whole[:at] + new + whole[at + len(new) :], place, st.binary(min_size=1, max_size=9))
    return st.one_of(cut, over, place.map(lambda at: whole[at:] + whole[:at]))


def test_texts(tmp_path):
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["one", None, "two" * 50]}), table)
    lines = b'{"text": "one"}\n{"text": "tw\xc3\xb6", "id": 2}\n'
    whole = {"txt": "ein Öl".encode(), "jsonl": lines, "parquet": table.getvalue(), "jsonl.gz": gzip.compress(lines),
             "jsonl.xz": lzma.compress(lines)}  # fmt: skip
    kinds = st.sampled_from(sorted(whole)).flatmap(lambda kind: st.tuples(st.just(kind), damaged(whole[kind])))

    @settings(FEW, max_examples=200)
    @given(kinds)
    def check(case):
        file = tmp_path / f"a.{case[0]}"
        file.write_bytes(case[1])
        try:
            assert all(isinstance(text, str) for text in read_documents(file))
        except ValueError as error:
            assert str(file) in str(error) and "\n" not in str(error).strip()  # noqa: PT017 (not always)

    check()


def test_weights(place, tmp_path):
    folder = Path(shutil.copytree(place.run / "export", tmp_path / "model"))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")

    @FEW
    @given(damaged(whole[: header + 8]))
    def check(start):
        file.write_bytes(start + whole[header + 8 :])
        with contextlib.suppress(ValueError):
            load_model(folder)

    check()


VALUES = ("[" * 5000, "", "1", "-1", "0", "nan", "inf", "1e999", '""', '"x"', "true", "[]", "[1]", "{}", "{a = 1}", '["x", 1]',
          "1979-05-27", '"""', "'", "x", "# ", '"{question.x}"', '"{"', '"{question:>99999999999}"', '"{0}"')  # fmt: skip


@pytest.mark.parametrize(
    ("original", "read"),
    [
        *((path, read_cluster) for path in sorted((ROOT / "slurm" / "clusters").glob("*.toml"))),
        (DEFAULT_WORDING, Wording.read),
    ],
)
def test_toml_files(original, read, tmp_path):
    lines = original.read_text().splitlines()
    assignments = [number for number, line in enumerate(lines) if re.match(r"[\w.-]+ *=", line)]

    @FEW
    @given(st.sampled_from(assignments), st.sampled_from(VALUES), st.sampled_from(["value", "key", "remove", "twice"]))
    def check(number, value, action):
        key, _, old = lines[number].partition("=")
        new = {"value": [f"{key}= {value}"], "key": [f"surplus ={old}"], "remove": [], "twice": [lines[number]] * 2}[action]
        file = tmp_path / "file.toml"
        file.write_text("\n".join([*lines[:number], *new, *lines[number + 1 :]]))
        try:
            read(file)
        except ValueError as error:
            assert str(file) in str(error) and len(str(error).splitlines()) <= 2  # noqa: PT017 (not always)

    check()
