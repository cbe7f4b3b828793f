"""Attention of NumPy arrays, compiled for the CPU by Numba: for use, not for tracing.

attention.py     the jobs: checks, threads, results
forward.py       one tile of queries against all keys that it sees
backward.py      gradients, from lse
scores.py        Sᵀ = K Qᵀ with scale, softcap, ALiBi and mask
tiles.py         rows of any dtype and stride to tiles in cache, and the product of two tiles
exponential.py   2^x and tanh
vectors.py       a vector register as a type of Numba
threads.py       threads that take tasks until none is left
disk_cache.py    compiled functions on disk
"""

from fa_numba.cpu.attention import (
    flash_attn,
    flash_attn_grad,
    flash_attn_varlen,
    flash_attn_varlen_grad,
    flash_decode,
    paged_attn_decode,
)

__all__ = [
    "flash_attn",
    "flash_attn_grad",
    "flash_attn_varlen",
    "flash_attn_varlen_grad",
    "flash_decode",
    "paged_attn_decode",
]
