"""One small kernel for each instruction of the backward pass: compiled here, run on a GPU."""

import functools

from numba import cuda, float32, int32, types, uint8, uint16, uint32, uint64

from fa_numba.ptx import vectors, wgmma
from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.counters import counter_acquire, counter_release, counter_take
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_init, mbarrier_wait_bounded
from fa_numba.ptx.mbarrier import mbarrier_arrive_expect_tx as expect
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.tma import (
    in_window,
    tma_load_4d,
    tma_store_4d,
    tma_store_commit,
    tma_store_wait_read,
)
from fa_numba.tensor_core.backward import wgmma_products_of
from fa_numba.tensor_core.forward import wgmma_sums_of
from fa_numba.tensor_core.shared_plan import make_shared_base

HOPPER = (9, 0, "a")
u8, u32, f32 = (types.Array(t, 1, "C") for t in (types.uint8, types.uint32, types.float32))
i32, u16 = types.Array(types.int32, 1, "C"), types.Array(types.uint16, 2, "C")
shared_base = make_shared_base(1024)


@cuda.jit(device=True, forceinline=True)
def copy_tiles(a, b):
    """Both tiles one after the other in shared memory; the address of the first."""
    tiles = cuda.shared.array(0, uint8)
    skipped = (1024 - (shared_address(tiles) & 1023)) & 1023
    for i in range(cuda.threadIdx.x, a.size, 128):
        tiles[skipped + i] = a[i]
    for i in range(cuda.threadIdx.x, b.size, 128):
        tiles[skipped + a.size + i] = b[i]
    fence_async_proxy()
    cuda.syncthreads()
    return shared_address(tiles) + uint32(skipped)


@functools.cache
def make_wgmma_rows(N, K, A_ROWS, HALF, DTYPE):
    multiply = wgmma_products_of(DTYPE).by_rows
    LENGTH, BITS = N // 2, wgmma.descriptor_bits()
    START = HALF * 64 * wgmma.ROW_BYTES

    @cuda.jit
    def wgmma_rows_kernel(a, b, d):
        """d = A Bᵀ, A one half of the rows of a tile; tiles as bytes, registers of 128 threads."""
        registers = cuda.local.array(LENGTH, float32)
        tile = copy_tiles(a, b)
        wgmma.wgmma_fence()
        a_rows = wgmma.descriptor(BITS, tile + START)
        multiply(N, K, A_ROWS, registers, a_rows, wgmma.descriptor(BITS, tile + uint32(a.size)))
        wgmma.wgmma_commit()
        wgmma.wgmma_wait(0, registers, LENGTH)
        for i in range(LENGTH):
            d[cuda.threadIdx.x * LENGTH + i] = registers[i]

    return wgmma_rows_kernel


@functools.cache
def make_wgmma_columns(N, K, DTYPE, ADDS=False):
    multiply = wgmma_products_of(DTYPE).by_columns
    if ADDS:
        multiply = wgmma_sums_of(DTYPE).columns
    LENGTH, BITS = N // 2, wgmma.descriptor_bits(K * wgmma.ROW_BYTES)

    @cuda.jit
    def wgmma_columns_kernel(a, b, d):
        """d = Aᵀ B, or with ADDS d += Aᵀ B: tiles as bytes, registers of 128 threads."""
        registers = cuda.local.array(LENGTH, float32)
        for i in range(LENGTH):
            registers[i] = d[cuda.threadIdx.x * LENGTH + i]
        tile = copy_tiles(a, b)
        wgmma.wgmma_fence()
        b_columns = wgmma.descriptor(BITS, tile + uint32(a.size))
        multiply(N, K, registers, wgmma.descriptor(BITS, tile), b_columns)
        wgmma.wgmma_commit()
        wgmma.wgmma_wait(0, registers, LENGTH)
        wgmma.hold(registers, LENGTH)
        for i in range(LENGTH):
            d[cuda.threadIdx.x * LENGTH + i] = registers[i]

    return wgmma_columns_kernel


@functools.cache
def make_vectors(DTYPE):
    unpack = vectors.unpack_bf16x2 if DTYPE == "bfloat16" else vectors.unpack_f16x2

    @cuda.jit
    def vectors_kernel(x, total):
        """total += x, from shared memory where a bulk copy put total's x, and from registers."""
        shared = cuda.shared.array(65, uint64)  # one array: it begins at a multiple of 16
        two = cuda.local.array(2, float32)
        bits = cuda.local.array(4, uint32)
        four = cuda.local.array(4, float32)
        tile = shared_address(shared)
        barrier = tile + 512
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(barrier, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        if tid == 0:
            expect(barrier, 512)
            vectors.bulk_load(tile, global_address(x), 512, barrier)
        mbarrier_wait_bounded(barrier, 0)
        if tid < 32:  # from registers: 8 numbers
            vectors.load_global_x4(bits, global_address(x) + uint64(16 * tid))
            for i in range(2):
                for j in range(2):
                    unpack(two, bits[2 * i + j])
                    four[2 * j], four[2 * j + 1] = two[0], two[1]
                vectors.atomic_add_x4(global_address(total) + uint64(32 * tid + 16 * i), four)
        for i in range(2):  # from shared memory: pairs of registers, as pairs of float32
            vectors.load_shared_x2(four, tile + 8 * tid)
            unpack(two, bits_of(four[i]))
            for c in range(2):
                cuda.atomic.add(total, 4 * tid + 2 * i + c, two[c])

    return vectors_kernel


@cuda.jit(device=True, forceinline=True)
def bits_of(x):
    """The bits of a float32."""
    one = cuda.local.array(1, float32)
    one[0] = x
    return one.view(uint32)[0]


@cuda.jit
def counters_kernel(counters, ticket_of, seen):
    """Each thread block takes a ticket; the last one waits for all, and reads their stores."""
    first = global_address(counters)
    ticket = counter_take(first, 1)
    ticket_of[cuda.blockIdx.x] = ticket
    counter_release(first + uint64(4), 1)
    if ticket == cuda.gridDim.x - 1:
        while counter_acquire(first + uint64(4)) < cuda.gridDim.x:
            pass
        for i in range(cuda.gridDim.x):
            seen[i] = ticket_of[i]


@cuda.jit
def copy_windows(x_map, y_map, rows, ends, tiles):
    """Copy boxes of 16 rows from x to y, each up to its end, and what lies in shared memory."""
    shared = cuda.shared.array(0, uint16)
    barrier = cuda.shared.array(1, uint64)
    base, tid = uint32(shared_base()), cuda.threadIdx.x
    at = shared_address(barrier)
    if tid == 0:
        mbarrier_init(at, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    for i in range(rows.shape[0]):
        row, window = in_window(rows[i], ends[i], 16)
        if tid == 0:
            expect(at, 16 * 128)
            tma_load_4d(base, x_map, int32(0), row, int32(0), window, at)
        mbarrier_wait_bounded(at, i & 1)
        first = (base - shared_address(shared)) // 2
        for j in range(tid, 16 * 64, 32):
            tiles[i, j] = shared[first + j]
        fence_async_proxy()
        cuda.syncthreads()
        if tid == 0:
            tma_store_4d(y_map, int32(0), row, int32(0), window, base)
            tma_store_commit()
            tma_store_wait_read(0)
        cuda.syncthreads()


# name: (kernel, types of its arguments, target, instructions of its machine code)
KERNELS = {
    "wgmma of rows": (make_wgmma_rows(64, 128, 128, 1, "float16"), (u8, u8, f32), HOPPER, "HGMMA"),
    "wgmma of columns": (make_wgmma_columns(64, 128, "bfloat16"), (u8, u8, f32), HOPPER, "HGMMA"),
    "wgmma of more columns": (
        make_wgmma_columns(64, 128, "float16", True),
        (u8, u8, f32),
        HOPPER,
        "HGMMA",
    ),
    "vectors": (make_vectors("bfloat16"), (u8, f32), HOPPER, "RED", "UBLKCP"),
    "counters": (counters_kernel, (u32, u32, u32), HOPPER, "ATOM"),
    "windows": (
        copy_windows,
        (types.uint64, types.uint64, i32, i32, u16),
        HOPPER,
        "UTMALDG",
        "UTMASTG",
    ),
}
