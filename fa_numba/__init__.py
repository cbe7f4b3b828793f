"""fa-numba: attention kernels in Numba-CUDA, to learn from and to use."""

from fa_numba.arrays import backend
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2

__all__ = ["backend", "flash_attn_v2"]
