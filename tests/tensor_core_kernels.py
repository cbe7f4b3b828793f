"""One small kernel for each instruction of fa_numba.ptx: compiled here, run on a GPU."""

import functools

from numba import cuda, float32, int32, types, uint8, uint32, uint64

from fa_numba.ptx import (
    barriers,
    cluster,
    convert,
    cp_async,
    halves,
    layouts,
    ldmatrix,
    mbarrier,
    tma,
    vectors,
    wgmma,
)
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.tensor_core import alibi, forward

AMPERE, HOPPER = (8, 0), (9, 0, "a")
u8, u32, f32 = (types.Array(t, 1, "C") for t in (types.uint8, types.uint32, types.float32))


@functools.cache
def make_mma(DTYPE):
    mma = forward.mma_of(DTYPE)

    @cuda.jit
    def mma_kernel(a, b, d):
        """d += a b: registers of 32 lanes, 4, 2 and 4 of each."""
        a_fragment = cuda.local.array(4, uint32)
        b_fragment = cuda.local.array(2, uint32)
        d_fragment = cuda.local.array(4, float32)
        lane = cuda.threadIdx.x
        for i in range(4):
            a_fragment[i] = a[4 * lane + i]
            d_fragment[i] = d[4 * lane + i]
        for i in range(2):
            b_fragment[i] = b[2 * lane + i]
        mma(d_fragment, a_fragment, b_fragment)
        for i in range(4):
            d[4 * lane + i] = d_fragment[i]

    return mma_kernel


@functools.cache
def make_ldmatrix(TRANS):
    load = ldmatrix.ldmatrix_x4_trans if TRANS else ldmatrix.ldmatrix_x4

    @cuda.jit
    def ldmatrix_kernel(x, y):
        """x: 32 rows of 16 bytes; y: 4 registers of 32 lanes."""
        tile = cuda.shared.array(128, uint32)
        fragment = cuda.local.array(4, uint32)
        lane = cuda.threadIdx.x
        for i in range(4):
            tile[4 * lane + i] = x[4 * lane + i]
        cuda.syncthreads()
        load(fragment, shared_address(tile) + 16 * lane)
        for i in range(4):
            y[4 * lane + i] = fragment[i]

    return ldmatrix_kernel


@cuda.jit
def stmatrix_kernel(x, y):
    """x: 4 registers of 32 lanes; y: 32 rows of 16 bytes."""
    tile = cuda.shared.array(128, uint32)
    fragment = cuda.local.array(4, uint32)
    lane = cuda.threadIdx.x
    for i in range(4):
        fragment[i] = x[4 * lane + i]
    ldmatrix.stmatrix_x4(shared_address(tile) + 16 * lane, fragment)
    cuda.syncthreads()
    for i in range(4):
        y[4 * lane + i] = tile[4 * lane + i]


@cuda.jit
def cp_async_kernel(x, num_bytes, y):
    """Thread i copies num_bytes[i] of its 16 bytes of x to y, through shared memory."""
    tile = cuda.shared.array(128, uint32)
    i = cuda.threadIdx.x
    cp_async.cp_async_16(
        shared_address(tile) + 16 * i, global_address(x) + uint64(16 * i), num_bytes[i]
    )
    cp_async.cp_async_commit()
    cp_async.cp_async_wait(0)
    for word in range(4):
        y[4 * i + word] = tile[4 * i + word]


@functools.cache
def make_pack(DTYPE):
    pack = forward.pack_of(DTYPE)

    @cuda.jit
    def pack_kernel(low, high, y):
        i = cuda.threadIdx.x
        vectors.store_global_b32(global_address(y) + uint64(4 * i), pack(low[i], high[i]))

    return pack_kernel


@cuda.jit
def pack_e4m3_kernel(x, y):
    """Thread i packs four of x."""
    i = cuda.threadIdx.x
    y[i] = convert.pack_e4m3x4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3])


@cuda.jit
def words_kernel(x, y):
    """Thread i copies four words of x through shared memory, one by one."""
    tile = shared_address(cuda.shared.array(128, uint32))
    four = cuda.local.array(4, uint32)
    offset = 16 * cuda.threadIdx.x
    for i in range(0, 16, 4):
        word = vectors.load_global_b32(global_address(x) + uint64(offset + i))
        vectors.store_shared_b32(tile + offset + i, word)
    for i in range(4):
        four[i] = vectors.load_shared_b32(tile + offset + 4 * i)
    vectors.store_global_x4(global_address(y) + uint64(offset), four)


@cuda.jit
def exp2_kernel(x, y):
    i = cuda.threadIdx.x
    y[i] = convert.exp2(x[i])


@cuda.jit
def max3_bits_kernel(x, y):
    """Thread i takes the largest of three of x."""
    i = cuda.threadIdx.x
    y[i] = convert.max3_bits(x[3 * i], x[3 * i + 1], x[3 * i + 2])


@cuda.jit
def halves_kernel(x, limits, y):
    """y: x's words where their halves are kept, the masks, bytes of two neighbours, x, lanes' x."""
    i, n = cuda.threadIdx.x, cuda.blockDim.x
    y[i] = halves.keep_pair(uint32(0x12345678), x[i], limits[0])
    y[n + i] = halves.keep_mask(x[i], limits[0])
    y[2 * n + i] = halves.byte_permute(x[i], x[i ^ 1], uint32(0x3276))
    y[3 * n + i] = halves.word(x[i])
    y[4 * n + i] = halves.column_lane(x[i], 4)
    y[5 * n + i] = halves.low_bits(uint32(i & 63))


@cuda.jit
def mbarrier_kernel(y):
    """Two phases of a barrier for 64 threads; y: results of try_wait before, between and after."""
    barrier = shared_address(cuda.shared.array(1, uint64))
    data = cuda.shared.array(64, uint32)
    i = cuda.threadIdx.x
    if i == 0:
        mbarrier.mbarrier_init(barrier, 64)
        mbarrier.fence_mbarrier_init()
        y[0] = mbarrier.mbarrier_try_wait(barrier, 1)  # new: the phase "before" has ended
        y[1] = mbarrier.mbarrier_try_wait(barrier, 0)
    cuda.syncthreads()
    for phase in range(2):
        data[i] = 100 * phase + i
        mbarrier.mbarrier_arrive(barrier)
        mbarrier.mbarrier_wait_bounded(barrier, phase)
        y[64 * phase + 64 + i] = data[63 - i]  # written before the phase ended
        cuda.syncthreads()
    if i == 0:
        y[2] = mbarrier.mbarrier_try_wait(barrier, 1)
        y[3] = mbarrier.mbarrier_try_wait(barrier, 0)


@cuda.jit
def bounded_wait_kernel(y):
    """Nobody arrives: the wait must end all the same."""
    barrier = shared_address(cuda.shared.array(1, uint64))
    mbarrier.mbarrier_init(barrier, 2)
    mbarrier.fence_mbarrier_init()
    mbarrier.mbarrier_wait_bounded(barrier, 0)
    y[0] = 1


@functools.cache
def make_tma(ROWS, BLOCKS):
    load_tile = tma.make_load_tile(BLOCKS)
    NUM_BYTES = BLOCKS * ROWS * layouts.ROW_BYTES

    @cuda.jit
    def tma_kernel(tensor_map, row, head, b, y):
        """y: the bytes of a tile in their order in shared memory."""
        tile = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        barrier = shared_address(cuda.shared.array(1, uint64))
        i = cuda.threadIdx.x
        if i == 0:
            mbarrier.mbarrier_init(barrier, 1)
            mbarrier.fence_mbarrier_init()
            mbarrier.mbarrier_arrive_expect_tx(barrier, NUM_BYTES)
            load_tile(tile, ROWS, tensor_map, row, head, b, barrier)
        cuda.syncthreads()
        mbarrier.mbarrier_wait_bounded(barrier, 0)
        bytes_of = cuda.shared.array(0, uint8)
        start = tile - shared_address(bytes_of)
        for j in range(i, NUM_BYTES, 32):
            y[j] = bytes_of[start + j]

    return tma_kernel


@functools.cache
def make_multicast(ROWS, BLOCKS):
    load_tile = tma.make_load_tile(BLOCKS, 2)
    NUM_BYTES = BLOCKS * ROWS * layouts.ROW_BYTES

    @cuda.jit
    def multicast_kernel(tensor_map, row, head, b, y):
        """Two thread blocks, each of which copies one of two tiles to both.

        y: of each block both tiles, and whether the other block has arrived at its barrier.
        """
        cluster.cluster_of(2)
        bytes_of = cuda.shared.array(0, uint8)
        tile = (shared_address(bytes_of) + 1023) & 0xFFFFFC00
        full = shared_address(cuda.shared.array(2, uint64))
        read = full + mbarrier.BYTES
        rank, i = cuda.blockIdx.x, cuda.threadIdx.x
        if i == 0:
            mbarrier.mbarrier_init(full, 1)
            mbarrier.mbarrier_init(read, 1)
            mbarrier.fence_mbarrier_init()
        cluster.cluster_sync()
        if i == 0:
            mbarrier.mbarrier_arrive_expect_tx(full, 2 * NUM_BYTES)
            own = tile + rank * NUM_BYTES
            load_tile(own, ROWS, tensor_map, row + rank * ROWS, head, b, full)
        mbarrier.mbarrier_wait_bounded(full, 0)
        start = tile - shared_address(bytes_of)
        to = rank * (2 * NUM_BYTES + 1)
        for j in range(i, 2 * NUM_BYTES, 32):
            y[to + j] = bytes_of[start + j]
        if i == 0:
            cluster.mbarrier_arrive_at(read, rank ^ 1)
        mbarrier.mbarrier_wait_bounded(read, 0)
        y[to + 2 * NUM_BYTES] = mbarrier.mbarrier_try_wait(read, 0)
        cluster.cluster_sync()

    return multicast_kernel


@cuda.jit
def tma_store_kernel(x, tensor_map, row, head, b):
    """x: 16 rows of 128 bytes in their order in shared memory, stored from column 64 on."""
    bytes_of = cuda.shared.array(0, uint8)
    tile = (shared_address(bytes_of) + 1023) & 0xFFFFFC00
    start = tile - shared_address(bytes_of)
    i = cuda.threadIdx.x
    for j in range(i, 16 * layouts.ROW_BYTES, 32):
        bytes_of[start + j] = x[j]
    barriers.fence_async_proxy()
    cuda.syncthreads()
    if i == 0:
        tma.tma_store_4d(tensor_map, 64, row, head, b, tile)
        tma.tma_store_commit()
        tma.tma_store_wait_read(0)


def _wgmma_of(N, K, DTYPE, WIDTH, ADDS=None):
    """A product with A in shared memory, one with A in registers; bits of A and B for each.

    ADDS is the name of one of `forward.WgmmaSums`, in place of the first.
    """
    if DTYPE == "e4m3":
        ROW_MAJOR = COL_MAJOR = wgmma.narrow_descriptor_bits(WIDTH)

        def shared(d, a, b):
            wgmma.wgmma_e4m3(N, K, WIDTH, d, a, b)

        def registers(d, a, b):
            wgmma.wgmma_e4m3_registers(N, K, WIDTH, d, a, b)
    else:
        ROW_MAJOR, COL_MAJOR = wgmma.descriptor_bits(), wgmma.descriptor_bits(K * layouts.ROW_BYTES)
        of_shared, of_registers = forward.wgmma_of(DTYPE)
        if ADDS is not None:
            of_shared = getattr(forward.wgmma_sums_of(DTYPE), ADDS)

        def shared(d, a, b):
            of_shared(N, K, d, a, b)

        def registers(d, a, b):
            of_registers(N, K, d, a, b)

    inline = cuda.jit(device=True, forceinline=True)
    return inline(shared), ROW_MAJOR, inline(registers), COL_MAJOR


@functools.cache
def make_wgmma(N, K, DTYPE, REGISTERS, WIDTH=128, ADDS=None):
    """A product of 16-bit numbers, or of "e4m3" in panels of WIDTH bytes; ADDS as in _wgmma_of."""
    shared, ROW_MAJOR, registers, COL_MAJOR = _wgmma_of(N, K, DTYPE, WIDTH, ADDS)
    SIZE = 1 if DTYPE == "e4m3" else 2
    OF_SHARED = COL_MAJOR if ADDS == "tiles" else ROW_MAJOR
    B_SHAPE = (
        (K, N) if ADDS == "tiles" or REGISTERS and SIZE == 2 else (N, K)
    )  # rows, and columns in whole panels
    A_BYTES, B_BYTES = (
        rows * -(-cols * SIZE // WIDTH) * WIDTH for rows, cols in ((64, K), B_SHAPE)
    )
    LENGTH, A_LENGTH = N // 2, K * SIZE // 8

    @cuda.jit(launch_bounds=(128, 1))
    def wgmma_kernel(a, b, d):
        """d: registers of 128 threads; a, b: tiles as shared memory has them, or a's registers."""
        bytes_of = cuda.shared.array(0, uint8)
        a_tile = (shared_address(bytes_of) + 1023) & 0xFFFFFC00
        b_tile = a_tile + A_BYTES
        a_fragment = cuda.local.array(A_LENGTH, uint32)
        d_fragment = cuda.local.array(LENGTH, float32)
        i = cuda.threadIdx.x
        start = a_tile - shared_address(bytes_of)
        for j in range(i, B_BYTES, 128):
            bytes_of[start + A_BYTES + j] = b[j]
        if not REGISTERS:
            for j in range(i, A_BYTES, 128):
                bytes_of[start + j] = a[j]
        barriers.fence_async_proxy()
        cuda.syncthreads()
        if REGISTERS:
            for j in range(A_LENGTH):
                at = global_address(a) + uint64(4 * (A_LENGTH * i + j))
                a_fragment[j] = vectors.load_global_b32(at)
            for j in range(LENGTH):
                d_fragment[j] = d[LENGTH * i + j]
            wgmma.wgmma_fence()
            registers(d_fragment, a_fragment, wgmma.descriptor(COL_MAJOR, b_tile))
            wgmma.wgmma_commit()
            wgmma.wgmma_wait_with(0, d_fragment, LENGTH, a_fragment, A_LENGTH)
        else:
            if ADDS is not None:
                for j in range(LENGTH):
                    d_fragment[j] = d[LENGTH * i + j]
            wgmma.wgmma_fence()
            a_rows = wgmma.descriptor(ROW_MAJOR, a_tile)
            shared(d_fragment, a_rows, wgmma.descriptor(OF_SHARED, b_tile))
            wgmma.wgmma_commit()
            wgmma.wgmma_wait(0, d_fragment, LENGTH)
        for j in range(LENGTH):
            d[LENGTH * i + j] = d_fragment[j]

    return wgmma_kernel


@functools.cache
def make_bias(BLOCK_N):
    LENGTH, RAMP_BYTES = BLOCK_N // 2, alibi.ramp_bytes(BLOCK_N)
    ROOM = BLOCK_N * 16 * 2 // 8  # more than the ramp: memcheck takes B's rows for 32 bytes each

    @cuda.jit(launch_bounds=(128, 1))
    def bias_kernel(slope, d):
        """d: registers of 128 threads, then with slope · column added, and with it subtracted."""
        ramp = shared_address(cuda.shared.array(ROOM, uint64))
        a, offset = cuda.local.array(4, uint32), cuda.local.array(2, float32)
        s = cuda.local.array(LENGTH, float32)
        i = cuda.threadIdx.x
        alibi.write_ramp(ramp, RAMP_BYTES, i, 128)
        cuda.syncthreads()
        pieces = alibi.slope_pieces(slope[0], i & 31)
        for after in range(2):
            for j in range(LENGTH):
                s[j] = d[LENGTH * i + j]
            alibi.set_slope_columns(a, offset, pieces, slope[0], 0, 0, after == 1)
            wgmma.wgmma_fence()
            b = wgmma.descriptor(alibi.RAMP_BITS, ramp)
            wgmma.wgmma_bf16_registers(BLOCK_N, 16, s, a, b)
            wgmma.wgmma_commit()
            wgmma.wgmma_wait_with(0, s, LENGTH, a, 4)
            for j in range(LENGTH):
                d[128 * LENGTH * (after + 1) + LENGTH * i + j] = s[j]

    return bias_kernel


@cuda.jit
def named_barrier_kernel(y):
    """Warp 0 writes and arrives at barrier 1; warp 1 waits there and reads; warp 2 does nothing."""
    data = cuda.shared.array(32, uint32)
    i = cuda.threadIdx.x
    if i < 32:
        data[i] = 7 * i
        cuda.threadfence_block()
        barriers.named_barrier_arrive(1, 64)
    elif i < 64:
        barriers.named_barrier_sync(1, 64)
        y[i - 32] = data[i - 32]


@cuda.jit(launch_bounds=(256, 1))
def setmaxnreg_kernel(y):
    """A warpgroup gives registers away, the other takes them."""
    i = cuda.threadIdx.x
    if i < 128:
        barriers.setmaxnreg_dec(24)
        y[i] = 1
    else:
        barriers.setmaxnreg_inc(240)
        y[i] = 2


# name: kernel, types of its arguments, target, an opcode that the machine code must contain
KERNELS = {
    "mma f16": (make_mma("float16"), (u32, u32, f32), AMPERE, "HMMA.16816.F32"),
    "mma bf16": (make_mma("bfloat16"), (u32, u32, f32), AMPERE, "HMMA.16816.F32.BF16"),
    "ldmatrix": (make_ldmatrix(False), (u32, u32), AMPERE, "LDSM.16.M88.4"),
    "ldmatrix trans": (make_ldmatrix(True), (u32, u32), AMPERE, "LDSM.16.MT88.4"),
    "stmatrix": (stmatrix_kernel, (u32, u32), HOPPER, "STSM.16.M88.4"),
    "cp.async": (cp_async_kernel, (u32, u32, u32), AMPERE, "LDGSTS.E.BYPASS.LTC128B.128"),
    "pack f16": (make_pack("float16"), (f32, f32, u32), AMPERE, "F2FP"),
    "pack bf16": (make_pack("bfloat16"), (f32, f32, u32), AMPERE, "F2FP.BF16"),
    "pack e4m3": (pack_e4m3_kernel, (f32, u32), HOPPER, "F2FP.SATFINITE.E4M3"),
    "words": (words_kernel, (u32, u32), HOPPER, "STG.E.128"),
    "ex2": (exp2_kernel, (f32, f32), AMPERE, "MUFU.EX2"),
    "max3": (max3_bits_kernel, (f32, f32), HOPPER, "VIMNMX3"),
    "halves": (halves_kernel, (u32, u32, u32), HOPPER, "HSET2.GEU.AND"),
    "mbarrier": (mbarrier_kernel, (u32,), HOPPER, "SYNCS.PHASECHK.TRANS64.TRYWAIT"),
    "bounded wait": (bounded_wait_kernel, (u32,), HOPPER, "SYNCS.PHASECHK.TRANS64.TRYWAIT"),
    "tma": (make_tma(8, 2), (types.uint64, int32, int32, int32, u8), HOPPER, "UTMALDG.4D"),
    "tma multicast": (
        make_multicast(8, 2), (types.uint64, int32, int32, int32, u8), HOPPER,
        "UTMALDG.4D.MULTICAST",
    ),
    "tma store": (
        tma_store_kernel, (u8, types.uint64, int32, int32, int32), HOPPER, "UTMASTG.4D",
    ),
    "wgmma f16": (
        make_wgmma(64, 64, "float16", False), (u8, u8, f32), HOPPER, "HGMMA.64x64x16.F32",
    ),
    "wgmma bf16": (
        make_wgmma(96, 128, "bfloat16", False), (u8, u8, f32), HOPPER, "HGMMA.64x96x16.F32.BF16",
    ),
    "wgmma f16 registers": (
        make_wgmma(128, 64, "float16", True), (u8, u8, f32), HOPPER, "HGMMA.64x128x16.F32",
    ),
    "wgmma bf16 registers": (
        make_wgmma(64, 128, "bfloat16", True), (u8, u8, f32), HOPPER, "HGMMA.64x64x16.F32.BF16",
    ),
    "wgmma more": (
        make_wgmma(64, 128, "float16", False, ADDS="more"),
        (u8, u8, f32), HOPPER, "HGMMA.64x64x16.F32",
    ),
    "wgmma tiles": (
        make_wgmma(128, 64, "bfloat16", False, ADDS="tiles"),
        (u8, u8, f32), HOPPER, "HGMMA.64x128x16.F32.BF16",
    ),
    "wgmma e4m3": (
        make_wgmma(64, 64, "e4m3", False, 64), (u8, u8, f32), HOPPER, "QGMMA.64x64x32.F32.E4M3",
    ),
    "wgmma e4m3 registers": (
        make_wgmma(128, 192, "e4m3", True, 64), (u8, u8, f32), HOPPER, "QGMMA.64x128x32.F32.E4M3",
    ),
    "bias": (make_bias(128), (f32, f32), HOPPER, "HGMMA.64x128x16.F32.BF16"),
    "named barrier": (named_barrier_kernel, (u32,), HOPPER, "BAR.ARV"),
    "setmaxnreg": (setmaxnreg_kernel, (u32,), HOPPER, "USETMAXREG"),
}  # fmt: skip
