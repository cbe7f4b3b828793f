"""Grader of ex24a: both forms of latent attention are one product."""

import math

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

# num_heads, HEAD_DIM, ROPE_DIM, LATENT_DIM
SIZES = {"a small model": (4, 16, 8, 24), "one of each": (1, 1, 1, 1), "wide heads": (3, 32, 5, 7)}
EACH_SIZE = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


def make(sizes, dtype=np.float64, seed=0):
    """q_nope, q_rope, w_uk, w_uv, and the latents and rotated keys of 6 tokens."""
    h, d, r, c = sizes
    rng = np.random.default_rng(seed)
    shapes = (h, d), (h, r), (h, c, d), (h, c, d), (6, c), (6, r)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def expect(name, got, want, causes=()):
    """Fail unless two arrays are equal but for rounding.

    Each of `causes` is a sentence, and the array that this mistake would give.
    """
    shape = getattr(got, "shape", None)
    assert shape == want.shape, f"{name} must have shape {want.shape}, got {shape}"
    size = 1e-4 if got.dtype == np.float32 else 1e-9
    if not np.allclose(got, want, size, size):
        found = [said for said, x in causes if np.shape(x) == shape and np.allclose(got, x)]
        at = tuple(int(i) for i in np.argwhere(~np.isclose(got, want, size, size))[0])
        raise Wrong(
            f"{name}{list(at)} must be {want[at]:.6g}, got {got[at]:.6g}. {''.join(found[:1])}",
            causes=found,
            where=name,
        )


@EACH_SIZE
def test_scores(exercise, sizes):
    """absorb: the scores of the plain form, of every head and token"""
    q_nope, q_rope, w_uk, w_uv, c, k_r = make(sizes)
    got = np.asarray(exercise.absorb(q_nope, q_rope, w_uk))
    rows = np.concatenate([c, k_r], axis=1)
    want_shape = len(q_nope), rows.shape[1]
    if got.shape != want_shape:
        missing = got.shape == (len(q_nope), c.shape[1])
        raise Wrong(
            f"absorb must return a row of the cache's width for each head, {want_shape}, "
            f"got {got.shape}",
            causes=["q_rope is missing: it takes part as it is, behind the rest."] * missing,
        )
    with_rope = q_rope @ k_r.T
    absorbed, own = np.einsum("hd,hcd->hc", q_nope, w_uk), "Each head has a matrix of its own."

    def scores(of_latent):
        return np.array(of_latent) + with_rope

    causes = [
        (own, scores(q_nope @ w_uk[0].T @ c.T)),
        (own, scores(q_nope @ w_uk.sum(axis=0).T @ c.T)),
        (
            "q_rope belongs behind the absorbed part, as k_r behind c.",
            np.concatenate([q_rope, absorbed], axis=1) @ rows.T,
        ),
        (
            "Scores are scaled later, not in absorb.",
            scores(absorbed @ c.T) / math.sqrt(q_nope.shape[1] + q_rope.shape[1]),
        ),
        ("q_rope takes part as it is.", absorbed @ c.T),
    ]
    want = np.empty((len(q_nope), len(c)))
    for h, n in np.ndindex(*want.shape):
        key = np.concatenate([c[n] @ w_uk[h], k_r[n]])
        want[h, n] = np.concatenate([q_nope[h], q_rope[h]]) @ key
    expect("the score of head, token", got @ rows.T, want, causes)


@EACH_SIZE
def test_outputs(exercise, sizes):
    """expand: the weighted sum of the plain form's values"""
    *_, w_uv, c, _ = make(sizes)
    p = np.random.default_rng(1).dirichlet(np.ones(len(c)), len(w_uv))  # weights of each head
    want = np.array([p[h] @ (c @ w_uv[h]) for h in range(len(w_uv))])
    own = "Each head has a matrix of its own."
    causes = [(own, p @ c @ w_uv[0]), (own, p @ c @ w_uv.sum(axis=0))]
    expect("out of head, column", np.asarray(exercise.expand(p @ c, w_uv)), want, causes)


@pytest.mark.parametrize(
    "head_dim, rope_dim, latent_dim", [(128, 64, 512), (16, 8, 24), (1, 1, 9), (48, 16, 20)]
)
def test_scale(exercise, head_dim, rope_dim, latent_dim):
    """scale: that of the plain form, whatever the width of the cache's row"""
    got = exercise.scale(head_dim, rope_dim, latent_dim)
    known = {
        "The row of the cache is wider than a key, but its scores are those of the key.": (
            latent_dim + rope_dim
        ),
        "The rotated columns of the key count, too.": head_dim,
        "The columns of the key count, not those of the latent.": latent_dim,
    }
    width = head_dim + rope_dim
    of_width = {
        "The square root is missing.": 1 / width,
        "Scores are divided by the root: 1 / sqrt(...).": math.sqrt(width),
        "The root is of the sum, not of each.": 1 / (math.sqrt(head_dim) + math.sqrt(rope_dim)),
    }
    want = 1 / math.sqrt(width)
    if not abs(got - want) <= 1e-9 * want:
        raise Wrong(
            f"HEAD_DIM {head_dim}, ROPE_DIM {rope_dim}, LATENT_DIM {latent_dim}: must be "
            f"{want:.6g}, got {got:.6g}",
            causes=[said for said, n in known.items() if math.isclose(got, n**-0.5)]
            + [said for said, x in of_width.items() if math.isclose(got, x)],
            where="scale",
        )


def test_whole_attention(exercise):
    """absorb, scale and expand together: out of the plain form"""
    q_nope, q_rope, w_uk, w_uv, c, k_r = make((5, 12, 4, 20), seed=2)
    scale = exercise.scale(12, 4, 20)

    def softmax(s):
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True)

    s = exercise.absorb(q_nope, q_rope, w_uk) @ np.concatenate([c, k_r], axis=1).T
    got = exercise.expand(softmax(scale * s) @ c, w_uv)
    q = np.concatenate([q_nope, q_rope], axis=1)
    want = np.empty_like(q_nope)
    for h in range(5):
        k = np.concatenate([c @ w_uk[h], k_r], axis=1)
        want[h] = softmax(k @ q[h] / math.sqrt(16)) @ (c @ w_uv[h])
    expect("out", got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(exercise, dtype):
    """the results have the dtype of the arguments"""
    q_nope, q_rope, w_uk, w_uv, c, _ = make((2, 6, 3, 5), dtype)
    for name, x in (
        ("absorb", exercise.absorb(q_nope, q_rope, w_uk)),
        ("expand", exercise.expand(c[:2], w_uv)),
    ):
        assert x.dtype == dtype, f"{name} of {np.dtype(dtype)} must be {np.dtype(dtype)}: {x.dtype}"


def test_inputs_stay(exercise):
    """the arguments stay as they are"""
    arrays = make((2, 6, 3, 5))
    before = [x.copy() for x in arrays]
    exercise.absorb(*arrays[:3])
    exercise.expand(arrays[4][:2], arrays[3])
    for name, x, y in zip(("q_nope", "q_rope", "w_uk", "w_uv"), arrays, before, strict=False):
        assert np.array_equal(x, y), f"{name} is an argument, but it was changed"


def test_large(exercise):
    """300 heads, and sizes past 256"""
    q_nope, q_rope, w_uk, w_uv, c, k_r = make((300, 2, 1, 3), seed=3)
    got = exercise.absorb(q_nope, q_rope, w_uk)
    expect("absorb", got[:, :3], np.array([w @ x for w, x in zip(w_uk, q_nope, strict=True)]))
    q_nope, q_rope, w_uk, w_uv, c, k_r = make((2, 260, 270, 300), seed=4)
    got = exercise.absorb(q_nope, q_rope, w_uk)
    expect("absorb", got[:, 300:], q_rope)
    expect("expand", exercise.expand(c[:2], w_uv), np.array([c[h] @ w_uv[h] for h in (0, 1)]))
