"""Grader of ex14e: powers of 2 by a polynomial, against NumPy's in float64."""

import numpy as np

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory

THREADS, MOST, TOLERANCE = 64, 8, 1e-4
EXACT = 5e-6  # the polynomial is off by 8.6e-5, exp2 of a library by less than this
C = 0.6951166391372681, 0.22764497995376587, 0.07706724107265472
ALLOWED = {"add", "mul", "fma", "max", "min", "floor", "compare", "neg", "trunc", "abs"}


def run(exercise, x):
    x = np.asarray(x, np.float32)
    y = np.full(len(x), np.nan, np.float32)
    got, trace = launched(exercise.kernel, -(-len(x) // THREADS), THREADS, ("y",), x=x, y=y)
    return x, got["y"], trace


def by_polynomial(n, f, c=C):
    """2^n p(f), in float64."""
    return 2.0**n * (1 + f * (c[0] + f * (c[1] + f * c[2])))


def mistakes(x):
    """What people compute in its place, by the sentence that names the mistake."""
    x = np.asarray(x, np.float64)
    down, nearest, inward = np.floor(x), np.rint(x), np.trunc(x)
    f = x - down
    return {
        "n is the nearest whole number: f is then from -0.5 to 0.5.": by_polynomial(
            nearest, x - nearest
        ),
        "n is rounded towards 0: below 0 f is then negative. Round down.": by_polynomial(
            inward, x - inward
        ),
        "The constants stand in the wrong order.": by_polynomial(down, f, C[::-1]),
        "Some powers of f are missing: three steps of Horner's form end with + 1.": by_polynomial(
            down, f, (*C[:2], 0.0)
        ),
        "That is 2^f: n is not added to the exponent.": by_polynomial(0.0, f),
        "That is e^x.": np.exp(x),
        "n is added twice, or bits are added below the exponent.": by_polynomial(2 * down, f),
    }


def expect(x, got, want, where):
    with np.errstate(all="ignore"):
        wrong = ~(np.abs(got - want) <= TOLERANCE * want)
    if not wrong.any():
        return
    i = int(np.argmax(wrong))
    with np.errstate(all="ignore"):
        causes = [
            said
            for said, y in mistakes(x).items()
            if np.allclose(got[wrong], y[wrong], rtol=2e-5, atol=0)
        ]
    if not np.isfinite(got[i]):
        causes.append("The bits that come back are those of no number: is p between 1 and 2?")
    raise Wrong(
        f"{where}: 2^{x[i]:.9g} must be {want[i]:.7g} within {TOLERANCE:g} of it, got {got[i]:.7g}",
        causes=causes,
        where=where,
    )


def check(exercise, x, where):
    x, got, _ = run(exercise, x)
    expect(x, got, np.exp2(x.astype(np.float64)), where)


def test_between_0_and_1(exercise):
    """the polynomial: x between 0 and 1"""
    check(exercise, np.linspace(0, 1, 257)[:-1], "0 <= x < 1")


def test_negative(exercise):
    """x below 0, as all scores behind their maximum are"""
    check(exercise, -np.linspace(0, 24, 997), "-24 <= x <= 0")


def test_positive(exercise):
    """x above 0, up to 127"""
    check(exercise, np.linspace(1, 127, 991), "1 <= x <= 127")


def test_small(exercise):
    """results down to the smallest normal number, 2^-126"""
    check(exercise, -np.linspace(24, 126, 1021), "-126 <= x <= -24")


def test_whole(exercise):
    """a whole x gives exactly 2^x"""
    x, got, _ = run(exercise, np.arange(-126, 128))
    want = np.ldexp(np.float32(1), x.astype(np.int32))
    if not np.array_equal(got, want):
        i = int(np.argmax(got != want))
        raise Wrong(
            f"2^{x[i]:g} must be exactly {want[i]:.9g}, got {got[i]:.9g}",
            causes=["At f = 0 the polynomial must be 1."],
            where="whole x",
        )


def test_hidden(exercise):
    """exactly 0 for a hidden key, -inf, and for all x <= -127"""
    x, got, _ = run(exercise, [-np.inf, -1e30, -1e6, -1000, -300, -256, -200, -129, -128, -127])
    if got.any() or np.isnan(got).any():
        i = int(np.argmax((got != 0) | np.isnan(got)))
        raise Wrong(
            f"2^{x[i]:g} must be exactly 0, got {got[i]:.7g}",
            causes=["An exponent below that of 2^-126 does not fit into its 8 bits: x must not go "
                    "below -127."],
            where="x <= -127",
        )  # fmt: skip


def test_cost(exercise):
    """at most 8 floating-point operations of float32 for an element"""
    x, got, trace = run(exercise, -np.linspace(0, 20, 2 * THREADS))
    want = np.exp2(x.astype(np.float64))
    if np.abs(got / want - 1).max() < EXACT:
        raise Wrong(
            "the result is more exact than this polynomial can be",
            causes=["A library or the special function unit has computed it."],
            where="operations",
        )
    expect_chip_memory(trace, allowed="registers do")
    kinds = {kind for kind, _, _ in trace.flops.operations}
    if other := kinds - ALLOWED:
        raise Wrong(
            f"power_of_2 must multiply and add, got {', '.join(sorted(other))}",
            causes=[f"{', '.join(sorted(other))} is not among the operations that the statement "
                    "allows."],
            where="operations",
        )  # fmt: skip
    wide = {dtype for _, dtype, _ in trace.flops.operations if np.dtype(dtype).itemsize > 4}
    if wide:
        raise Wrong(
            "all operations must be float32, got float64",
            causes=["A constant such as 1.0 or C3 is float64: write float32(C3)."],
            where="operations",
        )
    each = trace.flops.total / len(x)
    if each > MOST:
        raise Wrong(
            f"{MOST} floating-point operations for an element are enough, got {each:g}",
            causes=["Horner's form has one fma for each degree; powers of f are not computed."],
            where="operations",
        )
