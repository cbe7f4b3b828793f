"""Grader of ex04d: the formula against the engine's meter on the package's flash_attn_v2."""

import functools
from numbers import Real

import numpy as np
import pytest

import fa_numba
from fa_numba import simt
from fa_numba.workbook.graders.causes import Wrong

KEYS = ("num_blocks", "q_reads", "k_reads", "v_reads", "out_writes", "total")


@functools.cache
def metered(N, d, B_r, B_c):
    """Elements that flash_attn_v2 loads and stores for one head, counted by the engine."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, N, 1, d)).astype(np.float32) for _ in range(3))
    with simt.tracing() as traces:
        fa_numba.flash_attn_v2(q, k, v, block_m=B_r, block_n=B_c)
    (trace,) = traces
    loads = [trace.arrays[name].loads for name in "qkv"]
    return {
        "num_blocks": int(np.prod(trace.grid)),
        **dict(zip(("q_reads", "k_reads", "v_reads"), loads, strict=True)),
        "out_writes": trace.arrays["out"].stores,
    }


def cause_of(key, got, want):
    """The likely mistake in a number of flash_traffic, or ""."""
    if key in ("k_reads", "v_reads") and got[key] == want["q_reads"]:
        return f"{key} counts each row once: every thread block walks over all of K and V."
    if key in ("q_reads", "out_writes") and got[key] == want["k_reads"]:
        return f"{key} is counted for each thread block: each of them has only its own B_r rows."
    return ""


def check(got, want, case):
    assert isinstance(got, dict), f"want a dict, got {type(got).__name__}"
    absent = [key for key in KEYS if key not in got]
    assert not absent, f"the dict has no {', '.join(absent)}; the statement lists the keys"
    for key in KEYS:
        value = got[key]
        assert type(value) is int, f"{case}: {key} must be an int, got {value!r}: round tiles up"
    for key, value in want.items():
        if got[key] != value:
            raise Wrong(
                f"{case}: {key} must be {value}, got {got[key]}",
                causes=[cause_of(key, got, want)],
                where=key,
            )


def check_against_meter(exercise, N, d, B_r, B_c, dtype_bytes=4):
    counts = metered(N, d, B_r, B_c)
    want = {key: n if key == "num_blocks" else n * dtype_bytes for key, n in counts.items()}
    want["total"] = sum(want.values()) - want["num_blocks"]
    case = f"N={N}, d={d}, B_r={B_r}, B_c={B_c}, dtype_bytes={dtype_bytes}"
    check(exercise.flash_traffic(N, d, B_r, B_c, dtype_bytes), want, case)


def test_source_problem(exercise):
    """the tutorial's exercise 3b: N=4096, d=128, fp16, 128 x 128 tiles, every line of it"""
    matrix = 4096 * 128 * 2
    want = {
        "num_blocks": 32,
        "q_reads": matrix,
        "k_reads": 32 * matrix,
        "v_reads": 32 * matrix,
        "out_writes": matrix,
        "total": 66 * matrix,
    }
    check(exercise.flash_traffic(4096, 128, 128, 128), want, "N=4096, d=128, fp16, 128 x 128")


@pytest.mark.parametrize("N, d, B_r, B_c", [(32, 8, 8, 8), (32, 8, 16, 4), (16, 4, 4, 16)])
def test_tiles(exercise, N, d, B_r, B_c):
    """Q and out once, K and V once per thread block, as the meter counts them"""
    check_against_meter(exercise, N, d, B_r, B_c)


@pytest.mark.parametrize("N, B_r, B_c", [(17, 8, 8), (33, 16, 4), (19, 5, 3), (5, 8, 16)])
def test_short_last_tile(exercise, N, B_r, B_c):
    """N not divisible by the tiles, also tiles larger than N: nothing is moved that is not there"""
    check_against_meter(exercise, N, 4, B_r, B_c)


def test_odd_head_dim(exercise):
    """any head_dim"""
    check_against_meter(exercise, 12, 7, 4, 4)
    check_against_meter(exercise, 12, 1, 4, 4)


@pytest.mark.parametrize("dtype_bytes", [1, 2, 8])
def test_element_size(exercise, dtype_bytes):
    """dtype_bytes scales every line in bytes, and no count of tiles"""
    check_against_meter(exercise, 19, 4, 5, 3, dtype_bytes)


def test_b_c_does_not_matter(exercise):
    """the size of the K/V tiles changes no byte"""
    totals = {exercise.flash_traffic(1000, 64, 48, B_c)["total"] for B_c in (1, 7, 64, 5000)}
    assert len(totals) == 1, f"B_c only says how K and V are cut, yet the totals are {totals}"


def near(got, want, why, dtype_bytes=2):
    assert isinstance(got, Real), f"want a float, got {got!r}: is a return missing?"
    if abs(got - want) <= 1e-9 * want:
        return
    known = (
        ("The ratio is upside down: standard attention's bytes are divided by flash_traffic's.",
         1 / want),
        ("Elements are divided by bytes: flash_traffic's total is in bytes, so the elements of "
         "standard attention need dtype_bytes.", want / dtype_bytes),
    )  # fmt: skip
    raise Wrong(
        f"{why} is {want:.6g}, got {got:.6g}",
        causes=[words for words, x in known if abs(got - x) <= 1e-9 * x and x != want],
    )


def test_source_speedup(exercise):
    """the tutorial's exercise 3c: 2 times, not 20"""
    got = exercise.memory_speedup(4096, 128, 128, 128)
    near(got, 2, "138412032 bytes over 69206016 bytes")


@pytest.mark.parametrize("N", [128, 1024, 65536])
def test_speedup_where_b_r_is_d(exercise, N):
    """with B_r = d the traffic halves at every length"""
    got = exercise.memory_speedup(N, 64, 64, 32)
    near(got, 2, f"N={N}, d=B_r=64: (4 N^2 + 4 N d) / (2 N d + 2 N d N / B_r), whatever N")


def test_speedup(exercise):
    """any sizes: ratio of the two pipelines' bytes, the element size cancels"""
    for N, d, B_r in [(100, 8, 32), (1000, 64, 48), (16384, 128, 256), (64, 256, 16)]:
        want = (4 * N * N + 4 * N * d) / (2 * N * d * (1 + -(-N // B_r)))
        for dtype_bytes in (1, 2, 4):
            got = exercise.memory_speedup(N, d, B_r, 64, dtype_bytes)
            why = (
                f"N={N}, d={d}, B_r={B_r}: the 4 N^2 + 4 N d elements of standard attention over "
                "flash_traffic's total"
            )
            near(got, want, why, dtype_bytes)


def test_default_element_size(exercise):
    """dtype_bytes is 2 when not given"""
    got, want = (exercise.flash_traffic(100, 8, 32, 16, *size) for size in ((), (2,)))
    assert got == want, f"want the bytes of fp16 by default, {want}, got {got}"


@pytest.mark.parametrize("N, B_r, B_c", [(1000, 48, 48), (2**27 + 5, 7, 1), (10**12, 64, 3)])
def test_long_sequences(exercise, N, B_r, B_c):
    """whole numbers, exact to the last byte, for any N: a formula, and no loop over tiles"""
    matrix, num_blocks = 2 * 128 * N, (N + B_r - 1) // B_r
    want = {
        "num_blocks": num_blocks,
        "q_reads": matrix,
        "k_reads": num_blocks * matrix,
        "v_reads": num_blocks * matrix,
        "out_writes": matrix,
        "total": 2 * matrix * (1 + num_blocks),
    }
    case = f"N={N}, d=128, B_r={B_r}, B_c={B_c}, fp16"
    check(exercise.flash_traffic(N, 128, B_r, B_c), want, case)
