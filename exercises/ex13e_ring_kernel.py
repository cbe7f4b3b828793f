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
        # YOUR CODE HERE
        raise NotImplementedError("ex13e: kernel")

    return kernel


# Stub 35c9412d of solutions/ex13e_ring_kernel.py: `fa-numba reset ex13e` brings it back.
