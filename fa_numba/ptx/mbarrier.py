"""mbarrier: a barrier in shared memory that counts threads, and bytes that a copy delivers.

A barrier is 8 bytes. It is in phase 0, 1, 2, ...; a phase ends when as many threads have arrived as
it was initialised for, and all bytes that they announced have been written. A thread waits for the
end of a phase by its parity, 0 or 1: `wait(barrier, parity)` returns as soon as the phase that
ended last has this parity. On a new barrier that is 1, as if there had been a phase −1:

    phase that goes on     0          1          2          3
    wait(barrier, 0)       waits      returns    waits      returns
    wait(barrier, 1)       returns    waits      returns    waits

One bit is enough where nobody can fall two phases behind. A ring of tiles has two barriers for each
stage: "full", on which consumers wait for the copy, and "empty", on which the producer waits for
the consumers. Here is "full" of one stage, for tiles 0 and 2 of a ring of two:

    producer  arrive_expect_tx | copy of tile 0 |            arrive_expect_tx | copy of tile 2 |
    phase     0                                 | 1                                            | 2
    consumer  wait(full, 0) ................... | reads tile 0 | wait(full, 1) ............... | ...

The phase ends when the last byte is there, not when the thread arrives; the announcement must come
in the same phase, so it is made before the copy is started.

In the PTX `shared::cta` is the thread block's own shared memory. `release` with an arrival and
`acquire` with a wait, both for the thread block (`cta`), order memory: what a thread wrote before
it arrived, those who waited see. `_` drops the state that an arrival returns, another way to name a
phase. `try_wait` may sleep for a while before it says no, which costs less than asking all along.

mbarrier is in sm_80, counting bytes and try_wait in sm_90.

PTX ISA: "Parallel synchronization and communication instructions: mbarrier".
"""

import os

from numba import cuda, uint32
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement

BYTES = 8  # of a barrier
# While a kernel is new: waits give up in the end, so that a mistake cannot hang the GPU.
BOUNDED = os.environ.get("FA_NUMBA_BOUNDED_WAITS") == "1"
MAX_TRIES = 1 << 16  # of the bounded wait: far beyond any copy


@intrinsic
def mbarrier_init(typingctx, barrier, count):
    """Make the 8 bytes at `barrier` a barrier in phase 0, whose phases need `count` arrivals.

    One thread does this; `fence_mbarrier_init` and a barrier of the block must follow.

    Parameters
    ----------
    barrier : uint32
        Address in shared memory, a multiple of 8.
    count : uint32
    """
    return statement(
        "mbarrier.init.shared::cta.b64 [<barrier>], <count>;",
        barrier=types.uint32,
        count=types.uint32,
    )


@intrinsic
def fence_mbarrier_init(typingctx):
    """Let the copy engine, too, see the barriers that this thread initialised."""
    return statement("fence.mbarrier_init.release.cluster;")


@intrinsic
def mbarrier_arrive(typingctx, barrier):
    """Arrive once; what this thread read and wrote before happens before the phase ends.

    Parameters
    ----------
    barrier : uint32
        Address in shared memory.
    """
    return statement(
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [<barrier>];", barrier=types.uint32
    )


@intrinsic
def mbarrier_arrive_expect_tx(typingctx, barrier, num_bytes):
    """Announce that copies will deliver `num_bytes` in this phase, and arrive once.

    Parameters
    ----------
    barrier : uint32
        Address in shared memory.
    num_bytes : uint32
        Of all copies together, what they fill with 0 included: one byte too few or too many, and
        the phase does not end when the copies do.
    """
    return statement(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [<barrier>], <num_bytes>;",
        barrier=types.uint32,
        num_bytes=types.uint32,
    )


@intrinsic
def mbarrier_try_wait(typingctx, barrier, parity):
    """1 if the phase of this parity has ended, 0 if it had not after some (short) time.

    Parameters
    ----------
    barrier : uint32
        Address in shared memory.
    parity : uint32
        0 or 1: number of the phase, modulo 2.

    Returns
    -------
    uint32
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
    """As `mbarrier_wait`, but give up in the end: a mistake gives a wrong result and no hang."""
    tries = uint32(0)
    while mbarrier_try_wait(barrier, parity) == uint32(0) and tries < uint32(MAX_TRIES):
        tries += uint32(1)


@cuda.jit(device=True, forceinline=True)
def phase(count, length):
    """Parity of the phase of "full" that ends when a ring is filled the count-th time, from 0 on.

    Its `length` stages are filled in turn: that time it is stage count % length. Who fills it waits
    for the other parity, phase(...) ^ 1, of "empty": for the phase before.
    """
    return (count // length) & 1


def wait_function():
    """The wait that kernels are made with: bounded where $FA_NUMBA_BOUNDED_WAITS is 1."""
    return mbarrier_wait_bounded if BOUNDED else mbarrier_wait
