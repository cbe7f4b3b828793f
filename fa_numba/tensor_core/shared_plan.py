"""Shared memory of a kernel, laid out once on the host.

A kernel for Hopper divides its dynamic shared memory by hand: tiles, which TMA writes and wgmma
reads, and the mbarriers of their rings. A `SharedPlan` places one region after the other. The
kernel adds a region's start to the address from `shared_base`; its launcher asks for `plan.bytes`.

    plan = SharedPlan()
    K, V = plan.tiles(STAGES, KV_BYTES), plan.tiles(STAGES, KV_BYTES)
    K_RING, V_RING = plan.ring(STAGES), plan.ring(STAGES)

    byte 0             V.start            K_RING.full K_RING.empty V_RING.full V_RING.empty
    | K tile | K tile | V tile | V tile | full full  | empty empty | full full | empty empty |

    in the kernel      base = shared_base()
                       k_tile, k_full = base + K.start, base + K_RING.full
                       if tid == 0:
                           init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
                           fence_mbarrier_init()
    in the launcher    arrays.launch(..., shared_bytes=plan.bytes)

Regions are tuples of numbers, hence compile-time constants of a kernel: no instruction adds them
up, other than the one that adds their sum to the base.
"""

import functools
from typing import NamedTuple

from numba import cuda, uint8, uint32, uint64

from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import fence_async_proxy, named_barrier_sync
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.mbarrier import mbarrier_arrive, mbarrier_init
from fa_numba.ptx.statement import shared_address
from fa_numba.ptx.wgmma import GROUP_BYTES

LEAST_ALIGN = 16  # the multiple at which dynamic shared memory begins in any kernel


class Region(NamedTuple):
    """Bytes of shared memory.

    Attributes
    ----------
    start : int
        Offset of the first byte from the plan's base.
    bytes : int
    """

    start: int
    bytes: int


class Ring(NamedTuple):
    """Barriers of a ring of tiles: "full" and "empty" for each of its stages (`mbarrier`).

    Attributes
    ----------
    full, empty : int
        Offset from the plan's base of the first stage's barrier; the next stage's follows it.
    length : int
        Number of stages.
    """

    full: int
    empty: int
    length: int


class SharedPlan:
    """Regions of dynamic shared memory, one after the other.

    Parameters
    ----------
    align : int, default=1024
        The base and every tile begin at a multiple of it: a power of 2, at least 16. The 128-byte
        swizzle repeats after 1024 bytes, and TMA and wgmma take tiles that begin with it.

    Attributes
    ----------
    bytes : int
        Dynamic shared memory to ask for at the launch.
    shared_base : device function
        ``shared_base()`` is the base: the first address in dynamic shared memory that is a
        multiple of `align`.
    """

    def __init__(self, align=GROUP_BYTES):
        if align < LEAST_ALIGN or align & (align - 1):
            raise ValueError(f"align must be a power of 2, at least {LEAST_ALIGN}, got {align!r}")
        self.align = align
        self.shared_base = make_shared_base(align)
        self._end = 0

    @property
    def bytes(self):
        # The base may lie up to `align` bytes after the beginning of dynamic shared memory.
        return self._end + (self.align if self.align > LEAST_ALIGN else 0)

    def tiles(self, count, num_bytes):
        """`count` tiles of `num_bytes` bytes, one after the other.

        Returns
        -------
        Region
        """
        return self.region(count * num_bytes, self.align)

    def ring(self, length):
        """Barriers for a ring of `length` tiles; `init_rings` initialises them.

        Returns
        -------
        Ring
        """
        full = self.barriers(length)
        return Ring(full.start, self.barriers(length).start, length)

    def barriers(self, count):
        """`count` mbarriers that belong to no ring.

        Returns
        -------
        Region
        """
        return self.region(count * mbarrier.BYTES, mbarrier.BYTES)

    def region(self, num_bytes, align=LEAST_ALIGN):
        """`num_bytes` bytes that begin at a multiple of `align`.

        Returns
        -------
        Region
        """
        start = -(-self._end // align) * align
        self._end = start + num_bytes
        return Region(start, num_bytes)


@functools.cache
def make_shared_base(ALIGN):
    """shared_base(): the first address in dynamic shared memory that is a multiple of ALIGN."""
    MASK = (1 << 32) - ALIGN

    @cuda.jit(device=True, forceinline=True)
    def first_byte():
        return shared_address(cuda.shared.array(0, uint8))

    @cuda.jit(device=True, forceinline=True)
    def shared_base():
        return (first_byte() + (ALIGN - 1)) & MASK

    return shared_base if ALIGN > LEAST_ALIGN else first_byte


@cuda.jit(device=True, forceinline=True)
def init_rings(base, rings, num_consumers):
    """Initialise the barriers of rings of one length; one thread calls this.

    "full" needs one arrival in a phase, the producer's; "empty" needs one from each consumer.
    `fence_mbarrier_init` and a barrier of the thread block must follow.

    Parameters
    ----------
    base : address from ``shared_base()``
    rings : tuple of Ring
    num_consumers : int
        Arrivals that free a stage: one lane of each warp that reads it.
    """
    for stage in range(rings[0].length):
        offset = stage * mbarrier.BYTES
        for ring in rings:
            mbarrier_init(base + ring.full + offset, 1)
        for ring in rings:
            mbarrier_init(base + ring.empty + offset, num_consumers)


@cuda.jit(device=True, forceinline=True)
def clear_rows(memory, tile, num_panels, num_rows, first_row, tid):
    """Zero a tile's rows from first_row on, which belong to another sequence of a packed batch.

    Each warpgroup does it for itself: it may zero rows of V again that another one reads. `memory`
    is all of dynamic shared memory, as numbers of 8 bytes.
    """
    first = 8 * (tid & 127)
    start = tile - shared_address(memory) + first
    panel_bytes = num_rows * ROW_BYTES
    for offset in range(0, panel_bytes, 8 * 128):  # unrolled: each thread 8 bytes
        if offset + first >= first_row * ROW_BYTES:
            for panel in range(num_panels):
                memory[uint64((start + panel * panel_bytes + offset) >> 3)] = uint64(0)
    fence_async_proxy()
    named_barrier_sync(tid >> 7, 128)  # the rows are 0: safe to multiply


@functools.cache
def make_ring_functions(RING):
    """next_stage(stage, parity), wait_for(base, stage, parity), release(base, stage, lane)."""
    STAGES = RING.length
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def next_stage(stage, parity):
        stage = uint32(stage + 1)
        if stage == STAGES:
            return uint32(0), uint32(parity ^ 1)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def wait_for(base, stage, parity):
        wait(base + RING.full + stage * mbarrier.BYTES, parity)

    @cuda.jit(device=True, forceinline=True)
    def release(base, stage, lane):
        """Say that this warp no longer needs a stage."""
        if lane == 0:
            mbarrier_arrive(base + RING.empty + stage * mbarrier.BYTES)

    return next_stage, wait_for, release
