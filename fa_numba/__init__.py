"""fa-numba: attention kernels in Numba-CUDA, to learn from and to use."""
