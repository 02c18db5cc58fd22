"""Users' mistakes: each ends with exit code 2 and one line that names the value and the remedy, before anything is written."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.recall import RecallTask
from data.spec import DataSpec
from experiments.recipes import Recipe
from training.run_folder import RunFolder

FIG2 = "fig2_per_token_loss"
REFUSED = {
    "experiments run fig9_nothing": "fig9_nothing: no such figure or table; choose from fig1_architecture, ",
    "experiments paint": "paint; see python -m experiments --help",
    "experiments run FIG2 --sed 1": "--sed, 1; see python -m experiments --help",
    "experiments plan FIG2 --scale huge": "--scale huge: no such scale; choose one of tiny, ",
    "experiments run FIG2 --only gpt5": "--only gpt5: no such model; choose from fox_pro, ",
    "experiments plan FIG2 --line nothing": f"--line 'nothing': no line of {FIG2} has this label; there are: fox_pro; ",
    "experiments plan FIG2 --scale mini": "--scale mini needs --data: longcrawl64:FOLDER (the paper's), hf:NAME, or text:PATH",
    "experiments plan FIG2 --data books": "data 'books' is none of packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:",
    "experiments plan FIG2 --data text:/nowhere": "data path '/nowhere' does not exist or matches nothing: give a folder, ",
    "experiments run FIG2 --data text:HERE/short": "no train document has 1024 tokens, the longest has 2: give more",
    "experiments plan FIG2 --data longcrawl64:/nowhere": "/nowhere/train.zarr does not exist: name a folder with both arrays",
    "experiments plan FIG2 --heldout /nowhere": "held-out text '/nowhere': only data text:PATH takes one",
    "experiments plan FIG2 --tokenizer wordpiece": "tokenizer 'wordpiece' is none of gpt2-json[:FOLDER], ",
    "experiments plan FIG2 --tokenizer bpe-100": "tokenizer 'bpe-100': a byte-level BPE stored as uint16 has 257 to 65536",
    "experiments plan FIG2 --seeds 0,0": "--seeds 0 0: give different numbers from 0 on, ",
    "experiments plan FIG2 --seeds 0,x": "--seeds: 0,x: give numbers separated by commas, such as 0,1,2",
    "experiments run FIG2 --device tpu": "invalid choice 'tpu' for argument '--device'",
    "experiments plan FIG2 --micro-batch-tokens 300": "micro_batch_tokens 300 must be a multiple of seq_len 256 that divides",
    "experiments run FIG2 --slots 3 --processes 3": "do not divide among 3 processes; use a number of processes that divides 4",
    "experiments adopt /nowhere --as fox_pro": "/nowhere: there is no such folder; name one with config.json",
    "experiments run FIG2 --results-dir results": "--results-dir results is published and only read: name a folder of your own",
    "experiments plan FIG2 --from /nowhere": "--from /nowhere: there is no such folder",
    "experiments why FIG2 --results-dir HERE": f"{FIG2}: no rows are stored; run its experiment first",
    "experiments render --scale mini --results-dir HERE": "no results to report on; run an experiment at this scale first",
    "experiments compare /nowhere": "/nowhere: there is no such folder to compare",
    "experiments publish HERE/short HERE/made": "HERE/short holds no runs and no measurements to publish",
    "training /nowhere": "/nowhere is not a run folder: it has no spec.json.",
    "training RUN --corpus-dir HERE/short": "fox_pro makes its own sequences; leave it out.",
    "training HERE/edited": "HERE/edited/spec.json is the spec of run ",
    "training HERE/old": "HERE/old was made by an older version: commit c2474755 is the last",
    "eval per_token_loss --model RUN": "Missing from python -m eval per_token_loss: --context-len",
    "eval needle --model HERE/short": "HERE/short is neither a run folder (spec.json) nor a model folder (config.json)",
    "slurm run FIG2 --cluster /nowhere": "--cluster /nowhere: No such file or directory; slurm/clusters has files",
    "slurm run FIG2 --cluster HERE/cluster.toml": "HERE/cluster.toml: partitoin: Unexpected keyword argument (given: 'gpu')",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with too little text, a run, one whose spec was edited, and a cluster file with a mistake."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "short").mkdir()
    for number in range(2):
        (folder / "short" / f"{number}.txt").write_text(f"short {number}")
    (folder / "cluster.toml").write_text('time_limit_hours = 1.0\npartitoin = "gpu"\n')
    task = DataSpec.of_recall(RecallTask(num_keys=16, num_assignments=1, num_queries=1, num_symbols=64))
    run = Recipe("fox_pro", "fox_pro", "tiny", train=dict(seq_len=64)).run_spec(task)
    spec = RunFolder.create(folder / run.folder_name, run).spec_file.read_text()
    for name, edited in (("edited", spec), ("old", spec.replace("{", '{"sha256": "0",', 1)), ("old/tiny/runs", spec)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "spec.json").write_text(edited)
    return folder


def refused(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command in this process; return its complaint, or nothing if it was carried out."""
    room, *arguments = [word.replace("RUN", str(next(here.glob("fox_pro-*")))) for word in words]
    if room == "experiments" and words[1] in ("plan", "run"):
        folders = [name for name in ("corpora", "results") if f"--{name}-dir" not in arguments]
        arguments += [f"--{name}-dir={here / 'made' / name}" for name in folders]
    try:
        code = import_module(f"{room}.__main__").main(arguments)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    assert code in (0, 2), said
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in said and len(lines) == (code == 2), said
    assert not list(here.glob("made/results/*")), "something is left behind"
    return "".join(lines)


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_is_refused_in_one_line(command, here, capsys):
    words = shlex.split(command.replace("FIG2", FIG2).replace("HERE", str(here)))
    assert REFUSED[command].replace("HERE", str(here)) in refused(words, here, capsys)


ODD = ("", "0", "-1", "1e400", "nan", "9" * 25, "None", "a b", "ä→🦊", ".", "/dev/null", "x" * 300, "[]", "*", "--", "text:",
       "bpe-0", ",", "0,0", "cuda:7", "760m-48b", "fox_pro")  # fmt: skip


def test_whatever_plan_is_asked_it_answers_in_one_line(here, capsys, monkeypatch):
    # tyro's hints at options of like names take two thirds of the time
    monkeypatch.setattr("tyro._backends._tyro_help_formatting.recursive_arg_search", lambda **_: ([], False, False))
    with pytest.raises(SystemExit):
        import_module("experiments.__main__").main(["plan", "--help"])
    flags = sorted(set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"})
    assert len(flags) > 20

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.sampled_from(flags), st.sampled_from(ODD)), min_size=1, max_size=2))
    def check(options):
        refused(["experiments", "plan", FIG2, *(word for option in options for word in option)], here, capsys)

    check()
