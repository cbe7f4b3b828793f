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
    L2 fetch all 128 bytes, whose other parts neighbouring threads copy. `source` is not read if
    `num_bytes` is 0.
    """
    return statement(
        "cp.async.cg.shared.global.L2::128B [<destination>], [<source>], 16, <num_bytes>;",
        destination=types.uint32,
        source=types.uint64,
        num_bytes=types.uint32,
    )


@intrinsic
def cp_async_4(typingctx, destination, source, num_bytes):
    """Start a copy of 4 bytes; if `num_bytes` is 0 and not 4, write a 0 and read nothing.

    In the PTX `ca` caches in L1, too: `cg` takes exactly 16 bytes.
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
    """Wait until at most the newest `pending` groups of this thread, a constant, are in flight."""
    return statement(f"cp.async.wait_group {literal(pending)};", pending=pending)
