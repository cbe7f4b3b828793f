"""Races of a thread that works alone, element by element, which is checked without arrays."""

import numpy as np
import pytest
from numba import cuda, int64

import numba_cuda_simulator as simt
from numba_cuda_simulator.histories import ALONE

N = 4 * ALONE
BLOCKS = 3


@cuda.jit
def through_shared(x, out, before, after):
    tile = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    if before:
        cuda.syncthreads()
    if t == 1:
        for i in range(1, N):
            tile[i] += tile[i - 1]
    if after:
        cuda.syncthreads()
    out[cuda.grid(1)] = tile[t]


@cuda.jit
def through_global(x, out, before, after):
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * N
    out[first + t] = x[t]
    if before:
        cuda.syncthreads()
    if t == 1:
        for i in range(first + 1, first + N):
            out[i] += out[i - 1]
    if after:
        cuda.syncthreads()
    out[first + t] *= 2


@cuda.jit
def uninitialised(x, out, before, after):
    tile = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    if t < N - 1:
        tile[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        total = 0
        for i in range(N):
            total += tile[i]
        out[cuda.blockIdx.x] = total


def trace(kernel, blocks, *flags):
    return simt.trace(kernel, blocks, N, np.arange(N), np.zeros(N * BLOCKS, np.int64), *flags)


def run(kernel, blocks, *flags):
    out = np.zeros(N * BLOCKS, np.int64)
    simt.run(kernel, blocks, N, np.arange(N), out, *flags)
    return out


@pytest.mark.parametrize("blocks", [1, BLOCKS])
@pytest.mark.parametrize("kernel", [through_shared, through_global], ids=["shared", "global"])
class TestOneThread:
    def test_no_race(self, kernel, blocks):
        assert trace(kernel, blocks, True, True).races == []
        expected = np.cumsum(np.arange(N)) * (2 if kernel is through_global else 1)
        np.testing.assert_array_equal(run(kernel, blocks, True, True)[:N], expected)

    @pytest.mark.parametrize("barriers", [(False, True), (True, False)], ids=["before", "after"])
    def test_barrier_missing(self, kernel, blocks, barriers):
        """Every load of the one thread races with a store of another, or the other way round."""
        assert {race.kind for race in trace(kernel, blocks, *barriers).races} & {"RAW", "WAW"}
        with pytest.raises(simt.errors.RaceError) as caught:
            run(kernel, blocks, *barriers)
        assert caught.value.array == ("out" if kernel is through_global else "tile")


@cuda.jit
def late(x, out, element):
    """Thread 0 goes through a tile; a thread of another warp touches one element of it, late."""
    tile = cuda.shared.array(N, int64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        for i in range(N):
            tile[i] = tile[i] + 1
            out[i] = tile[i]
    if t == 40:
        if element < N:
            out[N] = tile[element]
        else:
            out[element - N] = 0


@pytest.mark.parametrize("element", [0, 5, ALONE, N - 1, N, N + 5, 2 * N - 1])
def test_one_element(element):
    """However many accesses lie between."""
    with pytest.raises(simt.errors.RaceError) as caught:
        simt.run(late, 1, N, np.arange(N), np.zeros(2 * N, np.int64), element)
    name, number = ("tile", element) if element < N else ("out", element - N)
    assert f"{name}[{number}]" in str(caught.value)
    assert set(caught.value.block) == {0}


@pytest.mark.parametrize("blocks", [1, BLOCKS])
def test_uninitialised(blocks):
    found = trace(uninitialised, blocks, True, True).uninitialised
    assert [str(f.element) for f in found] == [f"tile[{N - 1}]"]
    with pytest.raises(simt.errors.UninitialisedReadError):
        run(uninitialised, blocks, True, True)
