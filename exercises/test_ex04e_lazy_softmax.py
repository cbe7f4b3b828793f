"""Grader of ex04e: lazy softmax in chunks of keys."""

import math

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
    large_scores,
    low_scores,
    ordered_scores,
    random_head,
)
from fa_numba.workbook.graders.causes import Wrong, diagnosis
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by, expect_traffic
from fa_numba.workbook.graders.mistakes import forward_mistakes

THREADS = 64
HEAD_DIM = 8


def chunk_of(s, v):
    """(acc, l, m) of these scores and values by definition."""
    m = s.max(axis=1)
    p = np.exp(s - np.where(np.isneginf(m), 0, m)[:, None])
    return {"acc": p @ v, "l": p.sum(axis=1), "m": m}


def chunks_of(head, size):
    """(acc, l, m) of every chunk by definition, in the head's dtype."""
    v = head.v.astype(head.dtype)
    parts = [
        chunk_of(head.scores[:, n : n + size], v[n : n + size]) for n in range(0, len(v), size)
    ]
    return {name: np.stack([part[name] for part in parts]) for name in ("acc", "l", "m")}


def add_key_causes(exercise):
    """Name the mistakes of add_key, by a step from a known state to a higher and a lower score."""
    add_key, m, l, acc, v0 = exercise.add_key, -1.25, 3.0, 5.0, 7.0

    @cuda.jit
    def kernel(s, v, got):
        i = cuda.threadIdx.x
        acc_row = cuda.local.array(HEAD_DIM, float32)
        for c in range(HEAD_DIM):
            acc_row[c] = float32(acc)
        got[i, 0], got[i, 1] = add_key(float32(m), float32(l), acc_row, s[i], v, 0)
        got[i, 2] = acc_row[0]

    s, got = np.float32([-0.5, -2]), np.zeros((2, 3), np.float32)
    with diagnosis():
        simt.run(kernel, 1, 2, s, np.full((1, HEAD_DIM), v0, np.float32), got)
    m_new = np.maximum(m, s)
    alpha, p = np.exp(m - m_new), np.exp(s - m_new)
    weight = "The new key weighs p = exp(s - m_new)."
    rescaled = "What was summed so far is not multiplied by alpha = exp(m_old - m_new)."
    total = alpha * l + p
    maxima = (
        ("The new maximum is not kept: add_key returns m_new.", m),
        ("The new maximum is the larger of m_i and s, not s alone.", s),
        ("The maximum starts at -inf, not at 0: scores may be negative.", np.maximum(s, 0)),
        ("add_key returns the new m_i first, then the new l_i.", total),
    )
    sums = (
        ("alpha is upside down: it is exp(m_old - m_new), at most 1.", 1 / alpha, p),
        (rescaled, 1, p),
        ("What was summed so far is lost: the new key is added to it.", 0, p),
        ("alpha belongs to what was summed so far, not to the new key.", 1, alpha * p),
        ("alpha belongs to what was summed so far, not to the new key.", alpha, alpha * p),
        *((weight, old, new) for old in (1, alpha) for new in (1, alpha, np.exp(s - m))),
        ("alpha is exp(m_old - m_new): it is not of the new score.", p, p),
        (f"m is not subtracted. {weight}", alpha, np.exp(s)),
        (f"m is not subtracted. {weight}", 1, np.exp(s)),
        ("acc is divided by l: the one division is merge_chunks'.", alpha / total, p / total),
        ("This is 2 ** x: alpha and p are exp(x).", 2 ** (m - m_new), 2 ** (s - m_new)),
    )

    def told(got, answers):
        return [said for said, answer in answers if np.allclose(got, answer, rtol=1e-5)]

    if not np.allclose(got[:, 0], m_new):
        return told(got[:, 0], maxima)
    causes = []
    for column, old, new in ((1, l, 1), (2, acc, v0)):
        if not np.allclose(got[:, column], old * alpha + new * p, rtol=1e-5):
            answers = ((said, old * a + new * b) for said, a, b in sums)
            causes += told(got[:, column], answers)
    return list(dict.fromkeys(causes))


def merge_mistakes(head, size):
    """What the usual mistakes of merge_chunks come out as."""
    acc, l, m = chunks_of(head, size).values()
    with np.errstate(all="ignore"):
        alpha = np.exp(m - m.max(axis=0))
        for sentence, weight_acc, weight_l in (
            ("Neither acc nor l is multiplied by exp(m[chunk] - m_i).", 1 + 0 * m, 1),
            ("acc is not multiplied by exp(m[chunk] - m_i).", 1 + 0 * m, alpha),
            ("l is not multiplied by exp(m[chunk] - m_i).", alpha, 1),
        ):
            total = (weight_acc[..., None] * acc).sum(axis=0)
            yield sentence, {"out": total / (weight_l * l).sum(axis=0)[:, None]}
    yield from forward_mistakes(head, THREADS, size)


def summarize(exercise, head, size, how=simt.run):
    """acc, l, m of the learner's first kernel, guarded; and what `how` returned."""
    num_chunks, seqlen_q = math.ceil(len(head.k) / size), len(head.q)
    state = {
        "acc": guarded(num_chunks, *head.q.shape),
        "l": guarded(num_chunks, seqlen_q),
        "m": guarded(num_chunks, seqlen_q),
    }
    arrays = [array for array, _ in state.values()]
    grid = math.ceil(seqlen_q / THREADS), num_chunks
    args = (head.q, head.k, head.v, *arrays, np.int32(size), head.scale)
    return state, how(exercise.summarize_chunks, grid, THREADS, *args)


def merge(exercise, acc, l, m, how=simt.run):
    """out of the learner's second kernel, guarded; and what `how` returned."""
    out = guarded(*acc.shape[1:])
    arrays = [np.ascontiguousarray(x, np.float32) for x in (acc, l, m)]
    grid = math.ceil(len(out[0]) / THREADS)
    return out, how(exercise.merge_chunks, grid, THREADS, *arrays, out[0])


def check(exercise, head, size):
    """Both kernels, one after the other, and what lies between them."""
    state, _ = summarize(exercise, head, size)
    want, plain = chunks_of(head, size), chunks_of(head.plain, size)
    for name, (got, _) in state.items():
        for chunk in range(len(got)):
            label = f"chunk {chunk} of {len(got)}: {name}"
            answers = want[name][chunk], plain[name][chunk]
            try:
                expect_close(label, got[chunk], *answers, tile=len(head.q))
            except Wrong as wrong:
                wrong.causes[:0] = add_key_causes(exercise)
                raise
    (out, _), _ = merge(exercise, *(array for array, _ in state.values()))
    answers = head.forward["out"], head.plain.forward["out"]
    mistakes = merge_mistakes(head, size)
    expect_close("out", out, *answers, tile=len(head.q), mistakes=mistakes)


def head_of(exercise, seqlen_q, seqlen_k, **options):
    return random_head(seqlen_q, seqlen_k, HEAD_DIM, **options)


def masked_head(exercise, hidden):
    """A head whose keys `hidden` have the score -inf, for every query."""
    head = head_of(exercise, 9, 20)
    head.q[:] = np.abs(head.q)
    head.k[hidden] = -np.inf
    return head


def test_one_chunk(exercise):
    """one chunk holds all keys: acc, l and m of each query, and out"""
    check(exercise, head_of(exercise, 7, 12), 12)


def test_chunks(exercise):
    """several chunks, each under its own maximum"""
    check(exercise, head_of(exercise, 13, 24), 6)


@pytest.mark.parametrize("size", [1, 4, 5, 7, 23, 100])
def test_chunk_size(exercise, size):
    """the size of the chunks does not change the answer, nor does a short last one"""
    check(exercise, head_of(exercise, 11, 23), size)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 1), (1, 30), (650, 3)])
def test_lengths(exercise, seqlen_q, seqlen_k):
    """one query, one key, and more queries than a thread block has threads"""
    check(exercise, head_of(exercise, seqlen_q, seqlen_k), 4)


def test_ordered_scores(exercise):
    """ascending scores for even queries, descending for odd ones"""
    check(exercise, ordered_scores(), 8)


def test_largest_score_is_zero(exercise):
    """a largest score of 0 is a score like any other"""
    head = head_of(exercise, 9, 20)
    head.q[:], head.k[:] = np.abs(head.q), -np.abs(head.k)
    head.k[4] = 0
    check(exercise, head, 6)


def test_large_scores(exercise):
    """stable at scores of 1e4 and -1e4"""
    check(exercise, large_scores(), 8)


@pytest.mark.parametrize("lowest", [-2e4, -2e9, -2e30])
def test_low_scores(exercise, lowest):
    """scores far below 0 are scores: only -inf is masked, and m starts at -inf"""
    check(exercise, low_scores(lowest, HEAD_DIM), 8)


def test_many_keys(exercise):
    """more keys in a chunk, and more chunks, than any array on the chip holds"""
    check(exercise, head_of(exercise, 3, 700), 350)
    check(exercise, head_of(exercise, 3, 700), 2)


@pytest.mark.parametrize("scale", [1.0, 0.0, -0.3])
def test_scale(exercise, scale):
    """scale is honoured"""
    check(exercise, head_of(exercise, 6, 15, softmax_scale=scale), 4)


def test_masked_keys(exercise):
    """keys with score -inf weigh nothing, also where a chunk begins with them"""
    check(exercise, masked_head(exercise, [0, 1, 6, 19]), 6)


def test_masked_chunk(exercise):
    """a chunk of -inf only leaves acc = 0, l = 0, m = -inf, and changes nothing"""
    check(exercise, masked_head(exercise, slice(5, 10)), 5)
    check(exercise, masked_head(exercise, slice(0, 5)), 5)


def test_no_key_at_all(exercise):
    """merge_chunks: where every chunk is empty, out is 0 and not NaN"""
    acc, l = np.zeros((3, 5, HEAD_DIM)), np.zeros((3, 5))
    (out, _), _ = merge(exercise, acc, l, np.full((3, 5), -np.inf))
    assert (out == 0).all(), (
        f"out[0, 0] must be 0, got {out[0, 0]}: -inf - -inf is NaN and so is 0 / 0"
    )


def test_merge_alone(exercise):
    """merge_chunks: chunks with very different maxima"""
    head = head_of(exercise, 9, 30)
    head.k[:10] += 3
    head.k[20:] *= 300  # far above the others for some queries, far below for the rest
    (out, _), _ = merge(exercise, *chunks_of(head, 10).values())
    expect_close("out", out, head.forward["out"], head.plain.forward["out"], tile=9)


def test_merge_of_low_maxima(exercise):
    """merge_chunks: maxima far below 0 are maxima, and only -inf is an empty chunk"""
    for lowest in (-2e4, -2e9, -2e30, -3e38):
        acc, l = np.ones((3, 5, HEAD_DIM)), np.full((3, 5), 2.0)
        m = np.full((3, 5), lowest)
        acc[1], l[1], m[1] = 0, 0, -np.inf
        (out, _), _ = merge(exercise, acc, l, m)
        assert np.allclose(out, 0.5, atol=1e-6), (
            f"two chunks of l = 2, acc = 1 and m = {lowest:g}, and an empty one: out must be "
            f"1 / 2, got {out[0, 0]:.6g}. Only -inf means that no key was seen"
        )


def test_inputs_unchanged(exercise):
    """q, k and v stay as they are, and so do acc, l and m when they are merged"""
    head = masked_head(exercise, slice(5, 10))
    before = {name: getattr(head, name).copy() for name in "qkv"}
    state, _ = summarize(exercise, head, 5)
    expect_unchanged(before, {name: getattr(head, name) for name in "qkv"})
    acc, l, m = (np.array(array) for array, _ in state.values())
    before = {"acc": acc.copy(), "l": l.copy(), "m": m.copy()}
    merge(exercise, acc, l, m)
    expect_unchanged(before, {"acc": acc, "l": l, "m": m})


def test_nothing_written_outside(exercise):
    """nothing is written beside acc, l, m and out"""
    state, _ = summarize(exercise, head_of(exercise, 6, 15), 4)
    for name, (_, larger) in state.items():
        expect_guard(name, larger)
    (_, larger), _ = merge(exercise, *(array for array, _ in state.values()))
    expect_guard("out", larger)


def test_hbm_traffic(exercise):
    """q once per chunk, k and v once per query; what lies between is written once and read once"""
    head, size, num_chunks = head_of(exercise, 35, 22), 5, 5
    state, first = summarize(exercise, head, size, simt.trace)
    _, second = merge(exercise, *(array for array, _ in state.values()), how=simt.trace)
    per_query = (len(head.q) * head.k.size, "seqlen_q * seqlen_k * head_dim")
    acc = (num_chunks * head.q.size, "num_chunks * seqlen_q * head_dim")
    rows = (num_chunks * len(head.q), "num_chunks * seqlen_q")
    nothing = (0, "as an input is not written, nor a result read back")
    wanted = {("q", "loads"): acc, ("k", "loads"): per_query, ("v", "loads"): per_query}
    wanted |= {("acc", "stores"): acc, ("l", "stores"): rows, ("m", "stores"): rows}
    wanted |= {(name, "loads"): nothing for name in ("acc", "l", "m")}
    wanted |= {(name, "stores"): nothing for name in "qkv"}
    expect_traffic(first, wanted)
    out = (head.q.size, "seqlen_q * head_dim")
    wanted = {("acc", "loads"): acc, ("l", "loads"): rows, ("out", "stores"): out}
    wanted |= {(name, "stores"): nothing for name in ("acc", "l", "m")}
    expect_traffic(second, wanted | {("out", "loads"): nothing})
    reads = second.arrays["m"].loads
    assert reads <= 2 * rows[0], (
        f"m has {rows[0]} numbers and was read {reads} times: once for the maximum, once to rescale"
    )


def test_chip_memory(exercise):
    """a thread keeps at most four rows of HEAD_DIM floats, and nothing in shared memory"""
    state, first = summarize(exercise, head_of(exercise, 5, 22), 5, simt.trace)
    _, second = merge(exercise, *(array for array, _ in state.values()), how=simt.trace)
    allowed = "a thread may keep four rows of HEAD_DIM floats; nothing grows with a length"
    for trace in (first, second):
        expect_chip_memory(trace, local=4 * 4 * HEAD_DIM, allowed=allowed)


def test_who_works(exercise):
    """a thread owns a query: in summarize_chunks one for each chunk"""
    head = head_of(exercise, 35, 22)
    state, first = summarize(exercise, head, 5, simt.trace)
    _, second = merge(exercise, *(array for array, _ in state.values()), how=simt.trace)
    written = {name: first.arrays[name] for name in ("acc", "l", "m")}
    why = "thread cuda.grid(1) owns a query, and blockIdx.y is its chunk"
    expect_stores_by(written, threads=5 * 35, why=why)
    written = {"out": second.arrays["out"]}
    expect_stores_by(written, threads=35, why="thread cuda.grid(1) owns a row of out")


def test_compiles_for_a_gpu(exercise):
    """both kernels compile for a GPU, in float32"""
    head = head_of(exercise, 2, 3)
    state, _ = summarize(exercise, head, 2)  # a kernel that is not written yet says so here
    arrays = [array for array, _ in state.values()]
    sizes = np.int32(2), head.scale
    gpu_ready(exercise.summarize_chunks, (head.q, head.k, head.v, *arrays, *sizes))
    gpu_ready(exercise.merge_chunks, (*arrays, head.q))
