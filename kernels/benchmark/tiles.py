"""`python -m kernels.benchmark.tiles`: which share of the causal tiles is left to compute by ACP's rule and by the tight one.

At the benchmark's shapes, with gates from very local to global, of one sequence. Needs no GPU.
"""

import math

from kernels.benchmark.measure import SHAPES, make_inputs
from kernels.forgetting_attention.pruning.threshold import pruned_tile_share, pruning_threshold, share_of_tiles
from kernels.forgetting_attention.pruning.tight import tight_tiles
from kernels.forgetting_attention.visibility import cumulative_log_gate, first_visible_key


def left(shape: tuple[int, int, int, int]) -> tuple[float, float]:
    """By ACP's rule and by the tight one, 0 to 1, a mean over the heads of the first sequence."""
    _, T, H, D = shape
    q, k, _, log_fgate, _ = (x.detach() for x in make_inputs((1, T, H, D), "local to global", "cpu"))
    by_head = pruned_tile_share(log_fgate, float(pruning_threshold(math.sqrt(D), T)))
    count = tight_tiles(q, k, cumulative_log_gate(log_fgate), first_visible_key(log_fgate, T), D**-0.5, -10.0)
    return 1 - float(by_head.mean()), 1 - float(share_of_tiles(count, T, T).mean())


def main() -> None:
    print("| B, T, H, D | left by ACP's rule (%) | left by the tight rule (%) |\n|---|---|---|")
    for shape in SHAPES:
        by_head, by_tile = left(shape)
        print(f"| {', '.join(map(str, shape))} | {100 * by_head:.1f} | {100 * by_tile:.1f} |", flush=True)


if __name__ == "__main__":
    main()
