"""Grader of ex16d: causal attention of a prompt in chunks."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_unchanged
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races

HEAD_DIM = 16
SCALE = np.float32(0.25)


def prompt(tokens, seed=0):
    return np.random.default_rng(seed).standard_normal((3, tokens, HEAD_DIM), np.float32)


def attend(q, k, v, last):
    """Query m sees the keys up to last[m], by definition and in float64."""
    s = q.astype(np.float64) @ k.T.astype(np.float64) * float(SCALE)
    s[np.arange(len(k)) > np.asarray(last)[:, None]] = -np.inf
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True) @ v


def causes(q, k, v, start, stop, got):
    """The known mistakes that explain a chunk."""
    rows, last = q[start:stop], np.arange(start, stop)
    known = {
        "The mask starts at the top left: query 0 of the chunk sees key 0 alone. It is the last "
        "query that sees the last key.": last - start,
        "There is no mask: queries see keys of tokens that come after them.": 0 * last + stop - 1,
        "A query does not see its own key.": last - 1,
        "A query sees one key too many.": last + 1,
        "The chunk's first token is seq_len, as if the chunk were not in the cache yet.": last
        + (stop - start),
    }
    if np.isnan(got).any():
        return ["NaN: a key past the chunk was read, or the first maximum is above all scores."]
    if np.allclose(got, attend(rows, k[start:stop], v[start:stop], last - start), atol=1e-4):
        return ["The tokens before the chunk are left out."]
    return [
        cause
        for cause, seen in known.items()
        if np.allclose(got, attend(rows, k[:stop], v[:stop], np.minimum(seen, stop - 1)), atol=1e-4)
    ]


def launch(exercise, q, k_cache, v_cache, seq_len, out, run=simt.run):
    grid = -(-len(q) // 32)
    return run(exercise.kernel, grid, 32, q, k_cache, v_cache, seq_len, out, SCALE)


def check(exercise, tokens, chunks, *, first=0, spare=4, size=1, scores=None, tolerance=2e-5):
    """The prompt in chunks of these sizes, in a cache that grows; scores `size` times as large.

    Chunks before the number `first` are appended, and not attended to. With `scores` every query
    gives these to the keys.
    """
    q, k, v = prompt(tokens)
    if scores is not None:
        q[:], k[:] = 0, 0
        q[:, 0], k[:, 0] = 1 / SCALE, scores
    q *= np.float32(size)
    caches = np.full((2, tokens + spare, HEAD_DIM), np.nan, np.float32)
    whole = attend(q, k, v, np.arange(tokens))
    start = 0
    for number, size in enumerate(chunks):
        stop = start + size
        caches[:, start:stop] = k[start:stop], v[start:stop]
        if number < first:
            start = stop
            continue
        out = np.full((size, HEAD_DIM), np.nan, np.float32)
        launch(exercise, q[start:stop], *caches, stop, out)
        wrong = np.flatnonzero(~(np.abs(out - whole[start:stop]) <= tolerance).all(axis=1))
        if len(wrong):
            m = int(wrong[0])
            d = int(np.argmax(~(np.abs(out[m] - whole[start + m]) <= tolerance)))
            raise Wrong(
                f"{tokens} tokens in chunks of {', '.join(map(str, chunks[:4]))}: chunk {number}, "
                f"query {m}, token {start + m} of the prompt: out[{m}, {d}] must be "
                f"{whole[start + m, d]:.6g}, got {out[m, d]:.6g}",
                causes=causes(q, k, v, start, stop, out),
                where=f"chunk {number}, query {m}",
            )
        start = stop


def test_one_chunk(exercise):
    """the whole prompt as one chunk"""
    check(exercise, 21, [21])


def test_two_chunks(exercise):
    """two chunks of one size"""
    check(exercise, 16, [8, 8])


@pytest.mark.parametrize("chunks", [[4] * 6, [7, 7, 7, 3], [20, 4], [1, 23], [23, 1]], ids=str)
def test_any_chunks(exercise, chunks):
    """chunks of any sizes, the last one shorter"""
    check(exercise, 24, chunks)


def test_decoding(exercise):
    """chunks of one token, which is decoding"""
    check(exercise, 9, [1] * 9)


def test_long_chunks(exercise):
    """chunks of more than one thread block"""
    check(exercise, 110, [40, 70])


def test_many_tokens(exercise):
    """the last token of a prompt of 270"""
    check(exercise, 270, [269, 1], first=1)


def test_large_scores(exercise):
    """scores of some hundreds, of either sign"""
    check(exercise, 12, [6, 6], size=100, tolerance=2e-3)


@pytest.mark.parametrize("largest", [-3e4, -2e9, 0])
def test_low_scores(exercise, largest):
    """scores far below 0, and a largest score of 0"""
    scores = largest - np.arange(12) * 7 % 5 * (largest > -1e5)
    check(exercise, 12, [6, 6], spare=0, scores=scores)


def test_keys_loaded(exercise):
    """each query loads the keys that it may see, once, and no others"""
    q, k, v = prompt(12)
    out = np.zeros((4, HEAD_DIM), np.float32)
    trace = launch(exercise, q[8:], k, v, 12, out, run=simt.trace)
    for name in ("k_cache", "v_cache"):
        got = trace.arrays[name].loads / HEAD_DIM
        assert got == 9 + 10 + 11 + 12, (
            f"the last four of 12 tokens see 9, 10, 11 and 12 keys, 42 in all; the meter shows "
            f"{got:g} keys of {name}"
        )
    expect_no_races(trace)
    expect_chip_memory(trace, local=4 * HEAD_DIM, allowed="acc is all that is needed")


def test_broken_kernel_stays(exercise):
    """broken_kernel is as it was given"""
    q, k, v = prompt(8)
    out = np.zeros((4, HEAD_DIM), np.float32)
    simt.run(exercise.broken_kernel, 1, 32, q[4:], k, v, 8, out, SCALE)
    want = attend(q[4:], k, v, np.arange(4))
    assert np.allclose(out, want, atol=1e-5), "leave broken_kernel as it is, mend `kernel`"


def test_inputs_unchanged(exercise):
    """q and the caches stay as they are"""
    q, k, v = prompt(10)
    before = {"q": q.copy(), "k_cache": k.copy(), "v_cache": v.copy()}
    launch(exercise, q[5:], k, v, 10, np.zeros((5, HEAD_DIM), np.float32))
    expect_unchanged(before, {"q": q, "k_cache": k, "v_cache": v})


def test_nothing_written_outside(exercise):
    """nothing is written beside out"""
    q, k, v = prompt(10)
    frame = np.full((9, HEAD_DIM + 4), 7, np.float32)
    launch(exercise, q[5:], k, v, 10, frame[2:7, 2:-2])
    assert not math.isnan(frame.sum()) and (frame[2:7, 2:-2] != 7).all()
    frame[2:7, 2:-2] = 7
    assert (frame == 7).all(), f"{(frame != 7).sum()} elements around out were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    q, k, v = prompt(4)
    gpu_ready(exercise.kernel, (q, k, v, 4, q.copy(), SCALE))
