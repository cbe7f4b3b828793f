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
fits(block_m, block_n, d, sram_bytes, max_threads, max_accumulators)
    whether all three limits are kept. A tile that fills a budget to the last byte fits.
honest_block_sizes(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64)
    given: of all pairs of powers of two that fit, the one with the largest product

Before you write: with d = 64 ex05d's constraint allows 67 x 41 in 48 KiB of float32. What can this
kernel have?   About 5 lines in all.
"""


def shared_bytes(block_m, block_n, d):
    """Return the bytes of q_tile, k_tile, v_tile, s_tile and p_tile."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: shared_bytes")


def accumulators(block_n, d):
    """Return how many columns of the result the busiest thread owns."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: accumulators")


def fits(block_m, block_n, d, sram_bytes, max_threads, max_accumulators):
    """Whether a thread block with these tiles keeps all limits."""
    # YOUR CODE HERE
    raise NotImplementedError("ex05e: fits")


def honest_block_sizes(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64):
    """Return (block_m, block_n) that the kernel can really run with.

    The largest product; of equals the squarest; of those the one with the larger block_m.
    """
    powers = [2**i for i in range(max_threads.bit_length())]
    limits = d, sram_bytes, max_threads, max_accumulators
    fitting = [(m, n) for m in powers for n in powers if fits(m, n, *limits)]
    if not fitting:
        raise ValueError(f"no tile fits: {d=}, {sram_bytes=}, {max_threads=}, {max_accumulators=}")
    return max(fitting, key=lambda pair: (pair[0] * pair[1], min(pair), pair[0]))


# Stub 5ef48e50 of solutions/ex05e_honest_block_sizes.py: `fa-numba reset ex05e` brings it back.
