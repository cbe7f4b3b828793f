"""Grader of ex17f: the kernel for keys that all requests share, and the bytes of both levels."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_guard, guarded
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic
from fa_numba.workbook.graders.pages import combine


@dataclass
class Step:
    """One query of each request, and the keys that all of them share."""

    q: np.ndarray
    k_prefix: np.ndarray
    v_prefix: np.ndarray
    scale: np.float32

    @property
    def group_size(self):
        return self.q.shape[1] // self.k_prefix.shape[1]

    def answer(self, dtype=np.float64, q=None, kv_heads=None, scale=None):
        """out (batch, num_heads, head_dim) and lse (batch, num_heads), by definition."""
        q = self.q if q is None else q
        batch, num_heads, _ = q.shape
        own = np.arange(num_heads) // self.group_size
        heads = own if kv_heads is None else kv_heads
        keys = (x[None, :, heads] for x in (self.k_prefix, self.v_prefix))
        scale = float(self.scale) if scale is None else scale
        out, lse = reference.attention(q[None], *keys, softmax_scale=scale, dtype=dtype)
        return out[0], lse[0].T

    def mistakes(self):
        """(sentence, (out, lse)) of usual mistakes."""
        batch, num_heads, _ = self.q.shape
        heads = np.arange(num_heads)
        num_kv_heads = self.k_prefix.shape[1]
        yield "Every request has a q of its own.", {"q": self.q[np.zeros(batch, int)]}
        yield (
            "Head h reads K/V head h // GROUP_SIZE, not h % num_kv_heads.",
            {"kv_heads": heads % num_kv_heads},
        )
        yield "Every head reads K/V head 0.", {"kv_heads": 0 * heads}
        yield "The factor softmax_scale is missing.", {"scale": 1.0}


def make_step(prefix, batch=3, num_heads=4, num_kv_heads=2, head_dim=8, *, scale=None, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, num_heads, head_dim), np.float32)
    k, v = rng.standard_normal((2, prefix, num_kv_heads, head_dim), np.float32)
    return Step(q, k, v, np.float32(head_dim**-0.5 if scale is None else scale))


def with_scores(scores, **options):
    """Key n has the score scores[n] for every head."""
    step = make_step(len(scores), **options, scale=1.0)
    step.q[:], step.k_prefix[:] = 0, 0
    step.q[..., 0] = 1
    step.k_prefix[..., 0] = np.array(scores)[:, None]
    return step


def prepare(exercise, step, num_splits=2, BLOCK_M=4, BLOCK_N=8):
    """The launch, and the outputs with their guards."""
    batch, num_heads, head_dim = step.q.shape
    kernel = exercise.make_kernel(head_dim, step.group_size, BLOCK_M, BLOCK_N)
    outputs = {
        "out_partial": guarded(num_splits, batch, num_heads, head_dim),
        "lse_partial": guarded(num_splits, batch, num_heads),
    }
    grid = (num_splits, step.k_prefix.shape[1], -(-batch * step.group_size // BLOCK_M))
    arrays = [array for array, _ in outputs.values()]
    args = (step.q, step.k_prefix, step.v_prefix, *arrays, step.scale)
    return (kernel, grid, (BLOCK_N, BLOCK_M), *args), outputs


def run(exercise, step, *tiles):
    """Run checked; out_partial and lse_partial, every element of them written."""
    launch, outputs = prepare(exercise, step, *tiles)
    simt.run(*launch)
    for name, (array, larger) in outputs.items():
        expect_guard(name, larger)
        bad = np.argwhere((array == UNWRITTEN) | np.isnan(array))
        if len(bad):
            at = [int(i) for i in bad[0]]
            said = "was never written" if array[tuple(at)] == UNWRITTEN else "is NaN"
            raise Wrong(
                f"{name}{at} {said}: {len(step.q)} requests, {step.group_size} heads of a group",
                causes=["Some rows are left out, or written by another's threads."],
                where=name,
            )
    return [array for array, _ in outputs.values()]


def check(exercise, step, *tiles):
    """Combine the partial results, and compare with the definition."""
    got = combine(*run(exercise, step, *tiles))
    answers = step.answer(), step.answer(np.float32)
    for name, x, want, plain in zip(("out", "lse"), got, *answers, strict=True):
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(want)
            size = np.maximum(1, np.where(finite, np.abs(want), 0))
            tolerance = 2 * np.abs(plain - want)[finite].max(initial=0) + 1e-6 * size
            mask = ~((x == want) | (np.abs(x - want) <= tolerance))
        if mask.any():
            at = tuple(int(i) for i in np.argwhere(mask)[0])
            causes = []
            for sentence, how in step.mistakes():
                wrong = step.answer(**how)
                near = [np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(got, wrong, strict=True)]
                same = [np.allclose(a, b, 1e-3) for a, b in zip(answers[0], wrong, strict=True)]
                causes += [sentence] * (all(near) and not all(same))
            raise Wrong(
                f"the partial results, combined: {name}{list(at)} must be {want[at]:.6g}, got "
                f"{x[at]:.6g}. {len(step.q)} requests, {len(step.k_prefix)} keys, "
                f"{step.group_size} heads of a group. {''.join(causes[:1])}",
                causes=causes,
                where=f"request {at[0]}, head {at[1]}",
                wrong=mask,
                axes=("request", "head", "column")[: mask.ndim],
            )


@pytest.mark.parametrize("batch, BLOCK_M", [(1, 2), (2, 4), (3, 2), (6, 12)])
def test_whole_tiles_of_rows(exercise, batch, BLOCK_M):
    """rows of several requests in a thread block, whole tiles of them"""
    check(exercise, make_step(20, batch), 2, BLOCK_M)


@pytest.mark.parametrize("batch, BLOCK_M", [(1, 5), (3, 4), (5, 3), (7, 9), (20, 33), (270, 64)])
def test_ragged_rows(exercise, batch, BLOCK_M):
    """a last tile of rows that is part-filled, and tiles that end within a group"""
    check(exercise, make_step(9, batch, head_dim=4), 2, BLOCK_M, 4)


@pytest.mark.parametrize("prefix", [0, 1, 7, 8, 9, 33])
def test_keys(exercise, prefix):
    """any length of the prefix; without keys (0, -inf)"""
    check(exercise, make_step(prefix))


@pytest.mark.parametrize("num_heads, num_kv_heads", [(3, 3), (6, 2), (20, 1), (70, 70)])
def test_heads(exercise, num_heads, num_kv_heads):
    """each query head reads the K/V head of its group"""
    check(exercise, make_step(11, 2, num_heads, num_kv_heads, 4), 1, 6)


@pytest.mark.parametrize("num_splits", [1, 3, 7, 280])
@pytest.mark.parametrize("BLOCK_N", [1, 5, 33])
def test_splits_and_tiles(exercise, num_splits, BLOCK_N):
    """number of splits and size of the tiles do not change the answer"""
    prefix = 270 if num_splits > 100 and BLOCK_N == 1 else 35
    check(exercise, make_step(prefix, 2, 2, 1, 3), num_splits, 3, BLOCK_N)


def test_shares(exercise):
    """shares of tiles are even, and idle splits leave (0, -inf)"""
    step = make_step(21, 1, 1, 1, 21)
    step.v_prefix[:, 0] = np.eye(21)
    for num_splits, BLOCK_N in ((3, 4), (5, 2), (9, 8)):
        out_partial, lse_partial = run(exercise, step, num_splits, 1, BLOCK_N)
        keys = (out_partial[:, 0, 0] > 0).sum(axis=1)
        most = math.ceil(math.ceil(21 / BLOCK_N) / num_splits) * BLOCK_N
        assert keys.sum() == 21 and keys.max() <= most, (
            f"21 keys, tiles of {BLOCK_N}, {num_splits} splits have {keys.tolist()} keys: each key "
            f"is in one split, and no split has more than {most}"
        )
        assert np.isneginf(lse_partial[keys == 0]).all(), "lse of a split without keys is -inf"
    _, lse_partial = run(exercise, make_step(270, 1, 1, 1, 2), 280, 1, 1)
    used = int(np.isfinite(lse_partial).sum())
    assert used == 270, f"270 tiles over 280 splits: 270 of them have a tile each, got {used}"


@pytest.mark.parametrize("head_dim", [1, 13, 128, 130])
def test_head_dim(exercise, head_dim):
    """head_dim odd, and larger than the thread block is wide"""
    check(exercise, make_step(11, 2, 2, 1, head_dim))


@pytest.mark.parametrize("size", [3e4, 2e30])
def test_low_scores(exercise, size):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    check(exercise, with_scores(np.full(21, -size)), 1)


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before; the last one may be 0"""
    for scores in (np.linspace(-10, 9.5, 40), np.linspace(-9, 0, 19)):
        check(exercise, with_scores(scores.round(1)))


def test_one_merge(exercise):
    """prefix and suffixes of all requests are splits of one merge"""
    step, suffixes = make_step(13, 3), np.array([5, 0, 9], np.int32)
    k, v = np.random.default_rng(1).standard_normal((2, 3, 9, 2, 8), np.float32)
    states = run(exercise, step)
    for b, n in enumerate(suffixes):
        q, own = step.q[None, None, b], (k[None, b, :n], v[None, b, :n])
        out, lse = reference.attention(q, *own, dtype=np.float32)
        parts = zip(states, (out[0], lse[0].T), strict=True)
        got = combine(*(np.concatenate([a[:, b : b + 1], x[None]]) for a, x in parts))
        both = (
            np.concatenate([a, x[0]])[None]
            for a, x in zip((step.k_prefix, step.v_prefix), own, strict=True)
        )
        want = reference.attention(q, *both)
        assert np.allclose(got[0][0], want[0][0, 0], 1e-5, 1e-5), (
            f"request {b}, its {n} own keys merged with the prefix: out is not that of all keys"
        )


@pytest.mark.parametrize("batch, BLOCK_M", [(3, 4), (4, 8), (5, 16)])
def test_traffic(exercise, batch, BLOCK_M):
    """the prefix is loaded once per tile of rows, not per request"""
    step = make_step(21, batch, 4, 2, 12)
    trace = simt.trace(*prepare(exercise, step, 3, BLOCK_M)[0])
    tiles, rows = -(-batch * 2 // BLOCK_M), 3 * batch * 4
    keys = tiles * 21 * 2 * 12, "ceil(batch * GROUP_SIZE / BLOCK_M) * prefix * heads * HEAD_DIM"
    none = 0, "a thread block keeps its result to itself"
    expect_traffic(trace, {
        ("k_prefix", "loads"): keys, ("v_prefix", "loads"): keys,
        ("out_partial", "stores"): (rows * 12, "num_splits * batch * num_heads * HEAD_DIM"),
        ("lse_partial", "stores"): (rows, "num_splits * batch * num_heads"),
        ("out_partial", "loads"): none, ("lse_partial", "loads"): none,
    })  # fmt: skip
    most, got = rows * 12, trace.arrays["q"].loads
    assert got <= most, f"q at most once per split, {most} loads; the meter shows {got}"


@pytest.mark.parametrize(
    "prefix, suffixes, heads, head_dim, splits, BLOCK_M",
    [
        (24, [5, 9, 1], (4, 2), 8, (2, 1), 4),
        (24, [5, 9, 1], (4, 2), 8, (2, 3), 16),
        (9, [8], (3, 3), 5, (1, 1), 2),
        (16, [3, 3, 3, 3, 3], (2, 1), 12, (3, 2), 3),
    ],
)
def test_bytes(exercise, prefix, suffixes, heads, head_dim, splits, BLOCK_M):
    """bytes_moved is what the meter counts of your kernel and of the suffixes"""
    step = make_step(prefix, len(suffixes), *heads, head_dim)
    lengths = np.array(suffixes, np.int32)
    shape = (2, len(suffixes), max(suffixes), heads[1], head_dim)
    caches = np.zeros(shape, np.float32)
    trace = simt.trace(*prepare(exercise, step, splits[0], BLOCK_M)[0])
    with simt.tracing() as traces:
        flash_decode(step.q[:, None], *caches, lengths, num_splits=splits[1])
    arrays = [*trace.arrays.items(), *traces[0].arrays.items()]
    names = ("k_prefix", "v_prefix", "k_cache", "v_cache")
    meter = (
        sum(array.load_bytes for name, array in arrays if name in names),
        sum(array.store_bytes for name, array in arrays if name.endswith("_partial")),
    )
    expect_bytes(exercise, meter, prefix, suffixes, *heads, head_dim, sum(splits), BLOCK_M)


def test_bytes_of_a_server(exercise):
    """bytes_moved of a server's step, exact for large numbers too"""
    for batch, prefix, own in ((32, 8192, 256), (300, 131_072, 70), (1, 0, 5)):
        rows = -(-batch * 4 // 16)
        meter = (8 * (rows * prefix + batch * own) * 8 * 128, 4 * 20 * batch * 32 * 129)
        expect_bytes(exercise, meter, prefix, [own] * batch, 32, 8, 128, 20, 16)


def expect_bytes(exercise, meter, *args):
    prefix, suffixes, num_heads, num_kv_heads, head_dim, num_splits, BLOCK_M = args
    batch, group, token = len(suffixes), num_heads // num_kv_heads, 8 * num_kv_heads * head_dim
    known = {
        "K and V: the prefix is loaded once per tile of rows, not per request.": batch,
        "K and V: the prefix is loaded once for each BLOCK_M rows, rounded up.": 1,
        "K and V: a K/V head has batch * GROUP_SIZE rows, not batch.": -(-batch // BLOCK_M),
        "K and V: round the tiles of rows up.": batch * group // BLOCK_M,
    }
    known = {said: token * (tiles * prefix + sum(suffixes)) for said, tiles in known.items()}
    known |= {
        "K and V: two arrays, not one.": meter[0] // 2,
        "K and V: bytes, four for a number.": meter[0] // 4,
        "K and V: the suffixes are loaded, too.": meter[0] - token * sum(suffixes),
    }
    row = num_splits * batch * num_heads
    for what, number, want, causes in (
        ("K and V that are loaded", 0, meter[0], known),
        (
            "partial results that are stored",
            1,
            meter[1],
            {
                "Partial results: out and lse of each row.": 4 * row * head_dim,
                "Partial results: every query head has one.": meter[1] // group,
                "Partial results: every split has one.": meter[1] // num_splits,
                "Partial results: bytes, four for a number.": meter[1] // 4,
            },
        ),
    ):
        got = exercise.bytes_moved(*args)[number]
        if not (isinstance(got, (int, np.integer)) and got == want):
            raise Wrong(
                f"bytes of {what}, {batch} requests, {prefix} keys in common, {num_heads} heads, "
                f"{num_kv_heads} K/V heads, {BLOCK_M=}: want {want}, got {got!r}",
                causes=[said for said, wrong in causes.items() if wrong == got != want],
                where=what,
            )


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out"""
    trace = simt.trace(*prepare(exercise, make_step(48, 4, 8, 2, 32), 2, 16, 16)[0])
    tiles = 3 * 16 * 33 + 2 * 16 * 17 + 4 * 16
    allowed = "tiles of q, k, v, s and p are shared; a thread has its columns of acc"
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread, and no tile behind the last key"""
    step = make_step(48, 4, 8, 2, 32)
    trace = simt.trace(*prepare(exercise, step, 2, 16, 16)[0])
    how = "(ty, tx) computes one score of a tile, and there are ceil(prefix / BLOCK_N) tiles"
    expect_products(trace, 2 * 32 * 48 * 32, "q k^T and P v are", how)


def test_inputs_unchanged(exercise):
    """q and the prefix stay as they are"""
    step = make_step(11)
    names = ("q", "k_prefix", "v_prefix")
    before = {name: getattr(step, name).tobytes() for name in names}
    run(exercise, step)
    for name in names:
        same = getattr(step, name).tobytes() == before[name]
        assert same, f"{name} is an input, but the kernel changed it"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, make_step(4, 4, 4, 1, 64), 2, 16, 16)
    gpu_ready(kernel, args)
