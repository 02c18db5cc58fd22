"""Launching again passes what Triton would pass, and asks Triton wherever another kernel may be wanted."""

import importlib.util
import itertools
import types

import pytest
import torch
import triton
from triton.backends.nvidia import compiler as nvidia_backend
from triton.backends.nvidia import driver as nvidia
from triton.runtime.jit import native_specialize_impl

from kernels.attention_shared import launch as module
from kernels.attention_shared.launch import launch
from kernels.attention_shared.tiles import Tiles, rows_descriptor
from kernels.forgetting_attention.hopper import backward as hopper_backward
from kernels.forgetting_attention.hopper import copies as hopper_copies
from kernels.forgetting_attention.hopper import forward as hopper_forward
from kernels.forgetting_attention.portable import backward as triton_backward
from kernels.forgetting_attention.portable import decode as triton_decode
from kernels.forgetting_attention.portable import decode_sums as triton_decode_sums
from kernels.forgetting_attention.portable import forward as triton_forward
from kernels.forgetting_attention.portable import prepare as triton_prepare
from kernels.forgetting_attention.pruning import norms as triton_norms

TILE = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [1, 4, 1, 16], "fp4_padded": False}


class Passed(list):
    """Stands for Triton's C function: what it was given, one entry per launch."""

    def __call__(self, *given):
        self.append([list(x) if isinstance(x, tuple) else x for x in given])


class Kernel:
    """Notes what is compiled. What was compiled is run by Triton's own launcher, the C function apart."""

    arg_names = ("x_ptr", "y_ptr", "n", "scale", "BLOCK", "PAD")

    def __init__(self, descriptors=0, metadata=(), scratch=0):
        self.asked, self.passed = [], Passed()
        launcher = self.launcher = object.__new__(nvidia.CudaLauncher)
        signature = {i: "tensordesc<fp16>" if i < descriptors else "*fp32" for i in range(len(self.arg_names))}
        launcher.launch = nvidia.wrap_handle_tensordesc(self.passed, signature, list(metadata))
        launcher.num_ctas, launcher.global_scratch_size, launcher.profile_scratch_size = 1, scratch, 0
        launcher.global_scratch_align = launcher.profile_scratch_align = 1
        launcher.launch_cooperative_grid, launcher.launch_pdl = False, True
        launcher.arg_annotations, launcher.kernel_signature = "annotations", "signature"

    def __getitem__(self, grid):
        def compile_and_run(*args, **options):
            self.asked.append((grid, args, options))
            return types.SimpleNamespace(run=self.launcher, function=7, packed_metadata=(4, 1, 0))

        return compile_and_run

    def by_triton(self, grid, *args):
        """Return what Triton passes."""
        self.launcher(*grid, 99, 7, (4, 1, 0), None, None, None, *args)
        return self.passed.pop()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    utils = types.SimpleNamespace()
    utils.fill_tma_descriptor = utils.fill_tma_descriptor_tiled = lambda *given: repr(given)
    active = types.SimpleNamespace(get_current_stream=lambda device: 99, utils=utils)
    monkeypatch.setattr(module.driver, "_active", active)
    monkeypatch.setattr(module, "_compiled", {})


def test_the_second_launch_runs_what_the_first_compiled():
    kernel = Kernel()
    x, y = torch.zeros(64), torch.zeros(64)
    launch(kernel, (3,), (), (x, None), (5, 0.5), BLOCK=8, PAD=False, num_warps=1)
    assert kernel.asked == [((3,), (x, None, 5, 0.5), {"BLOCK": 8, "PAD": False, "num_warps": 1})] and not kernel.passed
    launch(kernel, (4, 2), (), (y, None), (7, 0.25), BLOCK=8, PAD=False, num_warps=1)
    assert len(kernel.asked) == 1
    [passed] = kernel.passed
    assert passed == kernel.by_triton((4, 2, 1), y.data_ptr(), 0, 7, 0.25, 8, False)


@pytest.mark.parametrize("metadata", [[TILE], []], ids=["a copy engine", "none"])
def test_tiles_are_described_as_triton_describes_them(metadata):
    kernel, x, y = Kernel(1, metadata), torch.zeros(3, 8, 2, 16).half(), torch.zeros(64)
    views = [x, x.transpose(1, 2), x[1:], x[:, 2:], torch.zeros(3, 8, 2, 16).half(), x]
    for view in (x, *views):
        launch(kernel, (1,), (rows_descriptor(view, 4),), (y,), (5, 0.5), BLOCK=8, PAD=False)
    assert len(kernel.asked) == 1
    described = [rows_descriptor(view, 4) for view in views]
    made = [make(x, *map(list, sizes)) for make, x, *sizes in described]
    for descriptor, passed in zip(made, list(kernel.passed), strict=True):
        expected = kernel.by_triton((1, 1, 1), descriptor, y.data_ptr(), 5, 0.5, 8, False)
        flat = [[a for part in given for a in (part if isinstance(part, list) else [part])] for given in (passed, expected)]
        address = descriptor.base.data_ptr()
        assert flat[0] == [address if a is descriptor.base else a for a in flat[1]]


def test_another_kind_of_argument_asks_triton():
    x, half = torch.zeros(64), torch.zeros(64).half()
    tile, small = torch.zeros(1, 8, 2, 16).half(), torch.zeros(1, 8, 2, 16)
    plain = [
        ((), (x, x), (5, 0.5)),
        ((), (half, x), (5, 0.5)),
        ((), (x, half), (5, 0.5)),
        ((), (x[1:], x), (5, 0.5)),  # no multiple of 16 bytes
        ((), (x, x[1:]), (5, 0.5)),
        ((), (x, None), (5, 0.5)),
        ((), (x, x), (1, 0.5)),
        ((), (x, x), (1.0, 0.5)),
        ((), (x, x), (32, 0.5)),
        ((), (x, x), (2**31 + 1, 0.5)),
    ]
    tiled = [
        ((rows_descriptor(tile, 4),), (x,), (5, 0.5)),
        ((rows_descriptor(tile, 8),), (x,), (5, 0.5)),
        ((rows_descriptor(small, 4),), (x,), (5, 0.5)),
        ((hopper_copies.tile_descriptor(tile, 4),), (x,), (5, 0.5)),
    ]
    kernels = Kernel(), Kernel(1, [TILE]), Kernel()
    for kernel, kinds in zip(kernels, (plain, tiled, plain), strict=True):
        for count, arguments in enumerate(kinds, 1):
            for _ in range(2):
                launch(kernel, (1,), *arguments, BLOCK=8, PAD=False)
                assert len(kernel.asked) == count, arguments
        launch(kernel, (1,), *kinds[0], BLOCK=16, PAD=False)
        launch(kernel, (1,), *kinds[0], BLOCK=8, PAD=False, num_warps=8)
        assert len(kernel.asked) == len(kinds) + 2 and len(kernel.passed) == len(kinds)


def test_numbers_are_alike_only_where_triton_compiles_them_alike():
    """Its own rule, for numbers on both sides of all that it tells apart."""
    numbers = [0, 1, 2, 15, 16, 17, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 16, 2**40, 2**40 + 1, 1.0, 0.5]
    for one, other in itertools.combinations(numbers, 2):
        if module._kinds(one) == module._kinds(other):
            told = [native_specialize_impl(nvidia_backend.CUDABackend, n, False, True, True) for n in (one, other)]
            assert told[0] == told[1], (one, other)
    assert module._kinds(2) == module._kinds(15) and module._kinds(16) == module._kinds(2**31 - 16)


def test_what_triton_has_to_prepare_is_left_to_it(monkeypatch):
    """A profiler that listens, memory for the kernel, a version that was not looked at."""
    x, kernels = torch.zeros(64), []

    def compiled(kernel):
        kernels.append(kernel)  # kernels are known by their ids: they live for ever
        for _ in range(3):
            launch(kernel, (1,), (), (x, x), (5, 0.5), BLOCK=8, PAD=False)
        return len(kernel.asked)

    assert compiled(Kernel()) == 1
    assert compiled(Kernel(scratch=128)) == 3
    with monkeypatch.context() as listening:
        listening.setattr(module.knobs.runtime.launch_enter_hook, "calls", [print])
        assert compiled(Kernel()) == 3
    monkeypatch.setattr(module, "RELAUNCH", False)
    assert compiled(Kernel()) == 3


@pytest.mark.parametrize(
    ("version", "asked"), [("3.6.0", 1), ("3.7.1", 1), ("3.7.1+cu130", 1), ("3.6.1", 3), ("3.8.0", 3), ("4.0.0", 3)]
)
def test_a_version_that_was_not_tried_launches_by_itself(monkeypatch, version, asked):
    """Read again under that version: what was compiled is then never run past Triton, nor even looked at."""
    monkeypatch.setattr(triton, "__version__", version)
    spec = importlib.util.spec_from_file_location("launch_again", module.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    kernel, x = Kernel(), torch.zeros(64)
    if asked == 3:
        kernel.launcher = None  # another version's may have nothing that is known here
    for _ in range(3):
        again.launch(kernel, (1,), (), (x, x), (5, 0.5), BLOCK=8, PAD=False)
    assert len(kernel.asked) == asked and len(kernel.passed) == 3 - asked
    assert kernel.asked[0] == ((1,), (x, x, 5, 0.5), {"BLOCK": 8, "PAD": False})


def test_descriptors_are_of_their_own_tensor():
    y = torch.ones(3, 8, 2, 16)
    assert rows_descriptor(y, 4)[1:] == (y, (3, 8, 2, 16), (256, 32, 16, 1), (1, 4, 1, 16))
    _, turned, _, strides, _ = rows_descriptor(y.transpose(1, 2), 2)
    assert turned.data_ptr() == y.data_ptr() and strides == (256, 16, 32, 1)
    _, copied, _, strides, _ = rows_descriptor(torch.zeros(3, 8, 2, 17)[..., 1:], 4)  # nothing that the copy engine addresses
    assert copied.data_ptr() % 16 == 0 and strides == (256, 32, 16, 1)


@pytest.mark.parametrize("T", [100, 20_000])
def test_the_largest_batch_fits_in_every_grid(monkeypatch, T):
    """65,535 sequences and heads, the most that is let in: CUDA's grids have 2^31 - 1 programs in x, 65,535 in y and z."""
    grids = []
    modules = (
        hopper_backward, hopper_forward, triton_backward, triton_decode, triton_decode_sums, triton_forward, triton_norms,
        triton_prepare,
    )  # fmt: skip
    for kernels in modules:
        monkeypatch.setattr(kernels, "launch", lambda kernel, grid, *rest, **options: grids.append((kernel.__name__, grid)))
    with torch.device("meta"):
        q, k, v, do = (torch.empty(21_845, T, 3, 64, dtype=torch.bfloat16) for _ in range(4))
        log_fgate, threshold = torch.empty(21_845, T, 3), torch.empty(21_845, 3)
    triton_norms.largest_product(q, k, 1.0, 0.0)
    triton_prepare.prepare(log_fgate, 70, threshold, None, None, None, exact=False)
    prepared = triton_prepare.prepare(log_fgate, T, threshold, None, None, None, exact=False)
    o, lse, _ = hopper_forward.hopper_forward(q, k, v, prepared, 0.125)
    hopper_backward.hopper_backward(do, q, k, v, o, lse, prepared, 0.125, True)
    tiles = Tiles(16, 16, 4, 2)  # the smallest: the largest grids
    triton_forward.forward(q, k, v, prepared, 0.125, tiles)
    triton_backward.backward(do, q, k, v, o, lse, prepared, 0.125, tiles, tiles)
    triton_decode.decode(q[:, -1:], k, v, log_fgate, threshold, None, None, 0.125, own_memory=True)
    sums = torch.empty(21_845, T, 3, dtype=torch.float64, device="meta")
    triton_decode_sums.decode_sums(q[:, -1:], k, v, sums, threshold, None, None, None, 0.125, own_memory=True)
    for name, (columns, *others) in grids:
        assert columns < 2**31 and all(n <= 65_535 for n in others), (name, columns, *others)
    assert len({name for name, _ in grids}) == 17  # all of them but a short or a long input's two or three
