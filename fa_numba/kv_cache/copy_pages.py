"""Copy pages of the cache, many in one launch.

Copy-on-write copies a few pages in each step, anywhere in the cache. One launch per page would cost
more than the copies. So the page numbers go to the GPU as two arrays, and each thread block looks
up its own.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 5.1, "fused block copy".
"""

from numba import cuda

from fa_numba import checks
from fa_numba.runtime import arrays

THREADS_X, THREADS_Y = 32, 8  # a warp copies a row of head_dim numbers; eight warps


@cuda.jit
def copy_pages_kernel(k_src, v_src, k_dst, v_dst, src, dst):
    """A thread block copies one page of K and of V.

    grid      (num_copies,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
              THREADS_Y-th row (one token, one head), columns tx, tx + THREADS_X, ...
    shared    none
    private   page_src, page_dst
    HBM       each copied page of K and of V read once and written once; src, dst once per thread,
              a warp at a time
    paper     PagedAttention, section 5.1
    budget    64 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    page_size, num_kv_heads, head_dim = k_src.shape[1], k_src.shape[2], k_src.shape[3]
    i = cuda.blockIdx.x
    page_src, page_dst = src[i], dst[i]
    for row in range(ty, page_size * num_kv_heads, cuda.blockDim.y):
        offset, head = row // num_kv_heads, row % num_kv_heads
        for d in range(tx, head_dim, cuda.blockDim.x):
            k_dst[page_dst, offset, head, d] = k_src[page_src, offset, head, d]
            v_dst[page_dst, offset, head, d] = v_src[page_src, offset, head, d]


def copy_pages(k_cache, v_cache, src, dst):
    """Copy page src[i] of both caches to page dst[i], in place.

    Parameters
    ----------
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        float32, float16 or bfloat16. Any strides with a contiguous last axis. Only the pages of dst
        are changed.
    src, dst : arrays of shape (num_copies,), int32

    Notes
    -----
    A page may be copied to many pages. But no page may be twice in dst, or both in src and in dst,
    because the thread blocks run in any order. This is checked if src and dst are NumPy arrays.
    Arrays on a GPU are not checked, because that would wait for the GPU.
    """
    checks.check_copy(k_cache, v_cache, src, dst)
    launch_copies(k_cache, v_cache, k_cache, v_cache, src, dst)


def launch_copies(k_src, v_src, k_dst, v_dst, src, dst):
    """Launch the kernel from caches to caches of one library."""
    arguments = (k_src, v_src, k_dst, v_dst, src, dst)
    arrays.launch(copy_pages_kernel, (src.shape[0],), (THREADS_X, THREADS_Y), *arguments)
