"""In which order the programs of the Hopper backward pass add to a step of queries: by rising key tiles, always, so that sums
depend neither on the pace of programs nor on what else is in the batch.

Each step of a head has a count of the key tiles that are done with it. One warp waits for it ahead of the warps that add,
another moves it on behind them: none that multiplies waits for memory. A head's first key tile, with the longest way, starts
first, and each goes down from the last query, a moment behind the tile before it, while queries are in the L2 cache. So many
heads are side by side that the next program of a head starts no sooner than the one before it has left its first step.

A program waits only for smaller indices, and GPUs start programs in that order: those waited for run, or have run."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..visibility import TILE

_TILE = gl.constexpr(TILE)
PROGRAMS_SIDE_BY_SIDE = 512  # of heads side by side, at least: four times as many as a GPU has multiprocessors
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
    """The end of the queries that see a key tile, in whole steps."""
    return gl.minimum(gl.load(stop_ptr) * _TILE, (Q + BLOCK_M - 1) // BLOCK_M * BLOCK_M)


@gluon.jit
def walk(stop_ptr, first, Q, BLOCK_M: gl.constexpr):
    """Find the last step of queries that see a key tile, which is taken first, and how many there are."""
    stop = _stop(stop_ptr, Q, BLOCK_M)
    return stop - BLOCK_M, gl.maximum(stop - first, 0) // BLOCK_M


@gluon.jit
def wait_for_turns(turn, passed, turns, BLOCK_M: gl.constexpr, TURNS: gl.constexpr, ORDERED: gl.constexpr):
    """Open `turn` for each step as soon as the key tile before has added to it, if it does."""
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
    """Move the count of each step on as soon as all of the program's numbers are added to it: the tile behind may have it."""
    if ORDERED:
        stop_ptr, count_ptr, tile, first, Q = turns
        m, steps = walk(stop_ptr, first, Q, BLOCK_M)
        for step in range(steps):
            mbarrier.wait(added.index(step % TURNS), step // TURNS & 1)
            # The largest, so that whatever the tiles' spans are nobody waits forever.
            gl.atomic_max(count_ptr + m // BLOCK_M, tile + 1, sem="release")
            mbarrier.arrive(passed.index(step % TURNS), count=1)
            m -= BLOCK_M
