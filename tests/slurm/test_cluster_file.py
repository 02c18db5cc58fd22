"""Cluster files: what is read, and that every mistake is one line that names it."""

from pathlib import Path

import pytest

from slurm.cluster import read_cluster

EXAMPLE = Path(__file__).parents[2] / "slurm" / "clusters" / "example.toml"
WHOLE = {"partition": '"gpu"', "time_limit_hours": "24", "gpus_per_node": "8", "gpu_tflops": "989"}


def write(path: Path, **changes: str | None) -> Path:
    values = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    file = path / "cluster.toml"
    file.write_text("\n".join(f"{name} = {value}" for name, value in values.items()))
    return file


def test_the_example_is_valid():
    cluster = read_cluster(EXAMPLE)
    assert (cluster.gpus_per_node, cluster.device, cluster.max_concurrent) == (8, "cuda", 4)
    assert cluster.environment["HF_HUB_OFFLINE"] == "1" and cluster.setup[0].startswith("source")


def test_scratch_may_name_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "/scratch/me")
    assert read_cluster(write(tmp_path, scratch='"$SOMEWHERE/fox"')).scratch == Path("/scratch/me/fox")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": None}, "partition: missing"),
        ({"partition": '""'}, "partition: String should have at least 1 character"),
        ({"partitions": '"a"'}, "partitions: no such key; the keys are partition, account"),
        ({"gpus_per_node": '"eight"'}, "gpus_per_node: Input should be a valid integer"),
        ({"gpus_per_node": "-1"}, "(given: -1)"),
        ({"time_limit_hours": "0"}, "time_limit_hours: Input should be greater than 0 (given: 0)"),
        ({"time_limit_hours": "0.05", "eval_hours": "0.05"}, "no longer than signal_seconds 300"),
        ({"time_limit_hours": "3"}, "eval_hours 6.0 exceeds time_limit_hours 3"),
        ({"gpu_tflops": None}, "gpus_per_node needs gpu_tflops"),
        ({"gpus_per_run": "12"}, "gpus_per_run 12 is not a multiple of gpus_per_node 8"),
        ({"tasks_per_run": "2"}, "say gpus_per_run"),
        ({"gpus_per_node": "0", "gpus_per_run": "2"}, "say tasks_per_run"),
        ({"mfu": "1.5"}, "mfu: Input should be less than or equal to 1 (given: 1.5)"),
        ({"environment": '{ A = 1 }'}, "environment.A: Input should be a valid string (given: 1)"),
        ({"setup": '"module load cuda"'}, "setup: Input should be a valid array"),
        ({"partition": "gpu"}, "is not TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(tmp_path, changes, told):
    file = write(tmp_path, **changes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared below)
        read_cluster(file)
    assert told in str(error.value) and str(file) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_missing_file_names_the_example(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.toml: no such file; slurm/clusters/example.toml"):
        read_cluster(tmp_path / "nowhere.toml")
