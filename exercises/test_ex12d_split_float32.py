"""Grader of ex12d: float32 products by three of TF32, against float64."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory


def rounded(x):
    """The nearest TF32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def halves(exercise, x):
    """big and small of many numbers."""
    split = exercise.split

    @cuda.jit
    def ask(x, big, small):
        i = cuda.grid(1)
        if i < x.shape[0]:
            big[i], small[i] = split(x[i])

    x = np.float32(x)
    big, small = np.full((2, len(x)), np.nan, np.float32)
    simt.run(ask, -(-len(x) // 64), 64, x, big, small)
    return big, small


def random_numbers(n=500, seed=0):
    rng = np.random.default_rng(seed)
    return np.float32(rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n))


def test_big(exercise):
    """split: big is the nearest TF32"""
    x = random_numbers()
    big, _ = halves(exercise, x)
    wrong = big != rounded(x)
    if wrong.any():
        i = int(np.argmax(wrong))
        causes = ["big is x itself: to_tf32 rounds it."] if np.array_equal(big, x) else []
        raise Wrong(f"split({x[i]:.9g}): big must be {rounded(x)[i]:.9g}, got {big[i]:.9g}",
                    causes=causes, where="big")  # fmt: skip


def test_small(exercise):
    """split: small is a TF32, and the rest to 2^-22 of x"""
    x = random_numbers(seed=1)
    big, small = halves(exercise, x)
    off = np.abs(x.astype(np.float64) - big - small) / np.abs(x)
    if not (off <= 2.0**-21.9).all():
        i = int(np.argmax(~(off <= 2.0**-21.9)))
        raise Wrong(
            f"split({x[i]:.9g}): big + small is off by 2^{np.log2(off[i]):.1f} of x, at most 2^-22",
            causes=["small is what is left of x: x - big."],
            where="small",
        )
    assert (small == rounded(small)).all(), (
        "small must be a TF32: it has up to 13 bits, and a tensor core would drop two of them"
    )


def test_exact_numbers(exercise):
    """split: zeros, powers of two, and numbers that are TF32 already"""
    x = np.float32([0, 1, -2, 0.5, 3, 1025, 2047, -1e-3, 2.0**100])
    x[7] = rounded(x[7])
    big, small = halves(exercise, x)
    assert np.array_equal(big, x) and not small.any(), "x is a TF32: big is x, small is 0"


def random_arrays(rows, inner, columns, seed=0, positive=False):
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(s, np.float32) for s in ((rows, inner), (inner, columns)))
    return (np.abs(x), np.abs(y)) if positive else (x, y)


def run(exercise, x, y):
    given = {"x": x, "y": y, "out": np.full((len(x), y.shape[1]), np.nan, np.float32)}
    grid = -(-y.shape[1] // 32), len(x) // 16
    got, trace = launched(exercise.kernel, grid, (32, 4), ("out",), **given)
    return got["out"], trace


def error(out, exact):
    return float(np.linalg.norm(out - exact) / np.linalg.norm(exact))


def check(exercise, x, y):
    got, trace = run(exercise, x, y)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    plain = max(error(x @ y, exact), 6e-8)
    found = error(got, exact)
    if found <= 3 * plain:
        return trace
    x_big, y_big = (rounded(z).astype(np.float64) for z in (x, y))
    x_small, y_small = (rounded(z - rounded(z)).astype(np.float64) for z in (x, y))
    big = x_big @ y_big
    known = {
        "One product of TF32: the terms with small are missing.": big,
        "Two products: the term a_small b_big is missing.": big + x_big @ y_small,
        "Two products: the term a_big b_small is missing.": big + x_small @ y_big,
        "The term a_big b_big is missing.": x_small @ y_big + x_big @ y_small,
        "The products are added twice.": 2 * exact,
    }
    raise Wrong(
        f"{x.shape} by {y.shape}: the error is {found:.1e}, of plain float32 {plain:.1e}; at most "
        "three times that",
        causes=[c for c, r in known.items() if error(got, r) <= 3 * plain][:1],
        where="out",
    )


@pytest.mark.parametrize(
    "rows, inner, columns", [(16, 8, 8), (32, 64, 40), (16, 264, 8), (272, 8, 8), (16, 8, 264)]
)
def test_product(exercise, rows, inner, columns):
    """the error of float32, for any sizes"""
    check(exercise, *random_arrays(rows, inner, columns, seed=inner))


def test_positive(exercise):
    """the error of float32, where nothing cancels"""
    check(exercise, *random_arrays(16, 128, 8, positive=True))


def test_one_operand_is_tf32(exercise):
    """x or y of few bits: the other one's small part counts"""
    x, y = random_arrays(16, 32, 8, seed=3)
    check(exercise, rounded(x), y)
    check(exercise, x, rounded(y))


def test_sums_go_on(exercise):
    """d is added to, not replaced"""
    x, y = np.zeros((16, 16), np.float32), np.ones((16, 8), np.float32)
    x[:, 0], x[:, 15] = 3, 4
    got, _ = run(exercise, x, y)
    assert (got == 7).all(), f"3 in the first product and 4 in the second: 7, got {got[0, 0]:g}"


def test_three_products(exercise):
    """three products for each 8 columns of x, no shared memory"""
    x, y = random_arrays(16, 8, 8)
    _, trace = run(exercise, x, y)
    shuffles, most = trace.shuffles, 3 * 32  # on the engine an mma_tf32 is 32 shuffles
    assert shuffles <= most, f"mma_tf32 is called {shuffles / 32:g} times: three are enough"
    allowed = "fragments are local arrays, which a GPU keeps in registers"
    expect_chip_memory(trace, local=16 + 8 + 16 + 2 * 24, allowed=allowed)


def test_arguments_stay(exercise):
    """a and b stay as they are"""
    add_product = exercise.add_product

    @cuda.jit
    def ask(x, after):
        a = cuda.local.array(4, np.float32)
        b = cuda.local.array(2, np.float32)
        d = cuda.local.array(4, np.float32)
        lane = cuda.threadIdx.x
        for i in range(4):
            a[i], d[i] = x[lane, i], np.float32(0)
        for i in range(2):
            b[i] = x[lane, 4 + i]
        add_product(d, a, b)
        for i in range(4):
            after[lane, i] = a[i]
        for i in range(2):
            after[lane, 4 + i] = b[i]

    x = random_numbers(192).reshape(32, 6)
    after = np.zeros_like(x)
    simt.run(ask, 1, 32, x, after)
    assert (after == x).all(), "add_product has changed a or b: they are inputs"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, to the instruction, in float32 throughout"""
    x, y = random_arrays(16, 8, 8)
    gpu_ready(exercise.kernel, (x, y, np.zeros((16, 8), np.float32)))
