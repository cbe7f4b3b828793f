"""A packed batch, backward: the kernels before and after that of the gradients.

As those of `backward`. Rows of float32 begin with a tile: lse_2, delta and the sums of dQ have
arrays of their own, in which each sequence begins at a multiple of the tile. The tiles are numbered
as in `kernels.sequence_of`, which needs no sum over the sequences before.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint32, uint64

from fa_numba.constants import FULL_WARP, LOG2_E
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.ptx import vectors
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_x4, store_global_x4
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.backward import (
    NOTHING,
    lanes_of_row,
    make_add_block,
    padded,
    sum_of_parts,
    tile_rows,
)
from fa_numba.tensor_core.dq_parts import DQ_BYTES
from fa_numba.tensor_core.tile_scheduler import sort_sequences

# Sequences of a batch that are sorted; a longer batch keeps its order. A thread that finds the rank
# of a sequence reads the lengths of all.
MAX_SORTED = 2048


@functools.cache
def make_prepare_packed(HEAD_DIM, DTYPE, COUNTED=False, SINKS=False, HEAD_DIM_V=None):
    """The kernel before: 256 threads, 8 to 32 of them for a row.

    With COUNTED it sets the counters of dQ's tiles to 0, otherwise dQ's sums; then `dq` may be any
    scalar, and `dq_sum` otherwise. of_sinks is as of `backward.make_prepare_rows`.
    """
    BLOCK_M, LANES = tile_rows(HEAD_DIM), lanes_of_row(HEAD_DIM)
    add_block = make_add_block(LANES)
    ROWS = 256 // LANES  # a part of a tile's rows
    ROW_OF_SUMS = 4 * padded(HEAD_DIM)  # bytes
    ALL_CLEAR = ROWS * ROW_OF_SUMS == 256 * 32  # each thread clears 32 bytes, or fewer do
    ROW_LENGTH, ONE_LENGTH = HEAD_DIM_V or HEAD_DIM, HEAD_DIM_V in (None, HEAD_DIM)
    unpack = vectors.unpack_bf16x2 if DTYPE == "bfloat16" else vectors.unpack_f16x2
    sequence_of = make_sequence_of(BLOCK_M)

    @cuda.jit(fastmath=True)
    def prepare_packed(
        dout, out, lse, cu_seqlens_q, cu_seqlens_k, lse_2, delta, dq_sum, dq, queue, counters,
        of_sinks,
    ):  # fmt: skip
        """delta = rowsum(dout ∘ out), lse_2 as in `backward`; sorts the sequences.

        With COUNTED it also sets dQ to 0 in sequences without keys, which no tile of keys does.

        grid      (num_m_tiles · BLOCK_M / ROWS, num_heads); 256 threads
        private   8 numbers of dout and of out
        HBM       dout, out, lse, lse_2, delta, dq_sum or counters, queue once; cu_seqlens_q in
                  every thread about log2(batch) times, and once more in each of the `batch` first
                  threads; with SINKS a number of a thread block
        paper     FlashAttention-2, Algorithm 2, line 4
        budget    48 registers
        """
        a = cuda.local.array(4, uint32)
        b = cuda.local.array(4, uint32)
        x = cuda.local.array(2, float32)
        y = cuda.local.array(2, float32)
        x4 = cuda.local.array(4, float32)
        tid, head = cuda.threadIdx.x, cuda.blockIdx.y
        tile = cuda.blockIdx.x * ROWS // BLOCK_M
        first_row = cuda.blockIdx.x * ROWS - tile * BLOCK_M
        row, lane = first_row + tid // LANES, tid % LANES

        for i in range(4):
            x4[i] = float32(0)
        if COUNTED:
            if row == 0 and lane == 0:
                counters[1 + head * lse_2.shape[1] + tile] = 0
        else:
            sums = global_address(dq_sum[head, tile]) + uint64(first_row * ROW_OF_SUMS)
            for i in range(2):
                if ALL_CLEAR or 4096 * i + 16 * tid < ROWS * ROW_OF_SUMS:
                    store_global_x4(sums + uint64(4096 * i + 16 * tid), x4)

        sequence, q_row, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)
        inside = m_start + row < seqlen_q
        token = q_row + m_start + row
        total = float32(0)
        if inside and 8 * lane < ROW_LENGTH:
            load_global_x4(a, global_address(dout[token, head]) + uint64(16 * lane))
            load_global_x4(b, global_address(out[token, head]) + uint64(16 * lane))
            for i in range(4):
                unpack(x, a[i])
                unpack(y, b[i])
                total += x[0] * y[0] + x[1] * y[1]
            if COUNTED and ONE_LENGTH and cu_seqlens_k[sequence] == cu_seqlens_k[sequence + 1]:
                store_global_x4(global_address(dq[token, head]) + uint64(16 * lane), x4)
        if COUNTED and not ONE_LENGTH and inside and 8 * lane < HEAD_DIM:
            if cu_seqlens_k[sequence] == cu_seqlens_k[sequence + 1]:
                store_global_x4(global_address(dq[token, head]) + uint64(16 * lane), x4)
        step = LANES // 2
        while step > 0:
            total += cuda.shfl_xor_sync(FULL_WARP, total, step)
            step //= 2
        of_sink = float32(0)
        if lane == 0:
            l = NOTHING
            if inside:
                l = lse[head, token] * LOG2_E
                l = l if l > -NOTHING else NOTHING  # −inf: a row that sees no key
            lse_2[head, tile, row] = l
            delta[head, tile, row] = total
            if SINKS:  # the gradient of a score with value 0: P (0 − delta)
                of_sink = -exp2(of_sinks[0][head] * LOG2_E - l) * total
        if SINKS:
            of_sink = add_block(of_sink)
            if tid == 0:
                of_sinks[1][0, head, cuda.blockIdx.x] = of_sink

        if head == 0:
            batch = cu_seqlens_q.shape[0] - 1
            thread, num_threads = cuda.blockIdx.x * 256 + tid, cuda.gridDim.x * 256
            if thread == 0:
                counters[0] = 0
            if batch <= MAX_SORTED:
                sort_sequences(cu_seqlens_q, batch, queue, thread, num_threads)
            else:
                for i in range(thread, batch, num_threads):
                    queue[i] = i

    return prepare_packed


@functools.cache
def make_convert_packed(HEAD_DIM, DTYPE):
    """The kernel after, `backward.make_convert_dq` for a packed batch: 128 threads for a square."""
    BLOCK_M, COLS = tile_rows(HEAD_DIM), padded(HEAD_DIM)
    pack = forward.pack_of(DTYPE)
    sequence_of = make_sequence_of(BLOCK_M)
    SHAPE = (2, 4, 4)

    @cuda.jit(fastmath=True)
    def convert_packed(dq_sum, dq, cu_seqlens_q, softmax_scale):
        """A thread rounds 8 columns of two rows at a time: the sums of four lanes.

        grid      (num_m_tiles, num_heads); 128 threads for a square of 64 × 64
        private   x (2, 4, 4), two (4,)
        HBM       dq_sum, dq once; cu_seqlens_q in every thread about log2(batch) times
        budget    64 registers
        """
        x = cuda.local.array(SHAPE, float32)  # steps, lanes and registers
        two = cuda.local.array(4, uint32)
        tid = cuda.threadIdx.x
        block, j = tid >> 7, tid & 7
        tile, head = cuda.blockIdx.x, cuda.blockIdx.y
        source = global_address(dq_sum[head, tile]) + uint64(block * DQ_BYTES + 2048 * j)
        for i in range(2):
            for n in range(4):
                quad = 16 * i + ((tid & 127) >> 3)  # the four lanes of a row
                load_global_x4(x[i, n], source + uint64(64 * quad + 16 * n))
        _, q_row, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)  # while they are loaded
        # The next block has the next columns, or with 64 columns the lower rows.
        d = 8 * j + (64 * block if COLS > 64 else 0)
        first = m_start + (0 if COLS > 64 else 64 * block)
        for i in range(2):
            quad = 16 * i + ((tid & 127) >> 3)
            for h in range(2):
                m = first + 16 * (quad >> 3) + 8 * h + (quad & 7)
                for n in range(4):
                    x0, x1 = x[i, n, 2 * h], x[i, n, 2 * h + 1]
                    two[n] = pack(x0 * softmax_scale, x1 * softmax_scale)
                if m < seqlen_q and d < HEAD_DIM:
                    store_global_x4(global_address(dq[q_row + m, head]) + uint64(2 * d), two)

    return convert_packed


class Prepared(NamedTuple):
    """Arrays of a call, for the kernel of the gradients.

    Attributes
    ----------
    rows : lse_2, delta
    dq_sum, queue, counters
        Those of the kernel's arguments.
    dsinks : tuple
        An array of shape (num_heads,), float32, or nothing.
    """

    rows: tuple
    dq_sum: Any
    queue: Any
    counters: Any
    dsinks: tuple


def prepare(dout, out, lse, starts, dq, counted, sinks) -> Prepared:
    """Compute lse_2 and delta, and sort the sequences; `counted` is COUNTED, sinks may be None."""
    num_tokens, num_heads, head_dim = dq.shape
    block_m, batch = tile_rows(head_dim), starts[0].shape[0] - 1
    m_tiles = num_tokens // block_m + batch  # `sequence_of`
    rows = tuple(arrays.empty(dq, (num_heads, m_tiles, block_m)) for _ in range(2))
    dq_sum = arrays.empty(dq, (num_heads, m_tiles, block_m * padded(head_dim)))
    queue = arrays.empty(dq, (batch,), np.int32)
    counters = arrays.empty(dq, (1 + (num_heads * m_tiles if counted else 0),), np.int32)
    grid = m_tiles * block_m * lanes_of_row(head_dim) // 256, num_heads
    of_sinks = () if sinks is None else (sinks, arrays.empty(dq, (1, *grid[::-1])))
    options = arrays.dtype_name(dq), counted, sinks is not None, out.shape[2]
    unread = np.float32(0)
    sums = (unread, dq) if counted else (dq_sum, unread)
    arrays.launch(
        make_prepare_packed(head_dim, *options),
        grid,
        (256,),
        *(dout, out, lse, *starts, *rows, *sums, queue, counters, of_sinks),
    )
    dsinks = () if sinks is None else (sum_of_parts(of_sinks[1]),)
    return Prepared(rows, dq_sum, queue, counters, dsinks)


def convert(dq_sum, dq, cu_seqlens_q, softmax_scale):
    """Launch `convert_packed`, which computes dq from its sums."""
    num_heads, m_tiles, tile = dq_sum.shape
    kernel = make_convert_packed(dq.shape[2], arrays.dtype_name(dq))
    grid, threads = (m_tiles, num_heads), tile // (64 * 64) * 128
    arrays.launch(kernel, grid, (threads,), dq_sum, dq, cu_seqlens_q, softmax_scale)
