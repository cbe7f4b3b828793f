"""fa-numba: attention kernels in Numba-CUDA, to learn from and to use."""

from fa_numba import simt
from fa_numba.arrays import backend
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2

__all__ = ["backend", "flash_attn_v2"]

if not simt.has_gpu():
    simt.enable()  # kernel[grid, block](...) runs on the CPU engine
