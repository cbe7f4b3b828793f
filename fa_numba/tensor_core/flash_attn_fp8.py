"""flash_attn_persistent on 8-bit floats: Q, K, V and P in e4m3, twice the products per cycle.

flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V
flash_attn_persistent  the next queries are on their way before these are done
flash_attn_fp8         8 bits to an element, a scale for each tile               <- this file

`quantize_fp8` rounds Q, K and V before. A tile of each has one scale, so that an outlier costs
precision in its own tile alone, and it lies in memory byte for byte as wgmma reads it: one bulk
copy brings it. Against flash_attn_persistent

- the scale of K enters the softmax scale of its tile. out is held over V's scale of the newest
  tile, brought from one to the next where it is rescaled anyway;
- P, at most 1, is multiplied by 2⁸, to use the range of e4m3. The shift of the exponent is part of
  the one multiply-add that each score needs anyway;
- wgmma holds D in pairs of columns, but wants an A of 8 bits in fours. A sum over keys does not
  mind their order, so V was written with its keys as P holds them: P is packed in place;
- of sums of e4m3 products the tensor cores keep about 14 bits and cut off the rest, always towards
  0: too little for sums over thousands of keys. So P V of a tile is a sum of its own, added to out
  in float32; with the rescaling it is one multiply-add;
- V has a column of ones more, and so P V has the sum of P: no additions for it, and what rounding
  and cutting off take from out, they take from the sum that it is divided by, too.

Three warpgroups (two, for few keys under a causal mask) take turns by themselves: while one
multiplies, the others compute exponentials. None overlaps with itself, so that S and P V of a tile
can have the same registers.

On an H200, head_dim 128, n = 4096: 953 (803) TFLOP/s where flash_attn_persistent had 640 (610), at
n = 16384 969 (957) and 651 (660); causal in brackets. Rounding Q, K and V takes 0.09 ms for 16384
tokens of 16 heads, 88 % of a copy's bandwidth (benchmarks/NOTES.md): with it sequences from 2048,
causal from 4096 on are quicker than in float16. benchmarks/results/fp8.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.3; for the sums of 14 bits
DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba import arrays, checks
from fa_numba.analysis.persistent_tiling import choose_num_shares
from fa_numba.kernels import masks
from fa_numba.tensor_core import forward, mbarrier, quantize_fp8, wgmma
from fa_numba.tensor_core.barriers import setmaxnreg_dec, setmaxnreg_inc
from fa_numba.tensor_core.convert import exp2, pack_e4m3x4
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import (
    MASKED,
    fragment_function,
    make_fragment_functions,
    make_store_tile,
    over_quad_max,
)
from fa_numba.tensor_core.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.tensor_core.ptx import global_address, shared_address
from fa_numba.tensor_core.quantize_fp8 import SUM_ROWS, width_of
from fa_numba.tensor_core.tensor_maps import tensor_map
from fa_numba.tensor_core.tma import tma_store_wait_read
from fa_numba.tensor_core.vectors import bulk_load
from fa_numba.tensor_core.wgmma import (
    descriptor,
    narrow_descriptor_bits,
    wgmma_commit,
    wgmma_e4m3,
    wgmma_e4m3_registers,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)

NO_WINDOW = (-1, -1)
Q_ROWS = 64  # of a consumer: a tile of Q, which has a scale
STAGES = 2  # of K, and of V
SLOTS = 2  # of Q: the next queries are there before these are done
# For 2 and 3 consumers: registers of a producer's and of a consumer's thread.
REGISTERS = {2: (24, 240), 3: (32, 160)}
P_SHIFT = np.float32(8)  # P is held as 2^8 P
# Of a score, times log2 e, with its scale, before the first key. A masked score is below it for any
# factor from LEAST_FACTOR on: fragments.MASKED · LEAST_FACTOR < NOTHING.
NOTHING = np.float32(-1e15)
LEAST_FACTOR = np.float32(1e-14)

MAX_HEAD_DIM = 128  # beyond, registers do not hold it all


def tile_sizes(head_dim, seqlen_k, causal):
    """Consumer warpgroups, of 64 query rows each, and keys in a tile.

    Of 192 rows under a causal mask too many do not see the last tile, where tiles are few.
    """
    return 2 if causal and head_dim == 128 and seqlen_k <= 1024 else 3, 128


def shared_bytes(HEAD_DIM, CONSUMERS, BLOCK_N):
    """Dynamic shared memory that a thread block asks for."""
    queries = (SLOTS + 2) * 64 * CONSUMERS * HEAD_DIM  # out has 2 bytes to an element
    keys = STAGES * BLOCK_N * (2 * HEAD_DIM + SUM_ROWS)
    return queries + keys + mbarrier.BYTES * (2 * SLOTS + 4 * STAGES) + wgmma.GROUP_BYTES


@functools.cache
def make_softmax(BLOCK_N, HEAD_DIM):
    """Functions for scores of BLOCK_N columns, as `fragments.make_fragment_functions` has them.

    Returns
    -------
    online_softmax(s, m_i, alpha, factor)
        s becomes 2^8 P = 2^(factor s − m_i + 8); m_i has the factor in it.
    pack_p(s, p)
        P in e4m3, as A of the next product: p of shape (BLOCK_N / 32, 4).
    add_tile(acc, alpha, part, v_ratio)
        acc becomes alpha acc + part. out is held over V's scale of the newest tile: v_ratio is the
        one before over it. The column of sums of P has no scale.
    """
    S8, P32, OUT8 = BLOCK_N // 8, BLOCK_N // 32, HEAD_DIM // 8

    @fragment_function()
    def online_softmax(s, m_i, alpha, factor):
        for h in range(2):
            m_new = max(s[0, 2 * h], s[0, 2 * h + 1])
            for j in range(1, S8):
                m_new = max(m_new, max(s[j, 2 * h], s[j, 2 * h + 1]))
            m_new = max(m_i[h], over_quad_max(m_new) * factor)
            alpha[h] = exp2(m_i[h] - m_new)
            m_i[h] = m_new
            shift = P_SHIFT - m_new
            for j in range(S8):
                for c in range(2):
                    s[j, 2 * h + c] = exp2(s[j, 2 * h + c] * factor + shift)

    @fragment_function()
    def pack_p(s, p):
        for k in range(P32):
            for half in range(2):  # of 32 columns
                for h in range(2):
                    j = 4 * k + 2 * half
                    p[k, 2 * half + h] = pack_e4m3x4(
                        s[j, 2 * h], s[j, 2 * h + 1], s[j + 1, 2 * h], s[j + 1, 2 * h + 1]
                    )

    @fragment_function()
    def add_tile(acc, alpha, part, v_ratio):
        for h in range(2):
            acc[OUT8, 2 * h] = alpha[h] * acc[OUT8, 2 * h] + part[OUT8, 2 * h]
            alpha[h] *= v_ratio
        for j in range(OUT8):
            for h in range(2):
                for c in range(2):
                    acc[j, 2 * h + c] = alpha[h] * acc[j, 2 * h + c] + part[j, 2 * h + c]

    return online_softmax, pack_p, add_tile


@functools.cache
def make_flash_attn_fp8(HEAD_DIM, CONSUMERS, BLOCK_N, CAUSAL, DTYPE):
    """The kernel for these compile-time constants; `shared_bytes` of shared memory.

    128 threads for each of CONSUMERS and for the producer. HEAD_DIM is 64 or 128, BLOCK_N a
    multiple of 32, DTYPE, of out, "float16" or "bfloat16".
    """
    BLOCK_M = 64 * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    Q_BYTES = 64 * HEAD_DIM  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    V_ROWS = HEAD_DIM + SUM_ROWS
    K_BYTES, V_BYTES = BLOCK_N * HEAD_DIM, BLOCK_N * V_ROWS
    QK_WIDTH, V_WIDTH = width_of(HEAD_DIM), width_of(BLOCK_N)
    QK, V = narrow_descriptor_bits(QK_WIDTH), narrow_descriptor_bits(V_WIDTH)
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 8, V_ROWS // 2  # registers
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 32, 4), (V_ROWS // 8, 4)
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    pack = forward.pack_of(DTYPE)
    clear, _, _, _, _ = make_fragment_functions(BLOCK_N, V_ROWS, pack)
    online_softmax, pack_p, add_tile = make_softmax(BLOCK_N, HEAD_DIM)
    _, end_key, _ = masks.make_bounds(CAUSAL, NO_WINDOW)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def num_tiles_of(last_row, seqlen_q, seqlen_k):
        """Tiles of keys that some row up to this one sees; one if there is none, all masked."""
        n_end = end_key(last_row + seqlen_k - seqlen_q, seqlen_k)
        return int32((max(n_end, 1) + BLOCK_N - 1) // BLOCK_N)

    @cuda.jit(device=True, forceinline=True)
    def m_tile_of(step, share, num_shares, num_m_tiles):
        """The step-th tile of queries of a share of a head, as `share_of` has it; or below 0."""
        place = num_shares - 1 - share if step & 1 else share
        return int32(num_m_tiles - 1 - step * num_shares - place)

    @cuda.jit(device=True, forceinline=True)
    def mask_tile(s, n_start, position, seqlen_k, lane):
        """Mask what a row does not see; `position` is that of this lane's first row."""
        if n_start + BLOCK_N > end_key(position - (lane >> 2), seqlen_k):  # of the warp's first row
            for h in range(2):
                seen = int32(end_key(position + 8 * h, seqlen_k) - n_start - 2 * (lane & 3))
                for j in range(BLOCK_N // 8):
                    for c in range(2):
                        if 8 * j + c >= seen:
                            s[j, 2 * h + c] = MASKED

    @cuda.jit(device=True, forceinline=True)
    def phase(count, length):
        """Parity of the phase in which a ring's stage is filled the count-th time."""
        return (count // length) & 1

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_fp8_kernel(
        q, k, v, q_scale, k_scale, v_scale, out_map, lse, seqlen_k, group_size, num_shares, scale
    ):
        """A thread block works through tiles of queries, each with its tiles of K and V.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM), k_tile (STAGES, BLOCK_N, HEAD_DIM),
                  v_tile (STAGES, V_ROWS, BLOCK_N), in blocks of columns, swizzled; out_tile
                  (CONSUMERS, 64, HEAD_DIM) in 16 bits, also so; work (SLOTS, 4): which queries Q
                  are, factors; tile_starts, tile_scales; barriers: full and empty for each slot
                  of Q, each stage of K, and of V
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 32, 4), acc and part (V_ROWS / 8, 4); m_i,
                  alpha for two rows
        HBM       Q, out, lse once; K and V once per tile of queries
        paper     FlashAttention-3, Algorithm 2 and section 3.3
        budget    168 registers at the start, REGISTERS after; one thread block per SM
        """
        work = cuda.shared.array((SLOTS, 4), int32)  # first row, head, batch, 1; or 0: no more
        factors = cuda.shared.array((SLOTS, 4), float32)  # of each consumer's Q; of the last V
        tile_starts = cuda.shared.array(STAGES, int32)  # first key
        tile_scales = cuda.shared.array((STAGES, 4), float32)  # k; v of the tile before / v
        q_tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        out_tile = q_tile + SLOTS * SLOT_BYTES
        k_tile = out_tile + 2 * SLOT_BYTES
        v_tile = k_tile + STAGES * K_BYTES
        q_full = v_tile + STAGES * V_BYTES
        q_empty = q_full + SLOTS * BARRIER
        k_full = q_empty + SLOTS * BARRIER
        k_empty = k_full + STAGES * BARRIER
        v_full = k_empty + STAGES * BARRIER
        v_empty = v_full + STAGES * BARRIER

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        num_heads, seqlen_q = int32(lse.shape[1]), int32(lse.shape[2])

        if tid == 0:
            for slot in range(SLOTS):
                mbarrier_init(q_full + slot * BARRIER, 1)
                mbarrier_init(q_empty + slot * BARRIER, 4 * CONSUMERS)  # a lane of each warp
            for stage in range(STAGES):
                mbarrier_init(k_full + stage * BARRIER, 1)
                mbarrier_init(v_full + stage * BARRIER, 1)
                mbarrier_init(k_empty + stage * BARRIER, 4 * CONSUMERS)
                mbarrier_init(v_empty + stage * BARRIER, 4 * CONSUMERS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                num_m_tiles = int32((seqlen_q + BLOCK_M - 1) // BLOCK_M)
                num_steps = int32((num_m_tiles + num_shares - 1) // num_shares)
                num_units = int32(num_shares * num_heads * lse.shape[0])  # shares of all heads
                num_blocks, this, last = cuda.gridDim.x, cuda.blockIdx.x, cuda.gridDim.x - 1
                queries, tile = uint32(0), uint32(0)  # passed so far; their places in the rings
                for dealt in range(0, num_units, num_blocks):
                    unit = int32(dealt + (last - this if dealt // num_blocks & 1 else this))
                    if unit >= num_units:
                        break
                    share, rest = unit % num_shares, unit // num_shares
                    head, b = rest % num_heads, rest // num_heads
                    kv_head = head // group_size
                    k_tiles, v_tiles = global_address(k[b, kv_head]), global_address(v[b, kv_head])
                    for step in range(num_steps):
                        m_start = int32(m_tile_of(step, share, num_shares, num_m_tiles) * BLOCK_M)
                        if m_start < 0:
                            break
                        slot = queries % SLOTS
                        full = q_full + slot * BARRIER
                        wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                        work[slot, 0] = m_start
                        work[slot, 1] = head
                        work[slot, 2] = b
                        work[slot, 3] = 1
                        num_tiles = num_tiles_of(m_start + BLOCK_M - 1, seqlen_q, seqlen_k)
                        factors[slot, CONSUMERS] = v_scale[b, kv_head, num_tiles - 1]
                        for w in range(CONSUMERS):
                            factors[slot, w] = q_scale[b, head, m_start // Q_ROWS + w] * scale
                        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
                        q_rows = global_address(q[b, head, m_start // Q_ROWS])
                        bulk_load(q_tile + slot * SLOT_BYTES, q_rows, SLOT_BYTES, full)
                        queries = uint32(queries + 1)
                        for n_tile in range(num_tiles):
                            of_k = k_scale[b, kv_head, n_tile]
                            v_ratio = v_scale[b, kv_head, max(n_tile - 1, 0)]
                            v_ratio /= v_scale[b, kv_head, n_tile]
                            stage, was_empty = tile % STAGES, phase(tile, STAGES) ^ 1
                            full = k_full + stage * BARRIER
                            wait(k_empty + stage * BARRIER, was_empty)
                            tile_starts[stage] = n_tile * BLOCK_N
                            tile_scales[stage, 0] = of_k
                            tile_scales[stage, 1] = v_ratio
                            mbarrier_arrive_expect_tx(full, K_BYTES)
                            source = k_tiles + uint64(n_tile * K_BYTES)
                            bulk_load(k_tile + stage * K_BYTES, source, K_BYTES, full)
                            full = v_full + stage * BARRIER
                            wait(v_empty + stage * BARRIER, was_empty)
                            mbarrier_arrive_expect_tx(full, V_BYTES)
                            source = v_tiles + uint64(n_tile * V_BYTES)
                            bulk_load(v_tile + stage * V_BYTES, source, V_BYTES, full)
                            tile = uint32(tile + 1)
                slot = queries % SLOTS
                wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                work[slot, 3] = 0
                mbarrier_arrive(q_full + slot * BARRIER)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            acc = cuda.local.array(OUT_SHAPE, float32)
            part = cuda.local.array(OUT_SHAPE, float32)
            m_i = cuda.local.array(2, float32)
            l_i = cuda.local.array(2, float32)
            alpha = cuda.local.array(2, float32)
            inverse = cuda.local.array(2, float32)
            lane = tid & 31
            warp_row = ((tid >> 5) - 4) * 16  # in a tile of queries
            q_offset = (warpgroup - 1) * Q_BYTES
            out_rows = out_tile + 2 * q_offset + ((tid >> 5) & 3) * (16 * wgmma.ROW_BYTES)

            queries, tile = uint32(0), uint32(0)  # passed so far; their places in the rings
            while True:
                slot = queries % SLOTS
                wait(q_full + slot * BARRIER, phase(queries, SLOTS))
                if work[slot, 3] == 0:
                    break
                m_start, head, b = work[slot, 0], work[slot, 1], work[slot, 2]
                position = int32(m_start + warp_row + (lane >> 2) + seqlen_k - seqlen_q)
                q_rows = descriptor(QK, q_tile + slot * SLOT_BYTES + q_offset)
                clear(acc, m_i, l_i)
                for h in range(2):
                    m_i[h] = NOTHING

                q_factor = factors[slot, warpgroup - 1]
                end = uint32(tile + num_tiles_of(m_start + BLOCK_M - 1, seqlen_q, seqlen_k))
                while tile != end:
                    stage, parity = tile % STAGES, phase(tile, STAGES)
                    k_rows = descriptor(QK, k_tile + stage * K_BYTES)
                    wait(k_full + stage * BARRIER, parity)
                    wgmma_fence()
                    wgmma_e4m3(BLOCK_N, HEAD_DIM, QK_WIDTH, s, q_rows, k_rows)  # S = Q Kᵀ
                    wgmma_commit()
                    n_start, of_k = tile_starts[stage], tile_scales[stage, 0]
                    factor = max(q_factor * of_k, LEAST_FACTOR)
                    v_ratio = tile_scales[stage, 1]
                    wgmma_wait(0, s, S_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(k_empty + stage * BARRIER)
                    mask_tile(s, n_start, position, seqlen_k, lane)
                    online_softmax(s, m_i, alpha, factor)
                    pack_p(s, p)

                    v_rows = descriptor(V, v_tile + stage * V_BYTES)
                    wait(v_full + stage * BARRIER, parity)
                    wgmma_fence()
                    wgmma_e4m3_registers(V_ROWS, BLOCK_N, V_WIDTH, part, p, v_rows)
                    wgmma_commit()
                    wgmma_wait_with(0, part, OUT_LENGTH, p, P_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(v_empty + stage * BARRIER)
                    add_tile(acc, alpha, part, v_ratio)  # out <- alpha out + P V
                    tile = uint32(tile + 1)

                # Read again: registers are scarce in the loop.
                m_warp, head, b = work[slot, 0] + warp_row, work[slot, 1], work[slot, 2]
                of_v = factors[slot, CONSUMERS]
                cuda.syncwarp()  # work and factors are read: safe to overwrite
                if lane == 0:
                    mbarrier_arrive(q_empty + slot * BARRIER)
                for h in range(2):
                    l_i[h] = acc[HEAD_DIM // 8, 2 * h]  # of a quad's first lane; elsewhere 0
                    m_i[h] -= P_SHIFT
                finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, float32(1))
                for h in range(2):
                    inverse[h] *= of_v
                store_tile(acc, inverse, out_rows, out_map, m_warp, seqlen_q, head, b, lane)
                queries = uint32(queries + 1)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_fp8_kernel


def flash_attn_fp8(q, k, v, *, causal=False, softmax_scale=None, hadamard=True):
    """FlashAttention-3, forward, in e4m3: float16 or bfloat16 in and out, on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides that are multiples of
        16 bytes, with a contiguous last axis; head_dim 64 or 128.
    causal : bool, default=False
        Bottom-right aligned: seqlen_q=2, seqlen_k=5 keeps  1 1 1 1 0 / 1 1 1 1 1.
    softmax_scale : float, default=1/√head_dim
        Positive.
    hadamard : bool, default=True
        Spread outliers of Q and K over their rows before rounding.

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
        On a GPU that has no wgmma.
    """
    hadamard = checks.check_flag("hadamard", hadamard)
    out, lse, causal, scale = forward.prepare(
        "flash_attn_fp8", q, k, v, causal, softmax_scale, HOPPER, MAX_HEAD_DIM
    )
    checks.check_fp8(q)
    if k.shape[1] > 0 and q.shape[1] > 0:  # else out is 0, lse is −inf already
        attend(*quantize(q, k, v, causal, hadamard), out, lse, causal, scale)
    return out, lse


def quantize(q, k, v, causal, hadamard=True, least=3 * (quantize_fp8.LEAST,)):
    """Q, K and V in the tiles that `attend` takes; K and V may be kept for other queries.

    Returns
    -------
    q8, k8, v8 : Quantized
    """
    consumers, block_n = tile_sizes(q.shape[3], k.shape[1], causal)
    options = {"hadamard": hadamard, "multiple": consumers, "least": least}
    return quantize_fp8.quantize(q, k, v, Q_ROWS, block_n, **options)


def attend(q8, k8, v8, out, lse, causal, scale):
    """Launch the kernel on what `quantize` returned, with that `causal`.

    Parameters
    ----------
    q8, k8, v8 : Quantized
    out : array of the shape that Q had, float16 or bfloat16
    lse : array of shape (batch, num_heads, seqlen_q), float32
    causal : bool
    scale : float32
        softmax_scale · log2 e.
    """
    batch, seqlen_q, num_heads, head_dim = q8.shape
    _, seqlen_k, num_kv_heads, _ = k8.shape
    consumers, block_n = tile_sizes(head_dim, seqlen_k, causal)
    kernel = make_flash_attn_fp8(head_dim, consumers, block_n, causal, arrays.dtype_name(out))
    cut = seqlen_q, seqlen_k, Q_ROWS * consumers, block_n, causal, NO_WINDOW
    num_sms = arrays.num_sms(out)
    num_shares = choose_num_shares(batch * num_heads, num_sms, *cut)
    grid = (min(num_shares * batch * num_heads, num_sms),)
    tiles, scales = (q8.tiles, k8.tiles, v8.tiles), (q8.scales, k8.scales, v8.scales)
    sizes = np.int32(seqlen_k), np.int32(num_heads // num_kv_heads), np.int32(num_shares)
    out_map, size = tensor_map(out, 16), shared_bytes(head_dim, consumers, block_n)
    arguments = *tiles, *scales, out_map, lse, *sizes, scale
    arrays.launch(kernel, grid, (128 * (consumers + 1),), *arguments, shared_bytes=size)
