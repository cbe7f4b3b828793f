"""wgmma: a warpgroup, four warps, multiplies matrices that lie in shared memory (sm_90a).

One instruction is D += A B with A (64, 16), B (16, n), D (64, n) in float32, n a multiple of 8 up
to 256. B is read from shared memory; A from shared memory or from registers. Products are
asynchronous: the threads can work while the tensor cores multiply:

    wgmma_fence()                    orders earlier writes to d, A's registers and tiles before it
    wgmma_f16(n, k, d, a, b)         starts a product; more may follow, also on the same d
    wgmma_commit()                   commits the started products as a group
    ...                              any work on other registers
    wgmma_wait(0, d, n // 2)         d and A's registers must not be touched before it

wgmma_wait(1, ...) lets the newest group continue: so the softmax of one tile overlaps with the
product of another. Each product here is of k columns of A, k / 16 instructions in a row: in a loop
of single ones ptxas waits for each. The fence must come directly before the first: with a loop
between, such as a wait on an mbarrier, ptxas serialises them (its warning C7519).

Layout of D: warp w of the warpgroup has rows 16 w to 16 w + 15. With g = lane // 4 and
c = 2 (lane % 4), a lane has four floats in each 8 columns n = 0, 8, 16, ..., from d[n // 2] on. The
layout is that of mma's D (drawn by lane number in `mma`), and A in registers has that of mma's A,
so a product's result can be the next one's A:

               cols 0–7                   cols 8–15
               col c    col c+1           col 8+c   col 8+c+1
    row g      d0       d1                d4        d5           ... of warp 0; rows 16 to 31
    row g+8    d2       d3                d6        d7           are warp 1's, and so on

An element of a product is a sum: D[i, j] = sum over t of A[i, t] B[t, j]. In Q Kᵀ t goes over
head_dim: the rows of a tile of Q or K in shared memory lie along the sum ("K-major" in NVIDIA's
texts). In P V t goes over the keys: a tile of V has a row for each term of the sum ("MN-major").
wgmma reads 16-bit numbers either way, so no tile is ever transposed. There is a function for each:

    wgmma_*                d = A Bᵀ    rows of both along the sum; A is a tile of 64 rows
    wgmma_*_registers      d += A B    A in registers; B with a row for each term
    wgmma_rows_*           d = A Bᵀ    as wgmma_*, A is 64 rows of a larger tile      (backward)
    wgmma_columns_*        d = Aᵀ B    both with a row for each term of the sum       (backward)
    wgmma_more_*           d += A Bᵀ   as wgmma_*: the next terms of a sum that comes in pieces
    wgmma_tiles_*          d += A B    A is a tile of 64 rows, along the sum; B as for _registers
    wgmma_more_columns_*   d += Aᵀ B   as wgmma_columns_*: the next terms of a sum

A matrix in shared memory consists of panels of 64 columns (128 bytes), each with all rows, one
after the other, the chunks of 16 bytes swizzled (`layouts.swizzle`). Its descriptor has 64 bits:

    bits  0–13   address / 16
    bits 16–29   leading byte offset / 16: for a row for each term of the sum (V), from one panel
                 of 64 columns to the next; not used for rows along the sum (Q and K)
    bits 32–45   stride byte offset / 16: from 8 rows to the next 8
    bits 62–63   1: swizzled in rows of 128 bytes

For the next 16 terms of the sum the address advances: by 32 bytes along Q's and K's rows, by 16
rows of V. The swizzle is computed from address bits, so it stays correct if the tile begins at a
multiple of 1024, the 8 rows over which the swizzle repeats.

With 8-bit floats, e4m3, an instruction takes 32 columns of A instead of 16, and the rows of both
matrices must lie along the sum. Panels may be narrower, so that a tile with any multiple of 32
columns has whole panels: rows of `width` = 128, 64 or 32 bytes, with 1, 2 or 3 in bits 62–63 and 8
rows as the stride (`byte_offset`). A in registers is

              4 c' ... 4 c'+3    16+4 c' ... 16+4 c'+3      with c' = lane % 4
    row g     a0                 a2
    row g+8   a1                 a3

which differs from the layout of a product's result: the keys must be renumbered
(`quantize_fp8.slot_key`).

PTX ISA: "Asynchronous warpgroup level matrix instructions".
"""

from numba import cuda, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.statement import Fragment, literal, statement, tied, written

GROUP_BYTES = 8 * ROW_BYTES  # the rows over which the swizzle repeats
SWIZZLES = {128: 1, 64: 2, 32: 3}  # bits 62–63 of a descriptor, by the width of a panel's row


def descriptor_bits(leading_bytes=16, stride_bytes=GROUP_BYTES):
    """The constant part of a descriptor, to which `descriptor` adds the address.

    `leading_bytes` is the distance from one panel of 64 columns to the next, for a row for each
    term of the sum; any number for rows along the sum. `stride_bytes` is that from 8 rows to the
    next 8.
    """
    return (1 << 62) | (stride_bytes >> 4 << 32) | (leading_bytes >> 4 << 16)


def narrow_descriptor_bits(width):
    """`descriptor_bits` for rows along the sum, in panels of `width` bytes."""
    return (SWIZZLES[width] << 62) | (8 * width >> 4 << 32) | (1 << 16)


def column_bytes(col, num_rows):
    """Byte offset of column `col` in a matrix of `num_rows` rows."""
    return col // 64 * num_rows * ROW_BYTES + col % 64 * 2


def byte_offset(row, col, num_rows, width):
    """Byte offset of element [row, col], of 8 bits, in a tile with panels of `width` columns.

    Chunks of 16 bytes are swizzled within their row: `layouts.swizzle`, for any width.
    """
    chunk = col % width // 16 ^ row * width // 128 % (width // 16)
    return (col // width * num_rows + row) * width + chunk * 16 + col % 16


@cuda.jit(device=True, forceinline=True)
def descriptor(bits, address):
    """Descriptor of a matrix in shared memory.

    `bits` are from `descriptor_bits`, `narrow_descriptor_bits`, or `alibi.RAMP_BITS`; `address` is
    a multiple of 1024, or of 16 if the matrix is not swizzled.
    """
    return uint64(bits) | uint64(address >> 4)


@cuda.jit(device=True, forceinline=True)
def descriptor_in_cluster(bits, address):
    """As `descriptor`, in a cluster: without the block's rank, which is above the 18 bits."""
    return descriptor(bits, address & 0x3FFFF)


@intrinsic
def wgmma_fence(typingctx):
    """Order the warpgroup's accesses to registers and shared memory before the products.

    Products access registers asynchronously. All 128 threads call this before the first product,
    and again after they have written d or A's registers.
    """
    return statement("wgmma.fence.sync.aligned;")


@intrinsic
def wgmma_commit(typingctx):
    """Commit the products that were started since the last call as a group."""
    return statement("wgmma.commit_group.sync.aligned;")


@intrinsic
def wgmma_wait(typingctx, pending, d, length):
    """Wait until at most the newest `pending` groups are in flight; then `d` may be read.

    `d` is a tied operand, so that the compiler reads it only afterwards.
    """
    return statement(
        f"wgmma.wait_group.sync.aligned {literal(pending)};",
        pending=pending,
        d=tied(d, literal(length)),
        length=length,
    )


@intrinsic
def wgmma_wait_with(typingctx, pending, d, length, a, a_length):
    """As `wgmma_wait`, for a product with A in registers: then `a` may be overwritten, too."""
    return statement(
        f"wgmma.wait_group.sync.aligned {literal(pending)};",
        pending=pending,
        d=tied(d, literal(length)),
        length=length,
        a=tied(a, literal(a_length)),
        a_length=a_length,
    )


@intrinsic
def wgmma_f16(typingctx, n, k, d, a, b):
    """d = A Bᵀ, float16, both in shared memory with their rows along the sum.

    n and k are multiples of 8 and of 16; a and b are descriptors of A (64, k) and B (n, k), made
    with ``descriptor_bits()``.
    """
    return _shared("f16", n, k, d, _along(64), _along(n))


@intrinsic
def wgmma_bf16(typingctx, n, k, d, a, b):
    """d = A Bᵀ, bfloat16; see `wgmma_f16`."""
    return _shared("bf16", n, k, d, _along(64), _along(n))


@intrinsic
def wgmma_f16_registers(typingctx, n, k, d, a, b):
    """d += A B, float16, A in registers, B in shared memory with a row for each term of the sum.

    `a` has 4 registers for each 16 columns, as for `mma.mma_m16n8k16_f16`; each warp has 16 rows. b
    is the descriptor of B (k, n), made with ``descriptor_bits(k * ROW_BYTES)``.
    """
    return _registers_shared("f16", n, k, d, a)


@intrinsic
def wgmma_bf16_registers(typingctx, n, k, d, a, b):
    """d += A B, bfloat16; see `wgmma_f16_registers`."""
    return _registers_shared("bf16", n, k, d, a)


@intrinsic
def wgmma_e4m3(typingctx, n, k, width, d, a, b):
    """d = A Bᵀ, e4m3, both in shared memory.

    n is a multiple of 8, k of 32; `width` is that of a panel of A and of B. a and b are descriptors
    of A (64, k) and B (n, k), made with ``narrow_descriptor_bits(width)``.
    """
    lines = [".reg .pred add; .reg .b64 a, b;"]
    for col in range(0, literal(k), 32):
        lines += [
            f"setp.ne.b32 add, {min(col, 1)}, 0;",  # the first overwrites
            f"add.s64 a, <a>, {byte_offset(0, col, 64, literal(width)) >> 4};",
            f"add.s64 b, <b>, {byte_offset(0, col, literal(n), literal(width)) >> 4};",
            f"{_instruction('e4m3', n, 32)} <d>, a, b, add, 1, 1;",
        ]
    return statement(
        "{ " + " ".join(lines) + " }", n=n, k=k, width=width, d=written(d, literal(n) // 2),
        a=types.uint64, b=types.uint64,
    )  # fmt: skip


@intrinsic
def wgmma_e4m3_registers(typingctx, n, k, width, d, a, b):
    """d = A Bᵀ, e4m3, A in registers, B in shared memory; the rows of both along the sum.

    `a` has 4 registers of 4 e4m3 for each 32 columns; the others are as in `wgmma_e4m3`.
    """
    lines = [".reg .pred add; .reg .b64 b;"]
    for col in range(0, literal(k), 32):
        lines += [
            f"setp.ne.b32 add, {min(col, 1)}, 0;",  # the first overwrites
            f"add.s64 b, <b>, {byte_offset(0, col, literal(n), literal(width)) >> 4};",
            f"{_instruction('e4m3', n, 32)} <d>, <a{col // 32}>, b, add, 1, 1;",
        ]
    return statement(
        "{ " + " ".join(lines) + " }", n=n, k=k, width=width, d=written(d, literal(n) // 2),
        a=Fragment(a, literal(k) // 8, parts=4), b=types.uint64,
    )  # fmt: skip


# Flags follow the operands of an instruction: add to d or overwrite it; the signs of A and B; for
# 16-bit A and B, a row for each term of the sum (1) or rows along it (0). A in registers has no
# such flag.


def _along(rows):
    """Offset of term i of the sum, in bytes: rows along the sum, in a tile of so many."""
    return lambda i: column_bytes(i, rows if isinstance(rows, int) else literal(rows))


def _down(i):
    """Offset of term i of the sum, in bytes: a row for each term."""
    return i * ROW_BYTES


def _shared(kind, n, k, d, a_bytes, b_bytes, add=False, **sizes):
    """A and B in shared memory, `_along` or `_down`; the first overwrites d, or adds to it."""
    flags = f"{a_bytes is _down:d}, {b_bytes is _down:d}"
    lines = [".reg .pred add; .reg .b64 a, b;"]
    for i in range(0, literal(k), 16):
        lines += [
            f"setp.ne.b32 add, {min(i, 1) | add}, 0;",
            f"add.s64 a, <a>, {a_bytes(i) >> 4};",
            f"add.s64 b, <b>, {b_bytes(i) >> 4};",
            f"{_instruction(kind, n)} <d>, a, b, add, 1, 1, {flags};",
        ]
    d = tied(d, literal(n) // 2) if add else written(d, literal(n) // 2)
    text = "{ " + " ".join(lines) + " }"
    return statement(text, n=n, k=k, **sizes, d=d, a=types.uint64, b=types.uint64)


def _registers_shared(kind, n, k, d, a):
    lines = [".reg .pred add; .reg .b64 b; setp.ne.b32 add, 1, 0;"]
    for row in range(0, literal(k), 16):
        lines += [
            f"add.s64 b, <b>, {row * ROW_BYTES >> 4};",
            f"{_instruction(kind, n)} <d>, <a{row // 16}>, b, add, 1, 1, 1;",
        ]
    return statement(
        "{ " + " ".join(lines) + " }",
        n=n,
        k=k,
        d=tied(d, literal(n) // 2),
        a=Fragment(a, literal(k) // 4, parts=4),
        b=types.uint64,
    )


def _instruction(kind, n, k=16):
    return f"wgmma.mma_async.sync.aligned.m64n{literal(n)}k{k}.f32.{kind}.{kind}"


@intrinsic
def wgmma_rows_f16(typingctx, n, k, a_rows, d, a, b):
    """d = A Bᵀ, float16, as `wgmma_f16`; A is 64 of the `a_rows` rows of a tile."""
    return _shared("f16", n, k, d, _along(a_rows), _along(n), a_rows=a_rows)


@intrinsic
def wgmma_rows_bf16(typingctx, n, k, a_rows, d, a, b):
    """d = A Bᵀ, bfloat16; see `wgmma_rows_f16`."""
    return _shared("bf16", n, k, d, _along(a_rows), _along(n), a_rows=a_rows)


@intrinsic
def wgmma_columns_f16(typingctx, n, k, d, a, b):
    """d = Aᵀ B, float16, both in shared memory with a row for each term of the sum.

    a and b are descriptors of A (k, 64) and B (k, n), made with ``descriptor_bits(k * ROW_BYTES)``.
    """
    return _shared("f16", n, k, d, _down, _down)


@intrinsic
def wgmma_columns_bf16(typingctx, n, k, d, a, b):
    """d = Aᵀ B, bfloat16; see `wgmma_columns_f16`."""
    return _shared("bf16", n, k, d, _down, _down)


@intrinsic
def wgmma_more_f16(typingctx, n, k, d, a, b):
    """d += A Bᵀ, float16, otherwise as `wgmma_f16`."""
    return _shared("f16", n, k, d, _along(64), _along(n), add=True)


@intrinsic
def wgmma_more_bf16(typingctx, n, k, d, a, b):
    """d += A Bᵀ, bfloat16; see `wgmma_more_f16`."""
    return _shared("bf16", n, k, d, _along(64), _along(n), add=True)


@intrinsic
def wgmma_tiles_f16(typingctx, n, k, d, a, b):
    """d += A B, float16, both in shared memory: only A (64, k) with its rows along the sum.

    a is made with ``descriptor_bits()``, b with ``descriptor_bits(k * ROW_BYTES)``.
    """
    return _shared("f16", n, k, d, _along(64), _down, add=True)


@intrinsic
def wgmma_tiles_bf16(typingctx, n, k, d, a, b):
    """d += A B, bfloat16; see `wgmma_tiles_f16`."""
    return _shared("bf16", n, k, d, _along(64), _down, add=True)


@intrinsic
def wgmma_more_columns_f16(typingctx, n, k, d, a, b):
    """d += Aᵀ B, float16, otherwise as `wgmma_columns_f16`."""
    return _shared("f16", n, k, d, _down, _down, add=True)


@intrinsic
def wgmma_more_columns_bf16(typingctx, n, k, d, a, b):
    """d += Aᵀ B, bfloat16; see `wgmma_more_columns_f16`."""
    return _shared("bf16", n, k, d, _down, _down, add=True)


@intrinsic
def wgmma_wait_group(typingctx, pending):
    """Wait until at most the newest `pending` groups are in flight.

    For tiles in shared memory: then those of the older groups may be overwritten. The compiler does
    not know that results are ready: `wgmma_wait` for them.
    """
    return statement(f"wgmma.wait_group.sync.aligned {literal(pending)};", pending=pending)


@intrinsic
def hold(typingctx, x, length):
    """No instruction: keeps the compiler from moving a read of x before an earlier wait.

    `wgmma_wait` does this for one array; `hold` is for other results of the same wait.
    """
    return statement("", x=tied(x, literal(length)), length=length)
