"""Operations of several threads: barriers, shuffles and votes.

Threads are numbered x fastest, then y, then z; 32 consecutive ones are a warp. Here a lane
value is laid out as (threads, blocks), or (warps, 32, blocks) after padding the last warp.
"""

import math

import numpy as np

from .arrays import poison
from .dtypes import TypedInts, as_bool, as_index, as_intp, typed
from .errors import BarrierDivergenceError, UnsupportedError, notice, thread_name
from .lanes import ALL, NOBODY, WARP
from .records import present_site

FULL_MASK = np.int64(0xFFFFFFFF)


class Warps:
    """Barriers and warp intrinsics.

    Parameters
    ----------
    lanes : Lanes
        The threads that meet.
    options : Options
    watch : Watch or None
        Hears every barrier and fence.
    """

    def __init__(self, lanes, options, watch):
        self.lanes, self.options, self.watch = lanes, options, watch
        self.shuffle_sources = {}
        self.start_batch()

    def start_batch(self):
        self.lawful = None  # the mask under which a barrier was last found legal

    def from_warps(self, values):
        """Return one value per warp, (warps, blocks), as a lane value."""
        values = np.repeat(values, WARP, axis=0)[: self.lanes.num_threads]
        return values.reshape(*self.lanes.shape[:3], -1)

    # ------------------------------------------------------------------ barriers

    def live(self):
        """Return which threads have not returned from the kernel, (threads, blocks)."""
        if self.lanes.exited is NOBODY:
            return np.ones((self.lanes.num_threads, self.lanes.num_blocks), bool)
        return ~self.lanes.full(self.lanes.exited)

    def check_barrier(self, name):
        """A barrier is legal if all threads of a block that still run arrive at it."""
        mask = self.lanes.mask
        if self.lanes.turns.alone:
            self.refuse_alone(name)
        if mask is ALL or self.lawful is mask or not self.options.divergence:
            return
        arrived, live = self.lanes.active(), self.live()
        present = arrived.any(0)
        bad = present & (arrived != live).any(0)
        if bad.any():
            block = int(bad.argmax())
            waits = self.lanes.thread_coordinates(arrived[:, block].argmax())
            absent = live[:, block] & ~arrived[:, block]
            never = self.lanes.thread_coordinates(absent.argmax())
            where = self.lanes.block_coordinates(block)
            raise BarrierDivergenceError(
                f"{name} is reached by {arrived[:, block].sum()} of the {live[:, block].sum()} "
                f"running threads of block {where}: thread {waits} waits here, thread {never} "
                "never arrives",
                thread=waits,
                block=where,
                hint="On a GPU the block hangs, or goes on with wrong data.",
            )
        self.lawful = mask

    def refuse_alone(self, name):
        """Say why a thread that runs by itself, as others wait for a lock, cannot meet them."""
        lanes = self.lanes
        thread, block, _ = lanes.culprit(lanes.mask)
        where = {"thread": thread, "block": block}
        for memory, place, value, lock in lanes.turns.held:
            if memory[place] == value:
                raise BarrierDivergenceError(
                    f"{thread_name(thread, block)} waits at {name} while it holds the lock {lock}",
                    **where,
                    hint="The other threads wait for the lock, and never arrive: a GPU hangs. Free "
                    "the lock before the barrier.",
                )
        raise UnsupportedError(
            f"{name} in a kernel whose threads wait for each other in a loop",
            **where,
            hint="A GPU would run it. The CPU engine runs such threads one after the other, and "
            "they cannot meet. Let one thread of each block take the lock.",
        )

    def syncthreads(self):
        self.check_barrier("cuda.syncthreads()")
        if self.watch is not None:
            self.watch.barrier()

    def syncwarp(self, mask=FULL_MASK):
        self.check_members(mask, "cuda.syncwarp()", may_go_on=True)
        if self.watch is not None:
            self.watch.warp_barrier(mask)

    def threadfence(self):
        """cuda.threadfence(): stores of all threads are seen at once here; only a watch cares."""
        if self.watch is not None:
            self.watch.fence()

    def grid_sync(self):
        """cuda.cg.this_grid().sync(): every thread of the grid waits for all others."""
        if self.lanes.num_blocks != math.prod(self.lanes.grid):
            raise UnsupportedError(
                "this_grid().sync() in a device function, for a grid of several batches,",
                hint="Call cuda.cg.this_grid() in the kernel itself.",
            )
        self.check_barrier("this_grid().sync()")
        if self.options.divergence:
            self.check_grid()
        if self.watch is not None:
            self.watch.grid_barrier()

    def check_grid(self):
        """Every thread of the grid must arrive.

        On a GPU the first thread of each block waits for the other blocks, and the rest of the
        block for it: others that have returned are not missed.
        """
        absent = ~self.lanes.active()
        if not absent.any():
            return
        fatal = absent & self.live()
        fatal[0] = absent[0]
        by_block = fatal if fatal.any() else absent
        block, thread = np.argwhere(by_block.T)[0]
        block, thread = self.lanes.block_coordinates(block), self.lanes.thread_coordinates(thread)
        who = thread_name(thread, block)
        if not fatal.any():
            notice(
                present_site(),
                f"this_grid().sync() is never reached by {who}, which has returned",
                "CUDA wants every thread of the grid to arrive. Put what the others do under an "
                "if, instead of a return.",
            )
            return
        raise BarrierDivergenceError(
            f"this_grid().sync() is never reached by {who}", thread=thread, block=block,
            hint="Every thread of the grid must arrive, or the GPU hangs.",
        )  # fmt: skip

    def predicate(self, value):
        """Return a truth value of the active threads, (threads, blocks)."""
        value = as_bool(np.asarray(value))
        mask = self.lanes.mask
        if mask is not ALL:
            value = value & mask
        return self.lanes.full(value)

    def syncthreads_vote(self, kind, reduce, asked=lambda value: value):
        """Return syncthreads_`kind`: it reduces asked(value) of the threads that arrive."""

        def vote(value):
            self.check_barrier(f"cuda.syncthreads_{kind}()")
            votes = self.predicate(asked(value))
            result = reduce(votes).astype(np.int64).reshape(1, 1, 1, -1)
            if self.watch is not None:
                self.watch.barrier()
            return result

        return vote

    # ------------------------------------------------------------------ warp intrinsics

    def check_members(self, mask, name, may_go_on=False):
        """Every running thread that the mask names must take part.

        may_go_on : those who are here can do without the others, though CUDA forbids it.
        """
        if self.lanes.turns.alone:
            self.refuse_alone(name)
        if self.lanes.mask is ALL or not self.options.divergence:
            return
        arrived = self.lanes.active()
        missing = self.lanes.by_warp(self.lanes.members(mask) & self.live() & ~arrived)
        present = self.lanes.by_warp(arrived)
        bad = missing.any(1) & present.any(1)
        if bad.any():
            warp, block = np.argwhere(bad)[0]
            waits = self.lanes.thread_coordinates(warp * WARP + present[warp, :, block].argmax())
            never = self.lanes.thread_coordinates(warp * WARP + missing[warp, :, block].argmax())
            where = self.lanes.block_coordinates(block)
            message = (
                f"{name}: {thread_name(waits, where)} is here, but thread {never} of its warp, "
                "which the member mask names, is not"
            )
            if may_go_on:
                why = "CUDA leaves this undefined. Name only the lanes that get here."
                notice(present_site(), message, why)
                return
            raise BarrierDivergenceError(
                message, thread=waits, block=where,
                hint="On a GPU the result is undefined. Name only the lanes that get here.",
            )  # fmt: skip

    def shuffle(self, kind):
        """Return shfl_sync, shfl_up_sync, shfl_down_sync or shfl_xor_sync."""
        name = f"cuda.shfl_{kind}_sync()" if kind else "cuda.shfl_sync()"

        def shuffle(mask, value, lane):
            self.check_members(mask, name)
            if self.watch is not None:
                self.watch.shuffle()
            if not isinstance(value, (np.ndarray, np.generic)):
                value = np.asarray(value)[()]
            if self.lanes.mask is ALL and not varies_in_block(value):
                return value
            if isinstance(lane, np.ndarray):
                lane = as_index(lane) if type(lane) is TypedInts else lane
            if isinstance(lane, np.ndarray):
                source = self.source_threads(kind, self.lanes.full(lane))
            else:
                key = kind, int(lane)
                source = self.shuffle_sources.get(key)
                if source is None:
                    source = self.source_threads(kind, np.array([[int(lane)]]))
                    self.shuffle_sources[key] = source
            return self.take_from(source, value)

        return shuffle

    def source_threads(self, kind, operand):
        """Return the number of the thread that each thread reads, (threads, 1 or blocks)."""
        thread = np.arange(self.lanes.num_threads, dtype=np.int64)[:, None]
        lane = thread % WARP
        if kind == "xor":
            source = lane ^ operand
        elif kind == "up":
            source = np.where(lane >= operand, lane - operand, lane)
        elif kind == "down":
            source = np.where(lane + operand < WARP, lane + operand, lane)
        else:
            source = np.broadcast_to(operand % WARP, np.broadcast_shapes(lane.shape, operand.shape))
        source = thread - lane + source
        return np.where(source < self.lanes.num_threads, source, thread)

    def take_from(self, source, value):
        columns = value.shape[3] if isinstance(value, np.ndarray) else 1
        shape = (*self.lanes.shape[:3], columns)
        rows = np.broadcast_to(value, shape).reshape(self.lanes.num_threads, columns)
        if source.shape[1] == 1:
            result = rows.take(as_intp(source[:, 0]), axis=0)
        else:
            rows = np.broadcast_to(rows, (self.lanes.num_threads, self.lanes.num_blocks))
            result = np.take_along_axis(rows, source, 0)
        if self.lanes.mask is not ALL:
            # What a thread that is not here would have sent is undefined.
            heard = np.take_along_axis(
                self.lanes.active(), np.broadcast_to(source, self.lanes.active().shape), 0
            )
            if not heard[self.lanes.active()].all():
                result = np.broadcast_to(result, heard.shape).copy()
                undefined = np.zeros((), result.dtype)
                poison(undefined)
                result[~heard] = undefined
        return typed(result.reshape(*self.lanes.shape[:3], -1))

    def votes(self, mask, value, name):
        """Return the members' truth values, (warps, 32, blocks)."""
        self.check_members(mask, name)
        return self.lanes.by_warp(self.predicate(value) & self.lanes.members(mask))

    def any_sync(self, mask, value):
        return self.from_warps(self.votes(mask, value, "cuda.any_sync()").any(1))

    def all_sync(self, mask, value):
        false = self.votes(mask, np.logical_not(value), "cuda.all_sync()")
        return self.from_warps(~false.any(1))

    def eq_sync(self, mask, value):
        """True if the value is the same (all true or all false) in every member."""
        true = self.votes(mask, value, "cuda.eq_sync()").any(1)
        false = self.votes(mask, np.logical_not(value), "cuda.eq_sync()").any(1)
        return self.from_warps(~(true & false))

    def ballot_sync(self, mask, value):
        return self.bits(self.votes(mask, value, "cuda.ballot_sync()"), np.int32)

    def activemask(self):
        return self.bits(self.lanes.by_warp(self.lanes.active()), np.uint32)

    def bits(self, votes, dtype):
        """Return one bit per lane of the warp, lane 0 lowest."""
        weights = (1 << np.arange(WARP, dtype=np.int64))[None, :, None]
        return typed(self.from_warps((votes * weights).sum(1)).astype(np.uint32).view(dtype))

    def lanemask_lt(self):
        return typed(((1 << self.lane_id()) - 1).astype(np.uint32))

    def lane_id(self):
        return self.lanes.thread_number % WARP

    def match_any_sync(self, mask, value):
        """Return the mask of the members that hold the same value."""
        self.check_members(mask, "cuda.match_any_sync()")
        members = self.lanes.by_warp(self.lanes.members(mask) & self.lanes.active())
        values = self.lanes.by_warp(self.lanes.full(value))
        equal = (values[:, :, None] == values[:, None]) & members[:, None] & members[:, :, None]
        weights = (1 << np.arange(WARP, dtype=np.int64))[None, None, :, None]
        bits = (equal * weights).sum(2).astype(np.uint32).view(np.int32)
        return typed(
            bits.reshape(-1, self.lanes.num_blocks)[: self.lanes.num_threads].reshape(
                self.lanes.shape
            )
        )

    def match_all_sync(self, mask, value):
        """Return the member mask and True if all members hold the same value, else 0, False."""
        same = self.match_any_sync(mask, value)
        members = self.lanes.by_warp(self.lanes.members(mask) & self.lanes.active())
        everyone = self.bits(members, np.int32)
        agree = same == everyone
        return typed(np.where(agree, everyone, 0).astype(np.int32)), agree


def varies_in_block(value):
    return isinstance(value, np.ndarray) and value.shape[:3] != (1, 1, 1)
