"""The jobs that the model calls: compiled, or in NumPy's float32 where there is no Numba."""

import functools

import numpy as np

from numba_cuda_simulator import without_numba

if without_numba.is_installed():
    from fa_numba import reference
    from fa_numba.distributed.local_attn import numpy_attn as flash_attn
    from fa_numba.distributed.local_attn import numpy_attn_grad as flash_attn_grad

    flash_decode = functools.partial(reference.cached_attention, dtype=np.float32)
    paged_attn_decode = functools.partial(reference.paged_attention, dtype=np.float32)
    softmax = functools.partial(reference.softmax, dtype=np.float32)
    softmax_topk = functools.partial(reference.softmax_topk, dtype=np.float32)
else:
    from fa_numba.dispatch.attention import flash_attn, flash_attn_grad
    from fa_numba.dispatch.decoding import flash_decode, paged_attn_decode
    from fa_numba.dispatch.softmax import softmax, softmax_topk

__all__ = [
    "flash_attn",
    "flash_attn_grad",
    "flash_decode",
    "paged_attn_decode",
    "softmax",
    "softmax_topk",
]
