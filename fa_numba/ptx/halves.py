"""The two 16-bit halves of a register: compare them with a limit, and put halves together.

keep_pair     a half is kept where its random bits are at least the limit, and is 0 elsewhere
keep_mask     the same as a mask: 0xFFFF or 0 in each half
low_bits      a mask of the lowest bits
byte_permute  four bytes of two registers
word          a number that is kept in 32 bits

The low 15 bits of a half are compared as a float16, whose order for positive numbers is that of the
bits; a NaN counts as larger than the limit. So one instruction compares two halves. The limit must
not be a NaN: at most `LARGEST_LIMIT`.

PTX ISA: "Comparison and selection instructions: set"; "Data movement and conversion instructions:
prmt".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import literal, statement

LARGEST_LIMIT = 0x7C00  # infinity in float16

# abs drops the top bit of each half; ptxas makes it a part of the comparison.
_COMPARE = "abs.f16x2 kept, <bits>; set.geu.u32.f16x2 kept, kept, <limits>;"


@intrinsic
def keep_pair(typingctx, x, bits, limits):
    """x, with 0 in each half where the low 15 bits of that half of `bits` are below the limit.

    `limits` has the limit in both halves.
    """
    text = f"{{ .reg .b32 kept; {_COMPARE} and.b32 <result>, kept, <x>; }}"
    u = types.uint32
    return statement(text, result=u, pure=True, x=u, bits=u, limits=u)


@intrinsic
def keep_mask(typingctx, bits, limits):
    """0xFFFF in each half where the low 15 bits of that half of `bits` are at least the limit."""
    text = f"{{ .reg .b32 kept; {_COMPARE} mov.b32 <result>, kept; }}"
    u = types.uint32
    return statement(text, result=u, pure=True, bits=u, limits=u)


@intrinsic
def word(typingctx, x):
    """x, in a register of 32 bits: no instruction.

    Where 32-bit numbers come from 64-bit products and go into others, LLVM computes all with 64
    bits; a multiplication of two 64-bit numbers takes an addition more.
    """
    u = types.uint32
    return statement("mov.b32 <result>, <x>;", result=u, pure=True, x=u)


@intrinsic
def low_bits(typingctx, count):
    """A register whose lowest `count` bits are 1; all of them for 32 or more."""
    u = types.uint32
    return statement("bmsk.clamp.b32 <result>, 0, <count>;", result=u, pure=True, count=u)


@intrinsic
def byte_permute(typingctx, x, y, selector):
    """Four bytes of x (0 to 3) and y (4 to 7), one for each of the selector's low four nibbles."""
    u = types.uint32
    text = "prmt.b32 <result>, <x>, <y>, <selector>;"
    return statement(text, result=u, pure=True, x=u, y=u, selector=u)


@intrinsic
def column_lane(typingctx, x, first):
    """x of lane first + lane % 4: of the same columns in the layout of `fragments`.

    `first` is a compile-time constant, a multiple of 4. So the lane is in the instruction, and no
    register holds its number.
    """
    text = f"shfl.sync.idx.b32 <result>, <x>, {literal(first)}, 0x31f, 0xffffffff;"
    return statement(text, result=types.uint32, x=types.uint32, first=first)
