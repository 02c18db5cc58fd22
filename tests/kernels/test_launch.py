"""Launching again passes what Triton would pass, and asks Triton wherever another kernel may be wanted."""

import types

import pytest
import torch

from kernels.forgetting_attention import launch as module
from kernels.forgetting_attention.launch import launch
from kernels.forgetting_attention.tiles import rows_descriptor


class Kernel:
    """Notes what is compiled, and how what was compiled is run."""

    arg_names = ("x_ptr", "y_ptr", "n", "scale", "BLOCK", "PAD")

    def __init__(self) -> None:
        self.asked, self.ran = [], []

    def __getitem__(self, grid):
        def compile_and_run(*args, **options):
            self.asked.append((grid, args, options))
            run = lambda *launched: self.ran.append(launched)  # noqa: E731
            return types.SimpleNamespace(run=run, function=7, packed_metadata=(4, 1, 0))

        return compile_and_run


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    active = types.SimpleNamespace(get_current_stream=lambda device: 99)
    monkeypatch.setattr(module, "driver", types.SimpleNamespace(active=active))
    monkeypatch.setattr(module, "_compiled", {})


def test_the_second_launch_runs_what_the_first_compiled():
    kernel = Kernel()
    x, y = torch.zeros(64), torch.zeros(64)
    launch(kernel, (3,), x, None, 5, 0.5, BLOCK=8, PAD=False, num_warps=1)
    assert kernel.asked == [((3,), (x, None, 5, 0.5), {"BLOCK": 8, "PAD": False, "num_warps": 1})] and not kernel.ran
    launch(kernel, (4, 2), y, None, 7, 0.25, BLOCK=8, PAD=False, num_warps=1)
    assert len(kernel.asked) == 1
    assert kernel.ran == [(4, 2, 1, 99, 7, (4, 1, 0), None, None, None, y.data_ptr(), None, 7, 0.25, 8, False)]


def test_another_kind_of_argument_asks_triton():
    kernel, x = Kernel(), torch.zeros(64)
    kinds = [
        (x, x, 5),
        (x.half(), x, 5),
        (x[1:], x, 5),  # no multiple of 16 bytes
        (x, None, 5),
        (x, x, 1),
        (x, x, 32),
        (x, x, 2**31 + 1),
        (rows_descriptor(torch.zeros(1, 8, 2, 16), 4), x, 5),
        (rows_descriptor(torch.zeros(1, 8, 2, 16), 8), x, 5),
    ]
    for count, arguments in enumerate(kinds, 1):
        for _ in range(2):
            launch(kernel, (1,), *arguments, 0.5, BLOCK=8, PAD=False)
            assert len(kernel.asked) == count, arguments
    launch(kernel, (1,), x, x, 5, 0.5, BLOCK=16, PAD=False)
    assert len(kernel.asked) == len(kinds) + 1


def test_a_profiler_that_listens_to_launches_hears_them(monkeypatch):
    kernel, x = Kernel(), torch.zeros(64)
    for _ in range(2):
        launch(kernel, (1,), x, x, 5, 0.5, BLOCK=8, PAD=False)
    monkeypatch.setattr(module.knobs.runtime.launch_enter_hook, "calls", [print])
    launch(kernel, (1,), x, x, 5, 0.5, BLOCK=8, PAD=False)
    assert len(kernel.asked) == 2 and len(kernel.ran) == 1


def test_a_version_of_triton_that_was_not_looked_at_launches_by_itself(monkeypatch):
    kernel, x = Kernel(), torch.zeros(64)
    monkeypatch.setattr(module, "RELAUNCH", False)
    for _ in range(2):
        launch(kernel, (1,), x, x, 5, 0.5, BLOCK=8, PAD=False)
    assert len(kernel.asked) == 2 and not kernel.ran


def test_descriptors_are_of_their_own_tensor():
    x, y = torch.zeros(3, 8, 2, 16), torch.ones(3, 8, 2, 16)
    first, second = rows_descriptor(x, 4), rows_descriptor(y, 4)
    assert first.base is x and second.base is y
    assert second.shape == [3, 8, 2, 16] and second.strides == [256, 32, 16, 1] and second.block_shape == [1, 4, 1, 16]
    turned = rows_descriptor(y.transpose(1, 2), 2)
    assert turned.base is not y and turned.base.data_ptr() == y.data_ptr() and turned.strides == [256, 16, 32, 1]
    copied = rows_descriptor(torch.zeros(3, 8, 2, 17)[..., 1:], 4)  # starts and steps that the copy engine cannot address
    assert copied.base.data_ptr() % 16 == 0 and copied.strides == [256, 32, 16, 1]
