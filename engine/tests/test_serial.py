"""A launch of one thread, which runs without masks, does what the lockstep machine does."""

import numpy as np
import pytest
from numba import cuda, float32, int8, int32, uint8
from random_kernels import random_program
from simt_kernels import ZOO
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator import launch
from numba_cuda_simulator.errors import (
    KernelError,
    KernelIndexError,
    KernelNameError,
    UnsupportedError,
)
from numba_cuda_simulator.serial import SerialTransformer


def outcome(kernel, args):
    """Return the arguments after a launch of one thread, and what it raised."""
    try:
        simt.run(kernel, 1, 1, *args)
    except KernelError as error:
        return args, (type(error), str(error), error.lines)
    return args, None


def assert_same(kernel, arguments, monkeypatch):
    serial, error = outcome(kernel, arguments())
    with monkeypatch.context() as patch:
        patch.setattr(launch, "machine_for", lambda *_: launch.Machine)
        lockstep, expected = outcome(kernel, arguments())
    assert error == expected
    for a, b in zip(serial, lockstep, strict=True):
        np.testing.assert_array_equal(a, b)


def kernel_of(source, **world):
    world = {"cuda": cuda, "float32": float32, "int8": int8, "uint8": uint8, **world}
    return run_text(source, world)["kernel"]


@pytest.mark.parametrize("case", ZOO, ids=[case.name for case in ZOO])
def test_zoo(case, monkeypatch):
    assert_same(case.kernel, case.arguments, monkeypatch)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(x, marks=pytest.mark.thorough) for x in (10, 20))]
)
def test_random_programs(first, monkeypatch):
    for seed in range(first, first + 10):
        program = random_program(seed)
        assert_same(program.kernel(), program.arguments, monkeypatch)


INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
EXPRESSIONS = (
    """
x[0] + x[1] ; x[0] - x[1] ; x[0] * x[1] ; x[0] + 1 ; x[0] / x[1] ; x[0] / 2 ; x[0] // x[1]
x[0] % 3 ; x[0] // 3 ; x[0] & x[1] ; x[0] ^ 5 ; x[0] | x[1] ; x[0] << 3 ; x[0] >> 1 ; x[0] ** 2
-x[0] ; ~x[0] ; not x[0] ; abs(x[0]) ; min(x[0], x[1]) ; max(x[0], 3) ; float32(2.5) * x[0]
float32(2.5) + x[1] ; x[0] / float32(3) ; x[0] == x[1] ; x[0] < x[1] < x[2] ; x[0] > 2.5
x[0] or x[1] ; x[0] and x[2] ; x[0] if x[1] > x[2] else x[2] ; x[0] if x[1] > x[2] else 7
y[x[2]] ; y[x[2] + 1] ; v + v ; v * 1.5 ; -v ; w ; cuda.popc(v) ; cuda.clz(u) ; u + u
""".strip()
    .replace("\n", " ; ")
    .split(" ; ")
)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("out", ["float64", "int32", "uint8"])
def test_types(dtype, out, monkeypatch):
    """A narrow integer may pass for an int64 only where nobody can tell."""
    lines = ["@cuda.jit", "def kernel(x, y, out):", "    u = x[1]", "    v = x[0]"]
    lines += ["    w = v", "    if u > v:", "        w = x[2]", "    x[3] = u", "    x[4] += v"]
    lines += ["    x[5], x[6] = x[6], x[5]", "    for i in range(x[2]):", "        x[7] = i - 1"]
    no_bits = ("-", "~", "abs", "cuda.") if dtype == "bool" else ()  # of a truth value
    for n, expression in enumerate(EXPRESSIONS):
        if not expression.startswith(no_bits or "?"):
            lines.append(f"    out[{n}] = {expression}")
    kernel = kernel_of("\n".join(lines))
    values = np.array([100, 120, 2, 0, 90, 5, 6, 7]).astype(dtype)

    def arguments():
        return values.copy(), np.arange(20.0), np.zeros(len(EXPRESSIONS), out)

    assert_same(kernel, arguments, monkeypatch)


def test_negative_strides_and_two_axes(monkeypatch):
    @cuda.jit
    def kernel(x, y, out):
        rows, columns = y.shape
        for i in range(len(x)):
            out[i % rows, i // rows] += x[i] + x[len(x) - 1 - i]
        for i in range(1, rows):
            for j in range(columns):
                y[i, j] += y[i - 1, columns - j - 1]

    def arguments():
        y = np.arange(24.0).reshape(4, 6)
        return np.arange(12)[::-1], y[::-1, ::2], np.zeros((3, 4), np.int32).T

    assert_same(kernel, arguments, monkeypatch)


@pytest.mark.parametrize(
    "index", ["n", "-1 * n", "n - 1 + 1", "i + n", "i - 3", "2.0", "n + 2**62"]
)
def test_bad_index(index, monkeypatch):
    source = f"@cuda.jit\ndef kernel(x, n):\n    for i in range(2):\n        x[{index}] = x[i]"
    kernel = kernel_of(source)
    assert_same(kernel, lambda: (np.zeros(3), np.int64(3)), monkeypatch)
    with pytest.raises(KernelIndexError):
        simt.run(kernel, 1, 1, np.zeros(3), 3)


def test_literal_negative_index(monkeypatch):
    @cuda.jit
    def kernel(x, y):
        x[-1] = y[-1, 0] + y[0, -2]
        x[-2] += x[-1]

    assert_same(kernel, lambda: (np.zeros(3), np.arange(6.0).reshape(2, 3)), monkeypatch)


def test_integers_overflow(monkeypatch):
    @cuda.jit
    def kernel(x, out):
        state = x[0]
        for i in range(20):
            state = state * 6364136223846793005 + 1442695040888963407
            out[i] = state
            x[2] = state

    assert_same(
        kernel, lambda: (np.array([3, 4, 5], np.int32), np.zeros(20, np.int64)), monkeypatch
    )


def test_loop_variable_keeps_its_value(monkeypatch):
    @cuda.jit
    def kernel(x, out):
        i = 7
        for i in range(3):
            x[i] = i
            if i == 1:
                continue
            x[i + 1] = 5
        for j in range(10):
            if x[j] == 5:
                break
        out[0], out[1] = i, j
        for i in range(0):
            x[i] = 9
        out[2] = i

    assert_same(kernel, lambda: (np.zeros(10), np.zeros(3)), monkeypatch)


def test_undefined_variable(monkeypatch):
    @cuda.jit
    def kernel(x):
        if x[0] > 1:
            y = x[0]
        z = y
        x[1] = z

    assert_same(kernel, lambda: [np.zeros(2)], monkeypatch)
    with pytest.raises(KernelNameError):
        simt.run(kernel, 1, 1, np.zeros(2))


def test_loop_that_never_turned(monkeypatch):
    @cuda.jit
    def kernel(x, n):
        for i in range(n):
            x[i] = i
        x[i + 1] = 5

    for n in (0, 1):
        assert_same(kernel, lambda n=n: (np.zeros(2), np.int64(n)), monkeypatch)
    with pytest.raises(KernelNameError, match="'i' is read"):
        simt.run(kernel, 1, 1, np.zeros(2), 0)


def test_endless_loop():
    @cuda.jit
    def kernel(x):
        while x[0] == 0:
            pass

    with pytest.raises(UnsupportedError, match="never ends"):
        simt.run(kernel, 1, 1, np.zeros(1))


@pytest.mark.parametrize("filled", [8, 4], ids=["whole", "too few elements"])
def test_local_array_and_device_function(filled, monkeypatch):
    @cuda.jit(device=True)
    def fold(stack, n):
        total = 0
        for i in range(n):
            if stack[i] < 0:
                return total
            total += stack[i]
        return total

    @cuda.jit
    def kernel(x, out):
        stack = cuda.local.array(8, int32)
        for i in range(filled):
            stack[i] = x[i]
        out[0] = fold(stack, 8)
        out[1] = fold(stack, 3)

    assert_same(kernel, lambda: (np.array([3, 1, 4, 1, 5, -9, 2, 6]), np.zeros(2)), monkeypatch)


def test_read_only_array(monkeypatch):
    @cuda.jit
    def kernel(x):
        x[0] = 1.0

    def arguments():
        x = np.zeros(2)
        x.flags.writeable = False
        return [x]

    assert_same(kernel, arguments, monkeypatch)


def test_it_is_used(monkeypatch):
    """The tests above compare two machines: a launch of one thread takes the quick one."""
    rewritten = []
    run = SerialTransformer.run

    def noted(self):
        rewritten.append(self.name)
        return run(self)

    monkeypatch.setattr(SerialTransformer, "run", noted)
    kernel = kernel_of("@cuda.jit\ndef kernel(x):\n    x[0] = 1  # never seen before")
    simt.run(kernel, 1, 2, np.zeros(1))
    assert rewritten == []
    simt.run(kernel, 1, 1, np.zeros(1))
    assert rewritten == ["kernel"]
