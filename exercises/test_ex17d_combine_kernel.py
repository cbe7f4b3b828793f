"""Grader of ex17d: the combine kernel of Flash-Decoding."""

import math

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    UNWRITTEN,
    expect_clean,
    guarded,
)
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic

INF = math.inf


def random_partials(num_splits, batch=2, num_heads=3, head_dim=8, *, spread=2.0, seed=0):
    """(out_partial, lse_partial) of splits whose lse differ by about `spread`."""
    rng = np.random.default_rng(seed)
    lse_partial = np.float32(spread * rng.standard_normal((num_splits, batch, num_heads)))
    return rng.standard_normal((*lse_partial.shape, head_dim), np.float32), lse_partial


def empty_splits(partials, where):
    """The same, with (0, -inf) where the mask says so."""
    out_partial, lse_partial = (x.copy() for x in partials)
    out_partial[where], lse_partial[where] = 0, -INF
    return out_partial, lse_partial


def answer(out_partial, lse_partial, dtype=np.float64):
    """The definition: a softmax over the splits."""
    lse_partial = lse_partial.astype(dtype)
    top = lse_partial.max(axis=0)
    w = np.exp(lse_partial - np.where(np.isneginf(top), dtype(0), top))
    total = w.sum(axis=0)
    out = (w[..., None] * out_partial.astype(dtype)).sum(axis=0)
    with np.errstate(divide="ignore"):
        return out / np.where(total == 0, 1, total)[..., None], top + np.log(total)


def prepare(exercise, out_partial, lse_partial):
    num_splits, batch, num_heads, head_dim = out_partial.shape
    outputs = {"out": guarded(batch, num_heads, head_dim), "lse": guarded(batch, num_heads)}
    arrays = [array for array, _ in outputs.values()]
    kernel = exercise.make_kernel(head_dim)
    return (kernel, (num_heads, batch), 32, out_partial, lse_partial, *arrays), outputs


def run(exercise, partials):
    launch, outputs = prepare(exercise, *partials)
    simt.run(*launch)
    return [array for array, _ in outputs.values()]


def expect(got, want, plain, partials, what=""):
    for name, x, y, p in zip(("out", "lse"), got, want, plain, strict=True):
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(y)
            size = np.maximum(1, np.where(finite, np.abs(y), 0))
            tolerance = 2 * np.abs(p - y)[finite].max(initial=0) + 1e-6 * size
            # Each split that is merged rounds lse once, and weights e^(lse_partial - lse) are as
            # exact as that.
            row = np.abs(np.where(np.isfinite(want[1]), want[1], 0)).astype(np.float32)
            rounded = 4 * math.sqrt(len(partials[1])) * np.spacing(row)
            tolerance = tolerance + (rounded[..., None] if name == "out" else rounded)
            mask = ~((x == y) | (np.abs(x - y) <= tolerance))
            wrong = np.argwhere(mask)
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            value = "was never written" if x[at] == UNWRITTEN else f"is {x[at]:.7g}"
            row = ", ".join(f"{s:.4g}" for s in partials[1][:8, at[0], at[1]])
            if x[at] == UNWRITTEN:
                what = "A thread stores its columns of out, and one thread of the row its lse."
            raise Wrong(
                f"{name}{list(at)} must be {y[at]:.7g}, but {value}. lse_partial of the row: {row}"
                f"{', ...' * (len(partials[1]) > 8)}. {what}".rstrip(),
                causes=[*mistakes(*partials, *got), what],
                where=f"{name}{list(at)}",
                wrong=mask,
                axes=("sequence", "head", "column")[: mask.ndim],
            )


def mistakes(out_partial, lse_partial, out, lse):
    """The usual mistakes that explain both results."""
    out_partial, lse_partial = out_partial.astype(np.float64), lse_partial.astype(np.float64)
    right, total = answer(out_partial, lse_partial)
    with np.errstate(all="ignore"):
        w = np.exp(lse_partial - total)
        kept, merged = np.zeros_like(right), np.full_like(total, -INF)
        for x, score in zip(out_partial, lse_partial, strict=True):
            merged = np.logaddexp(merged, score)
            kept = kept + np.exp(score - merged)[..., None] * x
        top = lse_partial.max(axis=0)
        known = {
            "The mean of the splits is stored; each weighs e^lse_partial.": (
                out_partial.mean(axis=0), total,
            ),
            "What was merged before is not weighted again: w_a belongs to it.": (kept, total),
            "The last split alone is stored.": (out_partial[-1], lse_partial[-1]),
            "The last split is missing.": answer(out_partial[:-1], lse_partial[:-1])
            if len(w) > 1 else (right, total),
            "The first split is missing.": answer(out_partial[1:], lse_partial[1:])
            if len(w) > 1 else (right, total),
            "lse takes the natural logarithm, not log2.": (right, top + (total - top) / np.log(2)),
            "lse is the largest lse_partial, without the log of the sum.": (right, top),
        }  # fmt: skip
        return [
            cause
            for cause, (x, y) in known.items()
            if np.allclose(x, out, rtol=1e-3, atol=1e-4) and np.allclose(y, lse, 1e-4, 1e-4)
        ]


def check(exercise, partials, what=""):
    plain = answer(*partials, dtype=np.float32)
    expect(run(exercise, partials), answer(*partials), plain, partials, what)


def test_one_split(exercise):
    """one split comes back as it is"""
    check(exercise, random_partials(1), "The only split has weight 1.")


def test_two_splits(exercise):
    """two splits are weighted by e^lse"""
    check(exercise, random_partials(2), "w = exp(lse_partial - lse).")


@pytest.mark.parametrize("num_splits", [3, 8, 33, 100, 1030])
def test_many_splits(exercise, num_splits):
    """any number of splits, more than a warp has threads too"""
    check(exercise, random_partials(num_splits))


def test_attention_of_the_parts(exercise):
    """the parts of an attention combine to the whole"""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 1, 3, 8), np.float32)
    k, v = (rng.standard_normal((2, 40, 3, 8), np.float32) for _ in range(2))
    parts = [
        reference.attention(q, k[:, n : n + 8], v[:, n : n + 8], dtype=np.float32)
        for n in range(0, 40, 8)
    ]
    partials = np.stack([p[0][:, 0] for p in parts]), np.stack([p[1][:, :, 0] for p in parts])
    out, lse = reference.attention(q, k, v)
    plain = reference.attention(q, k, v, dtype=np.float32)
    want, plain = (out[:, 0], lse[:, :, 0]), (plain[0][:, 0], plain[1][:, :, 0])
    expect(run(exercise, partials), want, plain, partials, "Five splits of eight keys.")


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_ordered(exercise, order):
    """each split larger than all before, each smaller"""
    out_partial, lse_partial = random_partials(12)
    step = np.linspace(-30, 30, 12, dtype=np.float32)[:, None, None]
    partials = out_partial, lse_partial + (step if order == "ascending" else -step)
    check(exercise, partials, "A new maximum shrinks what was summed before.")


def test_large_lse(exercise):
    """stable at lse_partial of 1e4 and -1e4"""
    out_partial, _ = random_partials(6)
    lse = np.float32([-1e4, 1e4, 9999, -1e4, 0, 9998])
    for row in (lse, -lse, np.full(6, -1e4, np.float32)):
        partials = out_partial, np.broadcast_to(row[:, None, None], (6, 2, 3)).copy()
        check(exercise, partials, "Subtract the largest lse_partial before exp.")


@pytest.mark.parametrize("step", [1, -1])
def test_light_splits(exercise, step):
    """a split that weighs little counts, if its out_partial is large, before heavy ones too"""
    lse = -np.float32([0, 3, 7, 12, 20, 30])[::step, None, None] * np.ones((6, 2, 3), np.float32)
    out_partial = np.exp(-lse)[..., None] * np.ones(8, np.float32)
    check(exercise, (out_partial, lse), "Only a weight of 0 leaves a split out.")


def test_weightless_split(exercise):
    """a split 120 below the others adds nothing, however large its out_partial"""
    out_partial, lse_partial = random_partials(6)
    out_partial[2], lse_partial[2] = 3e38, lse_partial.max(axis=0) - 120
    check(exercise, (out_partial, lse_partial), "exp of -120 is 0 in float32: hold no exponent.")


@pytest.mark.parametrize("where", ["first", "middle", "last", "all but one"])
def test_empty_splits(exercise, where):
    """splits without keys change nothing, wherever they are"""
    mask = np.zeros(6, bool)
    mask[{"first": slice(0, 2), "middle": slice(2, 4), "last": slice(4, 6),
          "all but one": [0, 1, 2, 4, 5]}[where]] = True  # fmt: skip
    partials = empty_splits(random_partials(6), mask)
    check(exercise, partials, "exp(-inf) is 0, but -inf - -inf is NaN: guard the maximum.")


def test_empty_rows(exercise):
    """a row whose splits are all without keys is 0, lse -inf; its neighbours are as ever"""
    mask = np.zeros((4, 2, 3), bool)
    mask[:, 0, 1], mask[:, 1, 2] = True, True
    check(exercise, empty_splits(random_partials(4), mask), "No keys at all: l_i is 0.")


@pytest.mark.parametrize("head_dim", [1, 31, 32, 33, 330])
def test_head_dim(exercise, head_dim):
    """any head_dim, smaller and larger than a warp"""
    check(exercise, random_partials(3, head_dim=head_dim))


@pytest.mark.parametrize("batch, num_heads", [(1, 1), (1, 8), (5, 1), (3, 4), (70, 1), (1, 70)])
def test_rows(exercise, batch, num_heads):
    """every head of every sequence, in its place"""
    check(exercise, random_partials(3, batch, num_heads))


def test_order_of_splits(exercise):
    """the order of the splits does not matter"""
    partials = random_partials(7)
    order = np.random.default_rng(1).permutation(7)
    want, again = run(exercise, partials), run(exercise, [x[order] for x in partials])
    expect(again, want, want, partials, "Another order of the splits gave something else.")


@pytest.mark.parametrize("num_splits, head_dim", [(4, 32), (7, 40)])
def test_traffic(exercise, num_splits, head_dim):
    """HBM traffic: out_partial loaded once, out and lse stored once"""
    partials = random_partials(num_splits, head_dim=head_dim)
    launch, _ = prepare(exercise, *partials)
    trace = simt.trace(*launch)
    expect_traffic(
        trace,
        {
            ("out_partial", "loads"): (partials[0].size, "num_splits * rows * head_dim"),
            ("out", "stores"): (6 * head_dim, "rows * head_dim"),
            ("lse", "stores"): (6, "rows"),
            ("out", "loads"): (0, "out is never read"),
            ("lse", "loads"): (0, "lse is never read"),
        },
    )


def test_memory(exercise):
    """no shared memory, no barrier; a thread keeps its columns, and nothing for each split"""
    trace = simt.trace(*prepare(exercise, *random_partials(4, head_dim=64))[0])
    assert trace.barriers == 0, "a warp owns the row, and its threads share nothing: no barrier"
    allowed = (
        "a warp owns the row, and its threads share nothing; a thread has two columns and two "
        "numbers besides, head_dim = 64"
    )
    expect_chip_memory(trace, local=4 * 4, allowed=allowed)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_coalesced(exercise, head_dim):
    """coalesced: neighbouring threads load neighbouring columns"""
    moved = simt.trace(*prepare(exercise, *random_partials(4, head_dim=head_dim))[0]).arrays
    used, fetched = moved["out_partial"].load_bytes, 32 * moved["out_partial"].load_sectors
    assert used == fetched, (
        f"out_partial: {used} bytes were asked for, {fetched} fetched. Thread tx owns the columns "
        "tx, tx + 32, ..., so that a warp reads 32 neighbours"
    )


def test_inputs_and_edges(exercise):
    """the partial results stay as they are, and nothing is written beside out and lse"""
    launch = prepare(exercise, *random_partials(3, head_dim=20))
    expect_clean(*launch, "out_partial lse_partial")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, *random_partials(2, head_dim=64))
    gpu_ready(kernel, args)
