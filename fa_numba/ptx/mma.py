"""mma.sync: a warp multiplies two small matrices (sm_80 and later).

D = A B + D with A (16, 16) and B (16, 8) in float16 or bfloat16, D (16, 8) in float32. "m16n8k16"
are A's rows, B's columns and the terms of each sum; they are not the m and n of queries and keys.
Each of the 32 lanes holds a few elements of each matrix, its fragment. With g = lane // 4 and
c = 2 (lane % 4) these are

    A, 4 registers of 2 elements            B, 2 registers of 2          D, 4 float32
             cols c, c+1   c+8, c+9                        col g                  col c   c+1
    row g    a0            a2               rows c, c+1    b0            row g    d0      d1
    row g+8  a1            a3               rows c+8, c+9  b1            row g+8  d2      d3

Two neighbours in a row of A, or in a column of B, share a register, the first in its low half. The
lane that holds each element:

    A, left half: a0; below a1    B, upper half: b0        D: d0, d1; below d2, d3
    row 0    0  0  1  1  2  2  3  3    0  4  8 12 16 20 24 28    0  0  1  1  2  2  3  3
    row 1    4  4  5  5  6  6  7  7    0  4  8 12 16 20 24 28    4  4  5  5  6  6  7  7
    row 2    8  8  9  9 10 10 11 11    1  5  9 13 17 21 25 29    8  8  9  9 10 10 11 11
    ...
    row 7   28 28 29 29 30 30 31 31    3  7 11 15 19 23 27 31   28 28 29 29 30 30 31 31
    row 8    0  0  1  1  2  2  3  3    as row 0, in b1           0  0  1  1  2  2  3  3

A's right half, a2 and a3, has the layout of its left half. D has it, too: the result of one product
can be the A of the next. `layouts.mma_a`, `mma_b`, `mma_d` say the same in NumPy, and
`fa_numba.figures.fragments` draws it.

The PTX is `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, d`. sync: the lanes wait for
each other. aligned: all 32 lanes execute this one instruction, so it must not be in a branch that
only some take. row.col: A is stored by rows, B by columns, as drawn; m16n8k16 has no other form.
Then follow the types of D, A, B, and of the addend.

PTX ISA: "Matrix fragments for mma.m16n8k16 with floating point type".
"""

from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import read, statement, tied


@intrinsic
def mma_m16n8k16_f16(typingctx, d, a, b):
    """d += a b for one 16×8×16 product of float16, accumulated in float32.

    d, a and b are each lane's part of the matrices. All 32 lanes of the warp must take part.
    """
    return _mma("f16", d, a, b)


@intrinsic
def mma_m16n8k16_bf16(typingctx, d, a, b):
    """d += a b for one 16×8×16 product of bfloat16, accumulated in float32."""
    return _mma("bf16", d, a, b)


def _mma(kind, d, a, b):
    return statement(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 <d>, <a>, <b>, <d>;",
        pure=True,
        d=tied(d, 4),
        a=read(a, 4),
        b=read(b, 2),
    )
