"""Shared parts of the backward kernels: checks and buffers of a call, kernels before and after.

The kernel before, `prepare_rows`, computes delta. The kernel after, `convert_dq`, rounds the sums
of dQ.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int64, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E, ONE, WARP_SIZE
from fa_numba.ptx import vectors, wgmma
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.layouts import PANEL_COLS
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_x4, store_global_x4
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.dq_parts import DQ_BYTES
from fa_numba.tensor_core.gradient_fragments import BLOCK_N
from fa_numba.tiling.block_sizes import ceil_div

# The lse of a row without keys, or past the last row: e^(s − lse) is 0 for any score s.
NOTHING = np.float32(1e30)
TOKENS_AT_ONCE = 32768  # queries whose heads run at the same time: their Q and dout fit in L2


def padded(head_dim):
    """Columns of a tile, zero-padded from head_dim on: whole panels."""
    return PANEL_COLS * ceil_div(head_dim, PANEL_COLS)


def tile_rows(head_dim):
    """Queries of a tile: its dQ consists of squares of 64 × 64, two of them up to head_dim 128."""
    return 128 if head_dim <= 64 else 64


def lanes_of_row(head_dim):
    """Threads that load a row together, 16 bytes each: a power of 2."""
    return 8 if head_dim <= 64 else 16 if head_dim <= 128 else 32


class Maps(NamedTuple):
    """Addresses of tensor maps; in a packed batch those of windows."""

    q: int
    k: int
    v: int
    dout: int
    dk: int
    dv: int


class WgmmaProducts(NamedTuple):
    """The products of a warpgroup: d = A Bᵀ, d = Aᵀ B, and d += A B with A in registers."""

    by_rows: Callable
    by_columns: Callable
    by_registers: Callable


def wgmma_products_of(DTYPE):
    """`WgmmaProducts` of a dtype."""
    if DTYPE == "bfloat16":
        return WgmmaProducts(
            wgmma.wgmma_rows_bf16, wgmma.wgmma_columns_bf16, wgmma.wgmma_bf16_registers
        )
    return WgmmaProducts(wgmma.wgmma_rows_f16, wgmma.wgmma_columns_f16, wgmma.wgmma_f16_registers)


@functools.cache
def make_add_block(LANES):
    """add_block(x): in thread 0 the sum over 256 threads; every LANES-th has a number."""
    WARPS = 256 // WARP_SIZE

    @cuda.jit(device=True, forceinline=True)
    def add_block(x):
        of_warps = cuda.shared.array(WARPS, float32)
        tid, step = cuda.threadIdx.x, WARP_SIZE // 2
        while step >= LANES:
            x += cuda.shfl_xor_sync(FULL_WARP, x, step)
            step //= 2
        if tid % WARP_SIZE == 0:
            of_warps[tid // WARP_SIZE] = x
        cuda.syncthreads()  # all parts are there
        if tid == 0:
            for i in range(1, WARPS):
                x += of_warps[i]
        return x

    return add_block


@functools.cache
def make_prepare_rows(HEAD_DIM, DTYPE, CLEAR_DQ=False, SINKS=False, HEAD_DIM_V=None):
    """The kernel for delta and lse to the base 2: 256 threads, 8 to 32 of them for a row.

    HEAD_DIM is that of dQ, HEAD_DIM_V that of dout and out, at most HEAD_DIM. With CLEAR_DQ it sets
    dQ's sums to 0; otherwise dq_sum may be any scalar. With SINKS of_sinks is (sinks, parts), and
    each thread block writes its part of dsinks; otherwise empty.
    """
    LANES, COLS = lanes_of_row(HEAD_DIM), padded(HEAD_DIM)
    ROWS = 256 // LANES
    SUM_BYTES = ROWS * COLS * 4  # of the rows' sums; each thread clears 32 bytes, or fewer do
    ALL_CLEAR = SUM_BYTES == 256 * 32
    add_block = make_add_block(LANES)
    ROW_LENGTH = HEAD_DIM_V or HEAD_DIM
    LONG = ROW_LENGTH > 8 * LANES  # a thread has 16 numbers of a row
    unpack = vectors.unpack_bf16x2 if DTYPE == "bfloat16" else vectors.unpack_f16x2

    @cuda.jit(fastmath=True)
    def prepare_rows(dout, out, lse, lse_2, delta, dq_sum, delta_scale, of_sinks):
        """delta = delta_scale · rowsum(dout ∘ out); lse_2: e^(S − lse) = 2^(S log2 e − lse_2).

        grid      (⌈padded rows / ROWS⌉, num_heads, batch); 256 threads
        private   8 numbers of dout and of out
        HBM       dout, out, lse, lse_2, delta once; with CLEAR_DQ dq_sum once; with SINKS a number
                  of a thread block
        paper     FlashAttention-2, Algorithm 2, line 4
        budget    40 registers
        """
        a = cuda.local.array(4, uint32)
        b = cuda.local.array(4, uint32)
        x = cuda.local.array(2, float32)
        y = cuda.local.array(2, float32)
        x4 = cuda.local.array(4, float32)
        tid = cuda.threadIdx.x
        m, lane = cuda.blockIdx.x * ROWS + tid // LANES, tid % LANES
        head, batch = cuda.blockIdx.y, cuda.blockIdx.z

        if CLEAR_DQ:
            for i in range(4):
                x4[i] = float32(0)
            row = uint64(cuda.blockIdx.x * ROWS * COLS * 4)
            for i in range(2):
                at = row + uint64(4096 * i + 16 * tid)
                if ALL_CLEAR or 4096 * i + 16 * tid < SUM_BYTES:
                    store_global_x4(global_address(dq_sum[batch, head]) + at, x4)

        total = float32(0)
        if m < out.shape[1] and 8 * lane < ROW_LENGTH:
            load_global_x4(a, global_address(dout[batch, m, head]) + uint64(16 * lane))
            load_global_x4(b, global_address(out[batch, m, head]) + uint64(16 * lane))
            for i in range(4):
                unpack(x, a[i])
                unpack(y, b[i])
                total += x[0] * y[0] + x[1] * y[1]
            if LONG and 8 * (lane + LANES) < ROW_LENGTH:
                at = uint64(16 * (lane + LANES))
                load_global_x4(a, global_address(dout[batch, m, head]) + at)
                load_global_x4(b, global_address(out[batch, m, head]) + at)
                for i in range(4):
                    unpack(x, a[i])
                    unpack(y, b[i])
                    total += x[0] * y[0] + x[1] * y[1]
        step = LANES // 2
        while step > 0:
            total += cuda.shfl_xor_sync(FULL_WARP, total, step)
            step //= 2
        of_sink = float32(0)
        if lane == 0 and m < delta.shape[2]:
            l = NOTHING
            if m < out.shape[1]:
                l = lse[batch, head, m] * LOG2_E
                l = l if l > -NOTHING else NOTHING  # −inf: a row that sees no key
            lse_2[batch, head, m] = l
            delta[batch, head, m] = total * delta_scale
            if SINKS:  # the gradient of a score with value 0: P (0 − delta)
                of_sink = -exp2(of_sinks[0][head] * LOG2_E - l) * total
        if SINKS:
            of_sink = add_block(of_sink)
            if tid == 0:
                of_sinks[1][batch, head, cuda.blockIdx.x] = of_sink

    return prepare_rows


@cuda.jit
def add_sink_parts(parts, dsinks):
    """A warp adds the parts of a head's dsinks, in the same order in every run.

    grid      (num_heads,); threads (32,)
    private   total
    HBM       parts (batch, num_heads, thread blocks of the kernel before), dsinks once
    budget    48 registers
    """
    head, total = cuda.blockIdx.x, float32(0)
    for b in range(parts.shape[0]):
        for i in range(cuda.threadIdx.x, parts.shape[2], WARP_SIZE):
            total += parts[b, head, i]
    step = WARP_SIZE // 2
    while step > 0:
        total += cuda.shfl_xor_sync(FULL_WARP, total, step)
        step //= 2
    if cuda.threadIdx.x == 0:
        dsinks[head] = total


@functools.cache
def make_convert_dq(HEAD_DIM, DTYPE, QUADS=True):
    """The kernel that converts dQ's sums to its dtype and order: 128 threads for each square.

    DTYPE is that of dq: "float16", "bfloat16" or "float32".
    dq_sum has tiles of queries in squares of 64 × 64, each in the layout of the accumulators of 128
    threads: the j-th 8 columns are 512 numbers, and thread t added x[4 t] to x[4 t + 3] at once, or
    with QUADS=False x[t], x[t + 128], ..., each beside those of its neighbours.
    """
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    # Bytes that the four lanes of a row have; from one lane to the next, or to the next register.
    QUAD, STEP = (64, 16) if QUADS else (16, 512)
    IN_16_BITS = DTYPE != "float32"
    pack = forward.pack_of(DTYPE)
    SHAPE = (4, 4)

    @cuda.jit(fastmath=True)
    def convert_dq(dq_sum, dq, softmax_scale):
        """A thread rounds 8 columns of two rows at a time: the sums of four lanes.

        grid      (num_m_tiles, num_heads, batch); 128 threads for a square of 64 × 64
        private   x (4, 4), two (4,), in float32 four (4,)
        HBM       dq_sum, dq once
        budget    64 registers
        """
        x = cuda.local.array(SHAPE, float32)  # lanes and registers, or registers and lanes
        two = cuda.local.array(4, uint32)
        tid = cuda.threadIdx.x
        block, j = tid >> 7, tid & 7
        m_tile, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        source = global_address(dq_sum[b, head, m_tile]) + uint64(block * DQ_BYTES + 2048 * j)
        # The next square has the next columns, or with 64 columns the lower rows.
        d = 8 * j + (64 * block if COLS > 64 else 0)
        m_start = m_tile * BLOCK_M + (0 if COLS > 64 else 64 * block)
        for i in range(2):
            quad = 16 * i + ((tid & 127) >> 3)  # the four lanes of a row
            for n in range(4):
                load_global_x4(x[n], source + uint64(QUAD * quad + STEP * n))
            for h in range(2):
                m = m_start + 16 * (quad >> 3) + 8 * h + (quad & 7)
                if IN_16_BITS:
                    for n in range(4):
                        x0 = x[n, 2 * h] if QUADS else x[2 * h, n]
                        x1 = x[n, 2 * h + 1] if QUADS else x[2 * h + 1, n]
                        two[n] = pack(x0 * softmax_scale, x1 * softmax_scale)
                    if m < dq.shape[1] and d < HEAD_DIM:
                        store_global_x4(global_address(dq[b, m, head]) + uint64(2 * d), two)
                else:
                    four = cuda.local.array(4, float32)
                    for half in range(2):
                        for c in range(4):
                            n, r = 2 * half + c // 2, 2 * h + c % 2
                            four[c] = (x[n, r] if QUADS else x[r, n]) * softmax_scale
                        if m < dq.shape[1] and d < HEAD_DIM:
                            address = global_address(dq[b, m, head]) + uint64(4 * d + 16 * half)
                            store_global_x4(address, four)

    return convert_dq


@cuda.jit(device=True, forceinline=True)
def tile_and_head(num_tiles, num_kv_heads):
    """The work of this thread block of `grid_of_keys`: (tile of keys, head of K and V, batch).

    The first tiles of all heads that run at the same time come first. Under a causal mask the most
    queries see them: the longest thread blocks begin first, and the shortest ones end together.
    """
    at_once = uint32(cuda.gridDim.x) // uint32(num_tiles)
    of_all = uint32(cuda.blockIdx.y) * at_once + uint32(cuda.blockIdx.x) % at_once
    heads = uint32(num_kv_heads)
    return int64(uint32(cuda.blockIdx.x) // at_once), int64(of_all % heads), int64(of_all // heads)


def check(name, inputs, deterministic, **options):
    """Check dout, q, k, v, out, lse and the options of a call of the kernel `name`.

    The options are those of `checks.check_scores`.

    Returns
    -------
    scores : checks.Scores
    deterministic : bool
    """
    checks.KERNELS[name].check_gradients(*inputs)
    deterministic = checks.check_flag("deterministic", deterministic)
    _, q, k, *_ = inputs
    options |= {"as_options": True, "positive_scale": True}
    return checks.check_scores(q, k=k, **options), deterministic


def prepare(dout, q, k, v, out, lse, add_dq=True, dtype=None, delta_scale=ONE, sinks=None):
    """Allocate the gradients, and compute lse_2 and delta.

    Parameters
    ----------
    dout, q, k, v, out, lse : arrays
    add_dq : bool, default=True
        Allocate dQ's sums, and set them to 0.
    dtype : default=that of q, k and v
        Of the gradients.
    delta_scale : float32, default=1
        A factor of delta.
    sinks : array of shape (num_heads,), float32, default=None

    Returns
    -------
    gradients : dq, dk, dv
    rows : lse_2, delta
        Up to the end of the last tile, for copies of whole tiles.
    dq_sum : array, or with add_dq=False a scalar
        0.
    dsinks : array of shape (num_heads,), float32
        With sinks alone.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    gradients = [arrays.empty(q, x.shape, x.dtype if dtype is None else dtype) for x in (q, k, v)]
    num_rows = ceil_div(seqlen_q, tile_rows(head_dim)) * tile_rows(head_dim)
    rows = [arrays.empty(q, (batch, num_heads, num_rows)) for _ in range(2)]
    dq_sum = empty_sums(q) if add_dq else np.float32(0)
    grid = (ceil_div(num_rows, 256 // lanes_of_row(head_dim)), num_heads, batch)
    options = add_dq, sinks is not None, out.shape[3]
    kernel = make_prepare_rows(head_dim, arrays.dtype_name(q), *options)
    args = dout, out, lse, *rows, dq_sum, delta_scale
    if sinks is None:
        arrays.launch(kernel, grid, (256,), *args, ())
        return gradients, rows, dq_sum
    parts = arrays.empty(q, (batch, num_heads, grid[0]))
    arrays.launch(kernel, grid, (256,), *args, (sinks, parts))
    return gradients, rows, dq_sum, sum_of_parts(parts)


def sum_of_parts(parts):
    """dsinks, from the parts of thread blocks."""
    num_heads = parts.shape[1]
    dsinks = arrays.empty(parts, (num_heads,))
    arrays.launch(add_sink_parts, (num_heads,), (WARP_SIZE,), parts, dsinks)
    return dsinks


def empty_sums(q):
    """An array for dQ's sums in float32, in the order of the registers: a tile is the last axis."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    block_m = tile_rows(head_dim)
    m_tiles = ceil_div(seqlen_q, block_m)
    return arrays.empty(q, (batch, num_heads, m_tiles, block_m * padded(head_dim)))


def convert(dq_sum, dq, softmax_scale, quads=True):
    """Launch `convert_dq`, which computes dq from its sums; `quads` is QUADS."""
    batch, num_heads, m_tiles, _ = dq_sum.shape
    kernel = make_convert_dq(dq.shape[3], arrays.dtype_name(dq), quads)
    threads = dq_sum.shape[3] // (64 * 64) * 128
    arrays.launch(kernel, (m_tiles, num_heads, batch), (threads,), dq_sum, dq, softmax_scale)


def grid_of_keys(q, k):
    """The grid: a thread block owns BLOCK_N keys of a head; see `tile_and_head`."""
    batch, seqlen_k, num_kv_heads, _ = k.shape
    heads, tokens = batch * num_kv_heads, q.shape[1] * (q.shape[2] // num_kv_heads)
    at_once = max(1, min(heads, TOKENS_AT_ONCE // max(1, tokens)))
    return ceil_div(seqlen_k, BLOCK_N) * at_once, ceil_div(heads, at_once)
