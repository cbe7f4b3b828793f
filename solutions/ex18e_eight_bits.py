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

### KIND: write
### FROM: ex18d
### HINT 1: float32 has the same order of bits: a sign, 8 bits of exponent with bias 127, 23 of
### HINT 1: mantissa. Where do the three bits of the mantissa belong, and the four of the exponent?
### HINT 1: In the kernel the scale belongs to the token: you know its page and offset. An int8 byte
### HINT 1: from 128 on stands for a number that is 256 less.
### HINT 2: Shift the seven bits below the sign left by 20. The exponent has the wrong bias then:
### HINT 2: multiply by 2^120. That is right for the subnormal numbers, too. NaN remains to be
### HINT 2: told apart. In the kernel two more loads for a row, and a product in each of the two
### HINT 2: lines that fill the tiles.
### HINT 3: code = int32(byte); x = libdevice.int_as_float((code & 0x7F) << 20) * float32(2.0**120);
### HINT 3: NaN if code & 0x7F == 0x7F; -x if code & 0x80. from_int8: float32(code - 256 if code >
### HINT 3: 127 else code). k_factor = k_scale[page, offset, kv_head] if inside else float32(0).
### DEBRIEF: GPUs since Ada convert two bytes by one instruction; older ones do it as you did, with
### DEBRIEF: float16 in place of float32: shift by 7, times 2^8. Every e4m3 number is a float16 and
### DEBRIEF: a float32, so that reading is exact, and all the error was made when the cache was
### DEBRIEF: written. Decoding waits for bytes, of which there are half as many as with float16, and
### DEBRIEF: a scale of 4 bytes for each 128. With int8 a kernel may also multiply bytes by bytes
### DEBRIEF: and scale each score; yours need not know. A scale for each token and head is known
### DEBRIEF: when the token is written, once and for all; a scale for each page would have to wait
### DEBRIEF: until the page is full.


@cuda.jit(device=True)
def from_e4m3(byte):
    """The number of a byte, exactly."""
    ### BEGIN SOLUTION
    code = int32(byte)
    size = code & 0x7F
    x = libdevice.int_as_float(int32(size << 20)) * float32(2.0**120)  # corrects the bias
    if size == 0x7F:
        x = float32(math.nan)
    return -x if code & 0x80 else x
    ### END SOLUTION


@cuda.jit(device=True)
def from_int8(byte):
    """The number of a byte in two's complement."""
    ### BEGIN SOLUTION
    code = int32(byte)
    return float32(code - 256 if code > 127 else code)
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # a row of out, not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        split, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        head = kv_head * GROUP_SIZE + ty  # this thread's row
        seqlen_k = seq_lens[b]
        num_splits = cuda.gridDim.x
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d]
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                key = n_start + row
                inside = key < seqlen_k
                page = block_table[b, key // PAGE_SIZE] if inside else 0
                offset = key % PAGE_SIZE
                k_factor = k_scale[page, offset, kv_head] if inside else float32(0)
                v_factor = v_scale[page, offset, kv_head] if inside else float32(0)
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k = from_byte(k_cache[page, offset, kv_head, d]) if inside else float32(0)
                    k_tile[row, d] = k * k_factor
                    v = from_byte(v_cache[page, offset, kv_head, d]) if inside else float32(0)
                    v_tile[row, d] = v * v_factor
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            n = n_start + tx  # this thread's key
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            s *= softmax_scale
            if n >= seqlen_k:
                s = float32(-math.inf)  # a key that does not exist: exp gives 0
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
            alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
            p_tile[ty, tx] = math.exp(s - m_safe)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])
        ### END SOLUTION

    return kernel
