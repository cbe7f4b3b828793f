"""fa-numba: attention kernels in Numba-CUDA, to learn from and to use."""

from fa_numba import simt

if not simt.has_gpu():
    simt.enable()
