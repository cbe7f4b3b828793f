"""Merge a partial result into a running one, in place; and round arrays of any size.

merge_states            a new state from two                              (⊕ is explained there)
merge_splits            one state from the splits of one call, in float32
running_state           a state that many partial results are merged into           <- this file

A ring over several GPUs computes attention to the keys of one rank after the other. The running
state is float32, and its lse float64: one number for each row, so that the rounding errors of many
steps do not add up. No exponential overflows, for any two lse (`fa_numba.distributed.merge` has the
formulas). An array operation for each line of these formulas would make six passes over out; this
kernel makes one.

These kernels are bound by memory. A thread loads all of its numbers before it stores the first:
otherwise each load would wait for the store before it, which might be to the same address. Indices
are unsigned, since a negative one counts from the end, and to find out takes more instructions than
the merge.
"""

import functools
import math

from numba import cuda, float32, float64, uint64

from fa_numba.constants import NEG_INF, WARP_SIZE, ZERO
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

ROWS = 4  # of a thread block: a warp for each
THREADS = 256  # of a thread block of `convert_kernel`
EACH = 8  # elements of a thread of `convert_kernel`


@functools.cache
def make_merge_into(HEAD_DIM):
    """The kernel for this number of columns."""
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)

    @cuda.jit
    def merge_into_kernel(out, lse, out_b, lse_b):
        """A warp merges a row: one query, one head.

        grid      (⌈seqlen_q / ROWS⌉, num_heads, batch); threads (32, ROWS): thread tx takes columns
                  tx, tx + 32, ...
        shared    none
        private   x, y (NUM_COLS,): its columns of out and of out_b; the weight of the new part, the
                  same in every thread of a warp
        HBM       out twice, out_b and lse once, where the new part has a key; lse_b once
        paper     Online normalizer calculation for softmax, section 3.1
        budget    56 registers, 0 bytes shared
        """
        x, y = cuda.local.array(NUM_COLS, float32), cuda.local.array(NUM_COLS, float32)
        tx, m = uint64(cuda.threadIdx.x), uint64(cuda.blockIdx.x * ROWS + cuda.threadIdx.y)
        head, b = uint64(cuda.blockIdx.y), uint64(cuda.blockIdx.z)
        if m < uint64(out.shape[1]):
            new = lse_b[b, head, m]
            if new != NEG_INF:  # a part without keys changes nothing, whatever its out is
                for c in range(NUM_COLS):
                    d = tx + uint64(c * WARP_SIZE)
                    x[c] = y[c] = ZERO
                    if d < uint64(HEAD_DIM):
                        x[c], y[c] = out[b, m, head, d], out_b[b, m, head, d]
                old = lse[b, head, m]
                difference = float32(float64(new) - float64(old))
                e = math.exp(-abs(difference))  # never overflows
                weight = (float32(1) if difference >= float32(0) else e) / (float32(1) + e)
                cuda.syncwarp()  # all threads have read lse: safe to overwrite
                for c in range(NUM_COLS):
                    d = tx + uint64(c * WARP_SIZE)
                    if d < uint64(HEAD_DIM):
                        out[b, m, head, d] = x[c] - weight * (x[c] - y[c])
                if tx == 0:
                    larger = float64(new) if difference >= float32(0) else float64(old)
                    lse[b, head, m] = larger + float64(math.log1p(e))

    return merge_into_kernel


@cuda.jit
def convert_kernel(x, y):
    """Thread i of a thread block rounds EACH elements: i, i + THREADS, ... of the block's own.

    grid      (⌈elements / (EACH · THREADS)⌉,); threads (THREADS,)
    shared    none
    private   values (EACH,)
    HBM       x, y once
    budget    32 registers, 0 bytes shared
    """
    values = cuda.local.array(EACH, float32)
    first = uint64(cuda.blockIdx.x) * uint64(EACH * THREADS) + uint64(cuda.threadIdx.x)
    for c in range(EACH):
        i = first + uint64(c * THREADS)
        values[c] = float32(x[i]) if i < uint64(x.shape[0]) else ZERO
    for c in range(EACH):
        i = first + uint64(c * THREADS)
        if i < uint64(x.shape[0]):
            y[i] = values[c]


@functools.cache
def make_pack(HEAD_DIM, UNPACK):
    """The kernel that writes a state into one array, or with UNPACK the one that reads it."""

    @cuda.jit
    def pack_kernel(packed, out, lse):
        """A warp copies a row: HEAD_DIM numbers of out, then that of lse.

        grid      (⌈seqlen_q / ROWS⌉, num_heads, batch); threads (32, ROWS)
        shared    none
        HBM       packed, out, lse once
        budget    32 registers, 0 bytes shared
        """
        tx = cuda.threadIdx.x
        m = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        if m < out.shape[1]:
            for d in range(tx, HEAD_DIM, WARP_SIZE):
                if UNPACK:
                    out[b, m, head, d] = packed[b, m, head, d]
                else:
                    packed[b, m, head, d] = out[b, m, head, d]
            if tx == 0:
                if UNPACK:
                    lse[b, head, m] = packed[b, m, head, HEAD_DIM]
                else:
                    packed[b, m, head, HEAD_DIM] = lse[b, head, m]

    return pack_kernel


def merge_into(out, lse, out_b, lse_b):
    """Merge the state (out_b, lse_b) into the state (out, lse), in place.

    Parameters
    ----------
    out, out_b : arrays of shape (batch, seqlen_q, num_heads, head_dim), float32
        0 in out where its lse is −inf; out_b is not read where lse_b is −inf. Any strides.
    lse : array of shape (batch, num_heads, seqlen_q), float64 or float32
    lse_b : array of the shape of lse, float32
    """
    kernel = make_merge_into(out.shape[3])
    arrays.launch(kernel, _grid_of_rows(out), (WARP_SIZE, ROWS), out, lse, out_b, lse_b)


def pack(out, lse):
    """A state in one float32 array: head_dim + 1 numbers of each row.

    Parameters
    ----------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), float32
    lse : array of shape (batch, num_heads, seqlen_q), float32 or float64

    Returns
    -------
    array of shape (batch, seqlen_q, num_heads, head_dim + 1), float32
    """
    packed = arrays.empty(out, (*out.shape[:3], out.shape[3] + 1))
    kernel = make_pack(out.shape[3], UNPACK=False)
    arrays.launch(kernel, _grid_of_rows(out), (WARP_SIZE, ROWS), packed, out, lse)
    return packed


def unpack(packed, dtype):
    """The out and lse of `pack`, with out in float32, float16 or bfloat16."""
    batch, seqlen_q, num_heads, width = packed.shape
    out = arrays.empty(packed, (batch, seqlen_q, num_heads, width - 1), dtype)
    lse = arrays.empty(packed, (batch, num_heads, seqlen_q))
    kernel = make_pack(width - 1, UNPACK=True)
    arrays.launch(kernel, _grid_of_rows(out), (WARP_SIZE, ROWS), packed, out, lse)
    return out, lse


def views_of(packed):
    """The out and the lse of `pack` as views."""
    return packed[..., :-1], packed[..., -1].transpose(0, 2, 1)


def _grid_of_rows(out):
    batch, seqlen_q, num_heads, _ = out.shape
    return ceil_div(seqlen_q, ROWS), num_heads, batch


def convert(x, dtype):
    """A contiguous array of x's values, rounded to a dtype; x itself if it has that dtype.

    CuPy has arrays of bfloat16 but no kernels for them.

    Parameters
    ----------
    x : GPU array, float32, float16 or bfloat16
    dtype : dtype
        Another one of these.

    Returns
    -------
    array of the shape and library of x
    """
    if x.dtype == dtype:
        return x
    flat = _flat(x)
    y = arrays.empty(x, x.shape, dtype)
    grid = (ceil_div(flat.shape[0], EACH * THREADS),)
    arrays.launch(convert_kernel, grid, (THREADS,), flat, _flat(y))
    return y


def copy(x):
    """A contiguous copy, as bits: of any dtype that has 16 bits, or that its library can copy."""
    made = arrays.empty(x, x.shape, x.dtype)
    copy_into(made, x)
    return made


def copy_into(destination, x):
    """Copy x into an array, or a view of an array, of its shape and dtype, as bits."""
    bits(destination)[...] = bits(x)


def bits(x):
    """A view of a 16-bit array as integers, which every library can copy; others as they are."""
    return arrays.as_int16(x) if x.dtype.itemsize == 2 else x


def _flat(x):
    contiguous = x if x.flags.c_contiguous else copy(x)
    return contiguous.reshape(-1)
