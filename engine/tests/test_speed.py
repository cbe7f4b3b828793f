"""The engine stays fast: ratios of processor times, with room to spare.

They notice when something has become slow. A busy machine can make one of two times long for a
while, but not the least of many: so a test measures again until the ratio is right, or gives up.
"""

import itertools
import time

import numpy as np
import pytest
import simt_kernels
from classic_kernels import matrix_product
from numba import cuda, int32
from serial_kernels import CASES, tickets
from simt_kernels import flash_attn_launch, floats

import numba_cuda_simulator as simt

CHECKS_COST = 4  # times a plain run; at most 3 when measured quietly
FIRST_LAUNCH = 6  # times what Python takes to read the file of the kernel, of 350 lines; 5.3
TRACE = 4  # times a checked run; 1.3
PATIENCE = 30  # measurements, at most


@pytest.fixture(autouse=True)
def lockstep():
    with simt.options(compiled="never"):
        yield


def seconds(call):
    """Processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def tile_kernel(size):
    launch = flash_attn_launch(size, np.random.default_rng(0))
    return lambda: simt.run(simt_kernels.flash_attn_tile, *launch)


def softmax(name, grid, threads):
    x, out = floats(np.random.default_rng(0), 2, 64, 512)
    return lambda: simt.run(getattr(simt_kernels, name), grid, threads, x, out)


def matmul(size):
    a, b, c = floats(np.random.default_rng(0), 3, size, size)
    grid = -(-size // 16), -(-size // 16)
    return lambda: simt.run(matrix_product, grid, (16, 16), a, b, c)


CALLS = {
    "tile kernel, N=64": lambda: tile_kernel(64), "tile kernel, N=256": lambda: tile_kernel(256),
    "tree softmax": lambda: softmax("tree_softmax", 64, simt_kernels.NUM_THREADS),
    "warp softmax": lambda: softmax("warp_softmax", 16, 128), "ragged matmul": lambda: matmul(100),
}  # fmt: skip


def expect_ratio(most, call, reference):
    """Expect a call to take at most so many times as long as another one."""
    calls, references = [], []
    while len(calls) < PATIENCE:
        references.append(seconds(reference))
        calls.append(seconds(call))
        if len(calls) > 1 and min(calls) <= most * min(references):
            return
    times = f"{1000 * min(calls):.1f} ms beside {1000 * min(references):.1f} ms"
    pytest.fail(f"{times}: more than {most} times")


def options(checked):
    return simt.options(races=checked, uninitialised=checked)


@pytest.mark.parametrize("name", CALLS)
def test_checks(name):
    launch = CALLS[name]()

    def plain():
        with options(False):
            launch()

    with options(True):
        expect_ratio(CHECKS_COST, launch, plain)


SERIAL = [case for case in CASES if case.grid * case.block <= 256]


@pytest.mark.parametrize("case", SERIAL, ids=[case.label for case in SERIAL])
def test_checks_of_single_threads(case):
    """Threads that work alone, element by element, cost no more to check than many at once."""
    rng = np.random.default_rng(0)
    where = case.kernel, case.grid, case.block
    arguments = case.arguments(rng)

    def launch(checked):
        copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
        simt.run(*where, *copies, checked=checked)

    expect_ratio(CHECKS_COST, lambda: launch(True), lambda: launch(False))


def counting(length):
    """Return a launch whose threads count in local arrays of some length, each in its own way."""

    @cuda.jit
    def kernel(values, out):
        t = cuda.threadIdx.x
        bins = cuda.local.array(length, int32)
        bins[0] = 0
        for i in range(values.shape[1]):
            bins[values[t, i]] = i
        out[t] = bins[0]

    values = np.random.default_rng(0).integers(0, length, (64, 300))
    return lambda: simt.run(kernel, 1, 64, values, np.zeros(64, np.int64))


def test_local_array_indexed_per_thread():
    """A store costs no pass over the array."""
    expect_ratio(4, counting(1024), counting(4))


def test_one_counter_for_many_threads():
    """A ticket costs a thread no more than some sorting: nobody waits in a queue."""
    out = np.zeros(2**20, np.int64)
    mixed = np.random.default_rng(0).permutation(2**20)

    def launch():
        simt.run(tickets, 2**12, 256, np.zeros(1, np.int64), out)

    expect_ratio(25, launch, lambda: np.sort(mixed))  # 5
    np.testing.assert_array_equal(np.sort(out), np.arange(2**20))


def test_first_launch():
    """From a source never seen to the end of one block's checked launch."""
    with open(simt_kernels.__file__, encoding="utf-8") as file:
        source = file.read()
    one_block = flash_attn_launch(simt_kernels.TILE, np.random.default_rng(0))
    edits = (
        simt_kernels.edited_zoo(f"{source}\n# speed test, edit {edit}\n").flash_attn_tile
        for edit in itertools.count()
    )
    kernels = []

    def launch():
        simt.run(kernels.pop(), *one_block)

    expect_ratio(FIRST_LAUNCH, launch, lambda: kernels.append(next(edits)))


def test_trace():
    """A tile kernel of 1024 rows, everything on."""
    call = tile_kernel(1024)

    def trace():
        with simt.tracing() as traces:
            call()
        assert traces[0].races == []

    expect_ratio(TRACE, trace, call)
