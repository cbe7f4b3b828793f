"""wgmma for the backward pass: products of a part of a tile, and of a tile read by its columns.

`wgmma` has D = A Bᵀ with A in a tile of its own, 64 rows. Here A is 64 rows of a larger tile; or
both matrices lie in shared memory with a row for each term of the sum, D = Aᵀ B: wgmma reads either
way, so that nothing is ever transposed. What the two modules share is explained in `wgmma`.

PTX ISA: "Asynchronous warpgroup level matrix instructions".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.tensor_core.ptx import literal, statement, tied, written
from fa_numba.tensor_core.wgmma import ROW_BYTES, column_bytes


@intrinsic
def wgmma_rows_f16(typingctx, n, k, a_rows, d, a, b):
    """d = A Bᵀ, float16, both in shared memory with their rows along the sum.

    Parameters
    ----------
    n, k, a_rows : int, compile-time constants
        A is 64 of the `a_rows` rows of a tile.
    d : local array of n // 2 float32
        What it held is lost.
    a, b : uint64
        Descriptors of A (64, k) and B (n, k), made with ``descriptor_bits()``.
    """
    return _rows("f16", n, k, a_rows, d)


@intrinsic
def wgmma_rows_bf16(typingctx, n, k, a_rows, d, a, b):
    """d = A Bᵀ, bfloat16; see `wgmma_rows_f16`."""
    return _rows("bf16", n, k, a_rows, d)


@intrinsic
def wgmma_columns_f16(typingctx, n, k, d, a, b):
    """d = Aᵀ B, float16, both in shared memory with a row for each term of the sum.

    Parameters
    ----------
    n, k : int, compile-time constants
    d : local array of n // 2 float32
        What it held is lost.
    a, b : uint64
        Descriptors of A (k, 64) and B (k, n), made with ``descriptor_bits(k * ROW_BYTES)``.
    """
    return _columns("f16", n, k, d)


@intrinsic
def wgmma_columns_bf16(typingctx, n, k, d, a, b):
    """d = Aᵀ B, bfloat16; see `wgmma_columns_f16`."""
    return _columns("bf16", n, k, d)


@intrinsic
def hold(typingctx, x, length):
    """No instruction: what follows a wait, and reads x, is not moved before it.

    `wgmma_wait` does this for one array; this is for the others that the wait was for.

    Parameters
    ----------
    x : local array of `length` float32 or uint32
    length : int, a compile-time constant
    """
    return statement("", x=tied(x, literal(length)), length=length)


def _rows(kind, n, k, a_rows, d):
    steps = [
        (column_bytes(col, literal(a_rows)), column_bytes(col, literal(n)))
        for col in range(0, literal(k), 16)
    ]
    text = _products(f"m64n{literal(n)}k16.f32.{kind}.{kind}", steps, "0, 0")
    d = written(d, literal(n) // 2)
    return statement(text, n=n, k=k, a_rows=a_rows, d=d, a=types.uint64, b=types.uint64)


def _columns(kind, n, k, d):
    steps = [(row * ROW_BYTES, row * ROW_BYTES) for row in range(0, literal(k), 16)]
    text = _products(f"m64n{literal(n)}k16.f32.{kind}.{kind}", steps, "1, 1")
    d = written(d, literal(n) // 2)
    return statement(text, n=n, k=k, d=d, a=types.uint64, b=types.uint64)


def _products(shape, steps, transposed):
    """One instruction for each pair of offsets in bytes, of A and of B; the first overwrites d."""
    lines = [".reg .pred add; .reg .b64 a, b;"]
    for i, (a_bytes, b_bytes) in enumerate(steps):
        lines += [
            f"setp.ne.b32 add, {min(i, 1)}, 0;",
            f"add.s64 a, <a>, {a_bytes >> 4};",
            f"add.s64 b, <b>, {b_bytes >> 4};",
            f"wgmma.mma_async.sync.aligned.{shape} <d>, a, b, add, 1, 1, {transposed};",
        ]
    return "{ " + " ".join(lines) + " }"
