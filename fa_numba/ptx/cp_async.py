"""cp.async: copies from global to shared memory that go on while the thread computes (sm_80 on).

A thread starts copies, closes them into a group, and later waits until no more than so many of its
groups, the newest, are still on their way. A thread waits for its own copies alone: those of others
are there after a barrier (`cuda.syncthreads`) that all reach after their waits.

    thread     cp_async_16 ...  cp_async_commit()  | computes |  cp_async_wait(0)  syncthreads
    memory                      the group is copied ---------->

PTX ISA: "Data movement and conversion instructions: cp.async".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import literal, statement


@intrinsic
def cp_async_16(typingctx, destination, source, num_bytes):
    """Start to copy 16 bytes, of which only the first `num_bytes` are read, the rest being 0.

    In the PTX `cg` is by way of L2 and past L1: a thread block reads a tile once. `L2::128B` lets
    L2 fetch the whole 128 bytes, of which neighbouring threads copy the rest.

    Parameters
    ----------
    destination : uint32
        Address in shared memory, a multiple of 16.
    source : uint64
        Address in global memory, a multiple of 16; not looked at where num_bytes is 0.
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
    """Start to copy 4 bytes, or to write 0 where num_bytes is 0.

    In the PTX `ca` is by way of L1 too: `cg` takes 16 bytes and no fewer.

    Parameters
    ----------
    destination : uint32
        Address in shared memory, a multiple of 4.
    source : uint64
        Address in global memory, a multiple of 4; not looked at where num_bytes is 0.
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
    """Close the copies that this thread started since the last call into a group."""
    return statement("cp.async.commit_group;")


@intrinsic
def cp_async_wait(typingctx, pending):
    """Wait until at most the newest `pending` groups of this thread are on their way.

    Parameters
    ----------
    pending : int, a compile-time constant
    """
    return statement(f"cp.async.wait_group {literal(pending)};", pending=pending)
