"""Writing, copying and swapping pages, for all layers.

Caches of all layers are one array (layers, num_pages, page_size, kv_heads, head_dim), and a page
number means the same page in each layer. On a GPU the kernels of `kv_cache` run. On NumPy arrays
they would run on the CPU engine, which is for tracing: indexing does the same, and is much faster.
"""

import numpy as np

from fa_numba.kv_cache.copy_pages import copy_pages
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.kv_cache.swap_pages import swap_pages
from fa_numba.runtime import arrays


def write(k, v, k_cache, v_cache, slots):
    """Write the keys and values of new tokens to their slots in one layer; −1: no slot."""
    if arrays.library_of(k) != "numpy":
        reshape_and_cache(k, v, k_cache, v_cache, slots)
        return
    if slots.size and slots.min() < 0:
        keep = slots >= 0
        k, v, slots = k[keep], v[keep], slots[keep]
    for cache, x in ((k_cache, k), (v_cache, v)):
        cache.reshape(-1, *cache.shape[2:])[slots] = x


def copy(k_caches, v_caches, src, dst):
    """Copy page src[i] to page dst[i] in each layer; src and dst are NumPy arrays."""
    if not len(src):
        return
    if arrays.library_of(k_caches) == "numpy":
        k_caches[:, dst], v_caches[:, dst] = k_caches[:, src], v_caches[:, src]
        return
    src, dst = (arrays.from_numpy(k_caches, x) for x in (src, dst))
    for k_cache, v_cache in zip(k_caches, v_caches, strict=True):
        copy_pages(k_cache, v_cache, src, dst)


def swap(k_src, v_src, k_dst, v_dst, src, dst):
    """Copy page src[i] of one pair of caches to page dst[i] of another, in each layer."""
    if not len(src):
        return
    if isinstance(k_src, np.ndarray) and isinstance(k_dst, np.ndarray):
        k_dst[:, dst], v_dst[:, dst] = k_src[:, src], v_src[:, src]
        return
    for layer in range(len(k_src)):
        swap_pages(k_src[layer], v_src[layer], k_dst[layer], v_dst[layer], src, dst)
