"""ex05e · What a kernel really keeps

The constraint of ex05d counts four tiles. The FlashAttention-2 kernel of this package keeps more,
and a GPU counts all of it. Its thread block has block_m * block_n threads, one per score, and in
shared memory, all float32:

    q_tile   block_m rows of d           k_tile   block_n rows of d, or of d + 1 where d is even:
    v_tile   block_n rows of d                    an odd row length keeps a warp that reads down a
    s_tile   block_m x block_n                    column out of one bank
    p_tile   block_m x block_n

The result stays in registers: the block_n threads of a row share its d columns, thread tx owns
tx, tx + block_n, tx + 2 * block_n, ..., one accumulator for each.

shared_bytes(block_m, block_n, d)    bytes of the five tiles
accumulators(block_n, d)             the most accumulators that one thread has
honest_block_sizes(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64)
    (block_m, block_n), both powers of two (1, 2, 4, ...), with block_m * block_n <= max_threads,
    shared_bytes <= sram_bytes and accumulators <= max_accumulators. Of all such pairs the one with
    the largest product; of equals the squarest, that is with the largest min(block_m, block_n); of
    those the one with the larger block_m. ValueError where no pair fits.

48 KiB is what a thread block gets on every GPU without asking for more; 256 threads and 64
accumulators leave registers for the rest of the kernel.   About 15 lines in all.
"""


def shared_bytes(block_m, block_n, d):
    """Return the bytes of q_tile, k_tile, v_tile, s_tile and p_tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: shared_bytes")


def accumulators(block_n, d):
    """Return how many columns of the result the busiest thread owns."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: accumulators")


def honest_block_sizes(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64):
    """Return (block_m, block_n) that the kernel can really run with."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: honest_block_sizes")


# Stub bf02e650 of solutions/ex05e_honest_block_sizes.py: `fa-numba reset ex05e` brings it back.
