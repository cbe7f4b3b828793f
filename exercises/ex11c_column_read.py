"""ex11c · A warp that reads a column

`broken_kernel` computes 8 rows of scores s = q k^T against 32 keys. A warp has one query and all 32
keys: thread tx reads k_tile[tx, d], so that the warp reads a column of the tile. The rows of the
tile are 64 floats long, and 64 is a multiple of 32: all 32 threads read from one bank, one after
the other.

Write `kernel`, the same without a bank conflict, in loads and in stores. Copy broken_kernel and
change what must change: one line is enough, other ways take two or three.

Launch   grid (1,), thread block (32, 8)
Arrays   q (8, 64), k (32, 64), s (8, 32), float32
HBM      k is loaded once, neighbours by neighbouring threads; q at most once per thread and d
Shared   at most 8448 bytes, one array: 64 floats more than k has
Compute  in float32
"""

from numba import cuda, float32


@cuda.jit
def broken_kernel(q, k, s):
    """s = q k^T, with 32 threads in one bank."""
    k_tile = cuda.shared.array((32, 64), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for n in range(ty, 32, 8):
        for d in range(tx, 64, 32):
            k_tile[n, d] = k[n, d]
    cuda.syncthreads()  # k_tile is complete: safe to read
    acc = float32(0)
    for d in range(64):
        acc += q[ty, d] * k_tile[tx, d]
    s[ty, tx] = acc


@cuda.jit
def kernel(q, k, s):
    """s = q k^T, each thread in a bank of its own."""
    # YOUR CODE HERE
    raise NotImplementedError("ex11c: kernel")


# Stub 30d58c2d of solutions/ex11c_column_read.py: `fa-numba reset ex11c` brings it back.
