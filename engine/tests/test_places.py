"""Parts of arrays, records and grids that wait: the same elements as NumPy, and still watched."""

import itertools

import greenlet_oracle
import numpy as np
import pytest
from numba import cuda, float32, int64
from sources import ran

import numba_cuda_simulator as simt
from numba_cuda_simulator.errors import RaceError

N = 12
BOUNDS = (None, 0, 3, 7, N, 40, -1, -5, -40)
STEPS = (None, 1, 2, 5, -1, -3)
PARTICLE = np.dtype([("x", "f4"), ("y", "f4"), ("name", "i2"), ("mass", "f8")], align=True)


def make_slicer(start, stop, step, MEMORY):
    """A kernel of one thread that copies cells[start:stop:step], and adds 100 to that part."""

    @cuda.jit
    def slicer(x, out, size):
        cells = x
        if MEMORY == "shared":
            cells = cuda.shared.array(N, int64)
        elif MEMORY == "local":
            cells = cuda.local.array(N, int64)
        for k in range(N):
            cells[k] = x[k]
        part = cells[start:stop:step]
        size[0] = part.size
        for k in range(len(part)):
            out[k] = part[k]
            part[k] += 100
        for k in range(N):
            x[k] = cells[k]

    return slicer


@pytest.mark.parametrize("memory", ["global", "shared", "local"])
@pytest.mark.parametrize("step", STEPS)
def test_slices_are_numpys(memory, step):
    for start, stop in itertools.product(BOUNDS, BOUNDS):
        kernel, part = make_slicer(start, stop, step, memory), slice(start, stop, step)
        x, out, size = np.arange(N), np.full(N, -1), np.zeros(1, int)
        simt.run(kernel, 1, 1, x, out, size)
        want = np.arange(N)
        copied = want[part].copy()
        want[part] += 100
        assert size[0] == copied.size, part
        np.testing.assert_array_equal(out[: copied.size], copied, err_msg=str(part))
        np.testing.assert_array_equal(x, want, err_msg=str(part))


@cuda.jit
def shared_windows(x, out):
    """Every thread sees a window of shared memory that begins where it stands, backwards."""
    cells = cuda.shared.array((2, 40), float32)
    t = cuda.threadIdx.x
    cells[0, t] = x[t]
    if t < 8:
        cells[0, 32 + t] = 0
    cuda.syncthreads()
    window = cells[0, t : t + 8][::-1]
    total = float32(0)
    for k in range(window.shape[0]):
        total += (k + 1) * window[k]
    out[t] = total


def test_views_that_differ_between_threads():
    x, out = np.random.default_rng(0).standard_normal((2, 32)).astype("f4")
    simt.run(shared_windows, 1, 32, x, out)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, (0, 8)), 8)[:32, ::-1]
    np.testing.assert_allclose(out, windows @ np.arange(1, 9), rtol=1e-5, atol=1e-5)


def test_a_race_through_a_view_is_found():
    body = """
        view = x[::2]
        i = cuda.grid(1)
        if i + 1 < view.size:
            view[i] = view[i + 1]
    """
    with pytest.raises(RaceError, match=r"race on x\[2\]"):
        ran(body, 32, x=np.zeros(64))


@cuda.jit
def choose_rows(x, out):
    """Each thread's own row, of global, shared and local memory, by if and by expression."""
    tile = cuda.shared.array((2, 4), int64)
    mine = cuda.local.array((2, 4), int64)
    i = cuda.grid(1)
    if i < 8:
        tile[i // 4, i % 4] = 100 + i
    cuda.syncthreads()
    for k in range(8):
        mine[k // 4, k % 4] = 1000 + k
    row, shared_row, local_row = x[i], tile[0], mine[0]
    if i % 3 == 1:
        row = x[0]
        shared_row = tile[1]
        local_row = mine[1]
    local_row[0] += i
    other = tile[1] if i % 2 else tile[0]
    part = x[i, 1:3] if i < 5 else x[0, 2:4]
    out[i, 0] = row[1] + shared_row[2] + local_row[3]
    out[i, 1] = mine[0, 0] + 10000 * mine[1, 0]
    out[i, 2] = other[i % 4] + 10000 * part[1]


def test_a_variable_may_hold_another_row_in_each_thread():
    x, (got, want) = np.arange(128).reshape(32, 4), np.zeros((2, 32, 3), int)
    simt.run(choose_rows, 1, 32, x, got)
    greenlet_oracle.launch(choose_rows, 1, 32, x, want)
    np.testing.assert_array_equal(got, want)


# --- records ----------------------------------------------------------------------------------


@cuda.jit
def read_and_write_fields(particles):
    i = cuda.grid(1)
    particles[i].x = particles[i].y * 2
    particles[i].mass += particles[i].name


@cuda.jit
def read_a_neighbours_field(particles):
    i = cuda.grid(1)
    p = particles[i]
    p.x = particles[(i + 1) % particles.size].x


def some_particles():
    particles = np.zeros(64, PARTICLE)
    particles["y"], particles["name"], particles["mass"] = 0.5, np.arange(64), 1
    return particles


def test_fields_of_one_record_do_not_race():
    particles = some_particles()
    simt.run(read_and_write_fields, 2, 32, particles)
    assert (particles["x"] == 1).all() and (particles["mass"] == 1 + np.arange(64)).all()


def test_one_field_of_two_records_races():
    with pytest.raises(RaceError, match=r"race on particles\.x\[\d+\]") as caught:
        simt.run(read_a_neighbours_field, 2, 32, some_particles())
    first = read_a_neighbours_field.py_func.__code__.co_firstlineno
    assert set(caught.value.lines) == {first + 4}


def test_the_meter_sees_the_size_of_a_record():
    trace = simt.trace(read_and_write_fields, 2, 32, some_particles())
    y, mass = trace.arrays["particles.y"], trace.arrays["particles.mass"]
    assert PARTICLE.itemsize == 24
    assert (y.loads, y.load_bytes, y.load_sectors) == (64, 256, 2 * 24)
    assert (mass.loads, mass.stores, mass.store_bytes) == (64, 64, 512)


def test_a_variable_may_hold_another_record_in_each_thread():
    body = """
        i = cuda.grid(1)
        p = particles[i]
        if i % 2:
            p = particles[63 - i]
        out[i] = p.mass
    """
    particles = some_particles()
    particles["mass"] = np.arange(64)
    found = ran(body, 32, 2, particles=particles, out=np.zeros(64))
    assert found == [63 - i if i % 2 else i for i in range(64)]


# --- grids that wait --------------------------------------------------------------------------


def make_neighbours(WAITS):
    @cuda.jit
    def neighbours(x, out):
        i = cuda.grid(1)
        x[i] = i
        if WAITS:
            cuda.cg.this_grid().sync()
        out[i] = x[(i + 40) % x.size]

    return neighbours


@pytest.mark.parametrize("lanes", [64, 32768])
def test_a_grid_barrier_orders_blocks(lanes, monkeypatch):
    """However many lanes run at once: blocks that wait run together."""
    monkeypatch.setattr("numba_cuda_simulator.launch.LANES_PER_BATCH", lanes)
    x, out = np.zeros(2000), np.zeros(2000)
    simt.run(make_neighbours(True), 50, 40, x, out)
    np.testing.assert_array_equal(out, np.roll(np.arange(2000), -40))
    with pytest.raises(RaceError, match="race on x"):
        simt.run(make_neighbours(False), 50, 40, x, out)


def test_a_missing_grid_barrier_breaks_the_answer():
    x, out = np.zeros(80), np.zeros(80)
    trace = simt.trace(make_neighbours(False), 2, 40, x, out)
    assert trace.races and (out == 0).any()


# --- bfloat16 ---------------------------------------------------------------------------------


def test_bfloat16_arrays():
    """NumPy has them from the package ml_dtypes; a product with a float32 is a float32."""
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

    @cuda.jit
    def kernel(x, y, product, wide):
        i = cuda.grid(1)
        product[i] = x[i] * y[i] + x[i] if x[i] < y[i] else x[i]
        wide[i] = x[i] * wide[i] + float32(y[i])

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 64)).astype(bfloat16)
    product, wide = np.zeros(64, bfloat16), np.full(64, 3, np.float32)
    trace = simt.trace(kernel, 2, 32, x, y, product, wide)
    np.testing.assert_array_equal(product, np.where(x < y, x * y + x, x))
    np.testing.assert_allclose(wide, 3 * x.astype("f4") + y.astype("f4"), rtol=1e-6)
    assert trace.arrays["product"].store_bytes == 128
