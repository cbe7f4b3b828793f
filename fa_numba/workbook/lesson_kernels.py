"""Kernels that a lesson runs until the learner's own pass, and that no other file has."""

import functools

import numpy as np
from numba import cuda, float32

from fa_numba import masks
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.runtime import arrays

TILE = 64  # of ex00f
POINTS = 64  # of a thread block of ex00h
SIDE = 16  # threads of a thread block of ex00d, along x and y, at least


@cuda.jit
def _rescale(x, shift, scale, out):
    col, row = cuda.threadIdx.x, cuda.threadIdx.y
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = (x[row, col] - shift[row]) * scale[col]


@cuda.jit
def _below_largest(x, out):
    tile = cuda.shared.array(TILE, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * TILE + t
    tile[t] = x[i]
    cuda.syncthreads()
    largest = tile[0]
    for j in range(1, TILE):
        largest = max(largest, tile[j])
    out[i] = tile[t] - largest


@cuda.jit
def _rotate(x, y, c, s, out_x, out_y):
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * POINTS + t % POINTS
    if t < POINTS:
        out_x[i] = c[i] * x[i] - s[i] * y[i]
    else:
        out_y[i] = s[i] * x[i] + c[i] * y[i]


def rescale(x, shift, scale, *, kernel=_rescale, launch=arrays.launch):
    """(x - shift[:, None]) * scale, by one thread block."""
    out = arrays.full(x, x.shape, np.nan)
    block = max(SIDE, x.shape[1]), max(SIDE, x.shape[0])
    launch(kernel, (1,), block, x, shift, scale, out)
    return out


def below_largest(x, *, kernel=_below_largest, launch=arrays.launch):
    """Each element minus the largest of its 64 neighbours, a thread block for each tile.

    Parameters
    ----------
    x : (n,) array, float32
        n is a multiple of 64.
    kernel, launch : kernel of ex00f, and how to launch it
    """
    out = arrays.full(x, x.shape, np.nan)
    launch(kernel, (len(x) // TILE,), (TILE,), x, out)
    return out


def rotate(x, y, c, s, *, kernel=_rotate, launch=arrays.launch):
    """The points (x, y) rotated by angles with cosine c and sine s, 64 by each thread block.

    Parameters
    ----------
    x, y, c, s : (n,) arrays, float32
        n is a multiple of 64.
    kernel, launch : kernel of ex00h, and how to launch it
    """
    out_x, out_y = arrays.full(x, x.shape, np.nan), arrays.full(x, x.shape, np.nan)
    launch(kernel, (len(x) // POINTS,), (2 * POINTS,), x, y, c, s, out_x, out_y)
    return out_x, out_y


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


def block_list_attn(q, k, v, lists, *, block_m, block_n, causal=False):
    """Attention of each block of queries to the blocks of keys that its list names, as in ex25c.

    `lists` is an array of shape (batch or 1, num_kv_heads or 1, blocks of queries, length).
    """
    group_size = q.shape[2] // k.shape[2]
    mask = masks.block_lists(lists, k.shape[1], block_m, block_n, group_size=group_size)
    return flash_attn_v2(q, k, v, mask=mask, causal=causal, block_m=block_m, block_n=block_n)


def prefix_state(q, k_prefix, v_prefix, *, block_m, block_n):
    """State of one query of each request and keys of shape (prefix, num_kv_heads, head_dim).

    The heads of a group in all requests are the rows of a K/V head, as in ex17f.
    """
    batch, _, num_heads, head_dim = q.shape
    num_kv_heads = k_prefix.shape[1]
    rows = q.reshape(batch, num_kv_heads, -1, head_dim).transpose(1, 0, 2, 3)
    rows = rows.reshape(1, 1, batch * num_heads, head_dim)
    keys = k_prefix[None], v_prefix[None], np.array([len(k_prefix)], np.int32)
    out, lse = flash_decode(rows, *keys, num_splits=1, block_m=block_m, block_n=block_n)
    out = out.reshape(num_kv_heads, batch, -1, head_dim).transpose(1, 0, 2, 3)
    lse = lse.reshape(num_kv_heads, batch, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(out.reshape(q.shape)), lse.reshape(batch, num_heads, 1)
