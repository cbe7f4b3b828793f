"""cp.async: copies from global to shared memory that run while the thread computes (from sm_80).

A thread starts copies, commits them as a group, and later waits until at most a given number of its
newest groups are in flight. A thread waits for its own copies only: those of other threads have
arrived after a barrier (`cuda.syncthreads`) that all threads reach after their waits.

    thread     cp_async_16 ...  cp_async_commit()  | computes |  cp_async_wait(0)  syncthreads
    memory                      the group is copied ---------->

PTX ISA: "Data movement and conversion instructions: cp.async".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import literal, statement


@intrinsic
def cp_async_16(typingctx, destination, source, num_bytes):
    """Start a copy of 16 bytes: the first `num_bytes` are read, the others are zeros.

    In the PTX `cg` caches in L2 and bypasses L1: a thread block reads a tile once. `L2::128B` lets
    L2 fetch all 128 bytes, whose other parts neighbouring threads copy.

    Parameters
    ----------
    destination : uint32
        Address in shared memory, a multiple of 16.
    source : uint64
        Address in global memory, a multiple of 16; not read if num_bytes is 0.
    num_bytes : uint32
        0 to 16.
    """
    return statement(
        "cp.async.cg.shared.global.L2::128B [<destination>], [<source>], 16, <num_bytes>;",
        destination=types.uint32,
        source=types.uint64,
        num_bytes=types.uint32,
    )


@intrinsic
def cp_async_4(typingctx, destination, source, num_bytes):
    """Start a copy of 4 bytes; if num_bytes is 0, write 0 instead.

    In the PTX `ca` caches in L1, too: `cg` takes exactly 16 bytes.

    Parameters
    ----------
    destination : uint32
        Address in shared memory, a multiple of 4.
    source : uint64
        Address in global memory, a multiple of 4; not read if num_bytes is 0.
    num_bytes : uint32
        0 or 4.
    """
    return statement(
        "cp.async.ca.shared.global [<destination>], [<source>], 4, <num_bytes>;",
        destination=types.uint32,
        source=types.uint64,
        num_bytes=types.uint32,
    )


@intrinsic
def cp_async_commit(typingctx):
    """Commit the copies that this thread started since the last call as a group."""
    return statement("cp.async.commit_group;")


@intrinsic
def cp_async_wait(typingctx, pending):
    """Wait until at most the newest `pending` groups of this thread are in flight.

    Parameters
    ----------
    pending : int, a compile-time constant
    """
    return statement(f"cp.async.wait_group {literal(pending)};", pending=pending)
