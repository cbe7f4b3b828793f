"""Grader of ex21a: whose keys a rank has, and the steps of a ring, against all keys at once."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

WORLDS = pytest.mark.parametrize("world_size", [4, 2, 3, 5, 1])


def owners(exercise, world_size):
    """[rank, step], by the learner's device function."""
    owner = exercise.owner

    @cuda.jit
    def ask(found):
        rank, step = cuda.threadIdx.x, cuda.threadIdx.y
        found[rank, step] = owner(rank, step, found.shape[0])

    found = np.full((world_size, world_size), -9, np.int64)
    simt.run(ask, 1, (world_size, world_size), found)
    return found


@WORLDS
def test_owner(exercise, world_size):
    """owner: the keys that come from rank - 1 in every step"""
    keys, got = np.arange(world_size), owners(exercise, world_size)
    rank, step = np.indices(got.shape)
    known = {
        "That is a ring in which keys go to rank r - 1.": (rank + step) % world_size,
        "After rank W - 1 comes rank 0: take the rest of a division by W.": rank - step,
    }
    causes = [said for said, wrong in known.items() if np.array_equal(got, wrong)]
    for t in range(world_size):
        if not np.array_equal(got[:, t], keys):
            raise Wrong(
                f"W = {world_size}, step {t}: ranks 0, 1, ... have the keys of {keys.tolist()}, "
                f"got {got[:, t].tolist()}. {''.join(causes[:1])}",
                causes=causes,
            )
        keys = np.roll(keys, 1)  # moved by hand


def whole(world_size, c, head_dim, seed=0, size=1.0):
    """q, k, v of the whole sequence."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, world_size * c, head_dim), np.float32)
    return np.float32(size) * q, k, v


def run_ring(exercise, q, k, v, world_size, ranks=None, steps=None):
    """The states of some ranks, after some steps, and the traces."""
    c, head_dim = len(q) // world_size, q.shape[1]
    kernel, scale = exercise.make_kernel(head_dim), np.float32(1 / np.sqrt(head_dim))
    states, traces = {}, []
    for rank in range(world_size) if ranks is None else ranks:
        mine = slice(rank * c, (rank + 1) * c)
        state = {"out": np.zeros((c, head_dim), np.float32)}
        state["lse"] = np.full(c, -np.inf, np.float32)
        for step in range(world_size if steps is None else steps):
            o = (rank - step) % world_size
            here = slice(o * c, (o + 1) * c)
            given = {"q": q[mine].copy(), "k": k[here].copy(), "v": v[here].copy(), **state}
            numbers = {"rank": rank, "step": step, "world_size": world_size, "scale": scale}
            grid = -(-c // 64)
            state, trace = launched(kernel, grid, 64, ("out", "lse"), **given, **numbers)
            traces.append(trace)
        states[rank] = state
    return states, traces


def attention(q, k, v, seen, dtype=np.float64):
    """out and lse of every query, over the keys that `seen` (queries, keys) has."""
    s = (q.astype(dtype) @ k.astype(dtype).T) / dtype(np.sqrt(q.shape[1]))
    s = np.where(seen, s, -np.inf)
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return p @ v.astype(dtype) / np.where(l == 0, 1, l), (m + np.log(l))[:, 0]


def check(exercise, q, k, v, world_size, ranks=None, steps=None):
    c = len(q) // world_size
    states, traces = run_ring(exercise, q, k, v, world_size, ranks, steps)
    n = np.arange(len(q))
    causal = n[:, None] >= n
    arrived = np.ones_like(causal)
    if steps is not None:
        arrived = (n[:, None] // c - n // c) % world_size < steps
    want = attention(q, k, v, causal & arrived)
    plain = attention(q, k, v, causal & arrived, np.float32)
    local = n[:, None] % c >= n % c
    others = {
        "There is no mask: token m sees the keys 0 to m.": arrived,
        "The mask is that of positions in the part, not in the whole sequence.": local & arrived,
        "The last step's keys alone: the state of the steps before is lost.": causal
        & ((n[:, None] // c - n // c) % world_size == (world_size if steps is None else steps) - 1),
    }
    for rank, state in states.items():
        mine = slice(rank * c, (rank + 1) * c)
        for i, name in enumerate(("out", "lse")):
            right, near = want[i][mine], plain[i][mine]
            got = state[name]
            with np.errstate(invalid="ignore"):
                off = np.abs(np.where(np.isfinite(right), near - right, 0)).max()
                size = np.abs(np.where(np.isfinite(right), right, 0))
                wrong = ~((got == right) | (np.abs(got - right) <= 8 * off + 4e-6 * (1 + size)))
            if not wrong.any():
                continue
            at = tuple(int(x) for x in np.argwhere(wrong)[0])
            causes = [
                said
                for said, seen in others.items()
                if np.allclose(got, attention(q, k, v, seen)[i][mine], 1e-3, 1e-4)
            ]
            if np.isnan(got[at]):
                causes = ["A NaN: -inf - -inf, or 0 / 0. A query may see no key in a step."]
            raise Wrong(
                f"W = {world_size}, parts of {c}, rank {rank}: {name}{list(at)} must be "
                f"{right[at]:.6g}, got {got[at]:.6g}. {''.join(causes[:1])}",
                causes=causes,
                where=f"rank {rank}, {name}{list(at)}",
            )
    return traces


@WORLDS
def test_ring(exercise, world_size):
    """all steps: every query has met all keys that it sees"""
    check(exercise, *whole(world_size, 6, 4, seed=world_size), world_size)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_after_some_steps(exercise, steps):
    """after some steps: the keys that have been there"""
    check(exercise, *whole(4, 5, 4, seed=9), 4, steps=steps)


@pytest.mark.parametrize("c, head_dim", [(1, 3), (13, 1), (3, 128), (2, 130)])
def test_sizes(exercise, c, head_dim):
    """parts of one token; head_dim 1, 128 and 130"""
    check(exercise, *whole(2, c, head_dim), 2)


def test_long_parts(exercise):
    """parts of 300 tokens, the last rank of two"""
    check(exercise, *whole(2, 300, 1), 2, ranks=[1])


@pytest.mark.parametrize("size", [30.0, 3e3])
def test_large_scores(exercise, size):
    """scores of some thousands, of either sign"""
    check(exercise, *whole(3, 5, 4, seed=2, size=size), 3)


def test_low_scores(exercise):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    q, k, v = whole(2, 5, 4, seed=3)
    q[:], k[:] = 0, 0
    q[:, 0], k[:, 0] = 1, -2e30
    states, _ = run_ring(exercise, q, k, v, 2, [0], 1)  # float32 cannot merge an lse of -1e30
    mean = np.cumsum(v[:5], axis=0) / np.arange(1, 6)[:, None]
    assert np.allclose(states[0]["out"], mean, atol=1e-4), (
        "rank 0, step 0: all scores are -1e30, so that out is the mean of the values seen"
    )


def test_nothing_seen(exercise):
    """a step whose keys all come later: the state stays, bit for bit, and no key is loaded"""
    q, k, v = whole(4, 6, 4, seed=4)
    before, _ = run_ring(exercise, q, k, v, 4, [0], 1)
    after, traces = run_ring(exercise, q, k, v, 4, [0], 2)
    for name in ("out", "lse"):
        got, want = after[0][name], before[0][name]
        assert np.allclose(got, want, 1e-6, 1e-7), f"rank 0 sees nothing in step 1: {name} stays"
    expect_at_most(traces[1], k_loads=(0, "no query sees a key of rank 3"))
    given = {"q": q[:6], "k": k[6:12], "v": v[6:12], "out": np.zeros((6, 4), np.float32)}
    given |= {"lse": np.full(6, -np.inf, np.float32), "rank": 0, "step": 3, "world_size": 4}
    got, _ = launched(exercise.make_kernel(4), 1, 64, ("out", "lse"), **given, scale=np.float32(1))
    empty = not got["out"].any() and np.isneginf(got["lse"]).all()
    assert empty, "a state without keys that meets no key is still out = 0 and lse = -inf"


def test_traffic(exercise):
    """a key is loaded once by each query that sees it; out once"""
    _, traces = run_ring(exercise, *whole(2, 70, 2), 2, [1])
    for trace, pairs in zip(traces, (70 * 71 // 2, 70 * 70), strict=True):
        expect_at_most(
            trace,
            k_loads=(2 * pairs, "once for each query and key that it sees"),
            v_loads=(2 * pairs, "once for each query and key that it sees"),
            out_loads=(140, "the state is loaded once"),
            out_stores=(140, "and stored once"),
            lse_loads=(70, "the state is loaded once"),
        )
        allowed = "a thread has a row of out"
        expect_chip_memory(trace, local=4 * 2, allowed=allowed)


def test_is_attention(exercise):
    """two ranks: the package's attention to the whole sequence"""
    q, k, v = whole(2, 8, 4, seed=6)
    states, _ = run_ring(exercise, q, k, v, 2)
    want, _ = reference.attention(*(x[None, :, None] for x in (q, k, v)), causal=True)
    got = np.concatenate([states[rank]["out"] for rank in range(2)])
    assert np.allclose(got, want[0, :, 0], atol=1e-5), "both parts together are causal attention"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    q, k, v = whole(1, 8, 4)
    gpu_ready(exercise.make_kernel(4), (q, k, v, q, q[:, 0].copy(), 1, 1, 2, np.float32(1)))
