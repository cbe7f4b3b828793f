"""What kernels and programs that nobody here wrote use: dialects, ufuncs, a GPU to be found."""

import asyncio
import builtins
import importlib.util
import math
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from compiled import compile_ptx, compiler_available
from numba import cuda, float32, guvectorize, literal_unroll, vectorize
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator import generated, present
from numba_cuda_simulator.errors import KernelIndexError, UnsupportedError

X = np.arange(8, dtype=np.float32)
DIRECTIONS = ((0, 1), (1, 0), (0, -1))
settings = types.ModuleType("settings")
settings.SCALE, settings.TYPE, settings.TABLE = 3, np.float32, np.array([1.0, 2.0])


@cuda.jit(device=True)
def doubled(x):
    return 2 * x


@cuda.jit(device=True)
def second(x, *others):
    return others[x]


settings.doubled, settings.second = doubled, second


def value_of(expression, *arrays):
    """Return what a kernel of one thread stores for an expression of its arrays."""
    run_cell = f"@cuda.jit\ndef kernel(x, y, out):\n    out[0] = {expression}\n"
    world = run(run_cell)
    x, y = (*arrays, X, X)[:2]
    out = np.zeros(1)
    simt.run(world["kernel"], 1, 1, x, y, out)
    return out[0]


def run(source, **more):
    """Run a text as a file is run, so that the engine finds its source."""
    world = {"cuda": cuda, "np": np, "math": math, "settings": settings, "D": DIRECTIONS, **more}
    return run_text(textwrap.dedent(source), world)


# --- names ------------------------------------------------------------------------------------


EXPRESSIONS = [
    ("settings.SCALE", 3), ("settings.TYPE(1) / 3", np.float32(1) / 3),
    ("settings.doubled(x[2])", 4), ("settings.TABLE[1]", 2), ("D[x.size % 3][0] * 10 + D[1][1]", 0),
    ("settings.second(1, 2, x[5]) + x.size.bit_count() + x.flat[2]", 8),
    ("x.sum()", 28), ("sum(x)", 28), ("np.prod(x[1:4])", 6), ("x.mean()", 3.5), ("x.var()", 5.25),
    ("x.std()", 5.25**0.5), ("x.argmax()", 7), ("np.argmin(x)", 0), ("x.any() + 2 * x.all()", 1),
    ("x[2:3].item()", 2), ("x.nbytes + np.size(x) + np.shape(x)[0]", 48),
    ("np.arctan2(x[1], x[2])", np.arctan2(np.float32(1), np.float32(2))),
    ("cuda.float32x4(1, 2, 3, 4).w + cuda.int2(5, 6).y", 10),
    ("cuda.float4(cuda.float2(1, 2), 3, 4).y", 2),
    ("cuda.libdevice.sqrtf(x[4]) + cuda.libdevice.fmax(1.0, 5.0)", 7),
    ("cuda.libdevice.float2int_rz(x[3] + 0.75) + cuda.libdevice.umulhi(2**31, 4)", 5),
    ("cuda.libdevice.float_as_int(x[1])", 0x3F800000),
    ("cuda.libdevice.round(2.5) + cuda.libdevice.rint(2.5)", 5), ("cuda.ldcg(x, 3)", 3),
    ("np.hypot(x[3], x[4]) + np.bitwise_and(6, 3) + np.logical_and(x[0], x[1])", 7),
    ("np.divide(3, 2) + np.left_shift(1, 3) + np.invert(5) + np.degrees(x[0])", 3.5),
    ("np.fmax(x[0], x[1]) + np.equal(1, 1) + np.not_equal(x[1], 1)", 2),
    ("((1, 2) + (3,))[2] + sum((1, x[2]))", 6),
    ("x.reshape(2, -1).transpose()[1, 1] + y.reshape(4, 2)[1, 0] + cuda.types.int8(2.5)", 9),
    ("np.finfo(np.float32).max + np.iinfo(np.uint64).max", np.finfo(np.float32).max + 2.0**64),
]  # fmt: skip

OF_MLIR = [  # what numba-cuda-mlir alone compiles
    ("np.complex64(x[1], x[2]).imag", 2),
    ("x.min() + x.max() + np.nanmax(x) + np.nanmin(x[3:]) + np.nansum(x)", 45),
    ("np.count_nonzero(x) + np.nanmean(x)", 10.5),
    ("(2 * cuda.float32x2(1, x[3]) - cuda.int2(1, 1) / 2.0).y", 5.5),
]


@pytest.mark.parametrize("expression, value", EXPRESSIONS + OF_MLIR)
def test_expressions(expression, value):
    assert value_of(expression) == pytest.approx(value, rel=1e-7)


def test_numba_compiles_them():
    if not compiler_available():
        pytest.skip("needs libNVVM")
    lines = [f"    out[{n}] = {e}" for n, (e, _) in enumerate(EXPRESSIONS)]
    kernel = run("@cuda.jit\ndef kernel(x, y, out):\n" + "\n".join(lines))["kernel"]
    compile_ptx(kernel, [X, X, np.zeros(99)])


@cuda.jit
def walk(steps, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        dx, dy = DIRECTIONS[steps[i]]
        out[i] = 10 * dx + dy


def test_each_thread_indexes_a_tuple():
    steps, out = np.array([0, 1, 2, -1]), np.zeros(4)
    simt.run(walk, 1, 32, steps, out)
    np.testing.assert_array_equal(out, [1, 10, -1, -1])


@cuda.jit
def deposit(z, values):
    i = cuda.grid(1)
    cuda.atomic.add(z.real, (i % 2, 0), values[i])
    cuda.atomic.add(z[1].imag, 1, 1.0)


def test_parts_of_complex_arrays():
    z = np.zeros((2, 2), np.complex128)
    simt.run(deposit, 2, 4, z, X)
    np.testing.assert_array_equal(z, [[12, 0], [16, 8j]])
    racy = run("@cuda.jit\ndef k(z):\n    z.real[0] = cuda.grid(1)\n")["k"]
    with pytest.raises(simt.errors.RaceError, match=r"z.real\[0"):
        simt.run(racy, 1, 32, np.zeros(2, complex))


@cuda.jit
def agree(flag, out):
    i = cuda.grid(1)
    if i == 0:
        flag[0] = 1.0
    flag[0] = 2.0
    out[i] = flag[0]


def test_all_threads_store_one_value():
    """Thread 0 stores another one before; it and all others store the same: no order matters."""
    out = np.zeros(64)
    with pytest.warns(simt.errors.KernelWarning, match="all threads store one value"):
        simt.run(agree, 2, 32, np.zeros(1), out)
    assert (out == 2).all()
    others = "@cuda.jit\ndef k(flag):\n    i = cuda.grid(1)\n    if i == 0:\n"
    others += "        flag[0] = 1.0\n    if i > 0:\n        flag[0] = 2.0\n"
    with pytest.raises(simt.errors.RaceError, match="WAW"):
        simt.run(run(others)["k"], 2, 32, np.zeros(1))


SETTINGS = {"sizes": [2, 3], "name": "b"}


@cuda.jit
def known_before(x, pairs, out):
    tile = cuda.local.array(cuda.consteval(SETTINGS["sizes"][1] + 1), np.float32)
    with cuda.consteval():
        chosen = dict(SETTINGS)
        factor = math.comb(5, chosen["sizes"][0])
    for k in cuda.consteval(range(len(SETTINGS["sizes"]))):
        out[k] = factor + cuda.consteval(sum([n * n for n in SETTINGS["sizes"]]))
    for k, n in cuda.consteval(enumerate(SETTINGS["sizes"])):
        out[2 + k] = n * tile.size if cuda.consteval(SETTINGS["name"] == "b") else 0
    base = cuda.consteval(factor + 1)
    sums = cuda.local_array_from((a + 2 * b for a, b in pairs), dtype=np.float32)
    out[4] = cuda.consteval(x.ndim) + cuda.consteval(chosen["sizes"][1] * base) + sums[1]


def test_consteval():
    """Python runs what numba-cuda-mlir's compiler runs: dicts, lists, comprehensions."""
    with simt.options(compiled="always"):  # which leaves them to the engine
        simt.run(known_before, 1, 1, X, ((1, 2), (3, 4)), out := np.zeros(5))
    np.testing.assert_array_equal(out, [23, 23, 8, 12, 45])


def test_negative_indices():
    kernel = run("@cuda.jit\ndef k(x, o):\n    i = cuda.grid(1)\n    o[i] = x[i - 2]\n")["k"]
    with simt.options(wrap=True):
        for threads in (1, 8):
            out = np.zeros(8, np.float32)
            simt.run(kernel, 1, threads, X, out)
            np.testing.assert_array_equal(out[:threads], np.roll(X, 2)[:threads])
        with pytest.raises(KernelIndexError, match="index -2 .* size is 1"):
            simt.run(kernel, 1, 1, X[:1], out)


# --- ufuncs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decorate", [
    pytest.param(vectorize, id="numba"),
    pytest.param(
        getattr(cuda, "vectorize", None), id="numba-cuda",
        marks=pytest.mark.skipif(not hasattr(cuda, "vectorize"), reason="needs numba-cuda"),
    ),
])  # fmt: skip
def test_vectorize(decorate):
    @decorate(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
    def hypotenuse(a, b):
        return math.sqrt(a * a + b * b)

    got = hypotenuse(X, X[:, None])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.hypot(X, X[:, None]), rtol=1e-6)
    assert isinstance(hypotenuse(cuda.to_device(X), cuda.to_device(X)), type(cuda.to_device(X)))
    out = np.zeros(8)
    assert hypotenuse(X.astype(float), 3, out=out) is out
    np.testing.assert_allclose(out, np.hypot(X, 3))
    with pytest.raises(TypeError, match="no signature takes"):
        hypotenuse(X, X.astype(np.int64))
    with pytest.raises(TypeError, match="takes 2 inputs"):
        hypotenuse(X)
    doubled = decorate(["float32(float32)"], target="cuda")(lambda a: 2 * a)
    np.testing.assert_array_equal(doubled(X), 2 * X)


def test_reduce_of_a_ufunc():
    @vectorize(["int64(int64, int64)"], target="cuda")
    def add(a, b):
        return a + b

    assert add.reduce(np.arange(11)) == 55


def test_guvectorize():
    types_ = "void(float32[:,:], float32[:,:], float32[:,:])"

    @guvectorize([types_], "(m,n),(n,p)->(m,p)", target="cuda")
    def matmul(a, b, c):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                total = float32(0)
                for k in range(b.shape[0]):
                    total += a[i, k] * b[k, j]
                c[i, j] = total

    a, b = (np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, *s) for s in ((3, 4), (4, 3)))
    np.testing.assert_allclose(matmul(a, b), a @ b)
    np.testing.assert_allclose(matmul(a, b[0]), a @ b[0])
    with pytest.raises(ValueError, match="axis 'n' has 4 and 3"):
        matmul(a, a)

    @guvectorize(["void(float32[:], float32, float32[:])"], "(n),()->()", target="cuda")
    def count(x, limit, out):
        for i in range(x.size):
            out[0] += x[i] > limit

    np.testing.assert_array_equal(count(X.reshape(2, 4), 2), [1, 4])


# --- the GPU that a program finds -------------------------------------------------------------


@pytest.mark.skipif(simt.has_gpu(), reason="there is a GPU")
def test_the_gpu_that_a_program_finds():
    assert len(cuda.gpus) == 1 and cuda.gpus[0] is cuda.get_current_device()
    with cuda.gpus[0]:
        assert cuda.current_context().device.compute_capability == (7, 5)
    assert cuda.current_context().get_memory_info().total == 16e9
    with simt.options(device="H100"):
        assert cuda.get_current_device().MULTIPROCESSOR_COUNT == 132
        assert b"H100" in cuda.select_device(0).name
    with pytest.raises(present.NoSuchDevice, match="one GPU"):
        cuda.select_device(1)
    with pytest.raises(present.NoSuchDevice, match="one GPU"):
        cuda.current_context(1)
    context = cuda.require_context(cuda.current_context)()
    with context, context.defer_cleanup(), cuda.defer_cleanup(), cuda.profiling():
        for nothing in context.push, context.pop, context.reset, cuda.synchronize, cuda.close:
            assert nothing() is None
    assert not cuda.is_available(), "only where the program is to take the engine for a GPU"
    assert cuda.is_cuda_array(cuda.to_device(X)) and not cuda.is_cuda_array(X)


@cuda.jit
def add_one(x):
    x[cuda.grid(1)] += 1


def test_streams_events_and_copies():
    """All work is done when a call returns. Calls that a GPU refuses raise."""
    stream, heard = cuda.stream(), []
    stream.add_callback(lambda *said: heard.append(said), "a")

    async def wait():
        return await stream.async_done()

    assert heard == [(stream, 0, "a")] and asyncio.run(wait()) is stream
    x, out = X.copy(), np.zeros_like(X)
    start, end = cuda.event(), cuda.event(timing=False)
    with (
        cuda.pinned(x, out),
        stream.auto_synchronize(),
        pytest.raises(RuntimeError, match="record"),
    ):
        device = cuda.to_device(x, stream)
        start.record(stream)
        add_one[1, 8, stream](device)
        device.copy_to_host(out, stream)
        cuda.event_elapsed_time(start, end)
    end.record()
    end.wait(stream)
    end.synchronize()
    assert start.query() and start.elapsed_time(end) >= 0
    np.testing.assert_array_equal(out, X + 1)
    assert (x == X).all(), "to_device copies"
    assert np.isnan(cuda.device_array(4, np.float32).copy_to_host()).all()  # which must show
    assert device.reshape(2, 4).T[0, 1] == 5 and device[2:].shape == (6,)
    with cuda.mapped(x) as one, cuda.mapped(x, out) as two:
        for array in one, *two, (other := cuda.mapped_array_like(x)):
            add_one[1, 8](array)
    np.testing.assert_array_equal([x, out, other], [X + 2, X + 2, np.ones(8)])
    parts = [part.copy_to_host().tolist() for part in device.split(3)]
    device.setitem(0, 5, stream)
    assert parts == [[1, 2, 3], [4, 5, 6], [7, 8]] and device.getitem(0) == 5
    columns = np.zeros((8, 2), np.float32)
    for host, error in (np.zeros(8), TypeError), (x[:7], ValueError), (columns[:, 0], ValueError):
        with pytest.raises(error, match="a GPU copies bytes"):
            device.copy_to_host(host)
    device.reshape(8, 1).squeeze().copy_to_device(columns[:, 0])
    with pytest.raises(TypeError, match="float32 and float64"):
        device.copy_to_device(np.zeros(8))
    assert not device.copy_to_host().any()


PROGRAM = """
    import numpy as np
    {imports}
    {decorator}
    def reverse(x, out):
        tile = cuda.shared.array(32, {float32})
        t = cuda.threadIdx.x
        tile[t] = x[t]
        {barrier}
        out[t] = tile[31 - t]

    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    reverse[1, 32](x, out)
    assert (out == x[::-1]).all() and cuda.to_device(x).copy_to_host()[3] == 3
    print("right")
"""
NUMBA = "from numba import cuda, float32\nassert cuda.is_available() and len(cuda.list_devices())"
OWN = "from numba_cuda_simulator import cuda\nassert len(cuda.gpus) == 1"
MLIR = "from numba_cuda_mlir import cuda\nfrom numba_cuda_mlir.types import float32"
ONE_BY_ONE = MLIR + "\nfrom numba_cuda_mlir.cuda import shared, syncthreads, threadIdx"


def program(tmp_path, imports, barrier="cuda.syncthreads()", **others):
    others = {"decorator": "@cuda.jit", "float32": "float32"} | others
    file = tmp_path / "program.py"
    with file.open("a") as text:
        text.write(textwrap.dedent(PROGRAM).format(imports=imports, barrier=barrier, **others))
    return file


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)], capture_output=True, text=True
    )


SIGNATURE = {"decorator": '@cuda.jit("void(float32[:], float32[:])")'}
OF_TYPES = {"decorator": "@cuda.jit((float32[:], float32[:]))"}


@pytest.mark.parametrize("how, programs", [
    (["-m", "numba_cuda_simulator", "run"], [(NUMBA, {})]),
    ([], [(OWN, {"float32": "cuda.float32"}), (OWN, {"float32": "np.float32"} | SIGNATURE)]),
    (["-m", "numba_cuda_simulator", "run"], [(MLIR, OF_TYPES), (ONE_BY_ONE, SIGNATURE)]),
], ids=["numba", "own", "mlir"])  # fmt: skip
def test_dialects(tmp_path, how, programs):
    """The programs of a dialect are one file, one after the other."""
    if programs[0][0] == MLIR and not importlib.util.find_spec("numba_cuda_mlir"):
        pytest.skip("needs numba-cuda-mlir")
    for imports, others in programs:
        file = program(tmp_path, imports, **others)
    done = command(*how, file)
    assert done.returncode == 0 and done.stdout == "right\n" * len(programs), done.stderr


def test_commands(tmp_path):
    """A race ends `run` with status 1 and its lines, and is in what `trace` prints."""
    file = program(tmp_path, NUMBA, barrier="pass")
    run, trace, other = (
        command("-m", "numba_cuda_simulator", *words)
        for words in (["run", file], ["trace", f"{file}:reverse"], ["trace", f"{file}:revers"])
    )
    assert run.returncode == 1 and "RaceError: RAW race on tile[31]" in run.stderr
    assert trace.returncode == 1 and "race" in trace.stdout.lower()
    assert other.returncode == 1 and "'revers' was not launched" in other.stderr


TESTS = """
    import numpy as np, pytest
    from numba import cuda, float32

    pytestmark = pytest.mark.skipif(not cuda.is_available(), reason="no GPU")

    @cuda.jit
    def reverse(x, out, barrier):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t - 1]
        if barrier:
            cuda.syncthreads()
        out[t] = tile[31 - t]

    @pytest.mark.parametrize("barrier", [0, 1])
    def test_reverse(barrier):
        x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        reverse[1, 32](x, out, barrier)
        assert (out == np.roll(x, 1)[::-1]).all()

    def test_refused():
        @cuda.jit
        def k(x):
            x[0] = (lambda: 1)()
        k[1, 1](np.zeros(1))
"""


PYTEST = """
import os, sys

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the plug-in may be installed, and may not
import pytest

words = "-q", "-p", "pytest_simt", "-p", "no:cacheprovider"
for n, options in enumerate({runs}):
    pytest.main([*words, sys.argv[1] + f"/test_{{n}}.py", *options])
    print("=end=")
"""


@pytest.mark.skipif(simt.has_gpu(), reason="there is a GPU")
def test_pytest_plugin(tmp_path):
    """Skipped without --simt; with it one passes, one races, one is refused, and all is counted."""
    for n in range(3):  # a file for each run, since a module is imported once
        (tmp_path / f"test_{n}.py").write_text(textwrap.dedent(TESTS))
    runs = ["--simt"], ["--simt", "--simt-ignore=races", "--simt-negative"]
    output = command("-c", PYTEST.format(runs=([], *runs)), tmp_path).stdout
    skipped, said, ignored, _ = output.split("=end=")
    assert "3 skipped" in skipped
    assert "1 passed" in said and "2 failed" in said
    assert (
        "1 x RaceError: RAW race on tile[31]" in said and "1 x UnsupportedError: a lambda" in said
    )
    assert "RaceError" not in ignored and "2 x KernelIndexError: index -1" in ignored


# --- locks ------------------------------------------------------------------------------------

LOCKS = """
    @cuda.jit(device=True)
    def lock(m):
        while cuda.atomic.cas(m, 0, 0, 1) != 0:
            pass
        {fence}

    @cuda.jit
    def kernel(m, x):
        if {who}:
            lock(m)
            x[0] += 1
            {inside}
            {fence}
            cuda.atomic.exch(m, 0, 0)
        {after}
"""


def locked(who="cuda.grid(1) >= 0", fence="cuda.threadfence()", inside="pass", after="pass"):
    kernel = run(LOCKS.format(who=who, fence=fence, inside=inside, after=after))["kernel"]
    x = np.zeros(1, np.int64)
    simt.run(kernel, 2, 8, np.zeros(1, np.int32), x)
    return x[0]


def test_spin_locks():
    assert locked() == 16
    one = "cuda.threadIdx.x == 0"
    assert locked(one, after="cuda.syncthreads()") == 2  # blocks wait for each other alone
    assert locked(one, inside="cuda.syncwarp(1)") == 2
    with pytest.raises(simt.errors.RaceError, match="A lock orders them only if a cuda.threadf"):
        locked(fence="pass")
    with pytest.raises(simt.errors.BarrierDivergenceError, match=r"while it holds the lock m\[0\]"):
        locked(inside="cuda.syncthreads()")
    with pytest.raises(UnsupportedError, match="Let one thread of each block take the lock"):
        locked(after="cuda.syncthreads()")


def test_blocks_that_wait_for_the_block_before():
    source = """
        @cuda.jit
        def kernel(flags, x):
            b = cuda.blockIdx.x
            if b > 0:
                while cuda.atomic.add(flags, {before}, 0) == 0:
                    pass
                cuda.threadfence()
                x[b] = x[b - 1] + 1
            cuda.threadfence()
            cuda.atomic.exch(flags, b, 1)
    """
    x = np.zeros(4, np.int64)
    simt.run(run(source.format(before="b - 1"))["kernel"], 4, 1, np.zeros(4, np.int32), x)
    np.testing.assert_array_equal(x, range(4))
    with pytest.raises(UnsupportedError, match="one that comes later"):
        simt.run(run(source.format(before="b + 1"))["kernel"], 4, 1, np.zeros(5, np.int32), x)


# --- what programs around kernels do -----------------------------------------------------------


PACKED = np.dtype([("kind", "i1"), ("x", "f8"), ("v", "f4", 3), ("in", [("q", "i2"), ("w", "f8")])])


@cuda.jit
def move(particles, column, one):
    i = cuda.grid(1)
    if i < particles.size:
        particles[i].x += i
        particles[i].v[1] = i
        particles[i]["in"].w = 2 * i
        column[i] += i
        cuda.atomic.add(particles[0].v, 2, 1)
    if i == 0:
        one.x = one[0] + 7


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_packed_records(compiled):
    """Their fields lie anywhere; so do those of a column, which may be given twice."""
    particles, other, one = np.zeros(5, PACKED), np.zeros(5, PACKED), np.ones(1, PACKED)[0]
    with simt.options(compiled=compiled):
        simt.run(move, 1, 32, particles, other["in"]["w"], one)
    np.testing.assert_array_equal(particles["x"], range(5))
    np.testing.assert_array_equal(particles["in"]["w"], 2 * np.arange(5))
    np.testing.assert_array_equal(other["in"]["w"], range(5))
    assert one["x"] == 8 and particles["v"][0, 2] == 5 and particles["v"][3, 1] == 3


def test_functions_made_by_exec(monkeypatch):
    monkeypatch.setattr(builtins, "exec", generated.keeping_source(exec))  # as enable(as_gpu=True)
    world = {}
    for factor in 2, 3:  # two texts from one line
        exec(f"def kernel(x):\n    x[cuda.grid(1)] *= {factor}", {"cuda": cuda}, world)
        simt.run(world["kernel"], 1, 8, x := X.copy())
        np.testing.assert_array_equal(x, factor * X)
    exec("first = X[1]\ndef unused(): pass", None, world)
    assert world["first"] == 1


@cuda.jit(device=True)
def digits(a, b, c):
    return a + 10 * b + 100 * c


@cuda.jit
def sequences(x, y, filled, out):
    for j, (a, b) in enumerate(zip(x, y)):  # noqa: B905
        out[j] = digits(*(a, b), j)
    for (j, a), b in zip(enumerate(x, 3), y):  # noqa: B905
        out[j] = a * b
    for n in literal_unroll((1, 2.5)):
        out[6] += n
    for j, k in np.ndindex(2, 2):
        match j + k:
            case 0 | 1 as n if n:
                out[6] += n
            case n if n > 1:
                out[6] += 10 * n
            case _:
                out[6] += 100
    np.sin(x, x)
    np.maximum(x, y[2], y)
    cuda.atomic.max(out, 7, 1.0)
    cuda.atomic.nanmax(out, 8, 1.0)
    filled.fill(7)
    filled.flat[1] += 1


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_loops_and_whole_arrays(compiled):
    x, y, out = np.arange(3.0), np.arange(3.0) + 1, np.zeros(9)
    out[7:] = np.nan
    with simt.options(compiled=compiled):
        simt.run(sequences, 1, 1, x, y, filled := np.zeros(2), out)
    np.testing.assert_array_equal(out, [10, 121, 232, 0, 2, 6, 125.5, np.nan, 1])
    np.testing.assert_array_equal(x, np.sin(np.arange(3.0)))
    np.testing.assert_array_equal(y, [3, 3, 3])
    np.testing.assert_array_equal(filled, [7, 8])


@pytest.mark.skipif(simt.has_gpu(), reason="a GPU compiles")
def test_a_kernel_that_is_not_compiled():
    kernel = run("@cuda.jit\ndef kernel(x):\n    x[cuda.grid(1)] = 1\n")["kernel"]
    kernel.configure(1, 8)(X.copy())
    kernel[1, 8](X.copy())
    configured = kernel[2, 8, 0, 16]
    assert (configured.griddim, configured.blockdim, configured.sharedmem) == (2, 8, 16)
    assert kernel.py_func.__name__ == kernel.__name__ and not kernel.specialized
    (types_,) = kernel.signatures
    assert kernel.overloads[types_].max_cooperative_grid_blocks(1024) > 1
    assert kernel.specialize(X).get_max_threads_per_block() == 1024
    for name in "inspect_asm", "get_regs_per_thread":
        with pytest.raises(simt.errors.FieldError, match="'kernel' has no .*: it runs on the CPU"):
            getattr(kernel, name)()
