"""Block sizes, HBM traffic, machine code: what can be known of a kernel without running it."""

from fa_numba.analysis.block_sizes import calculate_block_sizes, kernel_block_sizes

__all__ = ["calculate_block_sizes", "kernel_block_sizes"]
