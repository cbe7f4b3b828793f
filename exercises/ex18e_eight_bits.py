"""ex18e · Eight bits in the load: e4m3, and int8

The cache of ex18d in bytes, with a scale for each token and K/V head. A key is the number of its
byte times k_scale[page, offset, kv_head]; a value likewise, with v_scale. The numbers become
float32 on the way into the tile, so that everything behind the load stays as it is.

from_e4m3(byte)   the number of a byte, a float32, exactly. Its bits are s eeee mmm:
    eeee > 0     (1 + mmm / 8) 2^(eeee - 7)    up to 448; there are no infinities
    eeee = 0     mmm / 8 * 2^-6                zero, and seven subnormal numbers
    s = 1        minus that
    1111 111     NaN, whatever s is: the only one
from_int8(byte)   the same for an integer in two's complement: 0 to 127, then -128 to -1

kernel            start from your own: `fa-numba reset ex18e --from ex18d`. Some four lines change;
                  from_byte is one of the two functions

shapes    k_cache, v_cache (num_pages, PAGE_SIZE, num_kv_heads, HEAD_DIM) uint8
          k_scale, v_scale (num_pages, PAGE_SIZE, num_kv_heads) float32
          the others as in ex18d
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          k_scale, v_scale, block_table, seq_lens, out_partial, lse_partial, softmax_scale)
pages     as in ex18d; scales of slots without a token are NaN
HBM       loads   each key and value once in all: a quarter of ex18d's bytes. A thread loads the
                  scales of a key at most once per tile
          stores  out_partial and lse_partial once; neither is loaded

In float32 throughout: an integer times a float32 is float64 in Numba. `libdevice.int_as_float(i)`
is the float32 whose bits are those of the int32 i. About 5 lines for from_e4m3, 2 for from_int8.
"""

import functools
import math

from numba import cuda, float32, int32
from numba.cuda import libdevice

from fa_numba.kernels.rows_of_out import make_row_functions


@cuda.jit(device=True)
def from_e4m3(byte):
    """The number of a byte, exactly."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18e: from_e4m3")


@cuda.jit(device=True)
def from_int8(byte):
    """The number of a byte in two's complement."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18e: from_int8")


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N, PAGE_SIZE, INT8=False):
    """The kernel for one head_dim, group, tile, page size and format, compile-time constants."""
    from_byte = from_int8 if INT8 else from_e4m3
    BLOCK_M = GROUP_SIZE  # the rows of a tile are the query heads of a group
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(
        q,
        k_cache,
        v_cache,
        k_scale,
        v_scale,
        block_table,
        seq_lens,
        out_partial,
        lse_partial,
        softmax_scale,
    ):
        """Attention of one query per head to the keys of one split, in bytes.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex18e: kernel")

    return kernel


# Stub 7c5bb16b of solutions/ex18e_eight_bits.py: `fa-numba reset ex18e` brings it back.
