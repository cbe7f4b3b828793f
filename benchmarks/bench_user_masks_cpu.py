"""What does a mask of the user's cost in the jobs compiled for a CPU, for each pair that is seen?

    python -m benchmarks user_masks_cpu        two minutes on two cores

Each mask of the gallery beside the option `causal`, in float32. Forward, and gradients: causal's
time for each pair that it sees, over the mask's. The time is the processor's, of all threads:
another program on the machine changes it less than the wall's. Before each call with a mask is one
with `causal`; their ratio is the median of ROUNDS, in which all masks take turns.

bound: what is left of causal's speed if the mask itself cost nothing. A panel of 16 queries (32
with AVX-512) computes, of each tile of 64 keys, those from the first to the last that one of its
queries sees: bound is pairs that are seen over pairs that are computed, beside the same of causal.
"""

import os
import time
from functools import partial

import numpy as np

from benchmarks.timing import cpu, save
from fa_numba import masks
from fa_numba.cpu import flash_attn, flash_attn_grad
from fa_numba.cpu.tiles import BLOCK_N, ROWS, WIDTH
from fa_numba.expressions.mask_function import written
from fa_numba.expressions.tiles import WHOLE, tile_classes
from fa_numba.expressions.trace import trace

SEQLEN, NUM_HEADS, HEAD_DIM = 4096, 4, 64
WINDOW, SIDE, NODES, BLOCK = 512, 64, 512, 64  # tokens; columns of an image; nodes of a tree
ROUNDS = 7
TOGETHER = 16 * WIDTH  # queries that are counted at once


def gallery():
    document = np.arange(SEQLEN, dtype=np.int32) // WINDOW
    blocks = np.arange(SEQLEN // BLOCK, dtype=np.int32)
    lists = np.random.default_rng(0).permuted(np.tile(blocks, (len(blocks), 1)), axis=1)[:, :16]
    tree = masks.tree(np.arange(-1, NODES - 1) // 2, SEQLEN - NODES)
    return {
        "window": masks.window(WINDOW),
        "window, 4 first keys": masks.window_and_first(WINDOW, 4),
        "window of each head": masks.window_per_head(WINDOW << np.arange(NUM_HEADS)),
        "prefix-LM": masks.prefix_lm(1000),
        "documents": masks.documents(document),
        "causal documents": masks.causal & masks.documents(document),
        "causal blocks": masks.block_causal(100),
        "block diffusion": masks.block_diffusion(BLOCK, SEQLEN // 2),
        "lists of blocks": masks.block_lists(lists[None, None], SEQLEN, BLOCK, BLOCK),
        "tree behind a prefix": tree,
        "every 4th key": masks.dilated(4),
        "neighbours in 2-D, 17 × 17": masks.neighbours_2d(SIDE, 8),
        "neighbours in 2-D, 7 × 7": masks.neighbours_2d(SIDE, 3),
        "neighbours in 3-D, 9 × 9 × 9": masks.neighbours_3d(16, 16, 4),
    }


def count(mask):
    """How many pairs of all heads a mask shows, and how many are computed for them."""
    function, args = written(mask, ())
    node, seen, computed = trace(function, "mask", "b h m n", args), 0, 0
    for m in range(0, SEQLEN, TOGETHER):
        sizes = TOGETHER, SEQLEN  # tiles of one pair: their class is its truth
        pairs = tile_classes(node, sizes, 1, 1, args, 1, NUM_HEADS, first_position=m)[0] == WHOLE
        of_panels = pairs.reshape(len(pairs), -1, WIDTH, SEQLEN // BLOCK_N, BLOCK_N).any(axis=2)
        first = of_panels.argmax(axis=-1) // ROWS * ROWS
        end = BLOCK_N - of_panels[..., ::-1].argmax(axis=-1)
        keys = np.where(of_panels.any(axis=-1), -(-end // ROWS) * ROWS - first, 0).sum()
        heads = NUM_HEADS // len(pairs)
        seen, computed = seen + heads * pairs.sum(), computed + heads * WIDTH * keys
    return int(seen), int(computed)


def calls_with(dout, q, k, v, **options):
    """Forward, and gradients."""
    state = flash_attn(q, k, v, **options)
    backward = partial(flash_attn_grad, dout, q, k, v, *state, **options)
    backward()  # compiles
    return partial(flash_attn, q, k, v, **options), backward


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def main():
    rng, shape = np.random.default_rng(0), (1, SEQLEN, NUM_HEADS, HEAD_DIM)
    dout, q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
    shown, by_option = gallery(), {"causal": True}
    arrays, short = (dout, q, k, v), [x.reshape(-1, WINDOW, *shape[2:]) for x in (dout, q, k, v)]
    given = [(arrays, by_option), *((arrays, {"mask": mask}) for mask in shown.values())]
    given.append((short, by_option))
    causal, *others = (calls_with(*x, **options) for x, options in given)
    shown["the same documents as a batch, with `causal`"] = shown["causal documents"]
    ratios = np.array([
        [[seconds(x) / seconds(y) for x, y in zip(causal, calls, strict=True)] for calls in others]
        for _ in range(ROUNDS)
    ])  # fmt: skip
    by_causal, rows = count(masks.causal), []
    for (name, mask), ratio in zip(shown.items(), np.median(ratios, axis=0), strict=True):
        seen, computed = count(mask)
        row = {"mask": name, "pairs seen": f"{seen / (NUM_HEADS * SEQLEN**2):.1%}"}
        ratios = by_causal[1] / computed, *ratio  # causal's over the mask's
        for what, x in zip(("bound", "forward", "gradients"), ratios, strict=True):
            row[what] = round(float(x) * seen / by_causal[0], 2)
        rows.append(row)
    note = (
        f"float32, one sequence of {SEQLEN} tokens, {NUM_HEADS} heads, head_dim {HEAD_DIM}: "
        "causal's processor time for each pair that is seen, over the mask's; bound: of pairs seen "
        "over pairs computed, the same "
        f"(load average of the machine {os.getloadavg()[1]:.1f})"
    )
    save("user_masks_cpu", rows, note=note, on=cpu())
