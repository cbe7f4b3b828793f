"""Counters in global memory: tickets and flags by which concurrent thread blocks find their order.

An addition releases and a load acquires: if one thread block reads the sum of another's addition,
it sees all that the other one wrote before. That includes writes of other threads of the thread
block, if a barrier of the thread block comes between them and the addition.

PTX ISA: "Memory consistency model"; "Parallel synchronization and communication instructions: atom,
red".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement


@intrinsic
def counter_take(typingctx, address, x):
    """Add to a counter and return its old value: no two thread blocks get the same."""
    return statement(
        "atom.relaxed.gpu.global.add.u32 <result>, [<address>], <x>;",
        result=types.uint32,
        address=types.uint64,
        x=types.uint32,
    )


@intrinsic
def counter_release(typingctx, address, x):
    """Add to a counter, after all earlier writes (release); see `counter_take`."""
    return statement(
        "red.release.gpu.global.add.u32 [<address>], <x>;", address=types.uint64, x=types.uint32
    )


@intrinsic
def counter_acquire(typingctx, address):
    """Read a counter, before all later reads of this thread (acquire)."""
    return statement(
        "ld.acquire.gpu.global.u32 <result>, [<address>];",
        result=types.uint32,
        address=types.uint64,
    )
