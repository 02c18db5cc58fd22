"""A task on the CPU computes with what most processors have, and says on which it ran."""

import os
import platform

import pytest
import torch

from training import hardware
from training.distributed import device_label, pick_device

HELD = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"}


@pytest.mark.parametrize(
    ("flags", "given", "added"),
    [
        ("fpu fma avx avx2 avx512f", {}, {"OMP_NUM_THREADS": "2", **HELD}),
        ("fpu fma avx avx2", {"HOME": "/home/her"}, {"OMP_NUM_THREADS": "2", **HELD}),
        ("fpu avx", {}, {"OMP_NUM_THREADS": "2"}),
        ("fpu fma avx avx2x", {}, {"OMP_NUM_THREADS": "2"}),
        ("fma avx2", {"OMP_NUM_THREADS": "8", "MKL_CBWR": "COMPATIBLE"}, {"ATEN_CPU_CAPABILITY": "avx2"}),
    ],
    ids=["wider", "as-wide", "narrower", "of-another-name", "the-users-own"],
)
def test_a_task_is_held_to_what_most_processors_have_and_the_user_to_nothing(tmp_path, monkeypatch, flags, given, added):
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\nflags\t\t: {flags}\nvmx flags\t: avx2 fma\n")
    monkeypatch.setattr(hardware, "TOLD", told)
    assert hardware.equal_bits(2, given) == added
    assert hardware.processor() == "Some CPU @ 2 GHz"


def test_a_system_that_does_not_tell_is_named_by_its_architecture(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "TOLD", tmp_path / "nowhere")
    assert hardware.equal_bits(1, {}) == {"OMP_NUM_THREADS": "1"} and hardware.processor() == f"{platform.machine()} CPU"


def test_the_operators_obey_and_the_label_says_what_they_were_held_to():
    there = torch.backends.cpu.get_cpu_capability()  # with the variables that conftest.py set before torch was imported
    assert there == "AVX2" or os.environ.get("ATEN_CPU_CAPABILITY") != "avx2"
    assert device_label(torch.device("cpu")) == f"{hardware.processor()} (1 thread, {there})"


@pytest.mark.parametrize(("count", "rank", "number"), [(4, 0, 0), (4, 3, 3), (4, 5, 1), (1, 7, 0)])
def test_processes_share_the_gpus_that_they_see(count, rank, number, monkeypatch):
    """A job may show each process its own GPU alone, or all of them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert pick_device("auto", rank) == pick_device("cuda", rank) == torch.device("cuda", number)
    assert pick_device("cpu", rank) == torch.device("cpu")
