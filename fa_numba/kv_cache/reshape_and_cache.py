"""Write new keys and values into the pages of the cache.

The projections of a layer write the keys of the new tokens to one dense array. Each token has a
slot in the cache: page · page_size + offset. One launch of the kernel replaces a change of layout
and two copies, of K and of V.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 5.1, "fused reshape and block
write".

A cache of 8-bit floats (`kernels.e4m3`) has a kernel of its own: a warp has a token's head, finds
its scale if each token has its own, and rounds.
"""

import functools

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, ONE, ZERO
from fa_numba.kernels import e4m3
from fa_numba.runtime import arrays

THREADS_X, THREADS_Y = 32, 8  # a warp writes a row of head_dim numbers; eight warps


@cuda.jit
def reshape_and_cache_kernel(k, v, k_cache, v_cache, slot_mapping):
    """A thread block writes one token.

    grid      (num_tokens,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
              THREADS_Y-th head, columns tx, tx + THREADS_X, ...
    shared    none
    private   page, offset
    HBM       K and V of the tokens that have a slot: read once from the dense arrays, written once
              to the caches; slot_mapping once per thread, a warp at a time
    paper     PagedAttention, section 5.1
    budget    64 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    i = cuda.blockIdx.x
    slot = slot_mapping[i]
    if slot >= 0:  # otherwise the token is padding, or already in the cache
        page, offset = slot // page_size, slot % page_size
        for head in range(ty, num_kv_heads, cuda.blockDim.y):
            for d in range(tx, head_dim, cuda.blockDim.x):
                k_cache[page, offset, head, d] = k[i, head, d]
                v_cache[page, offset, head, d] = v[i, head, d]


@functools.cache
def make_write_bytes(SCALES):
    """The kernel for caches of bytes; SCALES is "head" or "token", as for `e4m3.make_load`."""

    @cuda.jit(device=True)
    def write(x, i, cache, scale, page, offset, head, tx):
        """One row of head_dim numbers, by a warp."""
        own = scale[head] if SCALES == "head" else ONE
        if SCALES == "token":
            amax = ZERO
            for d in range(tx, x.shape[2], cuda.blockDim.x):
                size = abs(float32(x[i, head, d]))
                amax = size if size > amax else amax  # a NaN is not greater
            for step in range(5):
                amax = max(amax, cuda.shfl_xor_sync(FULL_WARP, amax, 1 << step))
            own = amax / e4m3.E4M3_MAX if amax > ZERO else ONE
            if tx == 0:
                scale[page, offset, head] = own
        for d in range(tx, x.shape[2], cuda.blockDim.x):
            cache[page, offset, head, d] = e4m3.to_e4m3(float32(x[i, head, d]) / own)

    @cuda.jit
    def reshape_and_cache_e4m3_kernel(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale):
        """A thread block writes one token; a warp writes a head of it.

        grid      (num_tokens,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
                  THREADS_Y-th head, columns tx, tx + THREADS_X, ...
        shared    none
        private   page, offset, own: the scale; amax
        HBM       K and V of the tokens that have a slot: read once, with SCALES "token" twice, and
                  written once; a scale per token and head written, or read by each thread
        paper     PagedAttention, section 5.1
        budget    64 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
        """
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        page_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
        i = cuda.blockIdx.x
        slot = slot_mapping[i]
        if slot >= 0:  # otherwise the token is padding, or already in the cache
            page, offset = slot // page_size, slot % page_size
            for head in range(ty, num_kv_heads, cuda.blockDim.y):
                write(k, i, k_cache, k_scale, page, offset, head, tx)
                write(v, i, v_cache, v_scale, page, offset, head, tx)

    return reshape_and_cache_e4m3_kernel


@refuses_other_names
def reshape_and_cache(k, v, k_cache, v_cache, slot_mapping, *, k_scale=None, v_scale=None):
    """Write the keys and values of new tokens into their slots of the caches, in place.

    Parameters
    ----------
    k, v : arrays of shape (num_tokens, num_kv_heads, head_dim), float32, float16 or bfloat16
        Any strides with a contiguous last axis, here and in k_cache.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        Dtype of k, or with scales uint8, the bytes of e4m3. Only the slots of the tokens are
        changed.
    slot_mapping : array of shape (num_tokens,), int32
        Token i goes to page slot // page_size, at offset slot % page_size. −1: it is not written.
    k_scale, v_scale : float32 arrays, default=None
        Of shape (num_kv_heads,): a byte is e4m3(x / scale), at most ±448.
        Of shape (num_pages, page_size, num_kv_heads): the scale of each token and head is written
        too. It is the largest absolute value there over 448, or 1 if all are 0.

    Notes
    -----
    No slot may be given twice, because the thread blocks run in any order. The contents of
    slot_mapping are checked if it is a NumPy array. An array on a GPU is not checked, because that
    would wait for the GPU.
    """
    checks.check_write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    kernel, arguments = reshape_and_cache_kernel, (k, v, k_cache, v_cache, slot_mapping)
    form, *scales = e4m3.scales_of(k_scale, v_scale)
    if form:
        kernel, arguments = make_write_bytes(form), (*arguments, *scales)
    arrays.launch(kernel, (k.shape[0],), (THREADS_X, THREADS_Y), *arguments)
