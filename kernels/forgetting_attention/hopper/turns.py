"""Order in which the programs of the Hopper backward pass add to a step of queries: always by increasing key tile, so that sums
depend neither on the timing of programs nor on the rest of the batch.

Each step of a head has a counter of the key tiles that have added to it. One warp polls it ahead of the warps that add, another
increments it after them, so that no warp that multiplies waits for memory. A head's first key tile, which has the most steps,
starts first, and each program loops down from the last query, just behind the tile before it, while the queries are in the L2
cache. Enough heads are interleaved that the next program of a head does not start before the previous one has left its first
step.

A program waits only for programs with smaller indices, and GPUs start programs in that order: those are running or done."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..visibility import TILE

_TILE = gl.constexpr(TILE)
PROGRAMS_SIDE_BY_SIDE = 512  # programs of interleaved heads, roughly: four times as many as a GPU has SMs
_WAIT = gl.constexpr("""
{
.reg .pred early;
.reg .b32 count;
again:
ld.acquire.gpu.global.b32 count, [$1];
setp.lt.s32 early, count, $2;
@early bra again;
mov.b32 $0, 0;
}
""")


@gluon.jit
def _stop(stop_ptr, Q, BLOCK_M: gl.constexpr):
    """Return the end of the queries that see a key tile, in whole steps."""
    return gl.minimum(gl.load(stop_ptr) * _TILE, (Q + BLOCK_M - 1) // BLOCK_M * BLOCK_M)


@gluon.jit
def walk(stop_ptr, first, Q, BLOCK_M: gl.constexpr):
    """Return the first query of the last step that sees a key tile, which is processed first, and the number of steps."""
    stop = _stop(stop_ptr, Q, BLOCK_M)
    return stop - BLOCK_M, gl.maximum(stop - first, 0) // BLOCK_M


@gluon.jit
def wait_for_turns(turn, passed, turns, BLOCK_M: gl.constexpr, TURNS: gl.constexpr, ORDERED: gl.constexpr):
    """Arrive on `turn` for each step as soon as the key tile before, if it sees the step, has added to it."""
    if ORDERED:
        stop_ptr, count_ptr, tile, first, Q = turns
        m, steps = walk(stop_ptr, first, Q, BLOCK_M)
        stop_before = 0
        if tile > 0:
            stop_before = _stop(stop_ptr - 1, Q, BLOCK_M)
        for step in range(steps):
            mbarrier.wait(passed.index(step % TURNS), (step // TURNS + 1) & 1)
            if m < stop_before:
                at = (count_ptr + m // BLOCK_M).to(gl.int64, bitcast=True)
                gl.inline_asm_elementwise(_WAIT, "=r,l,r", [at, tile], dtype=gl.int32, is_pure=False, pack=1)
            mbarrier.arrive(turn.index(step % TURNS), count=1)
            m -= BLOCK_M


@gluon.jit
def pass_turns(added, passed, turns, BLOCK_M: gl.constexpr, TURNS: gl.constexpr, ORDERED: gl.constexpr):
    """Advance the counter of each step as soon as the program has added all its sums to it: the next key tile may follow."""
    if ORDERED:
        stop_ptr, count_ptr, tile, first, Q = turns
        m, steps = walk(stop_ptr, first, Q, BLOCK_M)
        for step in range(steps):
            mbarrier.wait(added.index(step % TURNS), step // TURNS & 1)
            # The maximum, so that no program waits forever, whatever the tiles' spans are.
            gl.atomic_max(count_ptr + m // BLOCK_M, tile + 1, sem="release")
            mbarrier.arrive(passed.index(step % TURNS), count=1)
            m -= BLOCK_M
