"""The device table against itself: what one column says must follow from others."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from fa_numba import analysis, simt
from fa_numba.analysis import devices
from fa_numba.analysis.devices import DEVICES, KIB, Device, device
from fa_numba.dispatch import attention
from fa_numba.runtime import arrays
from numba_cuda_simulator import devices as engine_devices
from numba_cuda_simulator.devices import CHIPS, GPUS

NAMES = [
    "T4", "V100", "A10", "L4", "RTX 3090", "RTX 4090", "RTX 5090", "A100-40GB", "A100-80GB",
    "H100", "H200", "B200",
]  # fmt: skip
# FLOP per SM and clock: float32 is 2 per lane; tensor cores in float16 with float32 sums, of which
# GeForce cards do half of what their data-centre sisters do.
FLOAT32 = {(7, 0): 128, (7, 5): 128, (8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256,
           (10, 0): 256, (12, 0): 256}  # fmt: skip
TENSOR = {
    "T4": 1024, "V100": 1024, "A10": 1024, "L4": 1024, "RTX 3090": 512, "RTX 4090": 512,
    "RTX 5090": 512, "A100-40GB": 2048, "A100-80GB": 2048, "H100": 4096, "H200": 4096, "B200": 8192,
}  # fmt: skip
EACH = pytest.mark.parametrize("gpu", DEVICES.values(), ids=lambda d: d.name)


def test_every_gpu_is_there():
    assert list(DEVICES) == NAMES


@EACH
def test_float32_peak_is_two_flops_per_lane_and_clock(gpu):
    peak = FLOAT32[gpu.compute_capability] * gpu.num_sms * gpu.clock
    assert gpu.float32 == pytest.approx(peak, rel=0.01)


@EACH
def test_tensor_peak_follows_from_clock(gpu):
    # Hopper and Blackwell run their tensor cores some 7 % slower than the boost clock.
    slower = 0.08 if gpu.compute_capability in {(9, 0), (10, 0)} else 0.01
    peak = TENSOR[gpu.name] * gpu.num_sms * gpu.clock
    assert (1 - slower) * peak < gpu.float16_tensor < 1.01 * peak


@EACH
def test_tf32_is_half_as_fast_as_float16(gpu):
    if gpu.compute_capability < (8, 0):
        assert gpu.tf32_tensor is None
    else:
        assert gpu.tf32_tensor == pytest.approx(gpu.float16_tensor / 2, rel=0.03)


@EACH
def test_narrow_types(gpu):
    assert gpu.bfloat16_tensor == (gpu.float16_tensor if gpu.compute_capability >= (8, 0) else None)
    if gpu.compute_capability < (8, 9):
        assert gpu.float8_tensor is None
    else:
        assert gpu.float8_tensor == pytest.approx(2 * gpu.float16_tensor, rel=0.01)


@EACH
def test_shared_memory_fits(gpu):
    assert gpu.shared_bytes_default < gpu.shared_bytes_per_block
    assert gpu.shared_bytes_per_block + gpu.shared_bytes_reserved <= gpu.shared_bytes_per_sm
    assert gpu.shared_bytes_per_sm < gpu.l1_bytes
    assert gpu.shared_bytes_reserved == (0 if gpu.compute_capability < (8, 0) else KIB)


@EACH
def test_every_row_names_its_source(gpu):
    assert gpu.source


def test_peak_by_dtype():
    h100 = DEVICES["H100"]
    assert h100.peak("float32") == h100.peak(np.float32) == h100.float32
    assert h100.peak(np.dtype(np.float16)) == h100.peak("bfloat16") == h100.float16_tensor
    assert h100.peak("float8_e4m3fn") == h100.peak("float8") == h100.float8_tensor
    with pytest.raises(ValueError, match="no bfloat16 peak is known for T4"):
        DEVICES["T4"].peak("bfloat16")
    with pytest.raises(ValueError, match="one of float32, float16, bfloat16, float8, got int8"):
        h100.peak(np.int8)


def test_a100_shared_bandwidth():
    assert DEVICES["A100-40GB"].shared_bandwidth == pytest.approx(19.5e12, rel=0.01)
    assert DEVICES["T4"].shared_bandwidth is None


@pytest.mark.parametrize(
    "name, row",
    [
        *((name, name) for name in NAMES),
        ("rtx4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100 80GB", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100 SXM", "H100"),
    ],
)
def test_device_by_name(name, row):
    assert device(name) is DEVICES[row]
    assert device(DEVICES[row]) is DEVICES[row]


@pytest.mark.parametrize(
    "name", ["A100", "A10G", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", ""]
)
def test_other_cards_are_not_mistaken(name):
    with pytest.raises(ValueError, match="it has T4, V100, A10, .*, B200"):
        device(name)


@pytest.mark.skipif(simt.has_gpu(), reason="there is a GPU here")
def test_without_a_gpu():
    assert device() is DEVICES["T4"]


def fake_gpu(name, compute_capability):
    """What Numba's device object would answer: every attribute a number of its own."""
    return SimpleNamespace(
        name=name,
        compute_capability=compute_capability,
        MULTIPROCESSOR_COUNT=7,
        CLOCK_RATE=1_500_000,
        L2_CACHE_SIZE=11,
        MAX_SHARED_MEMORY_PER_MULTIPROCESSOR=13,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=12,
        RESERVED_SHARED_MEMORY_PER_BLOCK=1,
        MAX_THREADS_PER_MULTIPROCESSOR=64,
        MAX_BLOCKS_PER_MULTIPROCESSOR=2,
    )


def test_a_gpu_of_the_table_is_asked_and_completed():
    gpu = devices._from_driver(fake_gpu("Tesla T4", (7, 5)), 99)
    assert (gpu.name, gpu.num_sms, gpu.clock, gpu.memory_bytes) == ("Tesla T4", 7, 1.5e9, 99)
    assert (gpu.l2_bytes, gpu.shared_bytes_per_sm, gpu.shared_bytes_per_block) == (11, 13, 12)
    assert (gpu.shared_bytes_reserved, gpu.threads_per_sm, gpu.blocks_per_sm) == (1, 64, 2)
    assert (gpu.memory_bandwidth, gpu.float16_tensor, gpu.l1_bytes) == (320e9, 65e12, 96 * KIB)


def test_another_gpu_is_asked_and_its_peaks_are_unknown():
    gpu = devices._from_driver(fake_gpu("NVIDIA A40", (8, 6)), 99)
    assert (gpu.num_sms, gpu.l1_bytes) == (7, 128 * KIB)
    assert gpu.memory_bandwidth is None
    with pytest.raises(ValueError, match="no float32 peak is known for NVIDIA A40"):
        gpu.peak("float32")
    assert devices._from_driver(fake_gpu("Thor", (11, 0)), 99).l1_bytes is None


def test_a_gpu_is_added_by_one_row(monkeypatch):
    """All that the analysis, the engine and the choice of kernels ask of a GPU is in its row."""
    b200 = GPUS[-1]
    row = b200._replace(name="X1", compute_capability=(10, 3), num_sms=9, gb_per_s=1000, float32=5)
    monkeypatch.setattr(engine_devices, "GPUS", (*GPUS, row))
    monkeypatch.setitem(CHIPS, row.name, row)
    gpu = devices.of_row(row)
    assert "16 thread blocks per SM of the X1" in str(analysis.occupancy(128, 32, device=gpu))
    assert analysis.Roofline(gpu).ridge == 5
    with simt.options(device="X1"):
        assert arrays.num_sms(np.ones(1)) == 9
    assert attention.tf32_pays_off((10, 3)) and attention.tf32_pays_off((10, 4))
    row = row._replace(tf32=15)
    monkeypatch.setattr(engine_devices, "GPUS", (*GPUS, row))
    assert not attention.tf32_pays_off((10, 3)) and attention.tf32_pays_off((10, 0))


def test_the_tables_of_devices_are_that_of_gpus():
    assert DEVICES == {row.name: devices.of_row(row) for row in GPUS}
    assert set(CHIPS.values()) < set(GPUS) and set(GPUS) - set(CHIPS.values()) == {
        row for row in GPUS if row.name == "A100-40GB"
    }


@pytest.mark.gpu
@pytest.mark.skipif(not simt.has_gpu(), reason="needs a CUDA GPU")
def test_the_gpu_of_this_machine():
    gpu = device()
    assert gpu.compute_capability == tuple(cuda.get_current_device().compute_capability)
    for field in dataclasses.fields(Device):
        known = devices._BY_NAME.get(devices._plain(gpu.name))
        if known and field.name not in {"name", "clock", "memory_bytes", "source"}:
            ours, its = getattr(known, field.name), getattr(gpu, field.name)
            assert ours == its, f"{field.name}: the table says {ours}, the driver {its}"
