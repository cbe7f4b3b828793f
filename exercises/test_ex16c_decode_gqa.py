"""Grader of ex16c: one decoding step with grouped heads."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    UNWRITTEN,
    expect_clean,
    expect_close,
    guarded,
)
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic


@dataclass
class Step:
    """One decoding step: a query per head and sequence, and the caches with NaN past the end."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    seq_lens: np.ndarray
    softmax_scale: float | None = None

    @property
    def group_size(self):
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def scale(self):
        default = 1 / math.sqrt(self.q.shape[2])
        return np.float32(default if self.softmax_scale is None else self.softmax_scale)

    @property
    def inputs(self):
        return {name: getattr(self, name) for name in ("q", "k_cache", "v_cache", "seq_lens")}

    def answer(self, b, dtype=np.float64, kv_head_of=None, **changed):
        """out (num_heads, head_dim) and lse (num_heads,) of sequence b, by definition."""
        n = int(changed.get("num_keys", self.seq_lens[b]))
        missing = [(0, changed.get("zeros", 0)), (0, 0), (0, 0)]  # keys that do not exist
        k, v = (np.pad(x[b, :n], missing) for x in (self.k_cache, self.v_cache))
        if kv_head_of is not None:
            k, v = (x[:, [kv_head_of(h) for h in range(self.q.shape[1])]] for x in (k, v))
        scale = float(changed.get("scale", self.scale))
        q = self.q[None, None, b]
        out, lse = reference.attention(q, k[None], v[None], softmax_scale=scale, dtype=dtype)
        return {"out": out[0, 0], "lse": lse[0, :, 0]}

    def mistakes(self, b, BLOCK_N):
        """(sentence, what it makes of out and lse) of the usual mistakes."""
        n, num_kv_heads = int(self.seq_lens[b]), self.k_cache.shape[2]
        heads_in_turn = self.answer(b, kv_head_of=lambda h: h % num_kv_heads)
        yield "Query head h reads K/V head h // GROUP_SIZE, not h % num_kv_heads.", heads_in_turn
        first = self.answer(b, kv_head_of=lambda h: 0)
        yield "All query heads read K/V head 0: it is blockIdx.x.", first
        yield "softmax_scale is not applied.", self.answer(b, scale=1.0)
        if n > 1:
            yield "The last key is not seen.", self.answer(b, num_keys=n - 1)
        if missing := -n % BLOCK_N:
            one = "Key seq_lens[b], which does not exist, takes part: n < seq_lens[b], not <=."
            yield one, self.answer(b, zeros=1)
            beyond = "Keys past seq_lens[b], in the last tile, take part with score 0, not -inf."
            yield beyond, self.answer(b, zeros=missing)


def make_step(
    seq_lens, num_heads=4, num_kv_heads=2, head_dim=8, *, max_len=None, seed=0, **options
):
    rng = np.random.default_rng(seed)
    batch, max_len = len(seq_lens), max(*seq_lens, 1) if max_len is None else max_len
    q = rng.standard_normal((batch, num_heads, head_dim), np.float32)
    k, v = rng.standard_normal((2, batch, max_len, num_kv_heads, head_dim), np.float32)
    for b, n in enumerate(seq_lens):
        k[b, n:], v[b, n:] = np.nan, np.nan
    return Step(q, k, v, np.array(seq_lens, np.int32), **options)


def prepare(exercise, step, BLOCK_N=8):
    """The launch, and the outputs with their guards."""
    batch, num_heads, head_dim = step.q.shape
    kernel = exercise.make_kernel(head_dim, step.group_size, BLOCK_N)
    outputs = {"out": guarded(*step.q.shape), "lse": guarded(batch, num_heads)}
    arrays = [array for array, _ in outputs.values()]
    grid, block = (step.k_cache.shape[2], batch), (BLOCK_N, step.group_size)
    return (kernel, grid, block, *step.inputs.values(), *arrays, step.scale), outputs


def check(exercise, step, BLOCK_N=8):
    """Run checked, compare out and lse, sequence by sequence."""
    launch, outputs = prepare(exercise, step, BLOCK_N)
    simt.run(*launch)
    for b, n in enumerate(step.seq_lens):
        want, plain = step.answer(b), step.answer(b, np.float32)
        for name, (got, _) in outputs.items():
            try:
                expect_close(
                    name, got[b], want[name], plain[name], tile=step.group_size, rows="head",
                    mistakes=step.mistakes(b, BLOCK_N) if n else (),
                )  # fmt: skip
            except Wrong as error:
                raise Wrong(
                    f"sequence {b}, of {n} keys: {error}",
                    causes=error.causes,
                    where=f"sequence {b}, {error.where}",
                ) from None


def test_one_tile(exercise):
    """one sequence, one tile of keys, one K/V head for two query heads"""
    check(exercise, make_step([8], num_heads=2, num_kv_heads=1))


def test_many_tiles(exercise):
    """several tiles of keys match float64"""
    check(exercise, make_step([32], head_dim=16))


@pytest.mark.parametrize(
    "num_heads, num_kv_heads", [(3, 3), (6, 2), (20, 1), (8, 4)], ids=["mha", "gqa", "mqa", "pairs"]
)
def test_heads(exercise, num_heads, num_kv_heads):
    """each query head reads the K/V head of its group: MHA, GQA, MQA"""
    check(exercise, make_step([19], num_heads, num_kv_heads))


def test_batch(exercise):
    """each sequence ends at its own length; what lies past it is NaN"""
    check(exercise, make_step([5, 24, 13, 1]))


def test_room_to_grow(exercise):
    """a cache with room for more tokens than any sequence has"""
    check(exercise, make_step([9, 16], max_len=40))


@pytest.mark.parametrize("BLOCK_N", [1, 5, 16, 33])
def test_tile_size(exercise, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, make_step([37, 14], head_dim=12), BLOCK_N)


@pytest.mark.parametrize("seq_len", [1, 2, 7, 8, 9])
def test_short(exercise, seq_len):
    """one key, and tile sizes plus or minus one"""
    check(exercise, make_step([seq_len]))


def test_empty(exercise):
    """an empty sequence: out is 0 and lse is -inf"""
    check(exercise, make_step([0, 5, 0], max_len=9))


@pytest.mark.parametrize("head_dim", [1, 3, 13, 130])
def test_odd_head_dim(exercise, head_dim):
    """head_dim odd, smaller and larger than the thread block is wide"""
    check(exercise, make_step([18], head_dim=head_dim))


def scored(scores_of_keys):
    """Every query head gives key n the score `scores_of_keys[n]`, every second one its negative."""
    step = make_step([len(scores_of_keys)], softmax_scale=1.0)
    step.q[:], step.k_cache[:] = 0, 0
    step.q[..., 0] = np.where(np.arange(step.q.shape[1]) % 2 == 0, 1, -1)
    step.k_cache[0, :, :, 0] = np.array(scores_of_keys)[:, None]
    return step


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    check(exercise, scored(np.linspace(-10, 9.5, 40).round(1)))


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    check(
        exercise, scored(np.random.default_rng(1).permutation(np.linspace(-1e4, 1e4, 40).round()))
    )


@pytest.mark.parametrize("size", [3e4, 2e9, 2e30])
def test_negative_scores(exercise, size):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    step = scored(-size - np.arange(21) * 7 % 10 * (size < 1e5))
    step.q[..., 0] = 1
    check(exercise, step)


def test_weightless_value(exercise):
    """exp of -120 is 0: a key that far below the maximum adds nothing, however large its value"""
    step = scored(np.where(np.arange(21) == 2, -120, 0))
    step.q[..., 0] = 1
    step.v_cache[0, 2] = 3e38
    check(exercise, step)


def test_long(exercise):
    """300 tiles of keys, 70 sequences, 70 K/V heads"""
    check(exercise, make_step([1201], 1, 1, 2), 4)
    check(exercise, make_step([1 + b % 3 for b in range(70)], 1, 1, 2), 4)
    check(exercise, make_step([3], 70, 70, 2), 4)


@pytest.mark.parametrize("softmax_scale", [1.0, 0.05, 0.0, -0.3])
def test_softmax_scale(exercise, softmax_scale):
    """softmax_scale is honoured"""
    check(exercise, make_step([20], softmax_scale=softmax_scale))


def test_isolation(exercise):
    """a NaN in one sequence or one K/V head never reaches another"""
    step = make_step([12, 12])
    step.k_cache[0, 3, 1] = np.nan
    launch, outputs = prepare(exercise, step)
    simt.run(*launch)
    out = outputs["out"][0]
    assert np.isfinite(out[1]).all(), "a NaN in the keys of sequence 0 reached sequence 1"
    assert np.isfinite(out[0, :2]).all(), "a NaN in K/V head 1 reached query heads 0 and 1"


@pytest.mark.parametrize(
    "num_heads, num_kv_heads", [(2, 2), (8, 2), (8, 1)], ids=["mha", "gqa", "mqa"]
)
def test_traffic(exercise, num_heads, num_kv_heads):
    """HBM traffic is the formula: the keys of a group are read once"""
    step = make_step([21, 8, 0], num_heads, num_kv_heads, 12)
    launch, _ = prepare(exercise, step)
    cache = (29 * num_kv_heads * 12, "sum of seq_lens * num_kv_heads * HEAD_DIM")
    once = (step.q.size, "batch * num_heads * HEAD_DIM")
    trace = simt.trace(*launch)
    expect_traffic(
        trace,
        {
            ("k_cache", "loads"): cache,
            ("v_cache", "loads"): cache,
            ("out", "loads"): (0, "out stays on the chip until the end"),
            ("out", "stores"): once,
            ("lse", "stores"): (3 * num_heads, "batch * num_heads"),
            ("lse", "loads"): (0, "lse is written at the end, and never read"),
        },
    )
    got = trace.arrays["q"].loads  # a sequence without keys needs no query
    assert got <= step.q.size, (
        f"q: once is {step.q.size} loads, the meter shows {got}: each of its elements is loaded by "
        "one thread, before the loop over the tiles"
    )


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out, and no more"""
    launch, _ = prepare(exercise, make_step([48], 16, 1, 32), 16)
    trace = simt.trace(*launch)
    tiles = 3 * 16 * 33 + 2 * 16 * 17 + 4 * 16  # a padded column each, four a row
    allowed = (
        "tiles of q, k, v, s and p are shared, with GROUP_SIZE = BLOCK_N = 16 and d = 32; a thread "
        "has its 2 columns of acc and at most a row of p"
    )
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread"""
    launch, _ = prepare(exercise, make_step([48], 16, 1, 32), 16)
    trace = simt.trace(*launch)
    how = "(ty, tx) computes one score of a tile, and the others read it from shared memory"
    expect_products(trace, 2 * 16 * 48 * 32, "q k^T and P v are", how)


def test_more_query_heads_cost_no_keys(exercise):
    """eight query heads to a K/V head load the keys that one loads"""
    loads = {}
    for num_heads in (1, 8):
        launch, _ = prepare(exercise, make_step([30], num_heads, 1, 16))
        loads[num_heads] = simt.trace(*launch).arrays["k_cache"].loads
    assert loads[1] == loads[8], f"elements of k_cache loaded, by number of query heads: {loads}"


@pytest.mark.parametrize("head_dim", [32, 128])
def test_coalesced(exercise, head_dim):
    """coalesced: a tile of keys fetches no sector more than it uses"""
    launch, _ = prepare(exercise, make_step([32], 4, 1, head_dim), 32)
    moved = simt.trace(*launch).arrays
    for name in ("k_cache", "v_cache"):
        used, fetched = moved[name].load_bytes, 32 * moved[name].load_sectors
        assert used == fetched, (
            f"{name}: {used} bytes were asked for, {fetched} fetched. Let neighbouring threads, tx "
            "and tx + 1, load neighbouring columns of a key"
        )


def test_inputs_and_edges(exercise):
    """q, the caches and seq_lens stay as they are; all of out and lse is written, and no more"""
    launch, outputs = prepare(exercise, make_step([11, 0, 18]))
    expect_clean(launch, outputs, "q k_cache v_cache seq_lens")
    for name, (array, _) in outputs.items():
        missing = np.argwhere(array == UNWRITTEN)
        assert not len(missing), f"{name}{missing[0].tolist()} was never written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, make_step([4], 8, 2, 64), 32)
    gpu_ready(kernel, args)
