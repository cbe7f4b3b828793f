"""Grader of ex12c: from the accumulators of Q Kᵀ to the operand of P V."""

import numpy as np
import pytest

from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong

LANES = 32


def held_by_lanes(p):
    """P (16, BLOCK_N) as 32 lanes hold it after Q Kᵀ: [lane, product, register]."""
    row, col = layouts.mma_d()
    products = np.arange(p.shape[1] // 8)[None, :, None]
    return p[row[:, None], 8 * products + col[:, None]]


def halves(registers):
    """The two float16 of each register, the low one first, on a last axis."""
    pair = np.stack([registers & 0xFFFF, registers >> 16], axis=-1)
    return pair.astype(np.uint16).view(np.float16)


def same(got, want, what):
    """Fail at the first element that differs, and name it."""
    bad = np.argwhere(got != want)
    if len(bad):
        place = tuple(map(int, bad[0]))
        raise AssertionError(
            f"{what}{list(place)} must be {want[place]}, got {got[place]}; {len(bad)} of "
            f"{want.size} differ"
        )


def random_p(columns, seed=0):
    return np.random.default_rng(seed).random((16, columns), dtype=np.float32)


@pytest.mark.parametrize("k", [0, 1, 5, 100])
def test_sources(exercise, k):
    """sources: which two floats go into each register"""
    for i in range(4):
        got = exercise.sources(k, i)
        j, r = 2 * k + i // 2, 2 * (i % 2)
        want = (j, r), (j, r + 1)
        rows, half = ("g", "g + 8")[i % 2], ("left", "right")[i // 2]
        if got != want:
            causes = ["Low and high half are exchanged: the low half is the left column."]
            raise Wrong(
                f"a{i} of the A number {k} is row {rows} of its {half} half: the columns of "
                f"product {j}, registers d{r} and d{r + 1}. Want {want}, got {got}",
                causes=causes * (got == want[::-1]),
                where=f"a{i} of the A number {k}",
            )


def test_sources_use_everything_once(exercise):
    """sources: every float of p goes somewhere, none twice"""
    used = [place for k in range(4) for i in range(4) for place in exercise.sources(k, i)]
    for j in range(8):
        for r in range(4):
            times = used.count((j, r))
            assert times == 1, f"p[{j}, {r}] goes into {times} halves of registers, must be one"


def cause_of(got, want, held):
    """The likely mistake in the registers of one A, or ""."""
    if (got == want[:, ::-1]).all():
        return "The halves are interchanged: pack takes the low half first."
    if (got == want[[0, 2, 1, 3]]).all():
        return "a1 and a2 are interchanged: a1 has the rows g + 8, a2 the columns c + 8 and c + 9."
    if not np.isin(got[(got != want).any(axis=1)], held.astype(np.float16)).any():
        return "No element of p is there: a register was not written, or its bits are mixed up."
    return ""


@pytest.mark.parametrize("columns", [16, 32, 48, 128, 2064])
def test_to_operand(exercise, columns):
    """to_operand: each lane then holds what the layout of A says"""
    p = random_p(columns)
    row, col = layouts.mma_a()
    lanes = range(LANES) if columns <= 128 else (0, 6, 31)
    for lane, held in zip(lanes, held_by_lanes(p)[list(lanes)], strict=True):
        registers = exercise.to_operand(held)
        shape = (columns // 16, 4)
        assert registers.shape == shape and registers.dtype == np.uint32, (
            f"want uint32 of shape {shape}, got {registers.dtype} of {registers.shape}"
        )
        got = halves(registers)
        for k in range(columns // 16):
            want = p[row[lane], 16 * k + col[lane]].astype(np.float16)
            bad = np.argwhere(got[k] != want)
            if len(bad):
                i, half = map(int, bad[0])
                element = int(row[lane, i, half]), 16 * k + int(col[lane, i, half])
                raise Wrong(
                    f"lane {lane}, A number {k}, a{i}, half {half}: must hold P{element} = "
                    f"{want[i, half]}, got {got[k, i, half]}",
                    causes=[cause_of(got[k], want, held)],
                    where=f"a{i} of the A number {k}",
                )


def test_a_product(exercise):
    """the product P V of what all lanes hold"""
    p, v = random_p(32), np.random.default_rng(2).standard_normal((32, 8)).astype(np.float16)
    row, col = layouts.mma_a()
    a = np.full((2, 16, 16), np.nan)
    for lane, held in enumerate(held_by_lanes(p)):
        a[:, row[lane], col[lane]] = halves(exercise.to_operand(held))
    got = sum(a[k] @ v[16 * k : 16 * k + 16].astype(np.float64) for k in range(2))
    want = p.astype(np.float16).astype(np.float64) @ v.astype(np.float64)
    wrong = ~(np.abs(got - want) <= 1e-12)
    if wrong.any():
        row, col = map(int, np.argwhere(wrong)[0])
        raise AssertionError(
            f"(P V)[{row}, {col}] must be {want[row, col]:.6g}, got {got[row, col]:.6g}: what the "
            "lanes hold as A, put together by ex12a's layout of A, is not P"
        )


def test_input_unchanged(exercise):
    """p stays as it is"""
    p = held_by_lanes(random_p(64))[7]
    before = p.copy()
    exercise.to_operand(p)
    assert (p == before).all(), "to_operand wrote into p"
