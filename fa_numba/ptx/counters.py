"""Counters in global memory, by which thread blocks that run at the same time find their turn.

What a thread block did before it adds to a counter, another one sees that has read the sum: the
addition releases, the load acquires. That includes what its other threads did, if a barrier of the
block stands between.

PTX ISA: "Memory consistency model"; "Parallel synchronization and communication instructions: atom,
red".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement


@intrinsic
def counter_take(typingctx, address, x):
    """Add to a counter and get what it was before: no two thread blocks get the same.

    Parameters
    ----------
    address : uint64
        In global memory, a multiple of 4.
    x : uint32

    Returns
    -------
    uint32
    """
    return statement(
        "atom.relaxed.gpu.global.add.u32 <result>, [<address>], <x>;",
        result=types.uint32,
        address=types.uint64,
        x=types.uint32,
    )


@intrinsic
def counter_release(typingctx, address, x):
    """Add to a counter, after all that this thread block did before; see `counter_take`."""
    return statement(
        "red.release.gpu.global.add.u32 [<address>], <x>;", address=types.uint64, x=types.uint32
    )


@intrinsic
def counter_acquire(typingctx, address):
    """A counter's value, before all that this thread does after."""
    return statement(
        "ld.acquire.gpu.global.u32 <result>, [<address>];",
        result=types.uint32,
        address=types.uint64,
    )
