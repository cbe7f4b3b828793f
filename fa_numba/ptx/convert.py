"""From scores to packed results: 2^x, the maximum of three, rounding to 16 and 8 bits.

exp2, max3_bits   the functions of a softmax: one instruction each
pack_*            two or four float32 rounded into one register, an operand of the next product
unpack_e4m3*      four e4m3 of one register as float16, exactly (sm_89)

PTX ISA: "Data movement and conversion instructions: cvt"; "Floating-point instructions: ex2";
"Integer arithmetic instructions: max".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement, written


@intrinsic
def pack_f16x2(typingctx, low, high):
    """Round two float32 to float16 and pack them into one register, `low` in the low half."""
    return _pack("f16x2")


@intrinsic
def pack_bf16x2(typingctx, low, high):
    """Round two float32 to bfloat16 and pack them into one register, `low` in the low half."""
    return _pack("bf16x2")


def _pack(kind):
    return statement(
        f"cvt.rn.{kind}.f32 <result>, <high>, <low>;",  # PTX names the high half first
        result=types.uint32,
        pure=True,
        low=types.float32,
        high=types.float32,
    )


@intrinsic
def pack_e4m3x4(typingctx, x0, x1, x2, x3):
    """Round four float32 to e4m3 and pack them into one register, x0 in the low byte.

    Numbers beyond ±448 become ±448.
    """
    text = (
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, <x1>, <x0>; "
        "cvt.rn.satfinite.e4m3x2.f32 high, <x3>, <x2>; mov.b32 <result>, {low, high}; }"
    )
    x = types.float32
    return statement(text, result=types.uint32, pure=True, x0=x, x1=x, x2=x, x3=x)


@intrinsic
def unpack_e4m3x4(typingctx, x, four):
    """Four e4m3 of one register as float16, two in each register of x, the low bytes first."""
    return _unpack_e4m3(x, "mov.b32 {low, high}, <four>;")


@intrinsic
def unpack_e4m3_pairs(typingctx, x, four):
    """As `unpack_e4m3x4`, but bytes 0 and 2 in the first register of x, 1 and 3 in the second."""
    return _unpack_e4m3(x, "prmt.b32 even, <four>, 0, 0x3120; mov.b32 {low, high}, even;")


def _unpack_e4m3(x, halves):
    text = (
        f"{{ .reg .b32 even; .reg .b16 low, high; {halves} "
        "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
    )
    return statement(text, pure=True, x=written(x, 2), four=types.uint32)


@intrinsic
def exp2(typingctx, x):
    """2^x by the special function unit: one instruction, an error of about 2 ulp."""
    return statement(
        "ex2.approx.ftz.f32 <result>, <x>;", result=types.float32, pure=True, x=types.float32
    )


@intrinsic
def max3_bits(typingctx, x, y, z):
    """The largest of three float32, by one integer instruction.

    Compares the bit patterns as int32: correct unless all three are negative; then it returns the
    smallest.
    """
    text = (
        "{ .reg .s32 a, b, c; mov.b32 a, <x>; mov.b32 b, <y>; mov.b32 c, <z>; "
        "max.s32 a, a, b; max.s32 a, a, c; mov.b32 <result>, a; }"
    )
    f = types.float32
    return statement(text, result=f, pure=True, x=f, y=f, z=f)
