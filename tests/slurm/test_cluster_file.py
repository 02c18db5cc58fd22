"""The cluster file: a mistake is one line, every field is described with its default, and the examples are valid."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from slurm.cluster import KINDS, Cluster, KindSettings, TrainSettings, read_cluster

CLUSTERS = Path(__file__).parents[2] / "slurm" / "clusters"
WHOLE = {"partition": '"gpu"', "time_limit_hours": "24", "gpus_per_node": "8", "gpu_tflops": "989"}


def write(path: Path, **changes: str | None) -> Path:
    values = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    file = path / "cluster.toml"
    file.write_text("\n".join(f"{name} = {value}" for name, value in values.items()))
    return file


@pytest.mark.parametrize("name", ["university", "containers", "typed_gpus"])
def test_the_examples_are_valid(name):
    cluster = read_cluster(CLUSTERS / f"{name}.toml")
    assert cluster.device == "cuda" and cluster.train.gpus
    assert {path.stem for path in CLUSTERS.glob("*.toml")} == {"university", "containers", "typed_gpus"}


def test_setup_may_be_any_command(tmp_path):
    lines = ["shopt -s extglob", "ls !(x)", "for name in a b; do module load $name; done", "source env\nsh"]
    assert read_cluster(write(tmp_path, setup=json.dumps(lines))).setup == tuple(lines)


def test_every_field_is_described_with_its_default():
    text = (CLUSTERS / "README.md").read_text()
    described = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.M))
    values = {**vars(TrainSettings()), **vars(Cluster(time_limit_hours=1))}
    wanted = {item.name: values[item.name] for kind in (Cluster, TrainSettings) for item in fields(kind)}
    assert described.pop("time_limit_hours") == "required" and wanted.pop("time_limit_hours")
    for name, value in wanted.items():
        said = "-" if value is None else "{}" if isinstance(value, KindSettings) else str(value)
        assert described.pop(name) == (said.lower() if isinstance(value, bool) else said), name
    assert not described


def test_kinds_take_over_what_holds_for_all(tmp_path):
    cluster = read_cluster(
        write(tmp_path, sbatch='{mail_type = "END", nice = 5}', evaluate='{qos = "e", gpus = 2, sbatch = {nice = 7}}',
              time='{gpu_type = "h100"}', draw='{partition = "cpu", sbatch = {mail-type = false}}')
    )  # fmt: skip
    train, evaluate, timing, draw = (cluster.settings(kind) for kind in KINDS[1:])
    assert (train.partition, train.qos, train.gpus, train.sbatch) == ("gpu", None, None, {"mail-type": "END", "nice": 5})
    assert (evaluate.qos, evaluate.gpus, evaluate.sbatch["nice"]) == ("e", 2, 7)
    assert (timing.qos, timing.gpus, timing.gpu_type, timing.sbatch["nice"]) == ("e", 2, "h100", 7)
    assert (draw.partition, draw.qos, draw.sbatch["mail-type"]) == ("cpu", None, False)
    assert [cluster.hours(kind) for kind in KINDS] == [12, 24, 6, 2, 1]


def test_scratch_may_name_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "/scratch/me")
    monkeypatch.chdir(tmp_path)
    for text, found in (("$SOMEWHERE/fox", "/scratch/me/fox"), ("~/fox", "/home/me/fox"), ("fox", tmp_path / "fox")):
        monkeypatch.setenv("HOME", "/home/me")
        assert read_cluster(write(tmp_path, scratch=f'"{text}"')).scratch == Path(found)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"time_limit_hours": None}, "time_limit_hours: missing"),
        ({"partition": '""'}, "partition: String should have at least 1 character"),
        ({"partitions": '"a"'}, "partitions: no such key; the keys are partition, account"),
        ({"train": '{gpu = 8}'}, "train.gpu: no such key; the keys are partition, account"),
        ({"evaluate": '{tasks = 8}'}, "evaluate.tasks: no such key"),
        ({"gpus_per_node": '"eight"'}, "gpus_per_node: Input should be a valid integer"),
        ({"gpus_per_node": "-1"}, "(given: -1)"),
        ({"time_limit_hours": "0"}, "time_limit_hours: Input should be greater than 0 (given: 0)"),
        ({"time_limit_hours": "0.05"}, "time_limit_hours 0.05 of prepare is no longer than signal_seconds 300"),
        ({"draw": "{time_limit_hours = 0.05}"}, "time_limit_hours 0.05 of draw is no longer"),
        ({"gpu_tflops": None}, "gpus_per_node needs gpu_tflops"),
        ({"train": "{gpus = 12}"}, "train.gpus 12 is not a multiple of gpus_per_node 8"),
        ({"evaluate": "{gpus = 16}"}, "evaluate.gpus 16 is above gpus_per_node 8"),
        ({"train": "{tasks = 2}"}, "set train.gpus"),
        ({"train": "{tasks = 1, nodes = 2}"}, "set train.gpus"),
        ({"partition": "2026-01-01", "time_limit_hours": "2026-01-01"}, "time_limit_hours: Input should be a valid number"),
        ({"time_limit_hours": "0.08333333333333333"}, "time_limit_hours 0.0833333 of prepare is no longer than"),
        ({"gpus_per_node": "0", "train": "{gpus = 2}"}, "train.gpus 2 on a cluster with gpus_per_node 0"),
        ({"train": "{gpus = 0}"}, "train.gpus 0 on a cluster with GPUs, where this needs one; leave it unset"),
        ({"evaluate": "{gpus = 0}"}, "evaluate.gpus 0 on a cluster with GPUs, where this needs one; leave it unset"),
        ({"gpus_per_node": "0", "train": "{tasks = 3, nodes = 2}"}, "train.tasks 3 is not a multiple of train.nodes 2"),
        ({"train": "{spike_factor = 1}"}, "train.spike_factor: Input should be greater than 1 (given: 1)"),
        ({"evaluate": "{max_hours = 1}"}, "evaluate.max_hours: no such key"),
        ({"mfu": "1.5"}, "mfu: Input should be less than or equal to 1 (given: 1.5)"),
        ({"gpu_option": '"gpus"'}, "gpu_option: Input should be 'gpus-per-node' or 'gres'"),
        ({"environment": '{ A = 1 }'}, "environment.A: Input should be a valid string (given: 1)"),
        ({"sbatch": '{ array = "3" }'}, "sbatch: array is used by the job graph"),
        ({"sbatch": '{ open_mode = "append" }'}, "sbatch: open-mode is used by the job graph"),
        ({"train": '{ srun = { ntasks_per_node = 2 } }'}, "train.srun: ntasks-per-node is used by the job graph"),
        ({"sbatch": '{ clusters = "two" }'}, "export SLURM_CLUSTERS=NAME in your shell instead"),
        ({"train": '{ srun = { clusters = "two" } }'}, "train.srun: clusters must hold for all"),
        ({"train": '{ sbatch = { p = "x" } }'}, "train.sbatch: 'p' is not a long option"),
        ({"sbatch": '{ "qos=high" = "x" }'}, "sbatch: 'qos=high' is not a long option"),
        ({"sbatch": '{comment = "a"}', "draw": '{sbatch = {job-name = "b"}}'}, "both comment and job-name"),
        ({"scratch": '"$NOWHERE/fox"'}, "scratch: $NOWHERE/fox names a variable that is not set in this shell"),
        ({"setup": '"module load cuda"'}, "setup: Input should be a valid array"),
        ({"setup": '["module load x; (", "true"]'}, "setup: 'module load x; (' is no complete command: /bin/bash: "),
        ({"setup": '["true", "if true"]'}, "setup: 'if true' is no complete command: /bin/bash: "),
        ({"container": '"apptainer exec \'image.sif"'}, "is no complete command: /bin/bash: "),
        ({"python": '"(python3"'}, "python: '(python3' is no complete command: /bin/bash: "),
        ({"partition": '"gpu\\nrm"'}, r"partition: 'gpu\nrm' has a line break"),
        ({"partition": "gpu"}, "is not TOML"),
        ({"partition": "[" * 10_000}, "is not TOML"),
        ({"time_limit_hours": "inf"}, "time_limit_hours: Input should be a finite number"),
        ({"mem_gb_per_task": "nan"}, "mem_gb_per_task: Input should be a finite number"),
        ({"margin": "inf"}, "margin: Input should be a finite number"),
        ({"environment": '{ "A=1; B" = "x" }'}, "environment.A=1; B: String should match pattern"),
        ({"sbatch": '{ comment = "a\\nrm -r x" }'}, "sbatch: comment 'a\\nrm -r x' has a line break"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(tmp_path, changes, told):
    file = write(tmp_path, **changes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared below)
        read_cluster(file)
    assert told in str(error.value) and str(file) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("place", "kind"), [("{}", Cluster), ("train", TrainSettings), ("draw", KindSettings)])
def test_keys_that_there_are_not_are_told_with_those_of_their_table(tmp_path, place, kind):
    changes = {"nothing": "1"} if place == "{}" else {place: "{nothing = 1}"}
    with pytest.raises(ValueError, match=r"nothing: no such key; the keys are") as error:
        read_cluster(write(tmp_path, **changes))
    assert str(error.value).endswith(f" {', '.join(item.name for item in fields(kind))}.")


def test_a_file_that_cannot_be_read_is_a_mistake_too(tmp_path):
    """A folder in its place, and bytes that are no text."""
    (tmp_path / "bytes.toml").write_bytes(b'partition = "\xff"')
    for name, told in ((".", r"--cluster .*: Is a directory\.$"), ("bytes.toml", "bytes.toml is not TOML: .*decode byte 0xff")):
        with pytest.raises(ValueError, match=told):
            read_cluster(tmp_path / name)


def test_a_kind_asks_for_no_more_than_the_cluster_gives():
    """Unless its own table says so."""
    for limit, hours in ((3.0, [3, 3, 3, 2, 1]), (0.5, [0.5] * 5), (24.0, [12, 24, 6, 2, 1])):
        assert [Cluster(time_limit_hours=limit).hours(kind) for kind in KINDS] == hours
    assert Cluster(time_limit_hours=3.0, evaluate=KindSettings(time_limit_hours=9.0)).hours("evaluate") == 9


@pytest.mark.parametrize("name", [
    "array", "dependency", "error", "open-mode", "ntasks-per-node", "output", "parsable", "signal", "test-only", "wait", "wrap",
])  # fmt: skip
def test_options_that_hold_the_graph_together_cannot_be_set(name, tmp_path):
    for table in ("sbatch", "srun"):
        with pytest.raises(ValueError, match=f"{name} is used by the job graph and cannot be set"):
            read_cluster(write(tmp_path, **{table: f"{{ {name} = true }}"}))


def test_a_missing_file_names_the_examples(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.toml: no such file; slurm/clusters has some to copy and edit"):
        read_cluster(tmp_path / "nowhere.toml")


def test_no_gpu_for_timings_is_not_as_many_as_evaluations_have():
    cluster = Cluster(time_limit_hours=3.0, gpus_per_node=4, gpu_tflops=989.0, evaluate=KindSettings(gpus=2))
    assert cluster.settings("time").gpus == 2
    assert replace(cluster, time=KindSettings(gpus=0)).settings("time").gpus == 0
