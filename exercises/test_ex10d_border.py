"""Grader of ex10d: attention over a packed batch, where no sequence sees another."""

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_no_races
from fa_numba.workbook.graders.tiles import expect_float32, matrices

MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def launch(exercise, q, k, v, lengths, causal, *, block=4, make="make_kernel"):
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    kernel = getattr(exercise, make)(q.shape[1], block, causal)
    out = np.full_like(q, np.nan)
    grid = len(q) // block + len(lengths)
    scale = np.float32(1 / np.sqrt(q.shape[1]))
    return out, simt.trace(kernel, grid, block, q, k, v, starts, out, scale)


def weights(exercise, lengths, causal, seed=0):
    """The weight of each key in each row, and the trace: v is the identity."""
    tokens = sum(lengths)
    q, k = matrices((tokens, tokens), (tokens, tokens), seed=seed)
    out, trace = launch(exercise, q, k, np.eye(tokens, dtype=np.float32), lengths, causal)
    return q, k, out, trace


def sequence_of_token(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def definition(q, k, v, lengths, causal, dtype=np.float64):
    starts = np.cumsum([0, *lengths])
    packed = (x[:, None] for x in (q, k, v))
    out, _ = reference.varlen_attention(*packed, starts, starts, causal=causal, dtype=dtype)
    return out[:, 0]


LEAK = "A query sees keys of the next sequence: the mask asks for the end of the batch."
WRITES = (
    "A thread without a query computes a row of the next sequence, and stores it: it asks for the "
    "end of the batch."
)


def races_on_out(trace):
    """Those of thread blocks that write the same row."""
    return [str(race) for race in trace.races if " on out[" in str(race)]


@MASKS
@pytest.mark.parametrize("lengths", [(5, 6, 3), (4, 4), (1, 1, 1), (7, 9), (2, 0, 3)], ids=str)
def test_foreign_keys(exercise, lengths, causal):
    """no query sees a key of another sequence"""
    _, _, out, trace = weights(exercise, lengths, causal)
    owner = sequence_of_token(lengths)
    foreign = (owner[:, None] != owner) & ~(np.abs(out) <= 1e-9)
    if foreign.any() and np.isfinite(out).all():
        row, key = np.argwhere(foreign)[0]
        starts = np.cumsum([0, *lengths])
        b, other = owner[row], owner[key]
        raise Wrong(
            f"lengths {lengths}, causal {causal}: row {row - starts[b]} of sequence {b} (token "
            f"{row}) sees key {key - starts[other]} of sequence {other} (token {key}) with weight "
            f"{out[row, key]:.3g}; it may only see keys of sequence {b}",
            causes=[WRITES if races_on_out(trace) else LEAK],
            where=f"token {row}, key {key}",
        )
    if not (np.isfinite(out).all() or races_on_out(trace)):
        expect_no_races(trace)
    assert np.isfinite(out).all(), (
        f"lengths {lengths}, causal {causal}: row {np.argwhere(~np.isfinite(out))[0][0]} of out is "
        "not a number: it was not written, or saw no key"
    )


@MASKS
@pytest.mark.parametrize("lengths", [(5, 6, 3), (7, 9), (2, 0, 3), (13,)], ids=str)
def test_races(exercise, lengths, causal):
    """each row of out is written by one thread block"""
    _, _, _, trace = weights(exercise, lengths, causal)
    if on_out := races_on_out(trace):
        raise Wrong(on_out[0], causes=[WRITES])
    expect_no_races(trace)
    stores, wanted = trace.arrays["out"].stores, sum(lengths) ** 2
    assert stores == wanted, f"out has {wanted} elements, stored are {stores}"


CASES = {  # lengths, HEAD_DIM, BLOCK
    "one sequence": ((13,), 8, 4),
    "head_dim 128": ((5, 6, 3), 128, 4),
    "60 sequences": ((5,) * 60, 2, 4),
    "eleven tiles": ((1, 43, 8), 2, 4),
    "two warps": ((43, 2), 2, 40),
}


@MASKS
@pytest.mark.parametrize("case", CASES)
def test_equals_float64(exercise, case, causal):
    """attention of each sequence by itself, as in float64"""
    lengths, head_dim, block = CASES[case]
    shape = sum(lengths), head_dim
    check(exercise, *matrices(shape, shape, shape, seed=len(lengths)), lengths, causal, block)


@MASKS
def test_low_scores(exercise, causal):
    """scores far below 0 in one sequence, and a maximum of 0 in the other"""
    q, k, v = matrices((11, 4), (11, 4), (11, 4))
    q[:], k[:] = [2, 0, 0, 0], 0
    k[:, 0] = -2e4 - np.arange(11) * 7 % 10
    k[5, 0] = 0
    check(exercise, q, k, v, (5, 6), causal)


def check(exercise, q, k, v, lengths, causal, block=4):
    """Run without a race, compare out."""
    out, trace = launch(exercise, q, k, v, lengths, causal, block=block)
    expect_no_races(trace)
    want = definition(q, k, v, lengths, causal)
    plain = definition(q, k, v, lengths, causal, np.float32)
    allowed = 4 * np.abs(plain - want).max() + 1e-6
    wrong = np.argwhere(~(np.abs(out - want) <= allowed))
    if len(wrong):
        row, d = wrong[0]
        ends = np.cumsum(lengths)
        last = row in ends - 1
        raise Wrong(
            f"lengths {lengths}, causal {causal}: {len(wrong)} of {out.size} elements are wrong, "
            f"first out[{row}, {d}]: want {want[row, d]:.6g}, got {out[row, d]:.6g}",
            causes=["The last row of a sequence is wrong: its last key or query is left out."]
            * bool(last),
            where=f"out[{row}, {d}]",
        )


@MASKS
def test_another_sequence_changes(exercise, causal):
    """new tokens in one sequence change no bit of another"""
    lengths, shape = (6, 5, 7), (18, 4)
    q, k, v = matrices(shape, shape, shape)
    before, _ = launch(exercise, q, k, v, lengths, causal)
    owner = sequence_of_token(lengths)
    for b in range(3):
        others = owner != b
        changed = [np.where(others[:, None], x, 5 - 3 * x).astype(np.float32) for x in (q, k, v)]
        after, _ = launch(exercise, *changed, lengths, causal)
        same = (before[others] == after[others]).all(axis=1)
        if not same.all():
            row = np.flatnonzero(others)[np.flatnonzero(~same)[0]]
            raise Wrong(
                f"causal {causal}: with other tokens in sequence {b}, token {row} of sequence "
                f"{owner[row]} has another result",
                causes=[LEAK],
                where=f"token {row}",
            )


@MASKS
def test_nan_in_another_sequence(exercise, causal):
    """a NaN in one sequence stays there"""
    lengths, shape = (6, 5), (11, 8)
    q, k, v = matrices(shape, shape, shape)
    q[6:], k[6:], v[6:] = np.nan, np.nan, np.nan
    out, _ = launch(exercise, q, k, v, lengths, causal)
    assert np.isfinite(out[:6]).all(), "a NaN of sequence 1 is in rows of sequence 0"


def test_hbm_traffic(exercise):
    """causal: keys behind the tile's queries are not loaded"""
    lengths, shape = (16,), (16, 4)
    q, k, v = matrices(shape, shape, shape)
    _, trace = launch(exercise, q, k, v, lengths, True)
    rows = 4 + 8 + 12 + 16  # tiles of 4 queries see so many keys
    for name in ("k", "v"):
        got = trace.arrays[name].loads
        assert got <= rows * 4, f"{name}: {got} elements are loaded, {rows * 4} are enough"


def test_broken_kernel_stays(exercise):
    """make_broken_kernel is as it was given: right with one sequence, wrong with two"""
    shape = (9, 4)
    q, k, v = matrices(shape, shape, shape)
    _, trace = launch(exercise, q, k, v, (5, 4), False, make="make_broken_kernel")
    assert trace.races, "make_broken_kernel is to stay: mend make_kernel"
    out, trace = launch(exercise, q, k, v, (9,), True, make="make_broken_kernel")
    expect_no_races(trace)
    assert np.abs(out - definition(q, k, v, (9,), True)).max() < 1e-5, (
        "make_broken_kernel is to stay: mend make_kernel"
    )


def test_float32(exercise):
    """computes in float32"""
    shape = (9, 4)
    expect_float32(launch(exercise, *matrices(shape, shape, shape), (5, 4), True)[1])


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    x = np.zeros((9, 8), np.float32)
    starts = np.array([0, 9], np.int32)
    gpu_ready(exercise.make_kernel(8, 4, True), (x, x, x, starts, x.copy(), np.float32(1)))
