"""The meter of the CPU engine equals an independent one.

The greenlet oracle notes single accesses of single threads; `oracle_observers.Tracer` regroups
them into warp requests, sectors and bank wavefronts. Both must agree on every array.
"""

import itertools

import greenlet_oracle
import numpy as np
import pytest
from collection import EVERY
from numba import cuda, float32, float64, int8, int16
from oracle_observers import Tracer, sectors, wavefronts
from simt_kernels import ZOO, Launch, floats, zeros

import numba_cuda_simulator as simt
from numba_cuda_simulator import counters as engine

GLOBAL = [f"{op}{what}" for op in ("load", "store") for what in ("s", "_bytes", "_requests")]
GLOBAL += ["load_sectors", "store_sectors"]
SHARED = ("s", "_requests", "_wavefronts", "_conflicts")
SHARED = [f"{op}{what}" for op in ("load", "store") for what in SHARED]


@cuda.jit
def strided(x, out):
    """Columns, odd strides, a guard, and a store that only some lanes make."""
    cells = cuda.shared.array((48, 33), float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n, m = x.shape
    if i < 300:
        cells[t, i * 5 % 33] = x[i % n, i * 3 % m]
        out[i % n, i * 7 % m] = cells[t, i * 5 % 33] * 2
        if i % 3 == 0:
            out[0, i % m] = x[i % 2, 5]


@cuda.jit
def column_sums(x, out):
    """One thread per row: the uncoalesced way."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = x[i, 0]
        for j in range(1, x.shape[1]):
            total += x[i, j]
        out[i] = total


@cuda.jit
def shared_columns(x, out):
    """float64 in shared memory by columns, where the first lanes of each warp stay out."""
    cells = cuda.shared.array((32, 32), float64)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    for row in range(ty, 32, cuda.blockDim.y):
        cells[row, tx] = x[row, tx]
    cuda.syncthreads()
    if tx >= 5:
        for row in range(ty, 32, cuda.blockDim.y):
            out[row, tx] = cells[tx, row] + cells[row, 0]


@cuda.jit
def pairs(x, out):
    """Lanes that load the same by pairs, nearly so, or would if more of them took part."""
    cells = cuda.shared.array(128, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    cells[t] = x[i]
    cuda.syncthreads()
    total = cells[t // 2] + cells[t // 2 * 2] + cells[t // 2 * 8 % 64]  # n and n^1
    total += cells[t & 61] + cells[(t & 61) * 16 % 128] + cells[t % 16]  # n and n^2; halves
    total += cells[max(t // 2, 1)] + cells[min(t // 2, 14)] + cells[5]
    if t & 1:
        total += cells[t] + cells[t * 3 % 64]  # nobody's partner takes part
        cells[64 + t] = total
    if t & 3 != 2:
        total += cells[t // 2] + cells[t % 4]
    cuda.syncthreads()
    cells[7] = float64(1.0)
    out[i] = total


@cuda.jit
def narrow(x, out):
    """Elements of one byte and of two."""
    t = cuda.threadIdx.x
    bytes_ = cuda.shared.array(512, int8)
    words = cuda.shared.array(512, int16)
    for step in range(1, 9):
        bytes_[t * step] = x[t]
        words[t * step] = x[t * 2]
        cuda.syncthreads()
        out[t * step] = bytes_[t // 2 * step] + words[t * step]
        cuda.syncthreads()


def matrix(dtype, n=37, m=53):
    return lambda rng: (floats(rng, n, m, dtype=dtype), zeros(n, m, dtype=dtype))


def sliced(dtype, first):
    """Both arrays begin `first` elements, a row and more, into their allocation."""

    def arguments(rng):
        x = rng.integers(-9, 9, (39, 53 + first)).astype(dtype)
        return x[1:, first:], np.zeros((40, 53 + first), dtype)[2:, first:]

    return arguments


def rows(dtype):
    return lambda rng: (floats(rng, 70, 9, dtype=dtype), zeros(70, dtype=dtype))


RACING = [
    Launch(strided, 8, 48, matrix("f4"), label="_f32"),
    Launch(strided, 8, 48, matrix("f8"), label="_f64"),
    Launch(strided, 15, 20, matrix("f4"), label="_block_of_20"),
    Launch(
        strided, 8, 48, lambda rng: (floats(rng, 90, 70)[::3, ::-2], zeros(30, 35)), label="_view"
    ),
    *(Launch(column_sums, 4, n, rows("f4"), label=f"_block_of_{n}") for n in (20, 48, 64)),
    Launch(column_sums, 2, 64, rows("f8"), label="_f64"),
    Launch(shared_columns, 2, (32, 8), matrix("f8", 32, 32)),
    Launch(pairs, 2, 64, lambda rng: (floats(rng, 128, dtype="f8"), zeros(128, dtype="f8"))),
    Launch(narrow, 1, 63, lambda rng: (np.arange(126, dtype="i1"), zeros(512, dtype="i2"))),
    *(
        Launch(strided, 8, 48, sliced(dtype, first), label=f"_slice_{dtype}_{first}")
        for dtype in ("f4", "f8", "i2")
        for first in (1, 3, 8)
    ),
]


LAUNCHES = [*EVERY, *RACING]
assert len({launch.name for launch in LAUNCHES}) == len(LAUNCHES)
COUNTED = {"global": GLOBAL, "shared": SHARED}


def run_oracle(launch, **how):
    """What one greenlet per thread computes."""
    args = launch.arguments()
    where = launch.kernel, launch.grid, launch.block
    greenlet_oracle.launch(*where, *args, shared_bytes=launch.shared_bytes, **how)
    return args


def assert_same(launch, got, want, how):
    """Every argument agrees, inputs included: nobody may write to them."""
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        message = f"{launch.name}, {how}, argument {position}"
        if launch.rtol and np.asarray(a).dtype.names is None:
            np.testing.assert_allclose(a, b, launch.rtol, launch.rtol, err_msg=message)
        else:
            np.testing.assert_array_equal(a, b, err_msg=message)


@pytest.mark.parametrize("launch", LAUNCHES, ids=[launch.name for launch in LAUNCHES])
def test_results_and_traffic_are_the_oracles(launch, monkeypatch):
    """Checked or not, and however many blocks run at once: one, a few, an odd number, all.

    The kernels of this file race, so that their results are not compared.
    """
    tracer, want = Tracer(), None
    if launch.oracle:
        want = run_oracle(launch, observer=tracer)
    where, how = (launch.kernel, launch.grid, launch.block), dict(shared_bytes=launch.shared_bytes)
    racing, of_zoo = (any(launch is other for other in x) for x in (RACING, ZOO))
    runs = ((1, True), (64, False), (1000, True), (32768, False)) if of_zoo else ((64, True),)
    for lanes, checked in () if racing else runs:
        monkeypatch.setattr("numba_cuda_simulator.launch.LANES_PER_BATCH", lanes)
        args = launch.arguments()
        simt.run(*where, *args, checked=checked, **how)
        launch.check_answer(args)
        want = want or args
        assert_same(launch, args, want, f"{lanes} lanes, checked={checked}")

    expected = {kind: {} for kind in COUNTED}
    for kind, names in COUNTED.items():
        for name, counted in tracer.totals(kind).items():
            expected[kind][name] = {x: counted[x] for x in names}
    for lanes in (512, 32768) if of_zoo or racing else (512,):
        monkeypatch.setattr("numba_cuda_simulator.launch.LANES_PER_BATCH", lanes)
        args = launch.arguments()
        trace = simt.trace(*where, *args, **how)
        if not racing:
            assert_same(launch, args, want, f"traced, {lanes} lanes")
            assert trace.races == [] and trace.uninitialised == []
        for kind, found in (("global", trace.arrays), ("shared", trace.shared)):
            got = {name: counters(found[name], COUNTED[kind]) for name in expected[kind]}
            assert got == expected[kind], f"{kind}, {lanes} lanes"
        assert not launch.oracle or trace.barriers == tracer.barriers


@pytest.mark.thorough
@pytest.mark.parametrize("launch", ZOO, ids=[launch.name for launch in ZOO])
def test_the_oracle_does_not_depend_on_the_order_of_threads(launch):
    reversed_ = run_oracle(launch, order=lambda threads: threads[::-1])
    assert_same(launch, reversed_, run_oracle(launch), "threads in reverse")


def counters(counted, names):
    return {name: getattr(counted, name) for name in names}


def test_prices_of_random_requests():
    """Sizes, alignments, idle lanes, pairs: the engine's price is that of the tracer."""
    rng, lane = np.random.default_rng(0), np.arange(32)
    for itemsize, op, _ in itertools.product((1, 2, 4, 8, 16), ("load", "store"), range(100)):
        step = rng.integers(1, 40)
        some = [rng.integers(0, most, 32) for most in (200, 3, 200, 200)]
        pairs = [some[2][lane // 2], some[3][lane & 29], lane % 16 * step, lane // 2 * step]
        element = rng.choice([*some[:2], *pairs, lane * step])
        active = rng.random(32) < rng.choice([0.1, 0.5, 0.9, 1.1])
        active[rng.integers(32)] = True
        at = element * itemsize + itemsize * rng.integers(9)
        lanes = [(int(n), int(at[n])) for n in lane[active]]
        price = at[None], active[None], itemsize, op
        taken = wavefronts(lanes, itemsize, op)
        assert engine.wavefronts(*price)[:, 0].tolist() == [sum(taken), sum(taken) - len(taken)]
        assert engine.sectors(*price)[:, 0].tolist() == [sectors(lanes, itemsize), 0]


def test_the_model_by_hand():
    """What the tracer itself takes for granted."""
    warp = np.arange(32)
    assert sectors([(n, 4 * n) for n in warp], 4) == 4  # neighbours: 128 bytes
    assert sectors([(n, 4 * n + 4) for n in warp], 4) == 5  # not aligned
    assert sectors([(n, 400 * n) for n in warp], 4) == 32  # a column
    assert sectors([(n, 0) for n in warp], 4) == 1  # all the same
    for addresses, itemsize, load, store in [
        (4 * warp, 4, [1], [1]),
        (128 * warp, 4, [32], [32]),  # a column of 32
        (132 * warp, 4, [1], [1]),  # a column of 33
        (8 * warp, 4, [2], [2]),
        (0 * warp, 4, [1], [1]),  # broadcast
        (warp, 1, [1], [1]),  # four to a word
        (2 * warp, 2, [1], [1]),
        (8 * warp, 8, [1, 1], [1, 1]),  # each half fills the banks
        (264 * warp, 8, [1, 1], [1, 1]),  # halves of a padded column
        (256 * warp, 8, [16, 16], [16, 16]),
        (0 * warp, 8, [1], [1, 1]),
        (8 * (warp // 2), 8, [1], [1, 1]),  # in pairs
        (256 * (warp // 2), 8, [16], [8, 8]),
        (8 * (warp & 29), 8, [2], [1, 1]),  # n and n^2
        (8 * (warp % 16), 8, [1, 1], [1, 1]),  # two halves alike are no pairs
    ]:
        assert wavefronts([*enumerate(addresses)], itemsize, "load") == load
        assert wavefronts([*enumerate(addresses)], itemsize, "store") == store
    assert wavefronts([(n, 8 * n) for n in warp[16:]], 8) == [1]  # one half
    assert wavefronts([(n, 4 * n) for n in warp[1::2]], 8) == [1]  # every second lane


def test_who_stores_and_what_a_thread_keeps_of_its_own():
    @cuda.jit
    def kernel(x, out):
        row = cuda.local.array((2, 3), float32)
        if cuda.blockIdx.x == 1:
            return
        i = cuda.grid(1)
        for _ in range(2):
            pair = cuda.local.array(2, float64)  # one place in the source: one array
            pair[0] = x[i]
            row[0, 0] = pair[0]
        if cuda.threadIdx.x < 5:
            out[i] = row[0, 0]
            out[i] = row[0, 0] + float32(1)

    x = np.arange(40, dtype=np.float32)
    trace = simt.trace(kernel, 4, 10, x, np.zeros_like(x))
    assert trace.local_bytes == 6 * 4 + 2 * 8
    assert (trace.arrays["out"].storing_threads, trace.arrays["out"].storing_blocks) == (15, 3)
    assert (trace.arrays["x"].storing_threads, trace.arrays["x"].storing_blocks) == (0, 0)
    many = np.zeros(100_000, np.float32)  # more threads than the engine runs at a time
    trace = simt.trace(everywhere, len(many) // 50, 50, many)
    assert trace.arrays["out"].storing_threads == len(many)
    assert trace.arrays["out"].storing_blocks == len(many) // 50


@cuda.jit
def everywhere(out):
    out[cuda.grid(1)] = float32(1)


def test_shuffles_count_once_for_each_warp():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        total = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
        if cuda.threadIdx.x < 32:
            total += cuda.shfl_sync(0xFFFFFFFF, total, 0)
        x[i] = total

    blocks, warps = 2, 3
    trace = simt.trace(kernel, blocks, 32 * warps - 6, np.zeros(200, np.float32))
    assert trace.shuffles == blocks * (warps + 1)
