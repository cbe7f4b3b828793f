"""Write new keys and values into the pages of the cache.

The projections of a layer leave the keys of the new tokens in one dense array, and each of them has
a place in the cache: a slot, page · page_size + offset. The kernel does in one launch what would
be two copies, of K and of V, after a change of layout.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 5.1, "fused reshape and block
write".
"""

from numba import cuda

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.runtime import arrays

THREADS_X, THREADS_Y = 32, 8  # a warp writes a row of head_dim numbers; eight heads at a time


@cuda.jit
def reshape_and_cache_kernel(k, v, k_cache, v_cache, slot_mapping):
    """A thread block writes one token.

    grid      (num_tokens,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
              THREADS_Y-th head, columns tx, tx + THREADS_X, ...
    shared    none
    private   page, offset
    HBM       K and V of the tokens that have a slot: once from the dense arrays, once to the
              caches; slot_mapping once per thread, a warp at a time
    paper     PagedAttention, section 5.1
    budget    64 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    i = cuda.blockIdx.x
    slot = slot_mapping[i]
    if slot >= 0:  # otherwise its keys are in the cache already, or it is padding
        page, offset = slot // page_size, slot % page_size
        for head in range(ty, num_kv_heads, cuda.blockDim.y):
            for d in range(tx, head_dim, cuda.blockDim.x):
                k_cache[page, offset, head, d] = k[i, head, d]
                v_cache[page, offset, head, d] = v[i, head, d]


@refuses_other_names
def reshape_and_cache(k, v, k_cache, v_cache, slot_mapping):
    """Write the keys and values of new tokens into their slots of the caches, in place.

    Parameters
    ----------
    k, v : arrays of shape (num_tokens, num_kv_heads, head_dim), float32, float16 or bfloat16
        Any strides with a contiguous last axis, as those of k_cache.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim), dtype of k
        Changed where a token is written, and nowhere else.
    slot_mapping : array of shape (num_tokens,), int32
        Token i goes to page slot // page_size, at offset slot % page_size. −1: it is not written.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.

    Notes
    -----
    No slot may be given twice: the one that is written last would be left. The contents of
    slot_mapping are checked where it is a NumPy array. On a GPU that would mean waiting for it, so
    they are not.
    """
    checks.check_write(k, v, k_cache, v_cache, slot_mapping)
    arguments = (k, v, k_cache, v_cache, slot_mapping)
    arrays.launch(reshape_and_cache_kernel, (k.shape[0],), (THREADS_X, THREADS_Y), *arguments)
