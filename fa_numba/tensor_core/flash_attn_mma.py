"""FlashAttention-2 on tensor cores: mma.sync, for every GPU since Ampere.

flash_attn_v2      float32 multiply-adds, one thread for each score
flash_attn_mma     a warp multiplies tiles in registers; cp.async fetches the next    <- this file
flash_attn_wgmma   four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws      a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V

Each of four warps owns 32 query rows, two products' worth of 16, so that what it loads of K and V
into registers serves twice. A row belongs to the four lanes of a quad, no longer to a whole thread
block: softmax needs shuffles and no barrier. P never leaves the registers, since a product's result
lies as the next one wants its operand. Copies to shared memory go on while the warps compute: V
arrives during Q Kᵀ, the next K during softmax and P V.

On an H200 at n = 4096 it reaches 336 (288) TFLOP/s at head_dim 128 and 309 (284) at 64, where
PyTorch's FlashAttention-2 has 359 (307) and 305 (286); float16, causal in brackets;
benchmarks/results/tensor_core.json. It compiles for sm_80, and ran on sm_90 alone; a head_dim of
256 is still to be seen there.

Papers: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1 and section 3.3.
"""

import functools

from numba import cuda, float32, uint8, uint32, uint64

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.kernels import masks
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.cp_async import cp_async_16, cp_async_commit, cp_async_wait
from fa_numba.tensor_core.forward import AMPERE
from fa_numba.tensor_core.fragments import make_fragment_functions, make_store_rows
from fa_numba.tensor_core.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.tensor_core.ptx import global_address, shared_address

THREADS = 128
ROW_BYTES = 128  # a tile is made of blocks of 64 columns
ROWS_AT_ONCE = THREADS // 8  # eight threads copy a row of a block; a multiple of 8: one swizzle


def tile_sizes(head_dim):
    """(M_TILES, BLOCK_N), as large as leaves everything in registers.

    A warp owns M_TILES times 16 query rows, the thread block 4 times as many.
    """
    return (2, 64) if head_dim <= 64 else (2, 32) if head_dim <= 128 else (1, 32)


def shared_bytes(HEAD_DIM, M_TILES, BLOCK_N):
    """Shared memory that a thread block asks for."""
    return (64 * M_TILES + 2 * BLOCK_N) * ceil_div(HEAD_DIM, 64) * ROW_BYTES


@functools.cache
def make_flash_attn_mma(HEAD_DIM, M_TILES, BLOCK_N, CAUSAL, DTYPE):
    """The kernel for these compile-time constants: THREADS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16".
    """
    BLOCK_M = 64 * M_TILES
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    NUM_BLOCKS = ceil_div(HEAD_DIM, 64)
    WHOLE_BLOCKS = HEAD_DIM % 64 == 0
    Q_BYTES, KV_BYTES = (NUM_BLOCKS * rows * ROW_BYTES for rows in (BLOCK_M, BLOCK_N))
    S_SHAPE = (M_TILES, BLOCK_N // 8, 4)
    P_SHAPE = (M_TILES, BLOCK_N // 16, 4)
    OUT_SHAPE = (M_TILES, COLS // 8, 4)
    mma, pack = forward.mma_of(DTYPE), forward.pack_of(DTYPE)
    clear, mask, online_softmax, rescale, pack_p = make_fragment_functions(BLOCK_N, COLS, pack)
    store_rows = make_store_rows(HEAD_DIM, pack)
    _, end_key, _ = masks.make_bounds(CAUSAL, (-1, -1))

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, num_rows, source, row_stride, row, seqlen, chunk):
        """Start to copy this thread's part of a tile: a chunk of every 16th row from `row` on."""
        for block in range(NUM_BLOCKS):
            inside = WHOLE_BLOCKS or 64 * block + 8 * chunk < HEAD_DIM
            for i in range(num_rows // ROWS_AT_ONCE):
                r = i * ROWS_AT_ONCE
                destination = tile + (block * num_rows + r) * ROW_BYTES
                num_bytes = 16 if inside and row + r < seqlen else 0
                cp_async_16(
                    destination, source + uint64(r * row_stride + block * ROW_BYTES), num_bytes
                )

    @cuda.jit(device=True, forceinline=True)
    def chunk_address(rows, num_rows, chunk, lane_chunk):
        """Of chunk `chunk`, an even number, or the one after it where lane_chunk says so."""
        return rows + (chunk >> 3) * num_rows * ROW_BYTES + (((chunk & 7) ^ lane_chunk) << 4)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 2))
    def flash_attn_mma_kernel(q, k, v, out, lse, scale):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); 128 threads, a warp has 16 · M_TILES rows
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM); in blocks of 64
                  columns, swizzled
        private   s (M_TILES, BLOCK_N / 8, 4), p (M_TILES, BLOCK_N / 16, 4), acc (M_TILES,
                  HEAD_DIM / 8, 4), fragments of Q, K and V; m_i, l_i, alpha for 2 · M_TILES rows
        HBM       Q, out, lse once; K and V once per tile of queries
        paper     FlashAttention-2, Algorithm 1
        budget    255 registers, two thread blocks per SM
        """
        q_tile = shared_address(cuda.shared.array(0, uint8))
        k_tile = q_tile + Q_BYTES
        v_tile = k_tile + KV_BYTES

        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        q_fragment = cuda.local.array((M_TILES, 4), uint32)
        kv_fragment = cuda.local.array((2, 2), uint32)
        m_i = cuda.local.array((M_TILES, 2), float32)
        l_i = cuda.local.array((M_TILES, 2), float32)
        alpha = cuda.local.array((M_TILES, 2), float32)

        tid = cuda.threadIdx.x
        lane, warp_row = tid & 31, (tid >> 5) * (16 * M_TILES)
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[2] // k.shape[2])
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        # The last rows see the most keys under a causal mask: begun first, they do not end last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * BLOCK_M
        m = m_start + warp_row + (lane >> 2)  # this lane's first row; the others 8, 16, ... on
        position = m + seqlen_k - seqlen_q
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)

        # What this thread copies: one chunk of 16 bytes in every 16th row of each block.
        row, chunk = tid >> 3, tid & 7
        to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
        q_row = q[b, 0, head]
        q_source = global_address(q_row) + uint64((m_start + row) * q.strides[1] + 16 * chunk)
        k_source = global_address(k[b, 0, kv_head]) + uint64(row * k.strides[1] + 16 * chunk)
        v_source = global_address(v[b, 0, kv_head]) + uint64(row * v.strides[1] + 16 * chunk)

        # What this lane addresses for ldmatrix: a row of Q, K and V, and one of two chunks.
        q_rows = q_tile + (warp_row + (lane & 15)) * ROW_BYTES
        k_rows = k_tile + ((lane & 7) + ((lane >> 4) << 3)) * ROW_BYTES
        v_rows = v_tile + (lane & 15) * ROW_BYTES
        qv_chunk = (lane >> 4) ^ (lane & 7)
        k_chunk = ((lane >> 3) & 1) ^ (lane & 7)

        copy_tile(q_tile + to, BLOCK_M, q_source, q.strides[1], m_start + row, seqlen_q, chunk)
        copy_tile(k_tile + to, BLOCK_N, k_source, k.strides[1], row, seqlen_k, chunk)
        cp_async_commit()
        for i in range(M_TILES):
            clear(acc[i], m_i[i], l_i[i])

        for n_start in range(0, n_end, BLOCK_N):
            copy_tile(v_tile + to, BLOCK_N, v_source, v.strides[1], n_start + row, seqlen_k, chunk)
            cp_async_commit()
            cp_async_wait(1)
            cuda.syncthreads()  # k_tile, and at first q_tile, are complete: safe to read

            for i in range(M_TILES):  # S = Q Kᵀ                                        line 8
                for j in range(BLOCK_N // 8):
                    for r in range(4):
                        s[i, j, r] = float32(0)
            for d in range(COLS // 16):
                for i in range(M_TILES):
                    rows = q_rows + i * 16 * ROW_BYTES
                    ldmatrix_x4(q_fragment[i], chunk_address(rows, BLOCK_M, 2 * d, qv_chunk))
                for j in range(BLOCK_N // 16):
                    rows = k_rows + j * 16 * ROW_BYTES
                    ldmatrix_x4(kv_fragment, chunk_address(rows, BLOCK_N, 2 * d, k_chunk))
                    for i in range(M_TILES):
                        mma(s[i, 2 * j], q_fragment[i], kv_fragment[0])
                        mma(s[i, 2 * j + 1], q_fragment[i], kv_fragment[1])

            cp_async_wait(0)
            cuda.syncthreads()  # v_tile is complete; everyone is done with k_tile: overwrite it
            k_source += uint64(BLOCK_N * k.strides[1])
            v_source += uint64(BLOCK_N * v.strides[1])
            n_next = n_start + BLOCK_N
            if n_next < n_end:
                copy_tile(
                    k_tile + to, BLOCK_N, k_source, k.strides[1], n_next + row, seqlen_k, chunk
                )
            cp_async_commit()

            if n_next > end_key(position - (lane >> 2), seqlen_k):  # a key that a row misses
                for i in range(M_TILES):
                    for h in range(2):
                        num_seen = end_key(position + 16 * i + 8 * h, seqlen_k) - n_start
                        mask(s[i], h, num_seen, lane)
            for i in range(M_TILES):
                online_softmax(s[i], m_i[i], l_i[i], alpha[i], scale)  # P = exp(S - m_i)  line 9
                rescale(acc[i], alpha[i])
                pack_p(s[i], p[i])

            for n in range(BLOCK_N // 16):  # out <- alpha out + P V                   line 10
                for j in range(COLS // 16):
                    rows = v_rows + n * 16 * ROW_BYTES
                    ldmatrix_x4_trans(kv_fragment, chunk_address(rows, BLOCK_N, 2 * j, qv_chunk))
                    for i in range(M_TILES):
                        mma(acc[i, 2 * j], p[i, n], kv_fragment[0])
                        mma(acc[i, 2 * j + 1], p[i, n], kv_fragment[1])
            cuda.syncthreads()  # everyone is done with v_tile: safe to overwrite next turn

        for i in range(M_TILES):  # lines 12, 13
            store_rows(acc[i], m_i[i], l_i[i], out, lse, b, m + 16 * i, head, lane, scale)

    return flash_attn_mma_kernel


@arrays.replayed
def flash_attn_mma(q, k, v, *, causal=False, softmax_scale=None):
    """FlashAttention-2, forward, by mma.sync: float16 and bfloat16 on GPUs since Ampere.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides that are multiples of
        16 bytes, with a contiguous last axis; head_dim a multiple of 8, up to 256.
    causal : bool, default=False
        Bottom-right aligned: seqlen_q=2, seqlen_k=5 keeps  1 1 1 1 0 / 1 1 1 1 1.
    softmax_scale : float, default=1/√head_dim
        Positive.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU before Ampere.
    """
    out, lse, causal, scale = forward.prepare(
        "flash_attn_mma", q, k, v, causal, softmax_scale, AMPERE
    )
    if k.shape[1] == 0:  # out is 0, lse is −inf already
        return out, lse
    batch, seqlen_q, num_heads, head_dim = q.shape
    m_tiles, block_n = tile_sizes(head_dim)
    kernel = make_flash_attn_mma(head_dim, m_tiles, block_n, causal, arrays.dtype_name(q))
    grid = (ceil_div(seqlen_q, 64 * m_tiles), num_heads, batch)
    size = shared_bytes(head_dim, m_tiles, block_n)
    arrays.launch(kernel, grid, (THREADS,), q, k, v, out, lse, scale, shared_bytes=size)
    return out, lse
