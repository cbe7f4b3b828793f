"""mma.sync for exercises: the instruction on a GPU, and what it does on the CPU engine.

`mma_f16` and `mma_tf32` multiply by a warp's fragments, as `mma` and `tf32` do, with the fragments
as local arrays of numbers: element 2 r + h of a float16 fragment is half h of register r. On a GPU
each is one instruction. The CPU engine calls `on_the_engine`, the same in shuffles: each lane gets
from the others the rows of A and the columns of B that its elements of D are sums of. Products are
exact, and each sum is rounded once, where a tensor core truncates it.

`load_a`, `load_b`, `load_d` and `store_d` move fragments of float16 products between arrays and
lanes.
"""

import math

import numpy as np
from numba import cuda, float32, float64

FULL_WARP = 0xFFFFFFFF
float16 = np.float16


@cuda.jit(device=True)
def _f16_by_shuffles(d, a, b):
    lane = cuda.laneid
    first = lane - lane % 4  # of the quad that has the rows of this lane's d
    sum0, sum1, sum2, sum3 = float64(d[0]), float64(d[1]), float64(d[2]), float64(d[3])
    for k in range(16):
        i, source = k // 8 * 2 + k % 2, k % 8 // 2
        upper, lower = i + k // 8 * 2, i + k // 8 * 2 + 2  # rows g and g + 8 of A
        a0 = cuda.shfl_sync(FULL_WARP, float32(a[upper]), first + source)
        a1 = cuda.shfl_sync(FULL_WARP, float32(a[lower]), first + source)
        b0 = cuda.shfl_sync(FULL_WARP, float32(b[i]), 8 * (lane % 4) + source)
        b1 = cuda.shfl_sync(FULL_WARP, float32(b[i]), 8 * (lane % 4) + 4 + source)
        sum0 += float64(a0) * float64(b0)
        sum1 += float64(a0) * float64(b1)
        sum2 += float64(a1) * float64(b0)
        sum3 += float64(a1) * float64(b1)
    d[0], d[1], d[2], d[3] = float32(sum0), float32(sum1), float32(sum2), float32(sum3)


@cuda.jit(device=True)
def _truncated(x):
    """x as a tensor core reads it: the first 11 significant bits."""
    fraction, exponent = math.frexp(float64(x))
    return float32(math.ldexp(float64(math.trunc(math.ldexp(fraction, 11))), exponent - 11))


@cuda.jit(device=True)
def _tf32_by_shuffles(d, a, b):
    lane = cuda.laneid
    first, column = lane - lane % 4, 8 * (lane % 4)
    sum0, sum1, sum2, sum3 = float64(d[0]), float64(d[1]), float64(d[2]), float64(d[3])
    for half in range(2):
        upper, lower = _truncated(a[2 * half]), _truncated(a[2 * half + 1])
        own = _truncated(b[half])
        for source in range(4):
            a0 = float64(cuda.shfl_sync(FULL_WARP, upper, first + source))
            a1 = float64(cuda.shfl_sync(FULL_WARP, lower, first + source))
            b0 = float64(cuda.shfl_sync(FULL_WARP, own, column + source))
            b1 = float64(cuda.shfl_sync(FULL_WARP, own, column + 4 + source))
            sum0 += a0 * b0
            sum1 += a0 * b1
            sum2 += a1 * b0
            sum3 += a1 * b1
    d[0], d[1], d[2], d[3] = float32(sum0), float32(sum1), float32(sum2), float32(sum3)


@cuda.jit(device=True)
def _rounded_to_tf32(x):
    fraction, exponent = math.frexp(float64(x))
    away = math.copysign(math.floor(math.ldexp(abs(fraction), 11) + 0.5), fraction)
    return float32(math.ldexp(away, exponent - 11))


try:
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    from fa_numba.ptx.statement import read, statement, tied
except ImportError:  # without a compiler
    mma_f16, mma_tf32, to_tf32 = _f16_by_shuffles, _tf32_by_shuffles, _rounded_to_tf32
else:

    @intrinsic
    def mma_f16(typingctx, d, a, b):
        """d += a b of a warp: A (16, 16), B (16, 8) float16, D (16, 8) float32.

        d, a and b are local arrays of 4 float32, 8 and 4 float16. All 32 lanes must take part.
        """
        return statement(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 <d>, <a>, <b>, <d>;",
            pure=True,
            d=tied(d, 4),
            a=read(a, 4, as_words=True),
            b=read(b, 2, as_words=True),
        )

    @intrinsic
    def mma_tf32(typingctx, d, a, b):
        """d += a b of a warp: A (16, 8), B (8, 8), D (16, 8); of A and B 11 bits are read.

        d, a and b are local arrays of 4, 4 and 2 float32. All 32 lanes must take part.
        """
        return statement(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 <d>, <a>, <b>, <d>;",
            pure=True,
            d=tied(d, 4),
            a=read(a, 4, as_words=True),
            b=read(b, 2, as_words=True),
        )

    @intrinsic
    def to_tf32(typingctx, x):
        """x rounded to the nearest TF32, as a float32."""
        text = "{ .reg .b32 y; cvt.rna.tf32.f32 y, <x>; mov.b32 <result>, y; }"
        return statement(text, result=types.float32, pure=True, x=types.float32)

    mma_f16.on_the_engine = _f16_by_shuffles
    mma_tf32.on_the_engine = _tf32_by_shuffles
    to_tf32.on_the_engine = _rounded_to_tf32


@cuda.jit(device=True)
def load_a(a, x, row, col):
    """The fragment of A = x[row : row + 16, col : col + 16]; zeros where x has no element."""
    g, c = cuda.laneid // 4, 2 * (cuda.laneid % 4)
    for i in range(8):
        m, n = row + g + i // 2 % 2 * 8, col + c + i // 4 * 8 + i % 2
        a[i] = x[m, n] if m < x.shape[0] and n < x.shape[1] else float16(0)


@cuda.jit(device=True)
def load_b(b, x, row, col):
    """The fragment of B = x[row : row + 16, col : col + 8]; zeros where x has no element."""
    g, c = cuda.laneid // 4, 2 * (cuda.laneid % 4)
    for i in range(4):
        m, n = row + c + i // 2 * 8 + i % 2, col + g
        b[i] = x[m, n] if m < x.shape[0] and n < x.shape[1] else float16(0)


@cuda.jit(device=True)
def store_d(x, d, row, col):
    """Store the fragment of D at x[row : row + 16, col : col + 8], as far as x has elements."""
    g, c = cuda.laneid // 4, 2 * (cuda.laneid % 4)
    for i in range(4):
        m, n = row + g + i // 2 * 8, col + c + i % 2
        if m < x.shape[0] and n < x.shape[1]:
            x[m, n] = d[i]


@cuda.jit(device=True)
def load_d(d, x, row, col):
    """The fragment of D = x[row : row + 16, col : col + 8], float32."""
    g, c = cuda.laneid // 4, 2 * (cuda.laneid % 4)
    for i in range(4):
        d[i] = x[row + g + i // 2 * 8, col + c + i % 2]
