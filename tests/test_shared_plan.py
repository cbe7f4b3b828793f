"""Regions of shared memory: where they begin, that none overlap, and how much to ask for."""

import pytest

from fa_numba.tensor_core.shared_plan import SharedPlan


def test_regions_follow_each_other():
    plan = SharedPlan()
    q, k = plan.tiles(1, 8192), plan.tiles(2, 3072)
    ring, other, claim = plan.ring(2), plan.ring(3), plan.barriers(2)
    ramp = plan.region(100)
    assert (q.start, q.bytes) == (0, 8192)
    assert (k.start, k.bytes) == (8192, 6144)
    assert ring == (14336, 14336 + 16, 2)
    assert other == (14336 + 32, 14336 + 32 + 24, 3)
    assert (claim.start, claim.bytes) == (14336 + 80, 16)
    assert ramp.start == 14336 + 96  # a multiple of 16
    assert plan.bytes == ramp.start + 100 + 1024  # the base may begin up to 1024 bytes later


def test_tiles_begin_where_the_swizzle_does():
    plan = SharedPlan()
    plan.barriers(1)
    assert plan.tiles(1, 512).start == 1024
    plan = SharedPlan(align=128)
    plan.region(20)
    assert plan.tiles(3, 128).start == 128
    assert plan.bytes == 128 + 3 * 128 + 128


def test_dynamic_shared_memory_begins_at_a_multiple_of_16_anyway():
    plan = SharedPlan(align=16)
    plan.tiles(1, 64)
    assert plan.bytes == 64


@pytest.mark.parametrize("align", [0, 8, 100, -16])
def test_align_is_a_power_of_2(align):
    with pytest.raises(ValueError, match=f"align must be a power of 2, at least 16, got {align}"):
        SharedPlan(align)
