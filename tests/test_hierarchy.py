"""The levels of a GPU's memory, against numbers that vendors print."""

import pytest

from fa_numba.analysis.devices import DEVICES
from fa_numba.analysis.hierarchy import hierarchy, nvlink_bandwidth, pcie_bandwidth


@pytest.mark.parametrize("generation, both", [(3, 32e9), (4, 64e9), (5, 128e9)])
def test_data_sheets_add_both_directions_of_pcie(generation, both):
    assert 2 * pcie_bandwidth(generation) == pytest.approx(both, rel=0.02)
    assert pcie_bandwidth(generation, 8) == pcie_bandwidth(generation) / 2


def test_another_generation_is_refused():
    with pytest.raises(ValueError, match="generation must be one of"):
        pcie_bandwidth(2)


def test_nvlink_is_half_of_the_printed_sum():
    assert nvlink_bandwidth("A100-80GB") == 300e9 and nvlink_bandwidth("H200") == 450e9
    assert nvlink_bandwidth("T4") is None


@pytest.mark.parametrize("name", DEVICES)
def test_farther_is_slower(name):
    levels = hierarchy(name)
    speeds = [level.bandwidth for level in levels if level.bandwidth]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) >= 3
    clocks = [level.clocks for level in levels if level.clocks]
    assert clocks == sorted(clocks)


def test_an_a100():
    registers, shared, l2, hbm, _, _ = hierarchy("A100-40GB")
    assert registers.num_bytes == 108 * 256 * 1024 and registers.bytes_each == 255 * 4
    assert shared.bytes_each == 163 * 1024
    assert l2.bandwidth == pytest.approx(7.2e12, rel=0.01)  # 5120 bytes per clock
    assert hbm.bandwidth == 1555e9
