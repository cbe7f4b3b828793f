"""Loads of 16 bytes from global memory straight into registers.

A warp's load of 16 bytes by each lane is 512 bytes on their way after one instruction. Nothing is
written to what these loads read while a kernel runs: they take the path of read-only data. They
give no hint about caches. Bytes read once need not stay in L1, but L1::no_allocate is the first to
be evicted from L2 too: where L2 holds what was written before, an H200 then read less in a second
(benchmarks/NOTES.md).

PTX ISA: "Data movement and conversion instructions: ld.global.nc, prmt".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.tensor_core.ptx import statement, written


@intrinsic
def load_global_b128(typingctx, registers, address):
    """Load 16 bytes that no thread writes while the kernel runs.

    Parameters
    ----------
    registers : local array of 4 uint32 or float32
    address : uint64
        In global memory, a multiple of 16.
    """
    kind = "f32" if registers.dtype == types.float32 else "b32"
    return statement(
        f"ld.global.nc.v4.{kind} <registers>, [<address>];",
        registers=written(registers, 4),
        address=types.uint64,
    )


@intrinsic
def load_global_b32(typingctx, address):
    """Load 4 bytes that no thread writes while the kernel runs.

    Parameters
    ----------
    address : uint64
        In global memory, a multiple of 4.

    Returns
    -------
    uint32
    """
    return statement(
        "ld.global.nc.b32 <result>, [<address>];", result=types.uint32, address=types.uint64
    )


@intrinsic
def store_shared_zeros(typingctx, address):
    """Set 16 bytes of shared memory to 0.

    Parameters
    ----------
    address : uint32
        A multiple of 16.
    """
    return statement("st.shared.v4.b32 [<address>], {0, 0, 0, 0};", address=types.uint32)


@intrinsic
def low_halves(typingctx, x, y):
    """The low 16 bits of x, and in the upper half those of y."""
    return _halves("0x5410")


@intrinsic
def high_halves(typingctx, x, y):
    """The high 16 bits of x, and in the upper half those of y."""
    return _halves("0x7632")


def _halves(selector):
    return statement(
        f"prmt.b32 <result>, <x>, <y>, {selector};",
        result=types.uint32,
        pure=True,
        x=types.uint32,
        y=types.uint32,
    )
