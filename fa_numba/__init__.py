"""fa-numba: attention kernels in Numba-CUDA, to learn from and to use."""

import numba_cuda_simulator  # noqa: F401  # isort: skip: gives names of Numba where there is none
from fa_numba.runtime import numpy_names  # noqa: F401  # isort: skip: before anything compiles
from fa_numba.runtime import simulator_options  # noqa: F401  # isort: skip: before any kernel
from fa_numba import masks as masks
from fa_numba import simt
from fa_numba.checks.names import no_such_name
from fa_numba.dispatch import (
    cascade_decode,
    flash_attn,
    flash_attn_grad,
    flash_attn_varlen,
    flash_attn_varlen_grad,
    flash_decode,
    mla_decode,
    paged_attn_decode,
    softmax,
    softmax_topk,
    topk_decode,
    which,
)
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd
from fa_numba.kernels.flash_attn_v1 import flash_attn_v1
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.kernels.flash_attn_varlen_bwd import flash_attn_varlen_bwd
from fa_numba.kernels.lazy_softmax_attn import lazy_softmax_attn
from fa_numba.kernels.linear_attn import linear_attn
from fa_numba.kernels.merge_states import merge_states
from fa_numba.kernels.naive_attn import naive_attn
from fa_numba.kernels.naive_softmax import naive_softmax
from fa_numba.kernels.online_softmax import online_softmax
from fa_numba.kernels.safe_softmax import safe_softmax
from fa_numba.kv_cache import PagePool, copy_pages, reshape_and_cache, swap_pages
from fa_numba.kv_cache.paged_kv_lookup import paged_kv_lookup
from fa_numba.on_cuda_cores.flash_attn_bwd_registers import flash_attn_bwd_registers
from fa_numba.on_cuda_cores.flash_attn_registers import flash_attn_registers
from fa_numba.on_cuda_cores.flash_attn_v2_4x4 import flash_attn_v2_4x4
from fa_numba.on_cuda_cores.flash_attn_v2_unsigned import flash_attn_v2_unsigned
from fa_numba.on_cuda_cores.softmax_registers import softmax_registers
from fa_numba.on_cuda_cores.softmax_topk_warps import softmax_topk_warps
from fa_numba.runtime.arrays import backend

__all__ = [
    "PagePool", "backend", "cascade_decode", "copy_pages", "flash_attn", "flash_attn_bwd",
    "flash_attn_bwd_registers", "flash_attn_grad", "flash_attn_registers", "flash_attn_v1",
    "flash_attn_v2", "flash_attn_v2_4x4", "flash_attn_v2_unsigned", "flash_attn_varlen",
    "flash_attn_varlen_bwd", "flash_attn_varlen_grad", "flash_decode", "lazy_softmax_attn",
    "linear_attn", "merge_states", "mla_decode", "naive_attn", "naive_softmax", "online_softmax",
    "paged_attn_decode", "paged_kv_lookup", "reshape_and_cache", "safe_softmax", "softmax",
    "softmax_registers", "softmax_topk", "softmax_topk_warps", "swap_pages", "topk_decode", "which",
]  # fmt: skip


def __getattr__(name):
    raise no_such_name(__name__, name, __all__)


if not simt.has_gpu():
    simt.enable()  # kernel[grid, block](...) runs on the CPU engine
