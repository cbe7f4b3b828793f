"""Block sizes, HBM traffic, machine code: what can be known of a kernel without running it."""

from fa_numba.analysis import intensity, traffic
from fa_numba.analysis.devices import DEVICES, Device, device
from fa_numba.analysis.kv_cache_size import kv_cache_bytes, kv_cache_tokens
from fa_numba.analysis.lint import lint
from fa_numba.analysis.machine_code import machine_code
from fa_numba.analysis.occupancy import Occupancy, occupancy
from fa_numba.analysis.roofline import Roofline
from fa_numba.analysis.traffic import Problem, Traffic
from fa_numba.tiling.block_sizes import calculate_block_sizes, kernel_block_sizes
from fa_numba.tiling.num_splits import choose_num_splits

__all__ = [
    "DEVICES",
    "Device",
    "Occupancy",
    "Problem",
    "Roofline",
    "Traffic",
    "calculate_block_sizes",
    "choose_num_splits",
    "device",
    "intensity",
    "kernel_block_sizes",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "lint",
    "machine_code",
    "occupancy",
    "traffic",
]
