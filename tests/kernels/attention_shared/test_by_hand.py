"""Layouts, tile sizes and small sums of the attention kernels' host code, worked out by hand."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kernels.attention_shared import tiles
from kernels.attention_shared.arguments import check_tensors, first_key_within, pick_backend, schema
from kernels.attention_shared.blocks import fold, unfold
from kernels.attention_shared.launch import _kinds, ceil_div, multiprocessors, power_of_two
from kernels.attention_shared.packaging import SHARED, Build
from kernels.attention_shared.tiles import Tiles, _free_strides, rows_descriptor
from kernels.forgetting_attention import gpu
from kernels.forgetting_attention.hopper.backward_steps import _reductions
from kernels.forgetting_attention.options import Options
from kernels.stick_breaking.portable.tiles import TILES, Plan, plan_for
from kernels.stick_breaking.visibility import first_visible_key


def test_heads_are_folded_and_repeated_for_groups():
    x = torch.arange(2 * 3 * 2 * 5).view(2, 3, 2, 5)
    folded = fold(x, 4, torch.float64)
    assert folded.shape == (8, 3, 5) and folded.dtype == torch.float64 and folded.is_contiguous()
    for batch in range(2):
        for head in range(4):
            assert torch.equal(folded[batch * 4 + head], x[batch, :, head // 2].double())
    summed = unfold(folded, 2, 2, torch.float32)
    assert torch.equal(summed, 2 * x.float()) and summed.dtype == torch.float32
    assert torch.equal(unfold(fold(x, 2, torch.float64), 2, 2, torch.float64), x.double())


def test_settings_of_each_gpu(tmp_path, monkeypatch):
    """Float32 has its own, a GPU that was measured its own, every other and a CPU the default."""
    own = {"block_m": 1, "block_n": 2, "num_warps": 3, "num_stages": 4}
    kinds = {"default": 10, "sm_90": 20, "float32": 30}
    file = tmp_path / "tiles.json"
    file.write_text(json.dumps({gpu: {f"forward_{d}": {**own, "block_m": n + d} for d in (1, 2)} for gpu, n in kinds.items()}))
    assert tiles.table(str(file))["sm_90"]["forward_2"] == Tiles(22, 2, 3, 4, None)
    for capability, found in (((9, 0), 21), ((8, 0), 11), ((10, 0), 11)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        of = lambda dtype, device: tiles.tiles_for.__wrapped__(str(file), "forward", 1, dtype, torch.device(device)).block_m  # noqa: E731
        assert of(torch.bfloat16, "cuda") == of(torch.float16, "cuda") == found
        assert of(torch.bfloat16, "cpu") == 11 and of(torch.float32, "cuda") == of(torch.float32, "cpu") == 31


def test_a_kernel_is_compiled_for_its_tiles():
    own = Tiles(64, 32, 4, 2, 168)
    base = dict(BLOCK_M=64, BLOCK_N=32, D=16, num_warps=4, num_stages=2, maxnreg=168)
    assert own.options(torch.zeros(1, 3, 2, 16)) == base | dict(EXACT=True, PRECISION="ieee")
    assert own.options(torch.zeros(1, 3, 2, 16, dtype=torch.bfloat16)) == base | dict(EXACT=False, PRECISION="tf32")
    q, k, v, do = (torch.zeros(1, 3, 2, 16) for _ in range(4))
    described = own.described(q, k, v, do)
    assert [block for *_, block in described] == [(1, rows, 1, 16) for rows in (64, 32, 32, 64)]
    assert all(x is y for (_, x, *_), y in zip(described, (q, k, v, do), strict=True)) and len(own.described(q, k, v)) == 3


def test_strides_that_tiles_are_read_by():
    """Multiples of 16 bytes; where one is free, of a size of one, a row's length stands for it. Others are copied."""
    for shape, strides, size, found in (
        ((2, 3, 2, 16), (96, 32, 16, 1), 2, (96, 32, 16, 1)), ((1, 3, 2, 16), (7, 32, 16, 1), 2, (16, 32, 16, 1)),
        ((2, 3, 1, 16), (96, 32, 0, 1), 2, (96, 32, 16, 1)), ((2, 3, 2, 16), (96, 32, 16, 2), 2, None),
        ((2, 3, 2, 16), (96, 0, 16, 1), 2, None), ((2, 3, 2, 16), (96, 36, 16, 1), 2, None),
        ((2, 3, 2, 16), (96, 36, 16, 1), 4, (96, 36, 16, 1)),
        ((2, 3, 2, 16), (96, -32, 16, 1), 2, None), ((2, 3, 2, 16), (96, 8, 16, 1), 2, (96, 8, 16, 1)),
    ):  # fmt: skip
        assert _free_strides(shape, strides, size) == found, (shape, strides)
    turned = torch.arange(2 * 3 * 16 * 2.0).view(2, 3, 16, 2).mT  # dense, in another order: a copy that kept it would not do
    _, tensor, _, strides, _ = rows_descriptor(turned, 8)
    assert tensor.is_contiguous() and torch.equal(tensor, turned) and strides == (96, 32, 16, 1)
    x = torch.arange(2 * 3 * 2 * 24, dtype=torch.float32).view(2, 3, 2, 24)
    for view, copied in ((x[..., :16], False), (x[..., 4:20], False), (x[..., 1:17], True), (x[..., ::2], True),
                         (x.transpose(1, 2), False)):  # fmt: skip
        make, tensor, shape, strides, block = rows_descriptor(view, 8, make=print)
        assert torch.equal(tensor, view) and (tensor is not view) is copied and make is print
        assert (shape, strides, block) == (view.shape, tensor.stride(), (1, 8, 1, view.shape[-1]))


def test_small_sums():
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]
    assert multiprocessors(torch.device("cpu")) == 2
    kinds = _kinds(1, 2, 16, 2**31 - 1, 2**31, 1.0, 16.0, 0)
    assert kinds == (-1, 0, 1, 0, 3, float, float, 1), "of 1, of multiples of 16, of more than 32 bits, of other types"
    assert _kinds(2**31 + 1) == (2,)


def test_the_first_key_of_every_position():
    at = lambda batch, start, ends: first_key_within(  # noqa: E731
        batch, torch.arange(6, dtype=torch.int32), *(None if x is None else torch.tensor(x) for x in (start, ends))
    ).tolist()
    assert at(2, None, None) == [[0] * 6] * 2
    assert at(2, [0, 4], None) == [[0] * 6, [4] * 6]
    assert at(1, None, [0, 2, 3, 6]) == [[0, 0, 2, 3, 3, 3]]
    assert at(1, None, [0, 0, 2, 3, 3, 3, 6, 6]) == [[0, 0, 2, 3, 3, 3]]
    assert at(1, [1], [0, 2, 3, 6]) == [[1, 1, 2, 3, 3, 3]]


def test_backends(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.zeros(1)
    assert [pick_backend(name, q) for name in ("auto", "chunked", "reference")] == ["chunked", "chunked", "reference"]
    for name, why in (("triton", "needs CUDA tensors"), ("other", "allowed are")):
        with pytest.raises(ValueError, match=why):
            pick_backend(name, q)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert pick_backend("triton", q) == "triton" and pick_backend("auto", q) == "chunked"


@pytest.mark.parametrize(("device", "dtype", "batch", "refused"), [
    ("cpu", torch.float64, 2**15, None), ("cuda", torch.float32, 2**15 - 1, None),
    ("cuda", torch.float64, 1, "q has dtype torch.float64; allowed on cuda are torch.bfloat16, torch.float16, torch.float32."),
    ("cpu", torch.int32, 1, "allowed on cpu are torch.bfloat16, torch.float16, torch.float32, torch.float64."),
    ("cuda", torch.float32, 2**15, "q has 32768 x 2 sequences and heads; a GPU takes 65535 at once."),
])  # fmt: skip
def test_what_a_gpu_does_not_take_and_a_cpu_does(device, dtype, batch, refused):
    q = SimpleNamespace(shape=(batch, 1, 2, 16), dtype=dtype, device=torch.device(device), is_cuda=device == "cuda")
    with nullcontext() if refused is None else pytest.raises(ValueError, match=re.escape(refused)):
        check_tensors(q, q, q)


def test_hopper_kernels_are_for_hopper_alone(monkeypatch):
    for capability, D, dtype, cuda, found in (
        ((9, 0), 64, torch.bfloat16, True, True), ((9, 0), 128, torch.float16, True, True),
        ((9, 0), 64, torch.float32, True, False), ((9, 0), 32, torch.bfloat16, True, False),
        ((9, 0), 64, torch.bfloat16, False, False), ((8, 9), 64, torch.bfloat16, True, False),
        ((10, 0), 64, torch.bfloat16, True, False), ((12, 0), 128, torch.bfloat16, True, False),
    ):  # fmt: skip
        monkeypatch.setattr(gpu, "_capability", lambda device, capability=capability: capability)
        q = SimpleNamespace(is_cuda=cuda, shape=(1, 2, 3, D), dtype=dtype, get_device=lambda: 0)
        assert gpu._has_hopper_kernels(q) is found, (capability, D, dtype, cuda)


@pytest.mark.parametrize("warps", [4, 8])
def test_four_numbers_of_every_thread_are_added_side_by_side(warps):
    """32 results, 32 addresses, of which the first is used, and 32 numbers: 16 bytes for each of a warp's 32 threads."""
    adds = re.findall(r"red\S* \[\$32 \+ (\d+)\], \{(.*)\};", text := _reductions(warps))
    assert [int(offset) for offset, _ in adds] == [4 * 4 * 32 * warps * step for step in range(8)]
    assert ", ".join(numbers for _, numbers in adds) == ", ".join(f"${number}" for number in range(64, 96))
    assert re.findall(r"mov.b32 \$(\d+), 0;", text) == [str(result) for result in range(32)]


@pytest.mark.parametrize(("capability", "D", "dtype", "name"), [
    ((9, 0), 64, torch.bfloat16, "sm_90"), ((9, 0), 128, torch.float16, "sm_90"), ((9, 0), 128, torch.float32, "float32"),
    ((10, 0), 64, torch.bfloat16, "default"),
])  # fmt: skip
def test_each_kernel_of_stick_breaking_has_its_own_tiles(monkeypatch, capability, D, dtype, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("kernels.stick_breaking.portable.tiles.tiles_for", tiles.tiles_for.__wrapped__)
    found, own = plan_for.__wrapped__(D, dtype, torch.device("cuda")), tiles.table(TILES)[name]
    assert found == Plan(own[f"forward_{D}"], own[f"dq_{D}"], own[f"dkdv_{D}"])
    assert name == "float32" or len(set(found)) > 1


def test_options_in_pytorchs_language():
    assert schema(Options) == (
        "Tensor? threshold, float? tolerance, Tensor? seq_start, Tensor? cu_seqlens, SymInt? window_size, float scale, "
        "bool deterministic, str backend"
    )


def test_a_package_of_its_own_holds_the_shared_parts(tmp_path):
    """Its files are the suite's but for one dot of an import; what builds it stays behind."""
    build = object.__new__(Build)
    build.packages, build.build_lib = ("forgetting_attention",), str(tmp_path)
    build.run()
    own = SHARED.parent / "forgetting_attention"
    names = {path.relative_to(tmp_path / "forgetting_attention").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    wanted = {path.relative_to(own).as_posix() for end in ("py", "json") for path in own.rglob(f"*.{end}")}
    wanted = {name for name in wanted if not name.startswith("build/")}
    shared = {f"attention_shared/{path.name}" for path in SHARED.glob("*.py")} - {"attention_shared/packaging.py"}
    assert names == wanted | shared
    text = (own / "interface.py").read_text()
    assert "from ..attention_shared.arguments import" in text
    copied = (tmp_path / "forgetting_attention" / "interface.py").read_text()
    assert copied == text.replace("from ..attention_shared", "from .attention_shared")


def test_queries_are_the_last_of_the_keys():
    starts, boundaries = torch.tensor([0, 2]), torch.tensor([0, 3, 5], dtype=torch.int32)
    assert first_visible_key(2, 2, 5, None, None) is None
    assert first_visible_key(2, 2, 5, starts, None).tolist() == [[0, 0], [2, 2]]
    assert first_visible_key(1, 3, 5, None, boundaries).tolist() == [[0, 3, 3]]
