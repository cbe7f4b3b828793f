"""Grader of ex09e: scores of a causal window with softcap and ALiBi."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.workbook.graders.attention import expect_guard, expect_unchanged, guarded
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32

OFF = 1e6  # a cap that no score comes near
CHANGED = {  # sentence: what the mistake changes of the definition below
    "The window shows one key too many: it counts the query's own token.": {"wider": 1},
    "The window hides one key too many: W keys are seen, the query's own included.": {"wider": -1},
    "slope * distance is multiplied by softmax_scale: subtract it from the scaled score.": {
        "alibi": "before the scale"
    },
    "slope * distance goes through tanh: subtract it from the capped score.": {
        "alibi": "before the cap"
    },
    "softcap comes after the mask: tanh(-inf) is -1, so a hidden key has the score -softcap.": {
        "hidden": "-softcap"
    },
    "softmax_scale comes after softcap: tanh takes the scaled score.": {"scale": "after the cap"},
    "The mask is aligned top-left: query m is at position m + seqlen_k - seqlen_q.": {"top": True},
}


def inputs(seqlen_q, seqlen_k, seed=0):
    return 6 * np.random.default_rng(seed).standard_normal((seqlen_q, seqlen_k), np.float32)


def scores(qk, scale, softcap, slope, W, /, *, wider=0, alibi="", hidden="", top=False, **other):
    """The definition, in the type of qk, with some of its rules changed."""
    seqlen_q, seqlen_k = qk.shape
    n, position = np.arange(seqlen_k), np.arange(seqlen_q)[:, None]
    position = position if top else position + seqlen_k - seqlen_q
    penalty = (slope * np.abs(position - n)).astype(qk.dtype)
    x = qk - penalty if alibi == "before the scale" else qk
    after = other.get("scale") == "after the cap"
    x = x if after else x * qk.dtype.type(scale)
    if alibi == "before the cap":
        x = x - penalty
    if softcap < OFF:
        x = qk.dtype.type(softcap) * np.tanh(x / qk.dtype.type(softcap))
    x = x * qk.dtype.type(scale) if after else x
    x = x if alibi else x - penalty
    sees = (n <= position) & (n > position - W - wider)
    return np.where(sees, x, -softcap if hidden else -np.inf)


def launch(kernel, qk, options):
    s, larger = guarded(*qk.shape)
    scale, softcap, slope, W = options
    grid = -(-qk.shape[1] // 16), -(-qk.shape[0] // 16)
    floats = np.float32(scale), np.float32(softcap), np.float32(slope)
    trace = simt.trace(kernel, grid, (16, 16), qk, s, *floats, W)
    return s, larger, trace


def check(exercise, shape, *options, seed=0):
    """Compare s with the definition; name the first wrong pair, and the rule that explains it."""
    qk = inputs(*shape, seed=seed)
    s, _, _ = launch(exercise.kernel, qk, options)
    want = scores(qk.astype(np.float64), *options)
    wrong = ~is_close(s, want)
    if wrong.any():
        m, n = np.argwhere(wrong)[0]
        causes = [
            sentence for sentence, changed in mistakes()
            if is_close(s, scores(qk.astype(np.float64), *options, **changed)).all()
        ]  # fmt: skip
        scale, softcap, slope, W = options
        position = m + shape[1] - shape[0]
        raise Wrong(
            f"softmax_scale={scale}, softcap={softcap:g}, slope={slope}, W={W}: {wrong.sum()} of "
            f"{wrong.size} scores are wrong. First query {m} at position {position} and key {n}: "
            f"want {want[m, n]:.6g}, got {s[m, n]:.6g}. {' '.join(causes[:1])}",
            causes=causes,
            where=f"s[{m}, {n}]",
        )


def mistakes():
    """Each mistake, and each pair of them."""
    single = list(CHANGED.items())
    yield from single
    for i, (first, a) in enumerate(single):
        for second, b in single[i + 1 :]:
            if not a.keys() & b.keys():
                yield f"{first} {second}", a | b
    a, _, b, _, c, *_ = single
    yield f"{a[0]} {b[0]} {c[0]}", a[1] | b[1] | c[1]


def is_close(s, want):
    with np.errstate(invalid="ignore"):
        size = np.where(np.isfinite(want), np.abs(want), 0)
        return (s == want) | (np.abs(s - want) <= 1e-5 * np.maximum(1, size))


@pytest.mark.parametrize("W", [1, 2, 5, 40])
def test_window(exercise, W):
    """a window of W tokens, the query's own included"""
    check(exercise, (20, 20), 1.0, OFF, 0.0, W)


@pytest.mark.parametrize("softcap", [0.5, 4.0, 50.0])
def test_softcap(exercise, softcap):
    """softcap alone: a hidden key is -inf all the same"""
    check(exercise, (12, 12), 1.0, softcap, 0.0, 99)


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_alibi(exercise, scale):
    """ALiBi alone: the slope is a matter of the scaled score"""
    check(exercise, (12, 12), scale, OFF, 0.25, 99)


def test_scale(exercise):
    """softmax_scale alone"""
    check(exercise, (12, 12), 0.25, OFF, 0.0, 99)


def test_softcap_and_alibi(exercise):
    """ALiBi is subtracted after softcap"""
    check(exercise, (24, 24), 0.5, 2.0, 0.5, 99)


def test_all(exercise):
    """window, softcap, ALiBi and scale at once"""
    check(exercise, (24, 24), 0.35, 3.0, 0.1, 6)


SHAPES = [(1, 1), (1, 30), (5, 300), (300, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_lengths(exercise, shape):
    """other lengths: the last query is at the last key; a query may see no key"""
    check(exercise, shape, 0.5, 4.0, 0.2, 4, seed=1)


def test_traffic(exercise):
    """qk is loaded at most once, s stored once"""
    qk = inputs(20, 30)
    s, larger, trace = launch(exercise.kernel, qk, (0.5, 4.0, 0.2, 4))
    wanted = {
        ("qk", "loads"): (qk.size, "seqlen_q * seqlen_k"),
        ("s", "stores"): (qk.size, "seqlen_q * seqlen_k"),
        ("s", "loads"): (0, "it is the output"),
        ("qk", "stores"): (0, "it is an input"),
    }
    expect_traffic(trace, wanted, less_is_fine=True)
    expect_chip_memory(trace, allowed="a thread has one score, in a register")
    expect_guard("s", larger)


def test_broken_kernel_is_as_it_was(exercise):
    """broken_kernel still has its bugs; the input stays as it is"""
    check(exercise, (4, 4), 1.0, OFF, 0.0, 9)  # what is not written yet says so here
    qk = inputs(12, 12)
    before = {"qk": qk.copy()}
    for options in ((1.0, 4.0, 0.0, 99), (0.5, OFF, 0.5, 99), (1.0, OFF, 0.0, 3)):
        s, _, _ = launch(exercise.broken_kernel, qk, options)
        right = is_close(s, scores(qk.astype(np.float64), *options)).all()
        assert not right, "broken_kernel is to stay as it is: write into kernel"
        launch(exercise.kernel, qk, options)
    expect_unchanged(before, {"qk": qk})


def test_float32(exercise):
    """computes in float32"""
    trace = launch(exercise.kernel, inputs(16, 16), (0.5, 4.0, 0.2, 4))[2]
    if trace.flops.of("float64").total:  # the sign of a constant is none
        expect_float32(trace)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    one = np.float32(1)
    gpu_ready(exercise.kernel, (inputs(4, 4), inputs(4, 4), one, one, one, 4))
