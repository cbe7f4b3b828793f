"""mma.sync: a warp multiplies two small matrices (sm_80 and later).

D = A B + D with A (16, 16) and B (16, 8) in float16 or bfloat16, D (16, 8) in float32. The 32 lanes
hold the matrices together, each its own few elements of every row or column:

    A, 4 registers of 2 elements           B, 2 registers               D, 4 floats
            k 0..7        k 8..15               n 0..7                       n 0..7
    row g   a0 (k, k+1)   a2 (k+8, +9)     k    b0 (rows k, k+1)     row g   d0 d1 (n, n+1)
    row g+8 a1            a3               k+8  b1 (rows k+8, +9)    row g+8 d2 d3

where g = lane // 4 is the row of A and D, and the column n of B; k = n = 2 (lane % 4).
Two neighbouring elements of a row of A, or of a column of B, share a register, the first in its
low half. D has the layout of A's left half, so what one product gives can be the next one's A.

`layouts.mma_a`, `mma_b`, `mma_d` say the same in NumPy.

PTX ISA: "Matrix fragments for mma.m16n8k16 with floating point type".
"""

from numba.cuda.extending import intrinsic

from fa_numba.tensor_core.ptx import read, statement, tied


@intrinsic
def mma_m16n8k16_f16(typingctx, d, a, b):
    """d += a b for one 16×8×16 product of float16, accumulated in float32.

    Parameters
    ----------
    d : local array of 4 float32
    a : local array of 4 uint32
    b : local array of 2 uint32
        Each lane's part of the matrices. All 32 lanes of the warp must take part.
    """
    return _mma("f16", d, a, b)


@intrinsic
def mma_m16n8k16_bf16(typingctx, d, a, b):
    """d += a b for one 16×8×16 product of bfloat16, accumulated in float32.

    Parameters are those of `mma_m16n8k16_f16`.
    """
    return _mma("bf16", d, a, b)


def _mma(kind, d, a, b):
    return statement(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 <d>, <a>, <b>, <d>;",
        pure=True,
        d=tied(d, 4),
        a=read(a, 4),
        b=read(b, 2),
    )
