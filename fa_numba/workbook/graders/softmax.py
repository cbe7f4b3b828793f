"""Shared by the graders of row-wise softmax: answer, tolerance, the first wrong element."""

import numpy as np

from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong

FILLER = np.float32(-77.0)  # the value of y before the launch: no probability


def softmax64(x, dtype=np.float64):
    """Softmax of each row; a masked column (-inf) gets 0, a fully masked row is 0."""
    x = x.astype(dtype)
    m = x.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # -3e38 - 3e38 is -inf in float32, and exp of it 0
        p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=1, keepdims=True)
    return p / np.where(l > 0, l, 1)


def run(launch, kernel, grid, block, x):
    """Launch on a copy of x; return y, whatever `launch` returned, and x as the kernel left it."""
    x, y = x.copy(), np.full_like(x, FILLER)
    return y, launch(kernel, grid, block, x, y), x


def check_rows(x, y):
    """Raise AssertionError naming the first wrong row and column, and the likely cause.

    The error allowed against float64 is twice that of the same formula in plain float32, plus the
    effect of another order of the sum; a share too small for that to say anything must be right to
    three digits.
    """
    want = softmax64(x)
    tolerance = 2 * np.abs(softmax64(x, np.float32) - want).max() + 1e-7
    tolerance = tolerance + 2.4e-7 * x.shape[1] ** 0.5 * want
    tolerance = np.minimum(tolerance, 1e-3 * want + 1e-37)
    wrong = ~(np.abs(y - want) <= tolerance)  # written this way round, NaN is wrong
    if not wrong.any():
        return
    row, n = (int(i) for i in np.argwhere(wrong)[0])
    rows = np.flatnonzero(wrong.any(axis=1))
    got = "was never written" if y[row, n] == FILLER else f"is {y[row, n]:.7g}"
    said = _likely_cause(x[row], y[row], want[row])
    # The numbers of a sum differ from check to check, its cause does not.
    cause = said.rpartition(": ")[2] if said.startswith("The row sums to") else said
    raise Wrong(
        f"y[{row}, {n}] must be {want[row, n]:.7g}, but {got}. Wrong: {wrong.sum()} of {y.size} "
        f"elements, in {len(rows)} of {len(y)} rows. {said}",
        causes=[cause],
        where=f"y[{row}, {n}]",
    )


def _likely_cause(x, y, want):
    """One sentence on the pattern of this row."""
    if (y == FILLER).any():
        missing = np.flatnonzero(y == FILLER)
        if len(missing) == 1:
            return f"Column {missing[0]} of the row is not covered by any thread."
        return f"Columns {missing[0]} to {missing[-1]} of the row are not covered by any thread."
    if np.isneginf(x).all():
        return "The row is -inf only: -inf - -inf is NaN and so is 0 / 0; both need a guard."
    if not np.isfinite(y).all():
        if np.isneginf(x).any():
            return "The row holds -inf: a thread that saw nothing else computed -inf - -inf."
        return (
            "exp overflows float32 beyond 88.7: what is subtracted before exp must be the maximum "
            "of ALL columns of the row."
        )
    m, sure, exact = x.max(), want > 1e-30, x.astype(np.float64)
    with np.errstate(all="ignore"):  # a mistake may well overflow
        p, two, bare = np.exp(exact - m), 2 ** (exact - m), np.exp(exact)
        for sentence, wrong in (
            ("This is exp(x - m): the division by the sum is missing.", p),
            ("exp(x - m) is multiplied by the sum: divide by it.", p * p.sum()),
            ("m is missing where the result is computed: y = exp(x - m) / l.", bare / p.sum()),
            ("m is missing in the sum: l is the sum of exp(x - m).", p / bare.sum()),
            ("These are powers of 2: it is exp(x - m), which is e ** (x - m).", two / two.sum()),
        ):
            close = (np.allclose(a[sure], wrong[sure], r, 0) for a, r in ((y, 1e-4), (want, 1e-3)))
            if y.any() and tuple(close) == (True, False):  # 0 has many causes
                return sentence
    total = float(y.sum(dtype=np.float64))
    if total == 0:
        if m < -1e3:
            return (
                f"Every share is 0, and the largest score is {m:.4g}: the maximum starts at -inf, "
                "since a score may be below any number, and only -inf is masked."
            )
        return (
            "Every share is 0: l is 0, as if no column counted, or infinite or NaN. A thread "
            "without a column holds (-inf, 0): -inf - -inf is NaN and needs a guard."
        )
    if not abs(total - 1) <= 1e-3:
        l = np.exp(x.astype(np.float64) - m).sum()
        seen = l / total
        if abs(seen - np.isfinite(x).sum()) <= 1e-3:
            cause = "it counts the scores, so exp(s - m) or exp(m_old - m_new) is missing"
        elif seen < l:
            cause = "columns are left out"
        else:
            cause = "columns count more than once, or are not brought to the common maximum"
        return (
            f"The row sums to {total:.4g}, not 1, as if l were {seen:.4g} and not {l:.4g}: {cause}."
        )
    off = ~(np.abs(y - want) <= 1e-3 * want + 1e-37)
    if off.any() and (want[off] < 1e-6).all():
        return (
            "Only small shares are wrong: exp takes any x - m, however far below 0, without a "
            "limit and without a number that is added."
        )
    if not off.any():
        return "The shares are right to three digits only: nothing may be added to l or to x - m."
    return "The row sums to 1, yet its shares are wrong: is every exp taken of its own x - m?"


CASES = {
    "a few rows": lambda rng: rng.normal(size=(5, 7)),
    "one column": lambda rng: rng.normal(size=(4, 1)),
    "two columns": lambda rng: rng.normal(size=(3, 2)),
    "fewer columns than a warp": lambda rng: rng.normal(size=(3, 31)),
    "as many columns as threads": lambda rng: rng.normal(size=(3, 128)),
    "one column more than threads": lambda rng: rng.normal(size=(3, 129)),
    "columns no multiple of the threads": lambda rng: 3 * rng.normal(size=(3, 1000)),
}
"""Shapes that every softmax kernel must get right: name -> function of a random generator."""


def case(name):
    """The matrix of one of `CASES`, float32."""
    return CASES[name](np.random.default_rng(0)).astype(np.float32)


def large_scores():
    """Rows whose scores reach +-1e4 and beyond, where exp alone is inf or 0 in float32."""
    x = np.random.default_rng(1).normal(size=(9, 200)).astype(np.float32)
    x[0] *= 1e4
    x[1] += 1e4
    x[2] -= 1e4
    x[3] = np.linspace(-1e4, 1e4, 200)
    x[4], x[4, 77] = -1e4, 1e4
    x[5] += 89  # exp(89) is already inf
    x[6] -= 1e5
    x[7] = np.where(np.arange(200) % 3, -3e38, 3e38)
    x[8] = np.linspace(-85, 0, 200)  # shares down to 1e-37
    return x


LOWEST = np.finfo(np.float32).min


def low_scores():
    """Rows far below 0: a finite number instead of -inf, such as -1e9, is no longer below them."""
    x = np.random.default_rng(2).normal(size=(8, 150)).astype(np.float32)
    x[0] -= 2e4
    x[1] -= 2e6
    x[2] = -2e9
    x[3], x[3, 140] = -2e30, -1.9e30
    x[4] = -3e38
    x[5] = LOWEST
    x[2:6, ::2] = -np.inf
    x[6], x[6, 131] = -np.inf, LOWEST
    x[7], x[7, 2] = -np.inf, -2e4
    return x


def long_rows(cols=5000):
    """Rows of more columns than anything on the chip holds, the maximum near the end."""
    x = np.random.default_rng(5).normal(size=(3, cols)).astype(np.float32)
    x[0, cols - 2] = 12
    # Each of the others adds 2**-23, one unit in the last place of a float32 sum of 1 and more.
    x[2], x[2, cols - 2] = 0, 23 * np.log(2)
    return x


def spikes(cols):
    """A row for each column, where it is so far above all others that they overflow without it."""
    return 1e4 * np.eye(cols, dtype=np.float32)


def ordered_scores():
    """Rows that ascend, descend, are all equal, and hold their maximum first, last, in between."""
    ramp = np.linspace(-20, 20, 300, dtype=np.float32)
    x = np.stack([ramp, ramp[::-1], np.full(300, 3), *(np.zeros((3, 300)))]).astype(np.float32)
    for row, n in zip((3, 4, 5), (0, 299, 131), strict=True):
        x[row, n] = 5
    return x


def masked_scores():
    """Rows with -inf first, last, everywhere but one column, and in whole strides of threads."""
    x = np.random.default_rng(3).normal(size=(6, 300)).astype(np.float32)
    x[0, 0] = -np.inf
    x[1, 100:] = -np.inf
    x[2], x[2, 250] = -np.inf, 0.5
    x[3, :200] = -np.inf
    x[4, ::2] = -np.inf
    x[5, 5::128] = -np.inf
    return x


def masked_rows():
    """Rows of -inf only, among others."""
    x = np.random.default_rng(3).normal(size=(5, 150)).astype(np.float32)
    x[0] = x[3] = -np.inf
    return x


def many_rows():
    """97 rows, each with numbers of its own."""
    return np.random.default_rng(5).normal(size=(97, 40)).astype(np.float32)


ROWS = {
    **{
        f"every row becomes its softmax, whatever the number of columns [{name}]": (
            lambda name=name: case(name)
        )
        for name in CASES
    },
    "each thread block keeps to its own row": many_rows,
    "stable on large scores: +-10000 neither overflow nor vanish": large_scores,
    "ascending, descending, equal scores; the maximum first, last and in between": ordered_scores,
    "-inf entries get probability 0, also where a thread or warp sees nothing else": masked_scores,
    "a row of -inf only becomes a row of 0": masked_rows,
    "scores far below 0, down to the lowest float32, are scores and not masked columns": low_scores,
    "rows of thousands of columns": long_rows,
}
"""Behaviours of every softmax kernel with a thread block for each row: name -> function for x.

A grader runs them all as one parametrised check without a docstring: the names are the checks'.
"""


def padded_view(rows=5, cols=150):
    """A view of whole rows inside a larger array, and that array."""
    base = np.random.default_rng(4).normal(size=(rows + 2, cols + 9)).astype(np.float32)
    return base[1:-1, 4 : 4 + cols], base


def check_view(kernel, grid, block):
    """Rows inside a larger array: all of them written, nothing outside touched."""
    x, _ = padded_view()
    y, y_base = padded_view()
    y_base[:] = FILLER
    before = x.copy()
    simt.run(kernel, grid, block, x, y)
    check_rows(before, y)
    y[:] = FILLER
    outside = int((y_base != FILLER).sum())
    assert outside == 0, f"{outside} elements outside y were overwritten"


def check_unchanged(x, after):
    """Fail where the kernel changed x."""
    changed = np.argwhere(~(x == after))
    assert not len(changed), (
        f"x is an input, and x[{changed[0][0]}, {changed[0][1]}] was changed: a thread's "
        "results belong in its registers, or where the statement says so"
    )


def check_traffic(trace, size, reads, why):
    """Fail unless each of `size` elements of x is read up to `reads` times, of y written once."""
    x, y = trace.arrays["x"], trace.arrays["y"]
    assert x.loads <= reads * size, (
        f"x has {size} elements and was read {x.loads} times, {x.loads / size:.3g} per element: "
        f"{why}"
    )
    assert not x.stores, f"x is an input, and {x.stores} stores went into it"
    assert not y.loads, f"y was read back {y.loads} times: compute exp(x - m) again instead"
    assert y.stores == size, (
        f"y has {size} elements and was written {y.stores} times: each is written once, at the end"
    )


def check_coalesced(trace, nbytes, reads):
    """Fail where warps touch more sectors than `reads` passes over x and one over y need."""
    x, y = trace.arrays["x"], trace.arrays["y"]
    for action, sectors, passes in (
        ("reading x", x.load_sectors, reads),
        ("writing y", y.store_sectors, 1),
    ):
        needed = passes * nbytes // 32
        assert sectors <= needed, (
            f"{action} {passes} times is {needed} sectors of 32 bytes, but the warps asked for "
            f"{sectors}: thread tid takes columns tid, tid + NUM_THREADS, ..., all threads at once"
        )
