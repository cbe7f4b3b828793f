"""One small kernel for each instruction on 8-bit floats: compiled here, run on a GPU."""

import functools

from numba import cuda, float32, types, uint8, uint32, uint64

from fa_numba.tensor_core import barriers, convert, wgmma
from fa_numba.tensor_core.ptx import global_address, shared_address

HOPPER = (9, 0, "a")
u8, u32, f32 = (types.Array(t, 1, "C") for t in (types.uint8, types.uint32, types.float32))


@cuda.jit
def pack_kernel(x, y):
    """Thread i packs four of x."""
    i = cuda.threadIdx.x
    y[i] = convert.pack_e4m3x4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3])


@cuda.jit
def words_kernel(x, y):
    """Thread i copies four words of x, read one by one."""
    four = cuda.local.array(4, uint32)
    address = uint64(16 * cuda.threadIdx.x)
    for i in range(4):
        four[i] = convert.load_global_b32(global_address(x) + address + uint64(4 * i))
    convert.store_global_b128(global_address(y) + address, four)


@functools.cache
def make_wgmma(N, K, WIDTH, REGISTERS):
    A_BYTES, B_BYTES = 64 * K, N * K
    BITS = wgmma.narrow_descriptor_bits(WIDTH)
    LENGTH, A_LENGTH = N // 2, K // 8

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
                a_fragment[j] = convert.load_global_b32(at)
            wgmma.wgmma_fence()
            wgmma.wgmma_e4m3_registers(
                N, K, WIDTH, d_fragment, a_fragment, wgmma.descriptor(BITS, b_tile)
            )
            wgmma.wgmma_commit()
            wgmma.wgmma_wait_with(0, d_fragment, LENGTH, a_fragment, A_LENGTH)
        else:
            wgmma.wgmma_fence()
            wgmma.wgmma_e4m3(
                N,
                K,
                WIDTH,
                d_fragment,
                wgmma.descriptor(BITS, a_tile),
                wgmma.descriptor(BITS, b_tile),
            )
            wgmma.wgmma_commit()
            wgmma.wgmma_wait(0, d_fragment, LENGTH)
        for j in range(LENGTH):
            d[LENGTH * i + j] = d_fragment[j]

    return wgmma_kernel


# name: kernel, types of its arguments, target, what the machine code must hold
KERNELS = {
    "pack e4m3": (pack_kernel, (f32, u32), HOPPER, "F2FP.SATFINITE.E4M3"),
    "words": (words_kernel, (u32, u32), HOPPER, "STG.E.128"),
    "wgmma e4m3": (make_wgmma(64, 64, 64, False), (u8, u8, f32), HOPPER, "QGMMA.64x64x32.F32.E4M3"),
    "wgmma e4m3 registers": (
        make_wgmma(128, 192, 64, True), (u8, u8, f32), HOPPER, "QGMMA.64x128x32.F32.E4M3",
    ),
}  # fmt: skip
