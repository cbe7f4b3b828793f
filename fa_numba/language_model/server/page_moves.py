"""Writing, copying and swapping pages, for all layers.

Caches of all layers are one array (layers, num_pages, page_size, kv_heads, head_dim), and a page
number means the same page in each layer. Pages of 8 bits have scales: arrays without head_dim.
Others may have bounds, k_min and k_max: arrays without page_size. On a GPU the kernels of
`kv_cache` run. On NumPy arrays they would run on the CPU engine, which is for tracing: indexing
does the same, and is much faster.
"""

import numpy as np

from fa_numba.kernels import e4m3
from fa_numba.kv_cache.copy_pages import copy_pages
from fa_numba.kv_cache.page_scores import update_page_bounds
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.kv_cache.swap_pages import swap_pages
from fa_numba.runtime import arrays

SCALES = "k_scale", "v_scale"


def write(k, v, k_cache, v_cache, slots, scales=()):
    """Write the keys and values of new tokens to their slots in one layer; −1: no slot.

    `scales` are those of a cache of 8 bits, k_scale and v_scale, or empty.
    """
    if arrays.library_of(k) != "numpy":
        reshape_and_cache(k, v, k_cache, v_cache, slots, **dict(zip(SCALES, scales, strict=False)))
        return
    if slots.size and slots.min() < 0:
        keep = slots >= 0
        k, v, slots = k[keep], v[keep], slots[keep]
    if scales:
        (k, *k_scale), (v, *v_scale) = map(e4m3.quantise, (k, v))
        for scale, (x,) in zip(scales, (k_scale, v_scale), strict=True):
            scale.reshape(-1, *scale.shape[2:])[slots] = x
    for cache, x in ((k_cache, k), (v_cache, v)):
        cache.reshape(-1, *cache.shape[2:])[slots] = x


def bound(k, k_min, k_max, slots, page_size):
    """Take the keys of new tokens into the bounds of their pages in one layer; −1: no slot."""
    if arrays.library_of(k) != "numpy":
        update_page_bounds(k, k_min, k_max, slots, page_size)
        return
    k, slots = k[slots >= 0], slots[slots >= 0]
    pages, first = slots // page_size, slots % page_size == 0
    k_min[pages[first]], k_max[pages[first]] = np.inf, -np.inf
    np.minimum.at(k_min, pages, k)
    np.maximum.at(k_max, pages, k)


def move_slots(caches, src, dst):
    """Copy slot src[i] to slot dst[i] in each layer; all are read before any is written."""
    for x in caches:
        slots = x.reshape(len(x), -1, *x.shape[3:])
        slots[:, dst] = slots[:, src]


def copy(caches, src, dst):
    """Copy page src[i] to page dst[i] in each layer; src and dst are NumPy arrays.

    `caches` are keys and values, and their scales or bounds, if they have some.
    """
    if not len(src):
        return
    if arrays.library_of(caches[0]) == "numpy":
        for x in caches:
            x[:, dst] = x[:, src]
        return
    src, dst = (arrays.from_numpy(caches[0], x) for x in (src, dst))
    for layer in range(len(caches[0])):
        for k_cache, v_cache in pairs(caches, layer):
            copy_pages(k_cache, v_cache, src, dst)


def swap(caches, others, src, dst):
    """Copy page src[i] of some caches to page dst[i] of others, in each layer."""
    if not len(src):
        return
    if isinstance(caches[0], np.ndarray) and isinstance(others[0], np.ndarray):
        for x, y in zip(caches, others, strict=True):
            y[:, dst] = x[:, src]
        return
    for layer in range(len(caches[0])):
        for source, target in zip(pairs(caches, layer), pairs(others, layer), strict=True):
            swap_pages(*source, *target, src, dst)


def pairs(caches, layer):
    """(keys, values), and (scales) or (bounds) of a layer, with four axes, as kernels take them.

    Of latents there is one array: both halves of its rows, with the middle column of an odd number.
    """
    if len(caches) == 1:
        rows = caches[0][layer]
        half = (rows.shape[-1] + 1) // 2
        return [(rows[..., :half], rows[..., -half:])]
    k, v, *beside = (x[layer] for x in caches)
    return [(k, v), tuple(x[..., None] for x in beside)] if beside else [(k, v)]
