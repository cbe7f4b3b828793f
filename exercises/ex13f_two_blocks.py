"""ex13f · Find the bug: two blocks, one load

Two thread blocks have different queries and the same keys and values. As a cluster they load each
tile once: block 0 copies the tile of K to both, block 1 that of V. `make_broken` below does that,
with two bugs. Read the message of the first, mend it, then read the next one.

The functions below are a model of a cluster, and have no bug. Each block has a barrier full and a
barrier empty for each stage, as in ex13b, and tiles of its own.

announce(bars, stage, num_bytes)
    one thread: full[stage] of this block waits for so many bytes
copy_to_both(tiles, bars, stage, which, row)
    one thread: start to copy a row of K (which = 0) or V (1) to the stage of both blocks. full of
    each block counts the bytes that it gets; a phase ends when all that it waits for have arrived
wait_full(bars, stage, parity), wait_empty(bars, stage, parity)
    until a phase of this block's barrier has ended. On a new one, parity 1 counts as ended
arrive(bars, stage, block)
    arrive at empty[stage] of block 0 or 1. A phase ends after 2 TILE arrivals: all threads of both
read(tiles, bars, stage, which, i)
    number i of the tile of K or V in this block's stage

Write `make_kernel`: copy make_broken and mend it. 1 line differs, and 1 is new.

launch   kernel[clusters, (TILE, 2)](q, k, v, out): tx is a thread of block `rank`; TILE is a
         compile-time constant
arrays   q and out (clusters, 2, TILE), k and v (tiles, TILE), all int32
out      out[c, rank, i] = sum over tiles t of q[c, rank, i] * k[t, i] * v[t, (i + 1) % TILE]
L2       each number of k and v is loaded once by a cluster
"""

import functools

from numba import cuda, int32

from fa_numba.ptx.pair_model import (
    NUMBER_BYTES,
    announce,
    arrive,
    cluster_sync,
    copy_to_both,
    init,
    read,
    wait_empty,
    wait_full,
)

STAGES = 2  # one tile is read, the other receives the next


@functools.cache
def make_broken(TILE):
    """The kernel with the two bugs, to read and to run. Leave it as it is."""
    ROWS = 6 + 3 * TILE  # of the barriers: what they count, and what each thread has seen

    @cuda.jit
    def broken_kernel(q, k, v, out):
        tiles = cuda.shared.array((2, STAGES, 2, TILE), int32)
        bars = cuda.shared.array((2, ROWS, STAGES), int32)
        tx, rank, c = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.x
        init(tiles, bars)
        cluster_sync()  # both blocks' barriers are made: safe to copy to both
        num_tiles = k.shape[0]
        total = int32(0)
        for tile in range(-1, num_tiles):
            use, stage = (tile + 1) // STAGES, (tile + 1) % STAGES
            if tx == 0 and tile + 1 < num_tiles:  # the next tile, while this one is read
                wait_empty(bars, stage, (use + 1) % 2)
                announce(bars, stage, NUMBER_BYTES * TILE)
                if rank == 0:
                    copy_to_both(tiles, bars, stage, 0, k[tile + 1])
                else:
                    copy_to_both(tiles, bars, stage, 1, v[tile + 1])
            if tile >= 0:
                done = tile % STAGES
                wait_full(bars, done, tile // STAGES % 2)
                left = read(tiles, bars, done, 0, tx)
                total += left * read(tiles, bars, done, 1, (tx + 1) % TILE)
                arrive(bars, done, rank)
        cluster_sync()  # nobody arrives at this block any more: safe to end
        out[c, rank, tx] = total * q[c, rank, tx]

    return broken_kernel


@functools.cache
def make_kernel(TILE):
    """Sums over tiles that two blocks load once."""
    ROWS = 6 + 3 * TILE  # of the barriers: what they count, and what each thread has seen

    @cuda.jit
    def kernel(q, k, v, out):
        # YOUR CODE HERE
        raise NotImplementedError("ex13f: kernel")

    return kernel


# Stub 44b0f32c of solutions/ex13f_two_blocks.py: `fa-numba reset ex13f` brings it back.
