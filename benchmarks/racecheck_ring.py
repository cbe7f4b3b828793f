"""Is a ring of bulk copies, freed by one lane of each warp, ordered? On a Hopper GPU.

    python -m benchmarks.racecheck_ring
    compute-sanitizer --tool racecheck python -m benchmarks.racecheck_ring named --rows 8

racecheck reports flash_attn_bwd_persistent: the producer's bulk copy of lse and delta rows writes
where consumers have read. This is that ring and nothing else: a producer copies rows of 64 numbers
to one of two stages and the copy reports to the mbarrier "full"; 8 warps read the row, and then
release the stage to the producer by the mbarrier "empty". Here every lane but the first of its warp
sleeps before it reads. The forms differ in how a warp says that it has read:

named     all 256 threads meet at a named barrier, then lane 0 of each warp arrives: as the kernels
every     each of the 256 threads arrives for itself: nothing to prove
nothing   lane 0 arrives when it has read, before the other lanes have: wrong, and must show

By the PTX memory model "named" is ordered: a lane's read comes before its barrier.cta.sync, which
comes before lane 0's mbarrier.arrive.release, which comes before the producer's
try_wait.acquire, which comes before the copy. In the sums below a lane reads a number of a later
row if that order does not hold.
"""

import argparse
import functools

import numpy as np
from numba import cuda, float32, uint8, uint32, uint64

from fa_numba.ptx.barriers import named_barrier_sync
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait,
)
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.vectors import bulk_load, load_shared_x2

FORMS = ("named", "every", "nothing")
STAGES, COLS, CONSUMERS = 2, 64, 256
ROW_BYTES = 4 * COLS
RING_BYTES = STAGES * ROW_BYTES + 128
READ = 1  # the named barrier


@functools.cache
def make_ring(FORM):
    """The kernel: out[block, i, thread] is the sum of the two numbers the thread read of row i."""
    ARRIVALS = CONSUMERS if FORM == "every" else CONSUMERS // 32

    @cuda.jit
    def ring_kernel(rows, out):
        """grid (any,); CONSUMERS threads that read, then a warp whose first lane copies."""
        ring = shared_address(cuda.shared.array(RING_BYTES, uint8))
        ring = uint32((ring + 127) & 0xFFFFFF80)
        full = shared_address(cuda.shared.array(STAGES, uint64))
        empty = shared_address(cuda.shared.array(STAGES, uint64))
        tid = cuda.threadIdx.x
        lane = tid & 31
        if tid == 0:
            for stage in range(STAGES):
                mbarrier_init(full + 8 * stage, 1)
                mbarrier_init(empty + 8 * stage, ARRIVALS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on
        if tid == CONSUMERS:
            for i in range(rows.shape[0]):
                stage, turn = uint32(i % STAGES), i // STAGES
                mbarrier_wait(empty + 8 * stage, uint32((turn & 1) ^ 1))
                mbarrier_arrive_expect_tx(full + 8 * stage, ROW_BYTES)
                source = global_address(rows[i])
                bulk_load(ring + stage * ROW_BYTES, source, ROW_BYTES, full + 8 * stage)
        elif tid < CONSUMERS:
            two = cuda.local.array(2, float32)
            for i in range(rows.shape[0]):
                stage = uint32(i % STAGES)
                mbarrier_wait(full + 8 * stage, uint32((i // STAGES) & 1))
                place = ring + stage * ROW_BYTES + 8 * lane
                if FORM == "nothing":
                    if lane == 0:
                        load_shared_x2(two, place)
                        mbarrier_arrive(empty + 8 * stage)
                    else:
                        cuda.nanosleep(uint32(2000))
                        load_shared_x2(two, place)
                    cuda.syncwarp()  # no lane falls a phase behind, or its wait would not end
                else:
                    if lane:
                        cuda.nanosleep(uint32(2000))
                    load_shared_x2(two, place)
                    if FORM == "named":
                        named_barrier_sync(READ, CONSUMERS)
                        if lane == 0:
                            mbarrier_arrive(empty + 8 * stage)
                    else:
                        mbarrier_arrive(empty + 8 * stage)
                out[cuda.blockIdx.x, i, tid] = two[0] + two[1]

    return ring_kernel


def wrong(form, num_rows, grid):
    """How many of the sums are those of another row."""
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 1000, (num_rows, COLS)).astype(np.float32)
    out = cuda.device_array((grid, num_rows, CONSUMERS), np.float32)
    make_ring(form)[grid, CONSUMERS + 32](cuda.to_device(rows), out)
    want = np.tile(rows.reshape(num_rows, 32, 2).sum(axis=-1), CONSUMERS // 32)
    return int((out.copy_to_host() != want).sum()), grid * want.size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("form", nargs="?", choices=FORMS, help="this one; all by default")
    parser.add_argument("--rows", type=int, default=500, help="that go through the ring")
    options = parser.parse_args()
    for form in [options.form] if options.form else FORMS:
        bad, total = wrong(form, options.rows, 132)
        print(f"{form:8} {bad} of {total} sums are of another row")


if __name__ == "__main__":
    main()
