"""Blocks ordered by a fence and two atomics: the last block may use what the others have left."""

import numpy as np
import pytest
from numba import boolean, cuda, float32

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import RaceError

NUM_BLOCKS, NUM_THREADS = 7, 32


def make_total(FENCE=True, LAST=True, CHANGE_AFTER=False, BINS=False):
    """Sum of x, each block's part left in `parts`, all of them added up by the last block."""

    @cuda.jit
    def total(x, parts, ticket, out):
        is_last = cuda.shared.array(1, boolean)
        block, t = cuda.blockIdx.x, cuda.threadIdx.x
        if t == 0:
            part = float32(0)
            for i in range(NUM_THREADS):
                part += x[block * NUM_THREADS + i]
            if BINS:
                cuda.atomic.add(parts, block % 3, part)
            else:
                parts[block] = part
            if FENCE:
                cuda.threadfence()
            if CHANGE_AFTER:
                parts[block] = part + part
            is_last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1 or not LAST
        cuda.syncthreads()
        if is_last[0] and t == NUM_THREADS - 1:
            sum_ = float32(0)
            for b in range(parts.shape[0]):
                sum_ += parts[b]
                parts[b] = float32(0)  # ready for the next launch
            out[0] = sum_
            ticket[0] = 0

    return total


def arguments():
    x = np.arange(NUM_BLOCKS * NUM_THREADS, dtype=np.float32)
    return x, np.zeros(NUM_BLOCKS, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)


@pytest.mark.parametrize("bins", [False, True], ids=["stores", "atomics"])
def test_the_last_block_may_read_and_write(bins):
    x, parts, ticket, out = arguments()
    for _ in range(2):  # the second launch finds all ready
        simt.run(make_total(BINS=bins), NUM_BLOCKS, NUM_THREADS, x, parts, ticket, out)
        assert out[0] == x.sum() and not ticket.any() and not parts.any()
    trace = simt.trace(make_total(BINS=bins), NUM_BLOCKS, NUM_THREADS, x, parts, ticket, out)
    assert not trace.races and out[0] == x.sum()


@pytest.mark.parametrize(
    "fault",
    [{"FENCE": False}, {"LAST": False}, {"CHANGE_AFTER": True}, {"FENCE": False, "BINS": True}],
    ids=lambda fault: ",".join(f"{k}={v}" for k, v in fault.items()),
)
def test_what_is_not_ordered_races(fault):
    with pytest.raises(RaceError, match="'?parts.*nothing orders blocks"):
        simt.run(make_total(**fault), NUM_BLOCKS, NUM_THREADS, *arguments())
    assert simt.trace(make_total(**fault), NUM_BLOCKS, NUM_THREADS, *arguments()).races


def test_an_atomic_before_the_fence_tells_nothing():
    @cuda.jit
    def too_early(x, flag, out):
        t, block = cuda.threadIdx.x, cuda.blockIdx.x
        if block == 0 and t == 0:
            x[0] = float32(1)
            cuda.atomic.add(flag, 0, 1)
            cuda.threadfence()
        if block == 1 and t == 0:
            cuda.atomic.add(flag, 0, 1)
            out[0] = x[0]

    with pytest.raises(RaceError, match="x"):
        simt.run(too_early, 2, 32, *(np.zeros(1, d) for d in (np.float32, np.int32, np.float32)))


def test_in_many_batches():
    """Blocks that run in different batches are ordered in the same way."""
    num_blocks = 5000
    x = np.ones(num_blocks * NUM_THREADS, np.float32)
    rest = np.zeros(num_blocks, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    simt.run(make_total(), num_blocks, NUM_THREADS, x, *rest)
    assert rest[2][0] == x.sum()
    with pytest.raises(RaceError):
        simt.run(make_total(FENCE=False), num_blocks, NUM_THREADS, x, *rest)
