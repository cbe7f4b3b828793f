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

### KIND: predict
### HINT 1: d | 1 is the next odd number: 64 | 1 == 65, 65 | 1 == 65. Count elements, multiply by 4
### at the end.
### HINT 2: The thread with tx = 0 has the most accumulators, one for each of columns 0, block_n,
### 2 * block_n, ... below d. That is d / block_n rounded up.
### HINT 3: 4 * (q + k + v + 2 * block_m * block_n), with k = block_n * (d | 1); -(-d // block_n);
### and three comparisons with <=, joined by `and`.
### DEBRIEF: At d = 64 the constraint of ex05d allows 128 x 64 in 48 KiB of float16, 67 x 41 in
### float32, and the kernel runs 16 x 16. Threads bind first here, because a thread computes one
### score; kernels whose threads compute many, in registers or on tensor cores, come nearer to the
### large tiles. Four budgets at once, and the smallest decides.


def shared_bytes(block_m, block_n, d):
    """Return the bytes of q_tile, k_tile, v_tile, s_tile and p_tile."""
    ### BEGIN SOLUTION
    return 4 * (block_m * d + block_n * (d | 1) + block_n * d + 2 * block_m * block_n)
    ### END SOLUTION


def accumulators(block_n, d):
    """Return how many columns of the result the busiest thread owns."""
    ### BEGIN SOLUTION
    return -(-d // block_n)
    ### END SOLUTION


def fits(block_m, block_n, d, sram_bytes, max_threads, max_accumulators):
    """Whether a thread block with these tiles keeps all limits."""
    ### BEGIN SOLUTION
    few = block_m * block_n <= max_threads and accumulators(block_n, d) <= max_accumulators
    return few and shared_bytes(block_m, block_n, d) <= sram_bytes
    ### END SOLUTION


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
