"""Named barriers, the fence before TMA and wgmma, and registers that move between warpgroups.

PTX ISA: "Parallel synchronization and communication instructions: bar", "membar/fence";
"Miscellaneous instructions: setmaxnreg".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import literal, statement


@intrinsic
def named_barrier_sync(typingctx, barrier, num_threads):
    """Wait at barrier 1 to 15 until `num_threads` threads have arrived, with a wait or without.

    Barrier 0 is `cuda.syncthreads`. All threads of a warp execute this together; `num_threads` is a
    multiple of 32.
    """
    return statement(
        "barrier.cta.sync <barrier>, <num_threads>;", barrier=types.uint32, num_threads=types.uint32
    )


@intrinsic
def named_barrier_arrive(typingctx, barrier, num_threads):
    """Arrive at barrier 1 to 15 without waiting; see `named_barrier_sync`."""
    return statement(
        "barrier.cta.arrive <barrier>, <num_threads>;",
        barrier=types.uint32,
        num_threads=types.uint32,
    )


@intrinsic
def fence_async_proxy(typingctx):
    """Make this thread's stores to shared memory visible to wgmma and TMA.

    Both access shared memory through the async proxy; a barrier alone does not order them after
    ordinary stores. Each thread that stored calls this before the barrier.
    """
    return statement("fence.proxy.async.shared::cta;")


@intrinsic
def setmaxnreg_dec(typingctx, count):
    """Keep `count` registers per thread and release the others; all threads of a warpgroup.

    The kernel must have launch bounds, or ptxas ignores this (its warning C7508). `count` is a
    compile-time constant, 24 to 256, a multiple of 8. sm_90a.
    """
    return _setmaxnreg("dec", count)


@intrinsic
def setmaxnreg_inc(typingctx, count):
    """Wait until `count` registers per thread are free, and take them; see `setmaxnreg_dec`."""
    return _setmaxnreg("inc", count)


def _setmaxnreg(change, count):
    return statement(f"setmaxnreg.{change}.sync.aligned.u32 {literal(count)};", count=count)
