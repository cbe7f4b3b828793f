"""Merge the partial results of many rows (⊕, `merge_states`): a second kernel for flash_attn_split.

`make_combine_wide` (`decode_problem`) gives a row a thread block, whose warps divide the splits:
right for a few rows, of a decoding step. Thousands of rows fill the GPU by themselves. Here a row
has one thread for each four columns, and a thread block has as many rows as fit.
"""

import functools
import math

from numba import cuda, float32, int32, uint64

from fa_numba.constants import NEG_INF, ZERO
from fa_numba.on_cuda_cores.decode_problem import launch_combine_wide
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_global_x4, store_global_b32, store_global_x4
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.tile_scheduler import divided
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 128
COLS = 4  # of a thread: one load of 16 bytes
IN_FLIGHT = 4  # splits whose loads a thread has in flight
MANY_ROWS = 8  # per SM: with fewer rows a thread block for each, whose warps divide the splits
MAX_THREADS = 1 << 31  # of the grid: indices have 32 bits


@functools.cache
def make_merge_splits(HEAD_DIM, DTYPE):
    """The kernel that merges the splits into out.

    DTYPE is that of out: "float32", "float16" or "bfloat16". HEAD_DIM is a multiple of 8. Launch
    HEAD_DIM / COLS threads for each row, in thread blocks of THREADS.
    """
    LANES = HEAD_DIM // COLS
    PARTS_SHAPE = (IN_FLIGHT, COLS)
    IN_16_BITS = DTYPE != "float32"
    pack = forward.pack_of(DTYPE)

    @cuda.jit(device=True, forceinline=True)
    def load_parts(values, lses, out_partial, lse_partial, first, b, m, head, lane):
        """Load IN_FLIGHT splits from `first` on; a split past the last one gets weight 0."""
        for i in range(IN_FLIGHT):
            split = int32(first + i)
            lses[i] = NEG_INF
            for c in range(COLS):
                values[i, c] = ZERO
            if split < lse_partial.shape[0]:
                lses[i] = lse_partial[split, b, head, m]
                row = global_address(out_partial[split, b, m, head])
                load_global_x4(values[i], row + uint64(4 * COLS * lane))

    @cuda.jit(launch_bounds=(THREADS, 4))
    def merge_splits_kernel(out_partial, lse_partial, out, lse):
        """A thread computes COLS columns of a row of out.

        grid      (rows · HEAD_DIM / COLS / THREADS,); threads (THREADS,)
        shared    none
        private   x (COLS,): the sum over the splits; values (IN_FLIGHT, COLS), lses (IN_FLIGHT,)
        HBM       out_partial, out, lse once; lse_partial twice in each thread, mostly from L1
        paper     Online normalizer calculation for softmax, section 3.1
        budget    64 registers, 0 bytes shared
        """
        x = cuda.local.array(COLS, float32)
        values = cuda.local.array(PARTS_SHAPE, float32)
        lses = cuda.local.array(IN_FLIGHT, float32)
        num_splits, batch, num_heads, seqlen_q = lse_partial.shape
        row, lane = divided(cuda.blockIdx.x * THREADS + cuda.threadIdx.x, LANES)
        query, head = divided(row, num_heads)
        b, m = divided(query, seqlen_q)
        if b < batch:
            m_i = NEG_INF
            for split in range(num_splits):
                m_i = max(m_i, lse_partial[split, b, head, m])
            shift = ZERO if m_i == NEG_INF else m_i  # the row saw no key: -inf - -inf is NaN
            l_i = ZERO
            for c in range(COLS):
                x[c] = ZERO
            for first in range(0, num_splits, IN_FLIGHT):
                load_parts(values, lses, out_partial, lse_partial, first, b, m, head, lane)
                for i in range(IN_FLIGHT):
                    weight = math.exp(lses[i] - shift)
                    l_i += weight
                    for c in range(COLS):
                        x[c] += weight * values[i, c]
            for c in range(COLS):
                x[c] = x[c] / l_i if l_i != ZERO else ZERO
            row_of_out = global_address(out[b, m, head])
            if IN_16_BITS:
                address = row_of_out + uint64(2 * COLS * lane)
                store_global_b32(address, pack(x[0], x[1]))
                store_global_b32(address + uint64(4), pack(x[2], x[3]))
            else:
                store_global_x4(row_of_out + uint64(4 * COLS * lane), x)
            if lane == 0:
                lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key

    return merge_splits_kernel


def launch_merge(out_partial, lse_partial, out, lse):
    """Merge partial results by the kernel that is right for their number of rows.

    Parameters
    ----------
    out_partial : array of shape (num_splits, batch, seqlen_q, num_heads, head_dim), float32
    lse_partial : array of shape (num_splits, batch, num_heads, seqlen_q), float32
    out : contiguous array of shape (batch, seqlen_q, num_heads, head_dim)
        Receives the result; float32, float16 or bfloat16.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Receives the result.
    """
    _, batch, seqlen_q, num_heads, head_dim = out_partial.shape
    rows, threads_of_row = batch * seqlen_q * num_heads, head_dim // COLS
    if not MANY_ROWS * arrays.num_sms(out) <= rows < MAX_THREADS // threads_of_row:
        launch_combine_wide(out_partial, lse_partial, out, lse)
        return
    kernel = make_merge_splits(head_dim, arrays.dtype_name(out))
    grid = (ceil_div(rows * threads_of_row, THREADS),)
    arrays.launch(kernel, grid, (THREADS,), out_partial, lse_partial, out, lse)
