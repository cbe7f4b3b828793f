"""Kernels that a lesson runs until the learner's own pass, and that no other file has."""

import functools

from numba import cuda, float32


@functools.cache
def make_tiled_matmul(TILE):
    """Lesson 05: the product of two matrices by tiles; launch it with threads (TILE, TILE)."""

    @cuda.jit
    def kernel(a, b, c):
        """c = a @ b by TILE x TILE tiles in shared memory."""
        a_tile = cuda.shared.array((TILE, TILE), float32)
        b_tile = cuda.shared.array((TILE, TILE), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row = cuda.blockIdx.y * TILE + ty  # of a and c
        col = cuda.blockIdx.x * TILE + tx  # of b and c
        acc = float32(0)
        for k_start in range(0, a.shape[1], TILE):
            inside = row < a.shape[0] and k_start + tx < a.shape[1]
            a_tile[ty, tx] = a[row, k_start + tx] if inside else float32(0)
            inside = k_start + ty < b.shape[0] and col < b.shape[1]
            b_tile[ty, tx] = b[k_start + ty, col] if inside else float32(0)
            cuda.syncthreads()  # both tiles are complete: safe to read
            for k in range(TILE):
                acc += a_tile[ty, k] * b_tile[k, tx]
            cuda.syncthreads()  # every thread is done reading: safe to overwrite
        if row < c.shape[0] and col < c.shape[1]:
            c[row, col] = acc

    return kernel
