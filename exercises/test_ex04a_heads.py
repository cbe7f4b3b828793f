"""Grader of ex04a: heads, split and concatenated."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

SIZES = {"2 heads": (5, 8, 2), "9 heads": (260, 81, 9), "1 head": (4, 6, 1), "d = 1": (6, 3, 3),
         "1 token": (1, 8, 4), "as many tokens as heads": (4, 8, 4)}  # fmt: skip


def cause(got, y, num_heads):
    """What was done to y, (N, D), where `got` is not its heads."""
    N, D = y.shape
    d = D // num_heads
    known = (
        ("This is a reshape alone: it mixes tokens with heads. The axes are (token, head, column) "
         "first, and then the first two change places.", y.reshape(num_heads, N, d)),
        ("A head has every num_heads-th column here: its columns are neighbours, h d to (h + 1) d.",
         y.reshape(N, d, num_heads).transpose(2, 0, 1)),
        ("The axes are (token, head, column) still: exchange the first two.",
         y.reshape(N, num_heads, d)),
        ("The axes are (head, column, token): exchange the last two.",
         y.reshape(N, num_heads, d).transpose(1, 2, 0)),
    )  # fmt: skip
    return [words for words, x in known if got.shape == x.shape and np.array_equal(got, x)]


def array(got, shape, name):
    assert isinstance(got, np.ndarray), (
        f"{name} must return an array, got {'None' if got is None else type(got).__name__}"
    )
    return got, f"{name} must have shape {shape}, got {got.shape}"


@pytest.mark.parametrize("case", SIZES)
def test_split(exercise, case):
    """split_heads: head h has columns h d to (h + 1) d of every token"""
    N, D, num_heads = SIZES[case]
    y = np.arange(N * D, dtype=np.float32).reshape(N, D)
    want = np.stack([y[:, h * D // num_heads : (h + 1) * D // num_heads] for h in range(num_heads)])
    got, shapes = array(exercise.split_heads(y, num_heads), want.shape, "split_heads")
    if got.shape != want.shape:
        raise Wrong(shapes, causes=cause(got, y, num_heads))
    wrong = np.argwhere(~(got == want))
    if len(wrong):
        h, m, c = map(int, wrong[0])
        raise Wrong(
            f"{case}: [{h}, {m}, {c}] must be y[{m}, {h * D // num_heads + c}] = {want[h, m, c]:g},"
            f" got {got[h, m, c]:g}",
            causes=cause(got, y, num_heads),
            where=f"head {h}, token {m}",
        )


@pytest.mark.parametrize("case", SIZES)
def test_concat(exercise, case):
    """concat_heads: the heads of a token side by side, head 0 first"""
    N, D, num_heads = SIZES[case]
    out = np.arange(N * D, dtype=np.float32).reshape(num_heads, N, D // num_heads)
    want = np.concatenate(list(out), axis=1)
    got, shapes = array(exercise.concat_heads(out), want.shape, "concat_heads")
    assert got.shape == want.shape, shapes
    wrong = np.argwhere(~(got == want))
    if len(wrong):
        m, column = map(int, wrong[0])
        mixed = np.array_equal(got, out.reshape(N, D))
        raise Wrong(
            f"{case}: [{m}, {column}] must be {want[m, column]:g}, got {got[m, column]:g}",
            causes=["This is a reshape alone: a row of it has several tokens of one head. The head "
                    "must be the second axis before."] if mixed else [],
            where=f"token {m}",
        )  # fmt: skip


def layer(x, W_q, W_k, W_v, W_o, num_heads, *, causal=True, dtype=np.float64):
    """The definition, head by head."""
    x, W_q, W_k, W_v, W_o = (a.astype(dtype) for a in (x, W_q, W_k, W_v, W_o))
    N, D = x.shape
    result = np.zeros((N, D), dtype)
    for h in range(num_heads):
        own = slice(h * D // num_heads, (h + 1) * D // num_heads)
        q, k, v = x @ W_q[:, own], x @ W_k[:, own], x @ W_v[:, own]
        s = q @ k.T / np.sqrt(dtype(D // num_heads))
        if causal:
            s[~np.tri(N, dtype=bool)] = -np.inf
        p = np.exp(s - s.max(axis=1, keepdims=True))
        result += p / p.sum(axis=1, keepdims=True) @ v @ W_o[own]
    return result


def inputs(N, D, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in [(N, D), *[(D, D)] * 4]]


@pytest.mark.parametrize("case", SIZES)
def test_layer(exercise, case):
    """multi_head_attention: each head attends by itself, then W_o"""
    N, D, num_heads = SIZES[case]
    x, *weights = inputs(N, D)
    with np.errstate(all="ignore"):
        got = exercise.multi_head_attention(x, *weights, num_heads)
    want = layer(x, *weights, num_heads)
    got, shapes = array(got, want.shape, "multi_head_attention")
    assert got.shape == want.shape, shapes
    tolerance = 2 * np.abs(layer(x, *weights, num_heads, dtype=np.float32) - want).max() + 1e-5
    wrong = np.argwhere(~(np.abs(got - want) <= tolerance))
    if len(wrong):
        m, column = map(int, wrong[0])
        raise Wrong(
            f"{case}: result[{m}, {column}] must be {want[m, column]:.6g}, got "
            f"{got[m, column]:.6g}",
            causes=_causes(got, x, weights, num_heads, 10 * tolerance),
            where=f"token {m}",
        )


def _causes(got, x, weights, num_heads, tolerance):
    W_q, W_k, W_v, W_o = weights
    one = np.eye(len(W_o), dtype=np.float32)
    known = (
        ("W_o is missing.", layer(x, W_q, W_k, W_v, one, num_heads)),
        ("There is one head of D columns here: split q, k and v.", layer(x, *weights, 1)),
        ("The mask is missing: attention is given, with it.",
         layer(x, *weights, num_heads, causal=False)),
        ("Queries and keys are exchanged.", layer(x, W_k, W_q, W_v, W_o, num_heads)),
        ("W_o is transposed.", layer(x, W_q, W_k, W_v, W_o.T, num_heads)),
    )  # fmt: skip
    return [words for words, other in known if (np.abs(got - other) <= tolerance).all()]


def test_inputs_unchanged(exercise):
    """the inputs are left as they were"""
    given = inputs(5, 8)
    before = [a.copy() for a in given]
    exercise.multi_head_attention(*given, 2)
    for name, a, b in zip(("x", "W_q", "W_k", "W_v", "W_o"), given, before, strict=True):
        assert (a == b).all(), f"{name} is an input, and was changed"
