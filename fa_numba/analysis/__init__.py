"""Block sizes, HBM traffic, machine code: what can be known of a kernel without running it."""

from fa_numba.analysis import intensity
from fa_numba.analysis.block_sizes import calculate_block_sizes, kernel_block_sizes
from fa_numba.analysis.devices import DEVICES, Device, device
from fa_numba.analysis.kv_cache_size import kv_cache_bytes, kv_cache_tokens
from fa_numba.analysis.occupancy import Occupancy, occupancy
from fa_numba.analysis.roofline import Roofline

__all__ = [
    "DEVICES",
    "Device",
    "Occupancy",
    "Roofline",
    "calculate_block_sizes",
    "device",
    "intensity",
    "kernel_block_sizes",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "occupancy",
]
