"""Swap pages between the cache of a GPU and a cache in host memory.

The pages of a sequence are anywhere in the cache, and only long transfers use the bus well. So the
kernel of copy_pages gathers the pages of a sequence on the GPU, one transfer moves them, and they
are scattered on the other side. The way back is the same.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 4.5.
"""

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.copy_pages import launch_copies
from fa_numba.runtime import arrays


def swap_pages(k_src, v_src, k_dst, v_dst, src, dst):
    """Copy page src[i] of one pair of caches to page dst[i] of another, in place.

    Parameters
    ----------
    k_src, v_src : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        The pages to read: float32, float16 or bfloat16. Any strides with a contiguous last axis.
    k_dst, v_dst : arrays of shape (other_num_pages, page_size, num_kv_heads, head_dim)
        Same dtype. Only the pages of dst are changed. Swap out: k_src is on a GPU and k_dst is a
        NumPy array. Swap in: the reverse. Two pairs of one library are copied by the kernel only.
    src, dst : NumPy arrays of shape (num_pages_swapped,), int32
        As the page pools return them. No page may be twice in dst.

    Notes
    -----
    This is the only function that copies between host and GPU. Swapping out waits for the GPU.
    """
    checks.check_swap(k_src, v_src, k_dst, v_dst, src, dst)
    if len(src) == 0:
        return
    here, there = arrays.library_of(k_src), arrays.library_of(k_dst)
    in_a_row = np.arange(len(src), dtype=np.int32)
    if here == there:
        _copy(k_src, v_src, k_dst, v_dst, src, dst)
    elif here == "numpy":  # swap in: gather, transfer, scatter
        k, v = (arrays.from_numpy(k_dst, x[src]) for x in (k_src, v_src))
        _copy(k, v, k_dst, v_dst, in_a_row, dst)
    else:  # swap out
        shape = (len(src), *k_src.shape[1:])
        k, v = (arrays.empty(k_src, shape, k_src.dtype) for _ in range(2))
        _copy(k_src, v_src, k, v, src, in_a_row)
        k_dst[dst], v_dst[dst] = arrays.to_numpy(k), arrays.to_numpy(v)


def _copy(k_src, v_src, k_dst, v_dst, src, dst):
    src, dst = (arrays.from_numpy(k_src, x) for x in (src, dst))
    launch_copies(k_src, v_src, k_dst, v_dst, src, dst)
