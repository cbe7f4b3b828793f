"""Attention of NumPy arrays, compiled for the CPU by Numba: for use, not for tracing.

attention.py     the jobs: checks, threads, results
plans.py         results of checks, for the next call with the same layouts and options
forward.py       one tile of queries against all keys that it sees
decode.py        few queries: each key and value is read once
backward.py      gradients, from lse
dropout.py       the entries of P that are dropped, bit by bit those of the other kernels
scores.py        Sᵀ = K Qᵀ with scale, softcap, ALiBi and mask
expressions.py   a user's mask and score: hidden tiles, and functions for the others
vector_code.py   an expression as instructions on vectors
tiles.py         rows of any dtype and stride to tiles in cache, and the product of two tiles
exponential.py   2^x, tanh, e^x and log
vectors.py       a vector register as a type of Numba
inlined.py       functions that are compiled as parts of their callers alone
threads.py       threads that take tasks until none is left
rows.py          softmax, softmax_topk
disk_cache.py    compiled functions on disk

Measured, processor time of one core of an Emerald Rapids Xeon with AVX-512, float32, GFLOP/s; NumPy
is two products by BLAS and a softmax, and BLAS alone reaches 156:

    batch x n x heads, head_dim     forward, causal (NumPy)     gradients, causal (NumPy)
    12 x 64 x 4, 64                     43,  27 ( 16, 14)            50,  28 (19, 13)
    1 x 1024 x 2, 64                   109,  93 ( 47, 22)           122, 105 (28, 13)
    1 x 4096 x 1, 64                   121, 118 ( 40, 19)           121, 123 (40, 20)
    1 x 4096 x 1, 128                  130, 128 ( 67, 32)           125, 124 (64, 32)
"""

from numba_cuda_simulator import without_numba

without_numba.require(
    "attention or softmax of NumPy arrays, unless a kernel such as flash_attn_v2 computes it,"
)  # else it is compiled

from fa_numba.cpu.attention import (  # noqa: E402
    flash_attn,
    flash_attn_grad,
    flash_attn_varlen,
    flash_attn_varlen_grad,
    flash_decode,
    paged_attn_decode,
)
from fa_numba.cpu.rows import softmax, softmax_topk  # noqa: E402

__all__ = [
    "flash_attn",
    "flash_attn_grad",
    "flash_attn_varlen",
    "flash_attn_varlen_grad",
    "flash_decode",
    "paged_attn_decode",
    "softmax",
    "softmax_topk",
]
