"""Grader of ex17c: the split kernel of Flash-Decoding."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_clean, guarded
from fa_numba.workbook.graders.causes import Wrong, diagnosis
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic


@dataclass
class Decode:
    """A decoding step: its arguments, and the answers in float64 and in plain float32."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    seq_lens: np.ndarray
    scale: np.float32

    @property
    def group_size(self):
        return self.q.shape[1] // self.k_cache.shape[2]

    def answer(self, dtype=np.float64):
        caches = (self.k_cache, self.v_cache, self.seq_lens)
        scale = float(self.scale)
        out, lse = reference.cached_attention(
            self.q[:, None], *caches, softmax_scale=scale, dtype=dtype
        )
        return out[:, 0], lse[:, :, 0]

    def scores(self):
        """Scaled scores in float64, (batch, num_heads, max_len); -inf past the end."""
        k = np.repeat(self.k_cache.astype(np.float64), self.group_size, axis=2)
        s = np.einsum("bhd,bnhd->bhn", self.q, np.nan_to_num(k)) * float(self.scale)
        past = np.arange(k.shape[1]) >= self.seq_lens[:, None]
        return np.where(past[:, None], -np.inf, s)


def make_decode(seq_lens, num_heads=4, num_kv_heads=2, head_dim=8, *, scale=None, seed=0, spare=3):
    """Random keys; NaN in what no sequence owns."""
    rng = np.random.default_rng(seed)
    batch, max_len = len(seq_lens), max(seq_lens) + spare
    q = rng.standard_normal((batch, num_heads, head_dim), np.float32)
    shape = (batch, max_len, num_kv_heads, head_dim)
    k_cache, v_cache = (rng.standard_normal(shape, np.float32) for _ in range(2))
    for b, n in enumerate(seq_lens):
        k_cache[b, n:], v_cache[b, n:] = np.nan, np.nan
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    return Decode(q, k_cache, v_cache, np.array(seq_lens, np.int32), np.float32(scale))


def prepare(exercise, step, num_splits, BLOCK_N):
    """The launch, and the two outputs inside their guards."""
    batch, num_heads, head_dim = step.q.shape
    kernel = exercise.make_kernel(head_dim, step.group_size, BLOCK_N)
    outputs = {
        "out_partial": guarded(num_splits, batch, num_heads, head_dim),
        "lse_partial": guarded(num_splits, batch, num_heads),
    }
    grid = (num_splits, step.k_cache.shape[2], batch)
    arrays = [array for array, _ in outputs.values()]
    args = (step.q, step.k_cache, step.v_cache, step.seq_lens, *arrays, step.scale)
    return (kernel, grid, (BLOCK_N, step.group_size), *args), outputs


def run(exercise, step, num_splits=3, BLOCK_N=8):
    """Run checked; out_partial and lse_partial, with every element written."""
    launch, outputs = prepare(exercise, step, num_splits, BLOCK_N)
    simt.run(*launch)
    for name, (array, _) in outputs.items():
        bad = np.argwhere((array == UNWRITTEN) | np.isnan(array))
        if len(bad):
            split, b, head, *d = (int(i) for i in bad[0])
            what = "was never written" if array[tuple(bad[0])] == UNWRITTEN else "is NaN"
            pytest.fail(
                f"{name}{[split, b, head, *d]} {what}: split {split} of {num_splits}, sequence {b} "
                f"with {step.seq_lens[b]} keys, tiles of {BLOCK_N}. A split without keys is "
                "(0, -inf); what lies beyond seq_lens is NaN here and must not be loaded"
            )
    return [array for array, _ in outputs.values()]


def combine(out_partial, lse_partial):
    """What ex17d will do, in float64."""
    lse_max = lse_partial.max(axis=0).astype(np.float64)
    w = np.exp(lse_partial - np.where(np.isneginf(lse_max), 0, lse_max))
    total = w.sum(axis=0)
    out = (w[..., None] * out_partial).sum(axis=0) / np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        return out, lse_max + np.log(total)


def attend(scores, values):
    """(out, lse) in float64; scores (batch, num_heads, n), values (batch, num_heads, n, d)."""
    lse = np.logaddexp.reduce(scores, axis=-1)
    p = np.exp(scores - np.where(np.isneginf(lse), 0, lse)[..., None])
    return np.einsum("bhn,bhnd->bhd", p, values), lse


def mistakes(step, num_splits, BLOCK_N):
    """What the partial results should combine to, then with usual mistakes: (why, (out, lse))."""
    num_kv_heads, lengths = step.k_cache.shape[2], step.seq_lens[:, None, None]
    heads = np.arange(step.q.shape[1])
    more = (0, BLOCK_N)  # a tile that goes past the end of the cache

    def values(kv_heads):
        v = np.nan_to_num(step.v_cache.astype(np.float64)).transpose(0, 2, 1, 3)[:, kv_heads]
        return np.pad(v, [(0, 0), (0, 0), more, (0, 0)])

    s = np.pad(step.scores(), [(0, 0), (0, 0), more], constant_values=-np.inf)
    v, n = values(heads // step.group_size), np.arange(s.shape[2])
    out, lse = attend(s, v)
    yield "", (out, lse)
    if step.scale not in (0, 1):
        yield "The factor softmax_scale is missing.", attend(s / step.scale, v)
    if num_splits == 1:
        m = np.where(np.isneginf(lse), 0, s.max(axis=-1))
        base_2 = m + (lse - m) / math.log(2)
        yield "lse_partial takes the natural logarithm of l_i, not log2.", (out, base_2)
    for end, up_to in (
        (-(-lengths // BLOCK_N) * BLOCK_N, "in its last tile"),
        (-(-step.k_cache.shape[1] // BLOCK_N) * BLOCK_N, "up to the end of the cache"),
    ):
        counted = np.where((n >= lengths) & (n < end), 0, s)
        sentence = f"Keys past the end of a sequence, {up_to}, take part with score 0, not -inf."
        yield sentence, attend(counted, v)
    for sentence, end in (
        (
            "Key seq_lens[b], which does not exist, takes part: n < seq_lens[b], not <=.",
            lengths + 1,
        ),
        ("The last key, seq_lens[b] - 1, takes no part.", lengths - 1),
    ):
        tiled = np.minimum(end, -(-lengths // BLOCK_N) * BLOCK_N)
        counted = np.where(n >= lengths, 0, s)
        yield sentence, attend(np.where(n < tiled, counted, -np.inf), v)
    tile, tiles = n // BLOCK_N, -(-lengths // BLOCK_N)
    share = np.maximum(-(-tiles // num_splits), 1)
    twice = np.where((tile % share == 0) & (tile > 0), math.log(2), 0)
    sentence = (
        "The first tile of a split is also counted by the split before: ranges end before it."
    )
    yield sentence, attend(s + twice, v)
    kept = tiles // num_splits * num_splits * BLOCK_N
    sentence = "Tiles are left out: tiles // num_splits for each split does not share them all out."
    yield sentence, attend(np.where(n < kept, s, -np.inf), v)
    k = np.nan_to_num(step.k_cache.astype(np.float64))
    for sentence, kv_heads in (
        ("Head h reads K/V head h // GROUP_SIZE, not h % num_kv_heads.", heads % num_kv_heads),
        ("Every head reads K/V head 0.", 0 * heads),
    ):
        scores = np.einsum("bhd,bnhd->bhn", step.q, k[:, :, kv_heads]) * float(step.scale)
        scores = np.pad(scores, [(0, 0), (0, 0), more])
        yield sentence, attend(np.where(n < lengths, scores, -np.inf), values(kv_heads))


def likely_cause(step, num_splits, BLOCK_N, got):
    """The sentence of the mistake that explains both out and lse, or nothing."""
    (_, right), *known = mistakes(step, num_splits, BLOCK_N)
    for sentence, answer in known:
        same = [np.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(got, answer, strict=True)]
        other = [
            np.allclose(x, y, rtol=1e-3, atol=1e-3) for x, y in zip(right, answer, strict=True)
        ]
        if all(same) and not all(other):
            return sentence
    return ""


def check(exercise, step, num_splits=3, BLOCK_N=8):
    """Combine the partial results and compare with the definition."""
    got = combine(*run(exercise, step, num_splits, BLOCK_N))
    for name, x, want, plain in zip(
        ("out", "lse"), got, step.answer(), step.answer(np.float32), strict=True
    ):
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(want)
            size = np.maximum(1, np.where(finite, np.abs(want), 0))
            tolerance = 2 * np.abs(plain - want)[finite].max(initial=0) + 1e-6 * size
            mask = ~((x == want) | (np.abs(x - want) <= tolerance))
            wrong = np.argwhere(mask)
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            b, head = at[:2]
            cause = likely_cause(step, num_splits, BLOCK_N, got) or (
                cause_of_owners(exercise, int(step.seq_lens[b]), num_splits, BLOCK_N)
                if got[0][b, head].any()
                else "The row is 0: the maximum starts at -inf, and only -inf hides a key."
            )
            splits = "1 split" if num_splits == 1 else f"{num_splits} splits"
            raise Wrong(
                f"the partial results, combined: {name}{list(at)} must be {want[at]:.7g}, got "
                f"{x[at]:.7g}. Sequence {b} has {step.seq_lens[b]} keys, head {head} reads K/V head"
                f" {head // step.group_size}; {splits}, tiles of {BLOCK_N}. {cause}".rstrip(),
                causes=[cause],
                where=f"sequence {b}, head {head}",
                wrong=mask,
                axes=("sequence", "head", "column")[: mask.ndim],
            )


def weights(exercise, num_keys, num_splits, BLOCK_N):
    """Of each key in each split: value n is 1 in column n alone. (num_splits, num_keys)."""
    step = make_decode([num_keys], 1, 1, num_keys, spare=50)  # room that is no part of the shares
    step.v_cache[0, :num_keys, 0] = np.eye(num_keys)
    out_partial, _ = run(exercise, step, num_splits, BLOCK_N)
    return out_partial[:, 0, 0]


def owners(exercise, num_keys, num_splits, BLOCK_N):
    """Which split attends to which key."""
    return weights(exercise, num_keys, num_splits, BLOCK_N) > 0


def cause_of_owners(exercise, num_keys, num_splits, BLOCK_N):
    """Say how the splits of a sequence of num_keys keys are wrong; "" where they are right."""
    try:
        with diagnosis():
            found = weights(exercise, num_keys, num_splits, BLOCK_N)
            one_tile = weights(exercise, BLOCK_N, 1, BLOCK_N)
    except Exception:  # of another failure
        return ""
    times = (found > 0).sum(axis=0)
    if one_tile.sum() > 1.001:
        return "out_partial is not divided by l_i, the sum over the keys of its split."
    sums = found.sum(axis=1)[found.any(axis=1)]
    if (np.abs(sums - 1) > 1e-3).any():
        return "acc and l_i, both, are multiplied by alpha where the maximum grows."
    if (times > 1).any():
        whole = " A split takes whole tiles: cut at multiples of BLOCK_N, not at any key."
        keys = np.flatnonzero(times > 1)
        inside = (keys // BLOCK_N != keys[0] // BLOCK_N).any() or len(keys) < BLOCK_N
        return "Some keys belong to two splits." + whole * bool(inside)
    return "Some keys belong to no split." if (times == 0).any() else ""


def test_one_split(exercise):
    """one split is plain attention"""
    check(exercise, make_decode([24, 16]), num_splits=1)


def test_two_splits(exercise):
    """two splits, several tiles each"""
    check(exercise, make_decode([48, 32]), num_splits=2)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 4, 5, 6, 7, 16])
def test_number_of_splits(exercise, num_splits):
    """the number of splits does not change the answer"""
    check(exercise, make_decode([40, 37, 9]), num_splits)


@pytest.mark.parametrize(
    "lengths, num_splits, BLOCK_N, want", [([16, 5], 9, 8, [2, 1]), ([270], 280, 1, [270])]
)
def test_more_splits_than_tiles(exercise, lengths, num_splits, BLOCK_N, want):
    """more splits than tiles: the idle ones leave (0, -inf)"""
    step = make_decode(lengths, 2, 1, 4)
    out_partial, lse_partial = run(exercise, step, num_splits, BLOCK_N)
    with_keys = np.isfinite(lse_partial).any(axis=2).sum(axis=0)
    assert with_keys.tolist() == want, (
        f"{lengths} keys in tiles of {BLOCK_N} are {want} tiles, so that many of {num_splits} "
        f"splits have keys, got {with_keys.tolist()}: lse_partial of the others is -inf"
    )
    idle = np.isneginf(lse_partial)
    assert (out_partial[idle] == 0).all(), "out_partial of a split without keys must be 0"
    check(exercise, step, num_splits, BLOCK_N)


def test_empty_sequences(exercise):
    """a sequence without a key is (0, -inf) in every split, its neighbours are not touched by it"""
    step = make_decode([0, 21, 0])
    out_partial, lse_partial = run(exercise, step)
    assert np.isneginf(lse_partial[:, [0, 2]]).all() and (out_partial[:, [0, 2]] == 0).all(), (
        "sequences 0 and 2 have no key: want out_partial 0 and lse_partial -inf in every split"
    )
    check(exercise, step)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 17])
def test_ragged(exercise, length):
    """a last tile that is part-filled; what lies behind it is NaN"""
    check(exercise, make_decode([length, 30]))


@pytest.mark.parametrize(
    "num_heads, num_kv_heads", [(1, 1), (3, 3), (4, 2), (6, 2), (20, 1)], ids=lambda n: str(n)
)
def test_heads(exercise, num_heads, num_kv_heads):
    """every query head reads the K/V head of its group: MHA, GQA, MQA"""
    check(exercise, make_decode([25, 12], num_heads, num_kv_heads))


@pytest.mark.parametrize("BLOCK_N", [1, 4, 7, 16, 33])
def test_tile_size(exercise, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, make_decode([33, 20]), BLOCK_N=BLOCK_N)


@pytest.mark.parametrize("head_dim", [1, 3, 128, 130])
def test_odd_head_dim(exercise, head_dim):
    """head_dim odd, smaller and larger than the thread block is wide"""
    check(exercise, make_decode([21], head_dim=head_dim))


@pytest.mark.parametrize(
    "num_keys, num_splits, BLOCK_N", [(32, 3, 4), (30, 4, 4), (12, 5, 4), (7, 2, 4), (130, 130, 1)]
)
def test_shares(exercise, num_keys, num_splits, BLOCK_N):
    """every key belongs to one split, and the shares are even"""
    owned = owners(exercise, num_keys, num_splits, BLOCK_N)
    times = owned.sum(axis=0)
    key = int(np.argmax(times != 1))
    assert (times == 1).all(), f"key {key} of {num_keys} is in {times[key]} splits: want exactly 1"
    num_n_tiles = -(-num_keys // BLOCK_N)
    most = -(-num_n_tiles // num_splits)
    tiles = [len({int(n) // BLOCK_N for n in np.flatnonzero(row)}) for row in owned]
    assert max(tiles) <= most, (
        f"{num_n_tiles} tiles over {num_splits} splits: no share may be larger than {most} tiles, "
        f"got one of {max(tiles)}: the longest thread block decides how long the step takes"
    )


def test_partial_results(exercise):
    """each partial result is the softmax over the keys of its split alone, and its lse"""
    num_keys = 32
    step = make_decode([num_keys], 1, 1, num_keys, spare=0)
    step.v_cache[0, :, 0] = np.eye(num_keys)
    out_partial, lse_partial = run(exercise, step, 3, 4)
    s = step.scores()[0, 0]
    for split, (weights, lse) in enumerate(
        zip(out_partial[:, 0, 0], lse_partial[:, 0, 0], strict=True)
    ):
        keys = weights > 0
        want = np.log(np.exp(s[keys]).sum())
        assert abs(lse - want) <= 1e-5, (
            f"split {split} attends to keys {np.flatnonzero(keys).tolist()}: the log of the sum of "
            f"exp(score) over them is {want:.6g}, lse_partial says {lse:.6g}"
        )
        assert abs(weights.sum() - 1) <= 1e-5, (
            f"split {split}: its weights sum to {weights.sum():.6g}, not 1: divide by l_i, the sum "
            "over the keys of the split"
        )


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    step = make_decode([40], 2, 1, 8, scale=1.0)
    step.q[:], step.k_cache[:, :40] = 0, 0
    step.q[0, 0, 0], step.q[0, 1, 0] = 1, -1
    step.k_cache[0, :40, 0, 0] = np.linspace(-10, 9.5, 40).round(1)
    check(exercise, step, num_splits=2)


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    step = make_decode([40], 2, 1, 8, scale=1.0)
    step.q[:], step.k_cache[:, :40] = 0, 0
    step.q[0, 0, 0], step.q[0, 1, 0] = 1, -1
    rng = np.random.default_rng(1)
    step.k_cache[0, :40, 0, 0] = rng.permutation(np.linspace(-1e4, 1e4, 40).round())
    check(exercise, step)


@pytest.mark.parametrize("softmax_scale", [1.0, 0.0, -0.3])
def test_softmax_scale(exercise, softmax_scale):
    """softmax_scale is honoured"""
    check(exercise, make_decode([20, 11], scale=softmax_scale))


@pytest.mark.parametrize("num_splits", [1, 3, 8])
@pytest.mark.parametrize("num_heads, num_kv_heads", [(2, 2), (8, 2)], ids=["mha", "gqa"])
def test_traffic(exercise, num_splits, num_heads, num_kv_heads):
    """HBM traffic: each key once, however many splits and heads of a group; a partial per split"""
    step = make_decode([37, 0, 16], num_heads, num_kv_heads, 12)
    launch, _ = prepare(exercise, step, num_splits, 8)
    trace = simt.trace(*launch)
    keys = (53 * num_kv_heads * 12, "sum(seq_lens) * num_kv_heads * head_dim")
    rows = num_splits * 3 * num_heads
    expect_traffic(
        trace,
        {
            ("k_cache", "loads"): keys,
            ("v_cache", "loads"): keys,
            ("out_partial", "stores"): (rows * 12, "num_splits * batch * num_heads * head_dim"),
            ("lse_partial", "stores"): (rows, "num_splits * batch * num_heads"),
            ("out_partial", "loads"): (0, "a thread block keeps its result to itself"),
            ("lse_partial", "loads"): (0, "a thread block keeps its result to itself"),
        },
    )
    most, got = rows * 12, trace.arrays["q"].loads
    assert got <= most, f"q at most once per split, {most} loads; the meter shows {got}"


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out, and no more"""
    trace = simt.trace(*prepare(exercise, make_decode([48], 16, 1, 32), 2, 16)[0])
    tiles = 3 * 16 * 33 + 2 * 16 * 17 + 4 * 16  # a padded column each, four a row
    allowed = (
        "tiles of q, k, v, s and p are shared, with GROUP_SIZE = BLOCK_N = 16 and d = 32; a thread "
        "has its 2 columns of acc and at most a row of p"
    )
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread"""
    trace = simt.trace(*prepare(exercise, make_decode([48], 16, 1, 32), 2, 16)[0])
    how = "(ty, tx) computes one score of a tile, and the others read it from shared memory"
    expect_products(trace, 2 * 16 * 48 * 32, "q k^T and P v are", how)


@pytest.mark.parametrize("size", [3e4, 2e9, 2e30])
def test_negative_scores(exercise, size):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    step = make_decode([21], scale=1.0)
    step.q[:], step.k_cache[0, :21] = 0, 0
    step.q[..., 0] = 1
    step.k_cache[0, :21, :, 0] = (-size - np.arange(21) * 7 % 10 * (size < 1e5))[:, None]
    check(exercise, step, num_splits=1)  # float32 cannot tell the lse of two splits apart


def test_weightless_value(exercise):
    """exp of -120 is 0: a key that far below the maximum adds nothing, however large its value"""
    step = make_decode([21], scale=1.0)
    step.q[:], step.k_cache[0, :21] = 0, 0
    step.q[..., 0] = 1
    step.k_cache[0, 2, :, 0] = -120
    step.v_cache[0, 2] = 3e38
    check(exercise, step, num_splits=1)


def test_long(exercise):
    """300 tiles in one split and in 200, 70 sequences, 70 K/V heads"""
    step = make_decode([1201], 1, 1, 2)
    for num_splits in (1, 200):
        check(exercise, step, num_splits, 4)
    check(exercise, make_decode([1 + b % 3 for b in range(70)], 1, 1, 2), 2, 4)
    check(exercise, make_decode([3], 70, 70, 2), 2, 4)


def test_sequences_are_apart(exercise):
    """NaN in one sequence never reaches another"""
    step = make_decode([20, 20])
    clean = combine(*run(exercise, step))
    step.k_cache[1], step.v_cache[1] = np.nan, np.nan
    launch, outputs = prepare(exercise, step, 3, 8)
    simt.run(*launch)
    out_partial, lse_partial = (array[:, :1] for array, _ in outputs.values())
    for name, x, y in zip(("out", "lse"), combine(out_partial, lse_partial), clean, strict=True):
        assert (x == y[:1]).all(), f"{name} of sequence 0 changed when sequence 1 became NaN"


def test_inputs_and_edges(exercise):
    """inputs stay as they are, and nothing is written beside out_partial and lse_partial"""
    launch = prepare(exercise, make_decode([11, 18]), 3, 8)
    expect_clean(*launch, "q k_cache v_cache seq_lens")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, make_decode([4], 4, 1, 64), 2, 16)
    gpu_ready(kernel, args)
