"""Grader of ex11e: warps that fit on an SM, against `fa_numba.analysis.occupancy`."""

import math

import numpy as np
import pytest

from fa_numba.analysis.occupancy import occupancy
from fa_numba.workbook.graders.causes import Wrong

MOST_SHARED = 232448

KERNELS = {
    "flash_attn_v2, 256 threads": (256, 96, 14400 // 128 * 128 + 128),
    "flash_attn_v2_4x4, 256 threads": (256, 80, 49152),
    "flash_attn_registers, 128 threads": (128, 254, 63488),
}


def mistakes(threads, registers, shared):
    """The results of wrong rules, by rule."""
    warps = math.ceil(threads / 32)
    rounded = 8 * math.ceil(registers / 8)
    limits = {
        "warps": 64 // warps,
        "registers": 4 * (16384 // (32 * rounded)) // warps,
        "shared": 233472 // (shared + 1024),
        "blocks": 32,
    }

    def without(name, **other):
        return warps * min({**{k: v for k, v in limits.items() if k != name}, **other}.values())

    return {
        "The limit of 64 warps is missing.": without("warps"),
        "The registers are no limit.": without("registers"),
        "Shared memory is no limit.": without("shared"),
        "The limit of 32 thread blocks is missing.": without("blocks"),
        "CUDA's 1,024 bytes of each thread block are missing.": without(
            "shared", shared=233472 // max(shared, 1)
        ),
        "A thread's registers are not rounded up to a multiple of 8.": without(
            "registers", registers=4 * (16384 // (32 * registers)) // warps
        ),
        "The SM's registers are not divided among its quarters: a warp lives in one.": without(
            "registers", registers=65536 // (32 * rounded) // warps
        ),
        "The thread blocks are counted, not the warps.": min(limits.values()),
        "Threads are not rounded up to whole warps.": threads // 32 * min(limits.values()),
    }


def check(exercise, cases, what):
    for case in cases:
        got = exercise.warps_per_sm(*case)
        want = occupancy(*case, device="H200").warps_per_sm
        if type(got) is not int or got != want:
            causes = ["The result is not an int."] if type(got) is not int else []
            causes += [cause for cause, number in mistakes(*case).items() if number == got]
            threads, registers, shared = case
            raise Wrong(
                f"{what}: {threads} threads, {registers} registers, {shared:,} bytes: want {want} "
                f"warps, got {got!r}",
                causes=causes,
                where=f"{threads} threads, {registers} registers, {shared:,} bytes",
            )


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(exercise, name):
    """the kernels of the lesson"""
    check(exercise, [KERNELS[name]], name)


def test_threads(exercise):
    """thread blocks of every size, which need nothing else"""
    check(exercise, [(n, 1, 0) for n in range(1, 1025)], "few registers")


def test_registers(exercise):
    """every number of registers"""
    check(exercise, [(n, r, 0) for r in range(1, 256) for n in (32, 128)], "no tiles")


def test_shared(exercise):
    """from no shared memory to all of it"""
    check(exercise, [(64, 16, n) for n in range(0, MOST_SHARED + 1, 384)], "few registers")


def test_does_not_fit(exercise):
    """0 where not even one thread block fits"""
    check(exercise, [(1024, r, 0) for r in (64, 65, 72, 128, 255)], "1024 threads")


def test_all_at_once(exercise):
    """any of them together"""
    rng = np.random.default_rng(0)
    cases = [
        (int(a), int(b), 128 * int(c))
        for a, b, c in zip(
            rng.integers(1, 1025, 300),
            rng.integers(1, 256, 300),
            (rng.random(300) ** 3 * (MOST_SHARED // 128 + 1)).astype(int),
            strict=True,
        )
    ]
    check(exercise, cases, "drawn")
