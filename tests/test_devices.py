"""The device table against itself: what one column says must follow from others."""

import pytest

from fa_numba.analysis.devices import DEVICES, KIB

FLOAT32_LANES = {(7, 5): 64, (8, 0): 64, (8, 9): 128, (9, 0): 128}  # per SM
EACH = pytest.mark.parametrize("device", DEVICES.values(), ids=lambda d: d.name)


@EACH
def test_float32_peak_is_two_flops_per_lane_and_clock(device):
    peak = 2 * FLOAT32_LANES[device.compute_capability] * device.num_sms * device.clock
    assert device.float32 == pytest.approx(peak, rel=0.01)


@EACH
def test_shared_memory_fits(device):
    assert 48 * KIB < device.shared_bytes_per_block <= device.shared_bytes_per_sm < device.l1_bytes


@EACH
def test_roofline_meets_at_the_ridge(device):
    assert device.attainable(device.ridge) == pytest.approx(device.float32)
    assert device.attainable(device.ridge / 2) == pytest.approx(device.float32 / 2)
    assert device.attainable(10 * device.ridge) == device.float32
    assert device.attainable(device.tensor_ridge, tensor=True) == device.float16_tensor


def test_a100_shared_bandwidth():
    assert DEVICES["A100-40GB"].shared_bandwidth == pytest.approx(19.5e12, rel=0.01)
    assert DEVICES["T4"].shared_bandwidth is None
