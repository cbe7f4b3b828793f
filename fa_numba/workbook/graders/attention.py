"""Shared by the graders of attention: heads with their answers, and comparisons that explain."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from fa_numba import reference, simt
from fa_numba.workbook.graders.causes import Wrong

UNWRITTEN = np.float32(-777.0)  # the value of outputs before the launch


@dataclass(frozen=True)
class Head:
    """One head of attention: 2-D float32 arrays and the options, with the answers in float64.

    `plain` is the same head computed by NumPy in float32: the yardstick of the tolerance.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    causal: bool = False
    softmax_scale: float | None = None
    dtype: type = np.float64

    @property
    def scale(self):
        """softmax_scale as a kernel argument."""
        default = 1 / math.sqrt(self.q.shape[1])
        return np.float32(default if self.softmax_scale is None else self.softmax_scale)

    @cached_property
    def plain(self):
        return replace(self, dtype=np.float32)

    @property
    def options(self):
        return {"causal": self.causal, "softmax_scale": float(self.scale), "dtype": self.dtype}

    @cached_property
    def forward(self):
        q, k, v = (x[None, :, None] for x in (self.q, self.k, self.v))
        out, lse = reference.attention(q, k, v, **self.options)
        return {"out": out[0, :, 0], "lse": lse[0, 0]}

    @cached_property
    def scores(self):
        """The scaled scores; -inf where the mask hides a key."""
        q, k = self.q.astype(self.dtype), self.k.astype(self.dtype)
        s = q @ k.T * self.dtype(self.scale)
        if self.causal:
            m, n = np.arange(len(q))[:, None], np.arange(len(k))
            s[n > m + len(k) - len(q)] = -np.inf
        return s

    @cached_property
    def backward(self):
        arrays = (x[None, :, None] for x in (self.dout, self.q, self.k, self.v))
        gradients = reference.attention_bwd(*arrays, **self.options)
        named = zip(("dq", "dk", "dv"), gradients, strict=True)
        delta = np.sum(self.dout.astype(self.dtype) * self.forward["out"], axis=1)
        return {"delta": delta} | {name: gradient[0, :, 0] for name, gradient in named}

    def loss(self, **moved):
        """sum(dout * out), in float64, with some of q, k, v replaced."""
        q, k, v = (moved.get(name, getattr(self, name))[None, :, None] for name in "qkv")
        out, _ = reference.attention(q, k, v, **self.options)
        return float(np.sum(self.dout * out[0, :, 0]))


def random_head(seqlen_q, seqlen_k, head_dim, *, seed=0, **options):
    """A head of normally distributed numbers."""
    rng = np.random.default_rng(seed)
    shapes = [(seqlen_q, head_dim), (seqlen_k, head_dim), (seqlen_k, head_dim)]
    arrays = [rng.standard_normal(shape, np.float32) for shape in [*shapes, shapes[0]]]
    return Head(*arrays, **options)


def scored_head(scores_of_keys, head_dim=8, *, seqlen_q=12, **options):
    """A head where every query gives key n the score `scores_of_keys[n]`, exactly in float32.

    Even queries multiply them by 1, odd ones by -1, so that every ascent is also a descent.
    """
    head = random_head(seqlen_q, len(scores_of_keys), head_dim, softmax_scale=1.0, **options)
    head.q[:], head.k[:] = 0, 0
    head.q[:, 0] = np.where(np.arange(seqlen_q) % 2 == 0, 1, -1)
    head.k[:, 0] = scores_of_keys
    return head


def ordered_scores(seqlen_k=40):
    """Scores that ascend for even queries and descend for odd ones: a new maximum in every tile."""
    return scored_head(np.linspace(-10, 9.5, seqlen_k).round(1))


def low_scores(lowest, seqlen_k=37, **options):
    """Scores near `lowest` for every query, such as -2e30: none is masked, and none small.

    A finite number instead of -inf, for a key that does not exist or for the running maximum, is
    then larger than a score. Not every tile is full, as 37 is prime.
    """
    scores = lowest * (1 + np.arange(seqlen_k) % 3 / 4)
    head = scored_head(scores, **options)
    head.q[:, 0] = 1
    return head


def steep_scores(**options):
    """Scores from 0 down to -60 whose values grow as exp(score) falls: every key counts alike.

    An exp that stops at some small number, or a far key that is dropped, shows in full.
    """
    scores = -5.0 * np.arange(13)
    head = scored_head(scores, **options)
    head.q[:, 0] = 1
    head.v[:] = np.sign(head.v) * np.exp(-scores)[:, None]
    return head


def large_scores(seqlen_k=40):
    """Scores up to 1e4 and down to -1e4: exp of one is inf or 0 in float32.

    All numbers are whole: a gradient that is 0 in exact arithmetic is then 0 in float32 too.
    """
    rng = np.random.default_rng(1)
    head = scored_head(rng.permutation(np.linspace(-1e4, 1e4, seqlen_k).round()))
    head.v[:], head.dout[:] = np.rint(2 * head.v), np.rint(2 * head.dout)
    return head


def negative_scores(size, seqlen_q=13, seqlen_k=21, *, causal=False):
    """A head whose scores are all about -`size`: below any finite number that replaces -inf.

    seqlen_k is no multiple of any tile. Up to 1e5 keys differ in score; beyond, float32 has no
    such numbers and all scores are equal.
    """
    scores = -float(size) - np.arange(seqlen_k) * 7 % 10 * (size <= 1e5)
    head = scored_head(scores, seqlen_q=seqlen_q, causal=causal)
    head.q[:, 0] = 1
    return head


def weightless_value(seqlen_q=13, seqlen_k=21, *, causal=False):
    """A head where key 2 has the weight e^-120, which is 0 in float32, and the value 3e38.

    A kernel that limits exponents to -88 or so adds a share of that value.
    """
    head = scored_head(np.where(np.arange(seqlen_k) == 2, -120, 0), seqlen_q=seqlen_q,
                       causal=causal)  # fmt: skip
    head.q[:, 0] = 1
    head.v[2] = 3e38
    return head


def one_negative_score(size, seqlen_q=13, seqlen_k=21, *, causal=False):
    """A head whose key 0 has the score -`size` and all others less: it takes the whole weight.

    With size 0 key 1 has the score 0, too, and half of the weight.

    All numbers are whole, so that a gradient which must be 0 is 0 in float32 too.
    """
    scores = -float(size) - np.where(np.arange(seqlen_k) > (size == 0), max(size / 2, 200), 0)
    head = scored_head(scores, seqlen_q=seqlen_q, causal=causal)
    head.k[:, 1:] = np.rint(2 * random_head(1, seqlen_k, 7).k)  # q is 0 there
    head.q[:, 0] = 1
    head.v[:], head.dout[:] = np.rint(2 * head.v), np.rint(2 * head.dout)
    return head


def _full_and_causal(behaviour, *sizes):
    """The behaviour without a mask and with one."""
    return {
        f"{behaviour} [{mask}]": partial(random_head, *sizes, causal=mask == "causal")
        for mask in ("full", "causal")
    }


HEADS = {
    "one tile of queries, one tile of keys": partial(random_head, 8, 8, 8),
    "several tiles both ways": partial(random_head, 24, 32, 16),
    "causal, as many keys as queries": partial(random_head, 24, 24, 16, causal=True),
    "causal with more keys than queries is bottom-right aligned": (
        partial(random_head, 13, 29, 8, causal=True)
    ),
    **_full_and_causal("seqlen_q not divisible by the tile", 19, 24, 8),
    **_full_and_causal("seqlen_k not divisible by the tile", 16, 19, 8),
    **_full_and_causal("one query and one key", 1, 1, 8),
    **_full_and_causal("one query", 1, 37, 8),
    **_full_and_causal("one key", 21, 1, 8),
    **_full_and_causal("shorter than one tile", 3, 5, 8),
    **{
        f"head_dim is odd, smaller or larger than a side of the thread block [{head_dim}]": (
            partial(random_head, 11, 18, head_dim)
        )
        for head_dim in (1, 3, 13, 33, 128)
    },
    **{
        f"softmax_scale is honoured [{scale}]": partial(random_head, 10, 20, 8, softmax_scale=scale)
        for scale in (1.0, 0.05, 0.0, -0.3)
    },
    "stable at scores of 1e4 and -1e4": large_scores,
}
"""Behaviours of every attention kernel in tiles of 8 by 8: name -> function that makes the head.

A grader runs them all as one parametrised check without a docstring: the names are the checks'.
"""

TILE_SIZES = ((8, 8), (4, 16), (16, 4), (5, 7), (1, 32), (32, 1))  # (BLOCK_M, BLOCK_N)


def guarded(*shape, fill=UNWRITTEN):
    """An output array inside a larger one, to notice writes past its edges: (array, larger)."""
    rows = shape[0]
    larger = np.full((rows + 4, *shape[1:]), UNWRITTEN, np.float32)
    array = larger[2:-2]
    array[:] = fill
    return array, larger


def expect_guard(name, larger):
    """Fail where something was written beside a `guarded` array."""
    edges = np.concatenate([larger[:2], larger[-2:]])
    assert (edges == UNWRITTEN).all(), (
        f"the memory just before or after {name} was written: a row that does not exist must not "
        "be stored"
    )


def expect_unchanged(before, after):
    """Fail where an input was changed; two dicts of arrays."""
    for name, array in before.items():
        same = (array == after[name]) | ((array != array) & (after[name] != after[name]))  # NaN
        changed = np.argwhere(~same)
        assert not len(changed), (
            f"{name} is an input, but {name}{[int(i) for i in changed[0]]} was changed"
        )


def expect_clean(launch, outputs, inputs):
    """Run, and fail where an input is changed, or something is written beside an output.

    Parameters
    ----------
    launch : tuple
        As for `simt.run`: kernel, grid, thread block and arguments.
    outputs : dict
        The `guarded` arrays by name.
    inputs : str
        Names of the first arguments.
    """
    arrays = dict(zip(inputs.split(), launch[3:], strict=False))
    before = {name: x.copy() for name, x in arrays.items()}
    simt.run(*launch)
    expect_unchanged(before, arrays)
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)


def expect_close(name, got, want, plain, *, tile, rows="query", factor=2, mistakes=()):
    """Fail unless `got` is as close to float64 as plain float32 is, up to `factor`.

    Parameters
    ----------
    name : str
    got, want, plain : arrays of one shape
        The kernel's, the float64 and the plain float32 result; 1-D or 2-D.
    tile : int
        Rows per tile, to name the tile of the first wrong row.
    rows : str
        The name of a row, such as "query".
    factor : float
        Error allowed, as a multiple of plain float32's.
    mistakes : iterable of (str, dict)
        Known causes, as in `graders.mistakes`: the first that explains `got` is told, and all that
        explain it go with the error.
    """
    with np.errstate(invalid="ignore"):  # -inf - (-inf), where a row sees no key
        finite = np.isfinite(want)
        tolerance = factor * np.abs(plain - want)[finite].max(initial=0)
        size = np.where(finite, np.abs(want), 0)  # a sum may be large
        tolerance = tolerance + 1e-6 * np.maximum(1, size)
        wrong = ~((got == want) | (np.abs(got - want) <= tolerance))  # NaN is wrong
    if not wrong.any():
        return
    causes = _known_causes(name, got, want, tolerance, mistakes)
    got, want, wrong, tolerance = (x.reshape(len(x), -1) for x in (got, want, wrong, tolerance))
    bad_rows = np.flatnonzero(wrong.any(axis=1))
    row = int(bad_rows[0])
    column = int(np.flatnonzero(wrong[row])[0])
    value = "was never written" if got[row, column] == UNWRITTEN else f"is {got[row, column]:.7g}"
    where = f"{name}[{row}, {column}]" if got.shape[1] > 1 else f"{name}[{row}]"
    place = f"{where} ({rows} {row}, in tile {row // tile})"
    causes = causes or [_likely_cause(name, got, want, bad_rows, tile)]
    raise Wrong(
        f"{place} must be {want[row, column]:.7g}, but {value}, off by more than "
        f"{tolerance[row, column]:.1e}. Wrong: {len(bad_rows)} of {len(got)} rows. "
        f"{causes[0]}".rstrip(),
        causes=causes,
        where=place,
        wrong=wrong,
        axes=(rows, "column"),
    )


def _known_causes(name, got, want, tolerance, mistakes):
    """The sentences of all mistakes that come out as `got`."""
    found = []
    for sentence, answers in mistakes:
        if name in answers:
            with np.errstate(all="ignore"):
                wrong = answers[name]
                limit = 10 * tolerance + 1e-5 * np.abs(wrong[np.isfinite(wrong)]).max(initial=0)
                explains = (got == wrong) | (np.abs(got - wrong) <= limit)
                differs = ~((want == wrong) | (np.abs(want - wrong) <= 3 * limit))
            if explains.all() and differs.any() and wrong.any():  # 0 has many causes
                found.append(sentence)
    return found


def _likely_cause(name, got, want, bad_rows, tile):
    """One sentence on the pattern of the errors."""
    num_rows, row = len(got), int(bad_rows[0])
    if (got[row] == UNWRITTEN).any():
        columns = np.flatnonzero(got[row] == UNWRITTEN)
        if (got == UNWRITTEN).all():
            return "No row was ever written: is the store behind the loop missing?"
        return f"Columns {columns[0]} to {columns[-1]} of the row belong to no thread."
    if np.isnan(got[row]).any():
        return (
            "NaN comes from -inf - (-inf), 0 * inf or 0 / 0; shared and local arrays are NaN "
            "before they are first written."
        )
    if np.isposinf(got[row]).any():
        return (
            "inf comes from a division by 0, or from exp of a score that is not below its maximum."
        )
    if np.isneginf(got[row]).any() and not np.isneginf(want[row]).any():
        return "-inf: no score was counted in this row, or the new maximum was not kept."
    if np.isneginf(want[row]).any():
        return "The row sees no key: its lse is -inf, by a test of its own."
    if not want[row].any():
        return "A row of 0: it sees no key or, where this is a gradient, one key alone."
    if row >= num_rows - num_rows % tile and row > 0:
        return "Only rows of the last tile, which is not full, are wrong."
    if not got[row].any() and name in ("dq", "dk", "dv"):
        return "The row is 0: it was not stored, or a later product replaced the sum, which is 0."
    if not got[row].any():
        return (
            "The row is 0: it was not stored, or no key counted. The maximum starts at -inf, which "
            "no finite score is below; only -inf is masked; a key that does not exist is -inf too."
        )
    with np.errstate(all="ignore"):
        ratio = got[row] / want[row]
        factor, spread = ratio.mean(), np.ptp(ratio)
    if len(ratio) > 1 and spread <= 1e-3 * abs(factor):
        return (
            f"The whole row is {factor:.6g} times the right value: a factor such as 1/l, "
            "alpha or softmax_scale is wrong, or a key too many, or too few, is counted in l."
        )
    if (bad_rows % tile == bad_rows[0] % tile).all() and len(bad_rows) > 1 and tile > 1:
        return f"All wrong rows are row {row % tile} of their tile."
    return ""


def expect_error(kind, call, why):
    """Fail unless `call()` raises an error of the class `kind`; `why` it must."""
    try:
        got = call()
    except kind:
        return
    except NotImplementedError:  # a stub says that nothing is written yet
        raise
    except Exception as error:
        got_kind = type(error).__name__
        raise AssertionError(f"{why}: want {kind.__name__}, got {got_kind}: {error}") from None
    raise AssertionError(f"{why}: want {kind.__name__}, got {got!r}")
