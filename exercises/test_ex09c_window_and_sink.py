"""Grader of ex09c: the FlashAttention-2 kernel with a window and a sink."""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.workbook.graders.attention import (
    TILE_SIZES,
    Head,
    expect_clean,
    expect_close,
    guarded,
    negative_scores,
    ordered_scores,
    random_head,
    scored_head,
)
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic


@dataclass(frozen=True)
class Windowed(Head):
    """A head with a window and a sink; `sink` None is none."""

    window: int = 5
    sink: float | None = 0.5
    right: int = 0

    @property
    def options(self):
        sinks = None if self.sink is None else np.array([self.sink], np.float32)
        return {
            "window_size": (self.window - 1, self.right),
            "softmax_scale": float(self.scale),
            "sinks": sinks,
            "dtype": self.dtype,
        }

    @cached_property
    def plain(self):
        return replace(self, dtype=np.float32)


def windowed(head, window=5, sink=0.5):
    """A head of `graders.attention` with a window and a sink."""
    return Windowed(**{f.name: getattr(head, f.name) for f in fields(Head)},
                    window=window, sink=sink)  # fmt: skip


def mistakes_of(head, BLOCK_M, BLOCK_N):
    """Results of usual mistakes: sentences, and out and lse by them."""
    forward = head.forward
    for sentence, changes in (
        ("The sink is missing.", {"sink": None}),
        ("The sink is multiplied by softmax_scale: it is a score already.",
         {"sink": head.sink * float(head.scale)}),
        ("exp(sink) is added for each tile of keys; it is one score of the row.",
         {"sink": head.sink + math.log(max(1, math.ceil(len(head.k) / BLOCK_N)))}),
        ("A window of WINDOW keys has the query's own among them.", {"window": head.window + 1}),
        ("The window has one key too few.", {"window": head.window - 1}),
        ("The window has no first key: hide n < first_n, too.", {"window": 10**6}),
        ("Keys behind the query's own are seen.", {"right": -1}),
    ):  # fmt: skip
        if changes.get("window") != 0:
            yield sentence, replace(head, **changes).forward
    without = replace(head, sink=None).forward
    yield "The sink is in lse, not in out's sum.", {"out": without["out"], "lse": forward["lse"]}
    yield "The sink is in out's sum, not in lse.", {"out": forward["out"], "lse": without["lse"]}


def prepare(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """The kernel, its grid, thread block and arguments, and the outputs with their guards."""
    kernel = exercise.make_kernel(head.q.shape[1], BLOCK_M, BLOCK_N, head.window)
    outputs = {"out": guarded(*head.q.shape), "lse": guarded(len(head.q))}
    arrays = [array for array, _ in outputs.values()]
    args = [head.q, head.k, head.v, *arrays, head.scale, np.float32(head.sink)]
    return (kernel, math.ceil(len(head.q) / BLOCK_M), (BLOCK_N, BLOCK_M), *args), outputs


def check(exercise, head, BLOCK_M=8, BLOCK_N=8):
    """Run checked, compare out and lse."""
    launch, outputs = prepare(exercise, head, BLOCK_M, BLOCK_N)
    simt.run(*launch)
    for name, (got, _) in outputs.items():
        want, plain = head.forward[name], head.plain.forward[name]
        mistakes = mistakes_of(head, BLOCK_M, BLOCK_N)
        expect_close(name, got, want, plain, tile=BLOCK_M, mistakes=mistakes)


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 20, 1000])
def test_window(exercise, window):
    """a window of any width, smaller and larger than a tile; the sink is far below every score"""
    check(exercise, windowed(random_head(27, 27, 8), window, -1e4))


@pytest.mark.parametrize("sink", [0.0, -1.5, 3.0])
def test_sink(exercise, sink):
    """a sink, and a window that is longer than the sequence"""
    check(exercise, windowed(random_head(27, 27, 8, softmax_scale=0.2), 1000, sink))


@pytest.mark.parametrize("sizes", [(13, 29, 8), (1, 1, 8), (1, 37, 3), (3, 5, 33), (11, 18, 128)])
def test_sizes(exercise, sizes):
    """both, of any length and head_dim"""
    for window in (1, 6, 12):
        check(exercise, windowed(random_head(*sizes), window))


def test_rows_that_see_no_key(exercise):
    """rows that see no key are 0, their lse is the sink, in dead tiles and in live ones"""
    check(exercise, windowed(random_head(29, 13, 8), 4, 1.25))
    check(exercise, windowed(random_head(22, 9, 8), 4, -0.75))


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILE_SIZES)
def test_tile_size(exercise, BLOCK_M, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, windowed(random_head(22, 27, 12), 6), BLOCK_M, BLOCK_N)
    check(exercise, windowed(random_head(22, 27, 12), 19), BLOCK_M, BLOCK_N)


@pytest.mark.parametrize("sink", [1e4, -1e4])
def test_large_sinks(exercise, sink):
    """a sink above all scores takes all the weight, one below them none"""
    check(exercise, windowed(random_head(20, 28, 8), 9, sink))


@pytest.mark.parametrize("size", [3e4, 2e30])
def test_negative_scores(exercise, size):
    """scores far below 0: beside the sink they weigh nothing"""
    check(exercise, windowed(negative_scores(size), 9, 0.0))
    check(exercise, windowed(negative_scores(size), 9, -2 * size))


def test_zero_is_the_maximum(exercise):
    """a row whose largest score is 0, and a sink below it"""
    scores = -0.5 * (np.arange(31) % 5)
    check(exercise, windowed(scored_head(scores, seqlen_q=31), 12, -0.25))


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales the sink, too"""
    check(exercise, windowed(ordered_scores(), 17, 2.0))


def test_hidden_keys_and_the_maximum(exercise):
    """a hidden key takes no part in the maximum, however large its score"""
    head = scored_head(200.0 * np.abs(10 - np.arange(21)), seqlen_q=21)
    check(exercise, windowed(head, 4, 1.0))


def test_long(exercise):
    """300 tiles of keys, and 75 tiles of queries"""
    check(exercise, windowed(random_head(2, 1201, 2), 1190), 2, 4)
    check(exercise, windowed(random_head(300, 305, 3), 30), 4, 8)


@pytest.mark.parametrize("seqlen_q, seqlen_k, BLOCK_M, BLOCK_N, window", [
    (32, 32, 8, 8, 1), (32, 32, 8, 8, 10), (19, 37, 4, 16, 7), (37, 19, 8, 4, 5), (30, 64, 8, 4, 9),
])  # fmt: skip
def test_traffic(exercise, seqlen_q, seqlen_k, BLOCK_M, BLOCK_N, window):
    """HBM traffic is the formula, element for element: hidden tiles are never loaded"""
    head = windowed(random_head(seqlen_q, seqlen_k, 12), window)
    launch, _ = prepare(exercise, head, BLOCK_M, BLOCK_N)
    rows = 0
    for m_start in range(0, seqlen_q, BLOCK_M):
        end = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q  # behind the last key
        first = max(0, m_start + seqlen_k - seqlen_q - window + 1) // BLOCK_N
        tiles = range(first, math.ceil(end / BLOCK_N))
        rows += sum(min(BLOCK_N, seqlen_k - tile * BLOCK_N) for tile in tiles)
    per_live_tile = (rows * 12, "head_dim * rows of all live tiles")
    trace = simt.trace(*launch)
    expect_traffic(
        trace,
        {
            ("k", "loads"): per_live_tile,
            ("v", "loads"): per_live_tile,
            ("out", "loads"): (0, "out stays on the chip until the end"),
            ("lse", "loads"): (0, "lse is written at the end, and never read"),
            ("out", "stores"): (head.q.size, "seqlen_q * head_dim"),
            ("lse", "stores"): (seqlen_q, "seqlen_q"),
        },
    )
    got = trace.arrays["q"].loads
    assert got <= head.q.size, f"q: once is {head.q.size} loads, the meter shows {got}"


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out, and no more"""
    head = windowed(random_head(32, 48, 32), 20)
    launch, _ = prepare(exercise, head, 16, 16)
    trace = simt.trace(*launch)
    tiles = 16 * 33 + 2 * 16 * 33 + 2 * 16 * 17 + 4 * 16  # a padded column each, four a row
    allowed = (
        "tiles of q, k, v, s and p are shared, with BLOCK_M = BLOCK_N = 16 and d = 32; a thread "
        "has its 2 columns of acc and at most a row of p"
    )
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_inputs_and_edges(exercise):
    """q, k and v stay as they are, and nothing is written beside out and lse"""
    expect_clean(*prepare(exercise, windowed(random_head(11, 18, 8))), "q k v")


def test_definition():
    """the definition: the sink is one more key, whose value is 0"""
    head = windowed(random_head(6, 9, 4, softmax_scale=1.0), 4, 0.7)
    q, k, v = (np.pad(x, ((0, 0), (0, 1))) for x in (head.q, head.k, head.v))
    q[:, -1] = 1  # meets the last column of the further key alone
    k = np.vstack([k, [[0, 0, 0, 0, 0.7]]]).astype(np.float32)
    v = np.vstack([v, np.zeros(5)])
    m, n = np.arange(6)[:, None] + 3, np.arange(10)
    mask = (n == 9) | ((n <= m) & (n > m - 4))
    out, lse = reference.attention(*(x[None, :, None] for x in (q, k, v)), mask=mask[None, None],
                                   softmax_scale=1.0)  # fmt: skip
    assert np.allclose(out[0, :, 0, :4], head.forward["out"], atol=1e-6)
    assert np.allclose(lse[0, 0], head.forward["lse"], atol=1e-6)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    launch, _ = prepare(exercise, windowed(random_head(4, 4, 64), 3), 16, 16)
    simt.run(*launch)  # a stub says here that it is not written
    kernel, _, _, *args = launch
    gpu_ready(kernel, args)
