"""ex13e · The ring in a kernel

ex13b's ring as code: a thread block reads the tiles x[b, 0], x[b, 1], ... through a ring of
NUM_STAGES tiles, tile t through stage t % NUM_STAGES. All threads read each tile; thread 0 also
starts the copies. The functions below are those of mbarrier and TMA, and the CPU engine judges
them: a wait that would never end raises, and so do a read that has not waited for the copy, and a
copy into a stage that somebody may still read. (These functions are a model, for the engine alone.)

start_copy(ring, bars, stage, x[b], tile, log[b])
    thread 0: start to copy a tile into a stage. It ends a phase of full[stage]. log is written
wait_full(bars, stage, parity)
    until a phase of full[stage] with this parity has ended
wait_empty(bars, stage, parity)
    the same of empty[stage]. On a new barrier, parity 1 counts as ended
arrive(bars, stage)
    every thread, when it is done with the tile in a stage: that all have arrived ends a phase of
    empty[stage]
read(ring, bars, stage, i)
    element i of the tile in a stage

launch   kernel[blocks, TILE](x, out, log); TILE and NUM_STAGES are compile-time constants
arrays   x (blocks, tiles, TILE), out (blocks, TILE), log (blocks, tiles), all int32
out      out[b, i] = sum over tiles t of x[b, t, i] * x[b, t, (i + 1) % TILE]
ahead    the copies of the first NUM_STAGES tiles, as far as there are so many, are started before
         anything is read, and that of each later tile as soon as its stage has been read by all.
         Each tile is copied once

No barrier of the thread block besides that behind init, and no array but those that are given.
About 13 lines.
"""

import functools

from numba import cuda, int32

from fa_numba.ptx.ring_model import arrive, init, read, start_copy, wait_empty, wait_full

### KIND: write
### HINT 1: First thread 0 starts the copies of the tiles 0 .. NUM_STAGES - 1: their stages are new,
### HINT 1: nothing has to be waited for. Then comes a loop over all tiles, in which all threads
### HINT 1: wait, read and arrive, and thread 0 starts the copy of a later tile.
### HINT 2: Tile t is the use-th in its stage, use = t // NUM_STAGES. So its copy is phase `use` of
### HINT 2: full, and the reads of it are phase `use` of empty.
### HINT 3: wait_full(bars, stage, use % 2); the two reads; arrive(bars, stage); and if tx == 0 and
### HINT 3: t + NUM_STAGES < x.shape[1]: wait_empty(bars, stage, use % 2) and start_copy of tile t +
### HINT 3: NUM_STAGES.
### DEBRIEF: flash_attn_wgmma has this loop. Thread 0 is producer and consumer at a time, and waits
### DEBRIEF: for the slowest warp before it can read on; a producer warp of its own (flash_attn_ws)
### DEBRIEF: waits in its place, and there its parity for empty is (use + 1) % 2, since it waits
### DEBRIEF: before the copy of this use and not after the reads of the one before. Neither barrier
### DEBRIEF: stops a thread that is early by a stage: that is what it costs less than syncthreads.


@functools.cache
def make_kernel(TILE, NUM_STAGES):
    """The kernel for one size of tiles and a number of stages, compile-time constants."""
    ROWS = 4 + 2 * TILE  # of the barriers: what they count, and what each thread has seen

    @cuda.jit
    def kernel(x, out, log):
        """Sums over tiles, which come through a ring."""
        ring = cuda.shared.array((NUM_STAGES, TILE), int32)
        bars = cuda.shared.array((ROWS, NUM_STAGES), int32)
        tx, b = cuda.threadIdx.x, cuda.blockIdx.x
        init(ring, bars)
        cuda.syncthreads()  # barriers are made: safe to use
        total = int32(0)
        ### BEGIN SOLUTION
        num_tiles = x.shape[1]
        if tx == 0:
            for tile in range(min(NUM_STAGES, num_tiles)):
                start_copy(ring, bars, tile, x[b], tile, log[b])
        for tile in range(num_tiles):
            use, stage = tile // NUM_STAGES, tile % NUM_STAGES
            wait_full(bars, stage, use % 2)
            left, right = read(ring, bars, stage, tx), read(ring, bars, stage, (tx + 1) % TILE)
            total += left * right
            arrive(bars, stage)
            if tx == 0 and tile + NUM_STAGES < num_tiles:
                wait_empty(bars, stage, use % 2)
                start_copy(ring, bars, stage, x[b], tile + NUM_STAGES, log[b])
        out[b, tx] = total
        ### END SOLUTION

    return kernel
