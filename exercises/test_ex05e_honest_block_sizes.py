"""Grader of ex05e: what a kernel really keeps."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.workbook.graders.causes import Wrong, diagnosis

KIB = 1024
DEFAULTS = {"sram_bytes": 48 * KIB, "max_threads": 256, "max_accumulators": 64}
HEAD_DIMS = (1, 2, 7, 16, 40, 64, 80, 100, 128, 129, 192, 255, 256)
BUDGETS = {
    "as given": {},
    "1024 threads": {"max_threads": 1024},
    "100 threads, no power of two": {"max_threads": 100},
    "one warp": {"max_threads": 32},
    "one thread": {"max_threads": 1},
    "a third of the shared memory": {"sram_bytes": 16 * KIB},
    "an H100's 227 KiB, 1024 threads": {"sram_bytes": 227 * KIB, "max_threads": 1024},
    "16 accumulators": {"max_accumulators": 16, "max_threads": 1024},
    "4 accumulators": {"max_accumulators": 4, "max_threads": 1024},
    "2**16 threads, 16 MiB": {"max_threads": 2**16, "sram_bytes": 16 * KIB * KIB},
    "one accumulator": {"max_accumulators": 1, "max_threads": 2**10, "sram_bytes": 227 * KIB},
}


def tiles(block_m, block_n, d):
    """The shapes of the five tiles, as the kernel declares them."""
    odd = d + 1 if d % 2 == 0 else d
    return [(block_m, d), (block_n, odd), (block_n, d), (block_m, block_n), (block_m, block_n)]


def count_bytes(block_m, block_n, d):
    return sum(4 * rows * cols for rows, cols in tiles(block_m, block_n, d))


def count_accumulators(block_n, d):
    return max(len(range(tx, d, block_n)) for tx in range(block_n))


def best_pair(d, sram_bytes=48 * KIB, max_threads=256, max_accumulators=64):
    """Every pair of powers of two is tried; None where none fits."""
    powers = [2**i for i in range(17)]
    pairs = [
        (block_m * block_n, min(block_m, block_n), block_m, block_n)
        for block_m in powers
        for block_n in powers
        if block_m * block_n <= max_threads
        and count_bytes(block_m, block_n, d) <= sram_bytes
        and count_accumulators(block_n, d) <= max_accumulators
    ]
    return max(pairs)[2:] if pairs else None


@pytest.mark.parametrize("d", [1, 63, 64, 65, 128, 256])
def test_shared_bytes(exercise, d):
    """shared_bytes counts five float32 tiles, k_tile with an odd row length"""
    for block_m, block_n in [(16, 16), (64, 8), (8, 32), (1, 1)]:
        got, want = exercise.shared_bytes(block_m, block_n, d), count_bytes(block_m, block_n, d)
        if got != want:
            shapes = ", ".join(f"{r} x {c}" for r, c in tiles(block_m, block_n, d))
            raise Wrong(
                f"block_m={block_m}, block_n={block_n}, d={d}: the tiles {shapes} take {want} "
                f"bytes, got {got}",
                causes=causes(exercise, d),
            )


def causes(exercise, head_dim):
    """The mistakes that explain all of shared_bytes and accumulators, near a head_dim."""
    found = []
    with diagnosis():
        for block_m, block_n, d in [(16, 16, head_dim), (64, 8, head_dim), (8, 32, head_dim + 1)]:
            got, want = exercise.shared_bytes(block_m, block_n, d), count_bytes(block_m, block_n, d)
            even = 1 - d % 2
            known = (
                ("k_tile's rows are padded where d is even.", want - 4 * block_n * even),
                ("k_tile's rows are padded only where d is even.", want + 4 * block_n * (1 - even)),
                ("v_tile is not padded.", want + 4 * block_n * even),
                ("q_tile is not padded.", want + 4 * block_m * even),
                ("There are two tiles of scores.", want - 4 * block_m * block_n),
                ("q_tile has block_m rows.", want + 4 * d * (block_n - block_m)),
                ("A float32 has four bytes.", want // 2),
                ("A float32 has four bytes.", want // 4),
            )
            if got != want:
                found.append({words for words, size in known if got == size})
            got, want = exercise.accumulators(block_n, d), count_accumulators(block_n, d)
            known = (
                ("accumulators: d / block_n is rounded up.", d // block_n),
                ("accumulators: d / block_n is rounded up.", d / block_n),
                ("accumulators: d / block_n is rounded up.", max(1, d // block_n)),
                ("accumulators: it is one too many where block_n divides d.", d // block_n + 1),
            )
            if got != want:
                found.append({words for words, size in known if got == size})
    return sorted(set.intersection(*found)) if found else []


@pytest.mark.parametrize("d, block_m, block_n", [(64, 16, 16), (33, 8, 32), (128, 32, 8)])
def test_as_metered(exercise, d, block_m, block_n):
    """shared_bytes is what the engine's meter says of the real kernel"""
    q, k, v = np.zeros((3, 1, 1, 1, d), np.float32)
    with simt.tracing() as traces:
        flash_attn_v2(q, k, v, block_m=block_m, block_n=block_n)
    got, want = exercise.shared_bytes(block_m, block_n, d), traces[0].shared_bytes
    if got != want:
        raise Wrong(
            f"flash_attn_v2 at head_dim={d} with {block_m} x {block_n} tiles takes {want} bytes by "
            f"the meter, {got} by yours",
            causes=causes(exercise, d),
        )


def test_accumulators(exercise):
    """accumulators counts the columns of the busiest thread"""
    for d in HEAD_DIMS:
        for block_n in (1, 2, 8, 16, 32, 256):
            got, want = exercise.accumulators(block_n, d), count_accumulators(block_n, d)
            if got != want:
                raise Wrong(
                    f"d={d} columns, {block_n} threads a row: thread 0 owns columns "
                    f"0, {block_n}, {2 * block_n}, ...: that is {want} of them, got {got}",
                    causes=causes(exercise, d),
                )


def answer(exercise, *arguments, **limits):
    """(block_m, block_n), held to what any answer must be."""
    got = exercise.honest_block_sizes(*arguments, **limits)
    assert isinstance(got, (tuple, list)) and len(got) == 2, f"want (block_m, block_n), got {got!r}"
    for size in got:
        assert type(size) is int and size > 0 and size.bit_count() == 1, (
            f"d={arguments[0]}: sizes are ints and powers of two, 1, 2, 4, ...; got {got!r}"
        )
    return tuple(got)


@pytest.mark.parametrize("budget", BUDGETS)
def test_best_pair(exercise, budget):
    """the pair that fits and ranks highest, for every kind of budget"""
    limits = BUDGETS[budget]
    for d in HEAD_DIMS:
        want = best_pair(d, **limits)
        if want is None:
            continue
        try:
            got = answer(exercise, d, **limits)
        except ValueError:
            got = None
        if got == want:
            continue
        every = DEFAULTS | limits
        known = [(f"{name} is not kept.", {name: 2**40}) for name in every]
        known += [(f"{name} itself is allowed: <=.", {name: n - 1}) for name, n in every.items()]
        known += [(f"{name} is given, not always {n}.", {name: n}) for name, n in DEFAULTS.items()]
        found = causes(exercise, d)
        found += [words for words, other in known if got == best_pair(d, **every | other)]
        used = got and (
            f", which takes {got[0] * got[1]} threads, {count_bytes(*got, d)} bytes and "
            f"{count_accumulators(got[1], d)} accumulators"
        )
        raise Wrong(
            f"{budget}, d={d}: want {want}, got {got or 'ValueError'}{used or ''}", causes=found
        )


@pytest.mark.parametrize("d, max_accumulators", [(5000, 1), (30_000, 1), (5000, 100)])
def test_large_sizes(exercise, d, max_accumulators):
    """sizes are any powers of two, also beyond 1024"""
    limits = {"sram_bytes": 2**34, "max_threads": 2**16, "max_accumulators": max_accumulators}
    got, want = answer(exercise, d, **limits), best_pair(d, **limits)
    assert got == want, f"d={d}, {limits}: want {want}, got {got}"


def test_limits_by_place(exercise):
    """the limits are d, sram_bytes, max_threads, max_accumulators, in this order"""
    got, want = answer(exercise, 128, 20_000, 64, 16), best_pair(128, 20_000, 64, 16)
    assert got == want, f"honest_block_sizes(128, 20000, 64, 16) must be {want}, got {got}"


def test_limits_are_inclusive(exercise):
    """a tile that fills the budget to the last byte fits"""
    need = count_bytes(16, 16, 64)
    got = answer(exercise, 64, sram_bytes=need)
    assert got == (16, 16), f"16 x 16 takes exactly the {need} bytes there are, got {got}"
    smaller = answer(exercise, 64, sram_bytes=need - 1)
    assert smaller != (16, 16), f"16 x 16 takes {need} bytes, there are {need - 1}"


@pytest.mark.parametrize(
    "limits",
    [{"sram_bytes": 1000}, {"max_accumulators": 1, "max_threads": 64}, {"sram_bytes": 3079}],
)
def test_nothing_fits(exercise, limits):
    """where no pair fits, ValueError"""
    try:
        got = exercise.honest_block_sizes(256, **limits)
    except NotImplementedError:
        raise
    except Exception as error:
        assert type(error).__name__ == "ValueError", (
            f"d=256 with {limits}: nothing fits, want ValueError, got {type(error).__name__}: "
            f"{error}"
        )
        return
    raise AssertionError(f"d=256 with {limits}: nothing fits, want ValueError, got {got}")


@pytest.mark.parametrize("d", [5, 64, 256])
def test_kernel_runs(exercise, d):
    """the real kernel runs with these tiles, and its answer does not depend on them"""
    block_m, block_n = answer(exercise, d)
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 20, 1, d), np.float32)
    out, _ = flash_attn_v2(q, k, v, block_m=block_m, block_n=block_n)
    other, _ = flash_attn_v2(q, k, v, block_m=4, block_n=8)
    error = np.abs(out - other).max()
    assert error <= 1e-5, f"d={d}: {block_m} x {block_n} and 4 x 8 tiles differ by {error:.1e}"
