"""mbarrier: a barrier in shared memory that counts threads, and bytes that a copy delivers.

A barrier is 8 bytes. It is in phase 0, 1, 2, ...; a phase ends when the number of arrivals reaches
the count of the initialisation, and all announced bytes have been written. A thread waits for the
end of a phase by its parity, 0 or 1: `wait(barrier, parity)` returns as soon as the phase that
ended last has this parity. On a new barrier that is 1, as if there had been a phase −1:

    current phase          0          1          2          3
    wait(barrier, 0)       waits      returns    waits      returns
    wait(barrier, 1)       returns    waits      returns    waits

One bit is enough if no thread can fall two phases behind. A ring of tiles has two barriers for each
stage: consumers wait on "full" for the copy, the producer waits on "empty" for the consumers. Here
is "full" of one stage, for tiles 0 and 2 of a ring of two:

    producer  arrive_expect_tx | copy of tile 0 |            arrive_expect_tx | copy of tile 2 |
    phase     0                                 | 1                                            | 2
    consumer  wait(full, 0) ................... | reads tile 0 | wait(full, 1) ............... | ...

The phase ends when the last byte has arrived, not when the thread arrives. The announcement must
come in the same phase, so the thread announces the bytes before it starts the copy.

In the PTX `shared::cta` is the thread block's own shared memory. An arrival has `release` and a
wait `acquire` semantics for the thread block (`cta`): threads that waited see all that a thread
wrote before it arrived. `_` drops the state that an arrival returns, another way to name a phase.
`try_wait` may sleep for a while before it returns false: cheaper than polling.

mbarrier is in sm_80, counting bytes and try_wait in sm_90.

PTX ISA: "Parallel synchronization and communication instructions: mbarrier".
"""

import os

from numba import cuda, uint32
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement

BYTES = 8  # of a barrier
# For new kernels: waits end after MAX_TRIES, so that a mistake cannot hang the GPU.
BOUNDED = os.environ.get("FA_NUMBA_BOUNDED_WAITS") == "1"
MAX_TRIES = 1 << 16  # of the bounded wait: far beyond any copy


@intrinsic
def mbarrier_init(typingctx, barrier, count):
    """Make the 8 bytes at `barrier` a barrier in phase 0, whose phases need `count` arrivals.

    One thread does this; `fence_mbarrier_init` and a barrier of the thread block must follow.
    Everywhere `barrier` is an address in shared memory, a multiple of 8.
    """
    return statement(
        "mbarrier.init.shared::cta.b64 [<barrier>], <count>;",
        barrier=types.uint32,
        count=types.uint32,
    )


@intrinsic
def fence_mbarrier_init(typingctx):
    """Make the barriers that this thread initialised visible to TMA."""
    return statement("fence.mbarrier_init.release.cluster;")


@intrinsic
def mbarrier_arrive(typingctx, barrier):
    """Arrive once; earlier reads and writes of this thread happen before the phase ends."""
    return statement(
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [<barrier>];", barrier=types.uint32
    )


@intrinsic
def mbarrier_arrive_expect_tx(typingctx, barrier, num_bytes):
    """Announce that copies will deliver `num_bytes` in this phase, and arrive once.

    These are the bytes of all copies together, zero-padding included. With one byte too few or too
    many, the phase does not end when the copies do.
    """
    return statement(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [<barrier>], <num_bytes>;",
        barrier=types.uint32,
        num_bytes=types.uint32,
    )


@intrinsic
def mbarrier_try_wait(typingctx, barrier, parity):
    """1 if the phase of this parity has ended, 0 if it has not after some (short) time.

    The parity, 0 or 1, is the index of the phase modulo 2.
    """
    return statement(
        "{ .reg .pred done; "
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [<barrier>], <parity>; "
        "selp.u32 <result>, 1, 0, done; }",
        result=types.uint32,
        barrier=types.uint32,
        parity=types.uint32,
    )


@cuda.jit(device=True, forceinline=True)
def mbarrier_wait(barrier, parity):
    """Wait until the phase of this parity has ended; both are uint32, as in `mbarrier_try_wait`."""
    while mbarrier_try_wait(barrier, parity) == uint32(0):
        pass


@cuda.jit(device=True, forceinline=True)
def mbarrier_wait_bounded(barrier, parity):
    """As `mbarrier_wait`, for at most MAX_TRIES: a mistake gives a wrong result and no hang."""
    tries = uint32(0)
    while mbarrier_try_wait(barrier, parity) == uint32(0) and tries < uint32(MAX_TRIES):
        tries += uint32(1)


@cuda.jit(device=True, forceinline=True)
def phase(count, length):
    """Parity of the phase of "full" that ends with tile `count`, from 0 on, of a ring.

    The tiles fill the `length` stages in order: tile `count` is in stage count % length. Its
    producer waits for the other parity, phase(...) ^ 1, of "empty": for the phase before.
    """
    return (count // length) & 1


def wait_function():
    """The wait function for kernels: bounded if $FA_NUMBA_BOUNDED_WAITS is 1."""
    return mbarrier_wait_bounded if BOUNDED else mbarrier_wait
