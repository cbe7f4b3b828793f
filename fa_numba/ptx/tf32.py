"""Float32 products on tensor cores: three products of TF32 for one (sm_80 and later).

TF32 has float32's exponent and 11 of its 24 significant bits. A float32 is almost two of them,

    x = big + small + rest,   |small| <= 2⁻¹¹ |x|,   |rest| <= 2⁻²² |x|

so a b = big big + big small + small big with a relative error of some 2⁻²²: 3xTF32. Infinities have
no such parts: they become NaN.

mma.m16n8k8: D = A B + D with A (16, 8) and B (8, 8) in TF32, D (16, 8) in float32. A lane holds

    A, 4 registers                B, 2 registers           D, 4 floats
            k       k + 4                 n                        n      n + 1
    row g   a0      a2            row k   b0               row g   d0     d1
    row g+8 a1      a3            row k+4 b1               row g+8 d2     d3

where g = lane // 4 is the row of A and D, and the column of B; k = lane % 4; n = 2 (lane % 4).
For ldmatrix four bytes are two elements; it loads one such register for each lane. So it loads A
and B, four registers at once, if their rows lie along the sum.

A tensor core truncates its sums instead of rounding them, so a long sum drifts towards 0.

PTX ISA: "Matrix fragments for mma.m16n8k8". Paper: Ootomo and Yokota 2022, Recovering single
precision accuracy from Tensor Cores, arXiv:2203.03341.
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import literal, read, statement, tied, written

HALF = 1 << 12  # half of the last bit of a TF32, in bits of a float32: added, it rounds to nearest


@intrinsic
def split_tf32(typingctx, big, small, x, half, length):
    """Split each x: big is the nearest TF32, small = x − big; mma reads the first bits of small.

    x holds `length` float32, or uint32 of the same bits; `half` is HALF, or the result of
    `unknown_half`.
    """
    n = literal(length)
    lines = [".reg .b32 bits;"]
    for i in range(n):
        big_i, small_i, x_i = f"${i}", f"${n + i}", f"${2 * n + i}"
        lines += [
            f"mov.b32 bits, {x_i};",
            "add.s32 bits, bits, <half>;",
            f"and.b32 {big_i}, bits, 0xFFFFE000;",
            f"sub.f32 {small_i}, {x_i}, {big_i};",
        ]
    parts = {"big": written(big, n), "small": written(small, n), "x": read(x, n)}
    text = "{ " + " ".join(lines) + " }"
    return statement(text, pure=True, **parts, half=types.uint32, length=length)


@intrinsic
def unknown_half(typingctx, address):
    """Load HALF from shared memory so that the compiler cannot reuse an earlier split.

    Keeping both parts of an earlier split in registers would spill. The load is volatile: the
    compiler must assume that each may differ.
    """
    return statement(
        "ld.volatile.shared.b32 <result>, [<address>];", result=types.uint32, address=types.uint32
    )


@intrinsic
def mma_m16n8k8_tf32x3(typingctx, d, a_big, a_small, b0_big, b1_big, b0_small, b1_small):
    """d += a b for one 16×8×8 product of float32: three of TF32, the smallest terms first.

    The parts of a and b are each lane's, from `split_tf32`. All 32 lanes must take part.
    """
    big, small = "{<b0_big>, <b1_big>}", "{<b0_small>, <b1_small>}"
    pairs = f"<a_small>, {big}", f"<a_big>, {small}", f"<a_big>, {big}"
    mma = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    return statement(
        " ".join(f"{mma} <d>, {pair}, <d>;" for pair in pairs), pure=True, d=tied(d, 4),
        a_big=read(a_big, 4), a_small=read(a_small, 4), b0_big=types.uint32, b1_big=types.uint32,
        b0_small=types.uint32, b1_small=types.uint32,
    )  # fmt: skip
