"""Launching again passes what Triton would pass, and asks Triton wherever another kernel may be wanted."""

import itertools
import types

import pytest
import torch
from triton.backends.nvidia import compiler as nvidia_backend
from triton.backends.nvidia import driver as nvidia
from triton.runtime.jit import native_specialize_impl

from kernels.attention_shared import launch as module
from kernels.attention_shared.launch import launch
from kernels.attention_shared.tiles import rows_descriptor
from kernels.forgetting_attention.hopper import copies

TILE = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [1, 4, 1, 16], "fp4_padded": False}
pytestmark = pytest.mark.skipif(not module.RELAUNCH, reason="this Triton launches by itself")


class Passed(list):
    """Stands for Triton's C function: what it was given, one entry per launch."""

    def __call__(self, *given):
        self.append([a for x in given for a in (x if isinstance(x, (tuple, list)) else [x])])


class Kernel:
    """Notes what is compiled. What was compiled is run by Triton's own launcher, the C function apart."""

    arg_names = ("x_ptr", "y_ptr", "n", "scale", "BLOCK", "PAD")

    def __init__(self, descriptors=0, metadata=()):
        self.asked, self.passed = 0, Passed()
        launcher = self.launcher = object.__new__(nvidia.CudaLauncher)
        signature = {i: "tensordesc<fp16>" if i < descriptors else "*fp32" for i in range(len(self.arg_names))}
        launcher.launch = nvidia.wrap_handle_tensordesc(self.passed, signature, list(metadata))
        launcher.num_ctas, launcher.global_scratch_size, launcher.profile_scratch_size = 1, 0, 0
        launcher.global_scratch_align = launcher.profile_scratch_align = 1
        launcher.launch_cooperative_grid, launcher.launch_pdl = False, True
        launcher.arg_annotations, launcher.kernel_signature = "annotations", "signature"

    def __getitem__(self, grid):
        def compile_and_run(*args, **options):
            self.asked += 1
            return types.SimpleNamespace(run=self.launcher, function=7, packed_metadata=(4, 1, 0))

        return compile_and_run

    def by_triton(self, grid, *args):
        self.launcher(*grid, 99, 7, (4, 1, 0), None, None, None, *args)
        return self.passed.pop()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    utils = types.SimpleNamespace()
    utils.fill_tma_descriptor = utils.fill_tma_descriptor_tiled = lambda *given: repr(given)
    active = types.SimpleNamespace(get_current_stream=lambda device: 99, utils=utils)
    monkeypatch.setattr(module.driver, "_active", active)
    monkeypatch.setattr(module, "_compiled", {})


@pytest.mark.parametrize("metadata", [[TILE], []], ids=["a copy engine", "none"])
def test_the_second_launch_passes_what_triton_would(metadata):
    kernel, x, y = Kernel(1, metadata), torch.zeros(3, 8, 2, 16).half(), torch.zeros(64)
    views = [x, x.transpose(1, 2), x[1:], x[:, 2:], torch.zeros(3, 8, 2, 16).half()]
    for view in (x, *views):
        launch(kernel, (4, 2), (rows_descriptor(view, 4),), (y,), (5, 0.5), BLOCK=8, PAD=False)
    assert kernel.asked == 1
    for view, passed in zip(views, list(kernel.passed), strict=True):
        make, tensor, *sizes = rows_descriptor(view, 4)
        descriptor = make(tensor, *map(list, sizes))
        expected = kernel.by_triton((4, 2, 1), descriptor, y.data_ptr(), 5, 0.5, 8, False)
        assert passed == [descriptor.base.data_ptr() if a is descriptor.base else a for a in expected]


def test_another_kind_of_argument_asks_triton():
    x, half = torch.zeros(64), torch.zeros(64).half()
    tile, small = torch.zeros(1, 8, 2, 16).half(), torch.zeros(1, 8, 2, 16)
    plain = [
        ((), pointers, numbers)
        for pointers, numbers in (
            ((x, x), (5, 0.5)), ((half, x), (5, 0.5)), ((x, half), (5, 0.5)), ((x[1:], x), (5, 0.5)), ((x, x[1:]), (5, 0.5)),
            ((x, None), (5, 0.5)), ((x, x), (1, 0.5)), ((x, x), (1.0, 0.5)), ((x, x), (32, 0.5)), ((x, x), (2**31 + 1, 0.5)),
        )
    ]  # fmt: skip
    described = rows_descriptor(tile, 4), rows_descriptor(tile, 8), rows_descriptor(small, 4), copies.tile_descriptor(tile, 4)
    tiled = [((descriptor,), (x,), (5, 0.5)) for descriptor in described]
    for kernel, kinds in ((Kernel(), plain), (Kernel(1, [TILE]), tiled)):
        for count, arguments in enumerate(kinds, 1):
            for _ in range(2):
                launch(kernel, (1,), *arguments, BLOCK=8, PAD=False)
                assert kernel.asked == count, arguments
        launch(kernel, (1,), *kinds[0], BLOCK=16, PAD=False)
        launch(kernel, (1,), *kinds[0], BLOCK=8, PAD=False, num_warps=8)
        assert kernel.asked == len(kinds) + 2


def test_numbers_are_alike_only_where_triton_compiles_them_alike():
    """Its own rule, for numbers on both sides of all that it tells apart."""
    numbers = [0, 1, 2, 15, 16, 17, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 16, 2**40, 2**40 + 1, 1.0, 0.5]
    for one, other in itertools.combinations(numbers, 2):
        if module._kinds(one) == module._kinds(other):
            told = [native_specialize_impl(nvidia_backend.CUDABackend, n, False, True, True) for n in (one, other)]
            assert told[0] == told[1], (one, other)
