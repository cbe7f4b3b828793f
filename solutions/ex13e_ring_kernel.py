"""ex13e · The ring in a kernel: a producer and its consumers

ex13b's ring as code. A thread block reads the tiles x[b, 0], x[b, 1], ... through a ring of
NUM_STAGES tiles, tile t through stage t % NUM_STAGES. Thread 0 of the first warp is the producer
and copies; the TILE threads of the other warps are the consumers, and each of them reads every
tile. The functions below are those of mbarrier and TMA, and the CPU engine judges them: a wait that
would never end raises, and so do a read that has not waited for the copy, and a copy into a stage
that somebody may still read. (These functions are a model, for the engine alone.)

start_copy(ring, bars, stage, x, tile, log)
    the producer starts to copy x[tile] into a stage. Once it is complete, that ends a phase of
    full[stage]. log is written
wait_full(bars, stage, parity)
    until a phase of full[stage] with this parity has ended
wait_empty(bars, stage, parity)
    the same of empty[stage]. On a new barrier, parity 1 counts as ended
arrive(bars, stage)
    a consumer is done with the tile in a stage: that all have arrived ends a phase of empty[stage]
read(ring, bars, stage, i)
    element i of the tile in a stage

Write what the two do for one tile. ring.shape is (NUM_STAGES, TILE).

produce(ring, bars, x, tile, log)   wait until the tile's stage is free, then start the copy
consume(ring, bars, tile, i)        wait for the tile, read its elements i and (i + 1) % TILE, and
                                    give the stage back; return their product

launch   kernel[blocks, 32 + TILE](x, out, log); TILE and NUM_STAGES are compile-time constants
arrays   x (blocks, tiles, TILE), out (blocks, TILE), log (blocks, tiles), all int32
out      out[b, i] = sum over tiles t of x[b, t, i] * x[b, t, (i + 1) % TILE]

The kernel is given. On a GPU either side has a loop of its own over all tiles. The engine runs all
threads in step; so one loop has both, and in it the producer is as far ahead as the ring allows.
Each tile is copied once. No further barrier; no array besides the kernel's. About 3 and 6 lines.
"""

import functools

from numba import cuda, int32

from fa_numba.ptx.ring_model import (
    PRODUCERS,
    arrive,
    init,
    read,
    start_copy,
    wait_empty,
    wait_full,
)

### KIND: write
### HINT 1: A tile is the use-th in its stage, use = tile // NUM_STAGES. How many phases of full,
### HINT 1: and how many of empty, have ended before each side may go on?
### HINT 2: The copy of a tile is phase `use` of full, and the reads of it are phase `use` of empty.
### HINT 2: So the consumers wait for phase `use` of full, and the producer for phase use - 1 of
### HINT 2: empty. A wait names the parity of a phase: 0 for an even one.
### HINT 3: produce: wait_empty(bars, stage, (use + 1) % 2), then start_copy(ring, bars, stage, x,
### HINT 3: tile, log). consume: wait_full(bars, stage, use % 2); both reads; arrive(bars, stage).
### DEBRIEF: flash_attn_ws has these two loops, each in warps of its own. For its first use of a
### DEBRIEF: stage the producer waits for phase -1, which counts as ended: so it needs no test for
### DEBRIEF: the first tiles. flash_attn_wgmma has no producer warp: a thread that also reads starts
### DEBRIEF: the copies, and waits for the slowest warp before it can read on. Neither barrier stops
### DEBRIEF: a warp that is early by a stage: that is what it costs less than syncthreads.


@cuda.jit(device=True)
def produce(ring, bars, x, tile, log):
    """Copy a tile into its stage, as soon as that is free."""
    ### BEGIN SOLUTION
    use, stage = tile // ring.shape[0], tile % ring.shape[0]
    wait_empty(bars, stage, (use + 1) % 2)
    start_copy(ring, bars, stage, x, tile, log)
    ### END SOLUTION


@cuda.jit(device=True)
def consume(ring, bars, tile, i):
    """Elements i and i + 1 of a tile, multiplied."""
    ### BEGIN SOLUTION
    use, stage = tile // ring.shape[0], tile % ring.shape[0]
    wait_full(bars, stage, use % 2)
    left = read(ring, bars, stage, i)
    right = read(ring, bars, stage, (i + 1) % ring.shape[1])
    arrive(bars, stage)
    return left * right
    ### END SOLUTION


@functools.cache
def make_kernel(TILE, NUM_STAGES):
    """The kernel for one size of tiles and a number of stages, compile-time constants."""
    ROWS = 4 + 3 * (PRODUCERS + TILE)  # of the barriers: what they count, and for each thread

    @cuda.jit
    def kernel(x, out, log):
        """Sums over tiles, which come through a ring."""
        ring = cuda.shared.array((NUM_STAGES, TILE), int32)
        bars = cuda.shared.array((ROWS, NUM_STAGES), int32)
        tx, b, num_tiles = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]
        i = tx - PRODUCERS  # number of a consumer
        init(ring, bars)
        cuda.syncthreads()  # barriers are made: safe to use
        total = int32(0)
        for tile in range(num_tiles + NUM_STAGES):
            if i >= 0 and tile >= NUM_STAGES:
                total += consume(ring, bars, tile - NUM_STAGES, i)
            if tx == 0 and tile < num_tiles:
                produce(ring, bars, x[b], tile, log[b])
        if i >= 0:
            out[b, i] = total

    return kernel
