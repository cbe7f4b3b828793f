"""Tensor cores from Python: PTX instructions as functions, and attention kernels on them."""
