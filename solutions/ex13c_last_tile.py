"""ex13c · Find the bug: the last tile

`make_broken` below makes a kernel of attention over tiles that TMA brings. Where seqlen_k is a
multiple of BLOCK_N it is right. Elsewhere it waits for ever, and once that is mended its result is
wrong: there are two bugs. Read the message of the first, then think about the second.

load_box, expect and wait are a model of TMA with one mbarrier, and have no bug: a copy always
brings a whole box of BLOCK_N rows. Rows that the array does not have arrive as zeros, and count as
bytes all the same. A wait for bytes that do not add up never ends on a GPU; here it raises.

Write `make_kernel`: copy make_broken and mend it. 2 lines differ.

launch   kernel[ceil(seqlen_q / 64), 64](q, k, v, out, softmax_scale): a thread has a query.
         HEAD_DIM and BLOCK_N are compile-time constants
arrays   q and out (seqlen_q, HEAD_DIM), k and v (seqlen_k, HEAD_DIM) float32, any seqlen_k >= 1
out      softmax(softmax_scale q k^T) v
HBM      each key and value is loaded once by each thread block, out is stored once
"""

import functools
import math

from numba import cuda, float32, int32

ANNOUNCED, ARRIVED = 0, 1  # bytes of the barrier

### KIND: find the bug
### HINT 1: Run the broken kernel with 5 keys and BLOCK_N = 4. How many bytes are announced for the
### HINT 1: last tile, how many arrive?
### HINT 2: Announce what arrives: two boxes of BLOCK_N rows. Then: what is the score of a query and
### HINT 2: a key of zeros, and which weight does softmax give to it?
### HINT 3: expect(barrier, 2 * BLOCK_N * HEAD_DIM * 4), and s[c] = dot * softmax_scale if n_start +
### HINT 3: c < k.shape[0] else float32(-math.inf).
### DEBRIEF: "TMA needs no bounds checks" is true of the loads. The zeros of V add nothing to P V,
### DEBRIEF: but a key of zeros has the score 0, and its weight is in l. So every kernel masks its
### DEBRIEF: last tile. The bytes are a trap of their own: a barrier that waits for fewer bytes than
### DEBRIEF: arrive never ends its phase, and the kernel hangs. flash_attn_wgmma announces 2 *
### DEBRIEF: KV_BYTES for every tile. And in a packed batch there are no zeros at all: behind the
### DEBRIEF: last key of a sequence lies the first key of the next.


@cuda.jit(device=True)
def expect(barrier, num_bytes):
    """Announce so many bytes: one thread does."""
    if cuda.threadIdx.x == 0:
        barrier[ANNOUNCED] += num_bytes


@cuda.jit(device=True)
def load_box(tile, x, first, barrier):
    """Bring the rows of x from `first` on into a tile; zeros where x has none."""
    rows, columns = tile.shape
    for i in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        row, d = i // columns, i % columns
        tile[row, d] = x[first + row, d] if first + row < x.shape[0] else float32(0.0)
    if cuda.threadIdx.x == 0:
        barrier[ARRIVED] += rows * columns * 4


@cuda.jit(device=True)
def wait(barrier):
    """Until all announced bytes have arrived, and no others."""
    cuda.syncthreads()  # tiles and bytes are complete: safe to read
    if barrier[ANNOUNCED] != barrier[ARRIVED]:
        raise RuntimeError("waits for ever: not as many bytes arrive as are announced")


@functools.cache
def make_broken(HEAD_DIM, BLOCK_N):
    """The kernel with the two bugs, to read and to run. Leave it as it is."""

    @cuda.jit
    def broken_kernel(q, k, v, out, softmax_scale):
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        barrier = cuda.shared.array(2, int32)
        s = cuda.local.array(BLOCK_N, float32)
        acc = cuda.local.array(HEAD_DIM, float32)
        m = cuda.grid(1)
        row = min(m, q.shape[0] - 1)  # every thread takes part in the copies
        m_i, l_i = float32(-math.inf), float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = float32(0.0)
        if cuda.threadIdx.x == 0:
            barrier[ANNOUNCED] = barrier[ARRIVED] = 0
        for n_start in range(0, k.shape[0], BLOCK_N):
            there = min(BLOCK_N, k.shape[0] - n_start)  # keys that exist
            expect(barrier, 2 * there * HEAD_DIM * 4)
            load_box(k_tile, k, n_start, barrier)
            load_box(v_tile, v, n_start, barrier)
            wait(barrier)
            m_new = m_i
            for c in range(BLOCK_N):
                dot = float32(0.0)
                for d in range(HEAD_DIM):
                    dot += q[row, d] * k_tile[c, d]
                s[c] = dot * softmax_scale
                m_new = max(m_new, s[c])
            alpha = math.exp(m_i - m_new)
            l_i *= alpha
            for d in range(HEAD_DIM):
                acc[d] *= alpha
            for c in range(BLOCK_N):
                p = math.exp(s[c] - m_new)
                l_i += p
                for d in range(HEAD_DIM):
                    acc[d] += p * v_tile[c, d]
            m_i = m_new
            cuda.syncthreads()  # every thread is done with the tiles: safe to overwrite
        if m < q.shape[0]:
            for d in range(HEAD_DIM):
                out[m, d] = acc[d] / l_i

    return broken_kernel


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_N):
    """Attention for any number of keys."""

    @cuda.jit
    def kernel(q, k, v, out, softmax_scale):
        ### BEGIN SOLUTION
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        barrier = cuda.shared.array(2, int32)
        s = cuda.local.array(BLOCK_N, float32)
        acc = cuda.local.array(HEAD_DIM, float32)
        m = cuda.grid(1)
        row = min(m, q.shape[0] - 1)  # every thread takes part in the copies
        m_i, l_i = float32(-math.inf), float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = float32(0.0)
        if cuda.threadIdx.x == 0:
            barrier[ANNOUNCED] = barrier[ARRIVED] = 0
        for n_start in range(0, k.shape[0], BLOCK_N):
            expect(barrier, 2 * BLOCK_N * HEAD_DIM * 4)
            load_box(k_tile, k, n_start, barrier)
            load_box(v_tile, v, n_start, barrier)
            wait(barrier)
            m_new = m_i
            for c in range(BLOCK_N):
                dot = float32(0.0)
                for d in range(HEAD_DIM):
                    dot += q[row, d] * k_tile[c, d]
                exists = n_start + c < k.shape[0]
                s[c] = dot * softmax_scale if exists else float32(-math.inf)
                m_new = max(m_new, s[c])
            alpha = math.exp(m_i - m_new)
            l_i *= alpha
            for d in range(HEAD_DIM):
                acc[d] *= alpha
            for c in range(BLOCK_N):
                p = math.exp(s[c] - m_new)
                l_i += p
                for d in range(HEAD_DIM):
                    acc[d] += p * v_tile[c, d]
            m_i = m_new
            cuda.syncthreads()  # every thread is done with the tiles: safe to overwrite
        if m < q.shape[0]:
            for d in range(HEAD_DIM):
                out[m, d] = acc[d] / l_i
        ### END SOLUTION

    return kernel
