"""A small grid of the Triton kernels under Triton's interpreter; run in a process of its own by `test_without_gpu`."""

from unittest.mock import patch

import torch

from kernels import (
    causal_conv_triton,
    fused_norms_triton,
    linear_cross_entropy_triton,
    selective_scan,
    ssd,
    ssd_chunks,
    ssd_triton,
    swiglu_triton,
)
from kernels.forgetting_attention import autograd as forgetting_operator
from kernels.forgetting_attention import forgetting_attention, forgetting_attention_cached, norm_logit_bound, sum_log_gates
from kernels.forgetting_attention.portable import decode as triton_decode
from kernels.forgetting_attention.portable import decode_sums as triton_decode_sums
from kernels.forgetting_attention.portable import prepare as triton_prepare
from kernels.forgetting_attention.portable import tight as triton_tight
from kernels.forgetting_attention.pruning.norms import triton_logit_bound
from kernels.forgetting_attention.pruning.tight import tight_tiles
from kernels.forgetting_attention.visibility import cumulative_log_gate
from kernels.stick_breaking import autograd as stick_operator
from tests.kernels import quick_interpreter, test_causal_conv, test_selective_scan, test_swiglu
from tests.kernels.forgetting_attention.oracle import assert_right, log_gates, make_case
from tests.kernels.forgetting_attention.test_cached import compare_lists, compare_with_oracle
from tests.kernels.forgetting_attention.test_forgetting_attention import assert_heeds_or_refuses_every_option
from tests.kernels.test_fused_norms import compare_with_kernels
from tests.kernels.test_linear_cross_entropy import assert_right_extremes, compare_with_plain, losses_of_extremes
from tests.kernels.test_once_differentiable import refuse_by_kernels
from tests.kernels.test_ssd import errors_by_norm


def attention(*inputs: torch.Tensor, **options: object) -> torch.Tensor:
    """The kernels, whatever the device."""
    return forgetting_attention(*inputs, backend="triton", **options)  # type: ignore[arg-type]


def compare_scans() -> None:
    """Compare Mamba-2's states over the chunks, both ways; the last block is not full."""
    update, decay, start = torch.randn(2, 5, 16, 3, 24), torch.rand(2, 5, 3), torch.randn(2, 16, 3, 24)
    for reverse in (False, True):
        results = []
        for scan in (ssd_chunks.scan_loop, ssd_chunks.scan_kernel):
            states, final = torch.full_like(update, torch.nan), start.clone()
            scan(update, decay, states, final, reverse)
            results.append((states, final))
        torch.testing.assert_close(*results)


def compare_recurrences() -> None:
    """Compare Mamba-2 through its kernels: several chunks, the last not full, heads in one program and in two: three
    cannot be halved, of four one halving is enough."""
    for seq_len, decay, sizes, programs in (
        (1, "mild", (16, 16), 1),
        (150, "mixed", (32, 16), 10**6),
        (150, "cut", (16, 32, 4), 9),  # 8 without
    ):
        ssd_triton.PROGRAMS = programs
        errors = errors_by_norm(seq_len, decay, torch.float16, "cpu", sizes, ssd._Kernels.apply)
        assert max(errors.values()) < 2e-3, errors


def compare_selective_scans() -> None:
    """Mamba's: lengths around the steps that are unrolled; channels and states that fill no block, one, and more than one."""
    run, inputs = selective_scan._Kernels.apply, test_selective_scan.inputs
    for seq_len, steps, sizes, dtype, tolerance in (
        (1, "mild", (5, 1), torch.float32, 3e-6),
        (5, "cut", (33, 3), torch.float32, 3e-6),
        (16, "tiny", (6, 16), torch.float32, 3e-6),
        (20, "mixed", (40, 16), torch.bfloat16, 6e-3),  # which is cut here, not rounded
        (41, "mild", (4, 5), torch.float32, 3e-6),
        (15, "large", (6, 16), torch.float32, 3e-6),
    ):
        arguments = test_selective_scan.rounded(inputs(seq_len, steps, *sizes), dtype)
        errors = test_selective_scan.errors_by_norm(arguments, run)
        assert max(errors.values()) < tolerance, (seq_len, steps, sizes, errors)
    test_selective_scan.starts_from_zeros(run, inputs(20))


def compare_preparations() -> None:
    """In one kernel, and in the three that long inputs take."""
    generator = torch.Generator().manual_seed(0)
    for T, exact in ((1, False), (128, True), (300, False), (450, True)):
        gates = log_gates("cuts", (2, T, 3), generator) - 0.05
        for options in ({}, {"window_size": 77}, {"seq_start": torch.tensor([5, T])}, {"threshold": -20 * torch.rand(2, 3)}):
            given = {"threshold": None, "seq_start": None, "cu_seqlens": None, "window_size": None, **options}
            found = []
            for whole in (triton_prepare.WHOLE_TILES, 0):
                triton_prepare.WHOLE_TILES, kept = whole, triton_prepare.WHOLE_TILES
                found.append(triton_prepare.prepare(gates, T, **given, exact=exact))
                triton_prepare.WHOLE_TILES = kept
            for name, one, three in zip(triton_prepare.Prepared._fields, *found, strict=True):
                torch.testing.assert_close(one, three, msg=lambda m, name=name: f"{name}: {m}")


def check_operators() -> None:
    """Hold operators to what torch.compile takes from them: schema, shapes, the gradient's registration."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).requires_grad_()

    def check(operator, *inputs: object) -> None:  # type: ignore[no-untyped-def]
        torch.library.opcheck(operator, inputs, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))

    x, weight = leaf(1, 9, 2, 16), leaf(16)
    check(swiglu_triton.triton_swiglu, leaf(3, 32))
    check(fused_norms_triton.triton_shift_and_norm, x, leaf(1, 9, 2), weight, torch.randn(1, 1, 2, 16), 1e-5)
    check(fused_norms_triton.triton_shift_and_norm, x, None, weight, None, 1e-5)
    check(fused_norms_triton.triton_gated_norm, x, leaf(1, 9, 2, 16), leaf(32), 1e-5, False)
    check(fused_norms_triton.triton_gated_norm, x, leaf(1, 9, 2, 16), leaf(32), 1e-5, True)
    check(fused_norms_triton.triton_gated_norm, x, None, leaf(32), 1e-5, False)
    check(fused_norms_triton.triton_norm_of_gated, leaf(1, 9, 16), leaf(1, 9, 16), weight, 1e-5)
    check(causal_conv_triton.triton_causal_conv_silu, leaf(1, 9, 16), leaf(16, 4), None)
    check(causal_conv_triton.triton_causal_conv_silu, leaf(1, 9, 16), leaf(16, 4), weight)
    gate = log_gates("one", (1, 9, 2), torch.Generator().manual_seed(0)).requires_grad_()
    check(forgetting_operator.attend, x, x, x, gate, None, -10.0, None, None, None, 0.25, False, "triton")
    check(stick_operator.attend, x, x, x, None, None, 0.25, False, "triton")


def compare_bounds() -> None:
    """Compare bounds of logits from the largest norms; grouped queries, one stretch of rows and more."""
    for Q, T in ((300, 1500), (7, 512), (1, 1)):
        q, k = torch.randn(2, 4, Q, 128).transpose(1, 2), torch.randn(2, T, 2, 128)
        torch.testing.assert_close(triton_logit_bound(q, k, 0.3), norm_logit_bound(q, k, 0.3))


def compare_tight_starts() -> None:
    """Compare the kernels and `tight_tiles`, with tiles in one block and in several, and limits on the left."""
    for Q, T, key_heads, gate, tolerance, options in (
        (600, 600, 1, -0.05, -10.0, {}),
        (390, 600, 2, -0.1, -10.0, {"window_size": 400}),
        (520, 520, 2, -0.3, -10.0, {"seq_start": torch.tensor([0, 333])}),
        (400, 400, 1, -3.0, -10.0, {"seq_start": torch.tensor([400, 5])}),
        (640, 640, 1, -0.006, -0.7, {}),  # what every tile leaves counts
    ):
        batch = 2 if options else 1
        q, k, _, log_fgate, _ = make_case("mixture", batch, Q, T, 2 * key_heads, key_heads, 16, torch.float32)
        k = k * torch.linspace(1, 3, key_heads)[:, None] * (1.0 if tolerance < -1 else 1e-3)
        log_fgate = gate + 0.1 * log_fgate.clamp(min=-30.0) * (tolerance < -1)
        given = {"seq_start": None, "cu_seqlens": None, "window_size": None, **options}
        before = triton_prepare.prepare(log_fgate, Q, None, **given, exact=False)
        count = tight_tiles(q, k, cumulative_log_gate(log_fgate), before.first_key, 0.25, tolerance)
        assert bool((count > 0).any())
        for block in (1024, 2):
            prepared = before._replace(start=before.start.clone())
            with patch.object(triton_tight, "MOST_HALVES", block):
                triton_tight.tighten(q, k, prepared, 0.25, tolerance)
            torch.testing.assert_close(prepared.start, torch.maximum(before.start, count))
    q, k, _, log_fgate, _ = make_case("zero", 2, 256, 256, 1, 1, 16, torch.float32)  # keys that are hidden do not count
    given = {"seq_start": torch.tensor([126, 0]), "cu_seqlens": None, "window_size": None}
    prepared = triton_prepare.prepare(log_fgate - 0.2, 256, None, **given, exact=False)
    triton_tight.tighten(1e-3 * q, k, prepared, 0.25, -0.1)
    assert prepared.start.tolist() == [[[0, 0]], [[0, 1]]]


def compare_pruned_decoding() -> None:
    """One program reads all keys, 64 at a time from the last, until what is left has decayed below the threshold."""
    q, k, v, log_fgate, _ = make_case("zero", 1, 1, 300, 1, 1, 16, torch.float32)
    log_fgate = torch.full_like(log_fgate, -0.01)
    with patch.object(triton_decode, "TARGET_PROGRAMS", 1):
        pruned = attention(q, k, v, log_fgate, adaptive_threshold=-1.5)
    torch.testing.assert_close(pruned, attention(q, k, v, log_fgate, window_size=3 * 64))


def compare_cached_decoding() -> None:
    """All regimes; more chunks than are joined at once; and of chunks that are pruned no key is read: none is a number."""
    compare_with_oracle("triton", torch.float32, 2e-6)
    with patch.multiple(triton_decode_sums, LEAST_CHUNK=64, MOST_CHUNK=64):
        compare_lists("triton", torch.float32, 2e-6)
    q, k, v, log_fgate, _ = make_case("mixture", 1, 1, 700, 1, 1, 16, torch.float32)
    sums = sum_log_gates(0.03 * log_fgate.clamp(min=-3.0))
    with patch.multiple(triton_decode_sums, LEAST_CHUNK=16, MOST_CHUNK=16):
        found = forgetting_attention_cached(q, k, v, sums, backend="triton")
    torch.testing.assert_close(found, forgetting_attention_cached(q, k, v, sums))
    for length in (1, 16, 17, 500, 700):
        many = torch.tensor([length], dtype=torch.int32)
        empty = [x.clone() for x in (k, v, sums)]
        for x in empty:
            x[:, length:] = torch.nan  # what no place holds yet is not read
        first = [x[:, :length] for x in (k, v, sums)]
        for most in (16, 64):  # 64: with the larger blocks of long chunks
            with patch.multiple(triton_decode_sums, LEAST_CHUNK=16, MOST_CHUNK=most, PROGRAMS=1):
                found = forgetting_attention_cached(q, *empty, length=many, adaptive_threshold=-2.0, backend="triton")
            torch.testing.assert_close(found, forgetting_attention_cached(q, *first, adaptive_threshold=-2.0))
    k[:, :512], v[:, :512] = torch.nan, torch.nan
    part, ended = torch.full((3, 16 + 4), torch.nan), torch.zeros(1, dtype=torch.int32)
    with patch.object(triton_decode_sums, "scratch", lambda *_: (part, ended)):
        forgetting_attention_cached(q, k, v, sums, adaptive_threshold=float(sums[0, -1, 0] - sums[0, 520, 0]), backend="triton")
    assert not part[:2, :16].any() and bool(part[2, :16].isfinite().all()) and int(ended) == 0


def compare_strided_limits() -> None:
    """A column of spans, one start for all, every other boundary: kernels read limits without strides."""
    q, k, v, log_fgate, _ = make_case("near_zero", 2, 40, 40, 1, 1, 16, torch.float32)
    sums = sum_log_gates(log_fgate)
    for start in (torch.tensor([[39, 3], [9, 30]])[:, 1], torch.tensor([20]).expand(2)):
        expected = forgetting_attention(q, k, v, log_fgate, seq_start=start.contiguous(), backend="reference")
        torch.testing.assert_close(attention(q, k, v, log_fgate, seq_start=start), expected)
        one, last = q[:, -1:], expected[:, -1:]
        torch.testing.assert_close(attention(one, k, v, log_fgate, seq_start=start), last)
        torch.testing.assert_close(forgetting_attention_cached(one, k, v, sums, seq_start=start, backend="triton"), last)
    first = [x[:1] for x in (q, k, v, log_fgate)]
    boundaries = torch.tensor([0, 9, 1, 9, 30, 9, 40])[::2]
    expected = forgetting_attention(*first, cu_seqlens=boundaries.contiguous(), backend="reference")
    torch.testing.assert_close(attention(*first, cu_seqlens=boundaries), expected)


def main() -> None:
    """Raise at the first wrong result. (The interpreter multiplies bfloat16 wrongly: float16 stands for the 16-bit
    path.)"""
    quick_interpreter.remember()
    for Q, T, H, key_heads, D, dtype, gates in (
        (1, 1, 1, 1, 16, torch.float32, "one"),
        (70, 200, 2, 1, 16, torch.float32, "mixture"),
        (150, 150, 1, 1, 32, torch.float32, "cuts"),
        (140, 170, 1, 1, 16, torch.float16, "twenty"),
        (65, 129, 1, 1, 64, torch.float16, "zero"),
    ):
        assert_right(attention, make_case(gates, 1, Q, T, H, key_heads, D, dtype))
    case = make_case("near_zero", 1, 140, 200, 1, 1, 16, torch.float32)  # a key too many is not decayed away
    seq_start = torch.tensor([90])
    assert_right(attention, case, seq_start=seq_start, window_size=50)
    case = make_case("near_zero", 1, 150, 150, 1, 1, 16, torch.float32)
    boundaries = torch.tensor([0, 0, 40, 41, 41, 41, 150, 150])
    assert_right(attention, case, cu_seqlens=boundaries)
    case = make_case("one", 1, 300, 300, 1, 1, 16, torch.float32)
    for threshold in (-12.0, -0.5):
        pruned = attention(*case[:4], adaptive_threshold=threshold)
        torch.testing.assert_close(pruned, forgetting_attention(*case[:4], adaptive_threshold=threshold))
    for gates in ("near_zero", "mixture", "cuts"):
        case = make_case(gates, 2, 1, 300, 2, 1, 32, torch.float32)
        for options in ({}, {"seq_start": torch.tensor([7, 300])}, {"window_size": 77}):
            torch.testing.assert_close(attention(*case[:4], **options), forgetting_attention(*case[:4], **options))
    assert_heeds_or_refuses_every_option("triton")
    compare_strided_limits()
    compare_pruned_decoding()
    compare_cached_decoding()
    compare_tight_starts()
    for size in (1e-3, 1e4):
        compare_with_kernels("cpu", torch.float32, 1e-5, size, lengths=(2, 33))
        test_swiglu.compare_with_kernels("cpu", torch.float32, 1e-6, size)
    causal_conv_triton.TOKENS, causal_conv_triton.CHANNELS = 8, 16
    test_causal_conv.compare_with_kernels("cpu", torch.float32, 2e-6, (1, 3, 8, 21), 21)
    linear_cross_entropy_triton.BLOCK = 64
    compare_with_plain("cpu", torch.float32, rows=140)
    assert_right_extremes(losses_of_extremes("cpu"))
    compare_scans()
    compare_recurrences()
    compare_selective_scans()
    refuse_by_kernels()
    compare_preparations()
    compare_bounds()
    check_operators()


if __name__ == "__main__":
    main()
