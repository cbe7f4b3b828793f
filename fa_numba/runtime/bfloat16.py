"""Converts bfloat16 to float32, and float32 to bfloat16, in a few instructions.

A bfloat16 is the upper half of a float32: its bits and 16 zeros are the same number. Numba's own
conversions call C++ functions, which keep the number in local memory and are linked on a machine
with a GPU. Importing this module replaces them by conversions with the same results on every GPU.
float16 needs none of this: each of its conversions is one instruction.
"""

try:
    from llvmlite import ir
    from numba import float32
    from numba.cuda import bf16  # noqa: F401   Numba's conversions, first: the last definition counts
    from numba.cuda.extending import lower_cast
    from numba.cuda.types import bfloat16
except ImportError:  # no numba-cuda, or its simulator: nothing is compiled
    pass
else:
    BITS = ir.IntType(32)

    @lower_cast(bfloat16, float32)
    def widen(context, builder, fromty, toty, value):
        """Widen exactly: the lower bits are 0."""
        bits = builder.shl(builder.zext(value, BITS), BITS(16))
        return builder.bitcast(bits, ir.FloatType())

    @lower_cast(float32, bfloat16)
    def narrow(context, builder, fromty, toty, value):
        """Round to nearest, ties to even. A NaN is handled apart: it could round to infinity."""
        bits = builder.bitcast(value, BITS)
        is_odd = builder.and_(builder.lshr(bits, BITS(16)), BITS(1))
        bits = builder.add(bits, builder.add(is_odd, BITS(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", value, value)
        bits = builder.select(is_nan, BITS(0x7FC00000), bits)
        return builder.trunc(builder.lshr(bits, BITS(16)), ir.IntType(16))
