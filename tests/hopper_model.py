"""Runs the source of a Hopper kernel as Python, on a CPU: a thread is a greenlet.

`replace_instructions` reloads the modules of a kernel with models in place of what Numba and PTX
provide: @cuda.jit returns the function itself, an intrinsic calls the method of `Model` of its
name, int32 and the others cut Python numbers. Then `Model.launch` runs all threads of a thread
block, warp after warp in random order, up to the next instruction at which they wait; a warpgroup
sometimes pauses. Asynchronous work is done late: a TMA copy at a random time, and a product of
wgmma when its result is awaited. So a tile that is overwritten too early, a barrier that is awaited
in the wrong phase, a wrong descriptor or a wrong swizzle ends in a wrong result, or in `HangError`.
The thread blocks of a cluster run together; writes of one block to another arrive late, too.

Numba's own names are replaced for good: use this in a process of its own.
"""

import copy
import functools
import importlib
import itertools
import random
import struct
import sys
import types

import greenlet
import numba
import numpy as np
from numba import cuda
from numba.cuda import extending

from fa_numba.ptx import layouts

SHARED_BYTES = 228 * 1024
# Chances: that a warpgroup does nothing for some rounds, and that a copy is made after a warp ran.
ASLEEP, LONGEST_SLEEP, COPIED = 0.04, 60, 0.3
IDLE_ROUNDS = 50  # without any progress: all threads wait for each other
BASE_BITS = 40  # an address in global memory: number of its array, and an offset
RANK_BIT = 24  # an address in shared memory: a block's rank in its cluster, and an offset


class HangError(Exception):
    """No thread can continue."""


class GlobalArray:
    """An array in global memory; its views are addresses, as `global_address` takes them."""

    def __init__(self, model, data):
        self.data = np.ascontiguousarray(data)
        self.shape, self.bytes = self.data.shape, self.data.reshape(-1).view(np.uint8)
        model.arrays.append(self)
        self.address = len(model.arrays) << BASE_BITS

    strides = property(lambda self: self.data.strides)

    def of_same_memory(self, data):
        """An array of a view of `data`."""
        view = copy.copy(self)
        view.data, view.shape = data, data.shape
        view.address += data.ctypes.data - self.data.ctypes.data
        return view

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if slice in map(type, index):
            return self.of_same_memory(self.data[index])
        index = tuple(map(int, index))
        if len(index) == len(self.shape):
            return self.data[index]
        return self.address + sum(i * n for i, n in zip(index, self.data.strides, strict=False))

    def __setitem__(self, index, x):
        self.data[tuple(map(int, index)) if isinstance(index, tuple) else int(index)] = x


class Barrier:
    """An mbarrier."""

    def __init__(self, count):
        self.count = self.pending = count
        self.bytes = self.phases = 0

    def settle(self):
        assert self.pending >= 0, "more arrivals than the barrier counts"
        if self.pending == self.bytes == 0:
            self.pending, self.phases = self.count, self.phases + 1


class Model:
    """One GPU. Methods without an underscore in front are instructions, by the intrinsics' names.

    Attributes
    ----------
    arrays : list of GlobalArray
    maps : dict
        A tensor map's address → (GlobalArray, rows of its box), or (GlobalArray, rows, True) for a
        map of windows: then the place of the batch is the end of a window of these rows.
    """

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.arrays, self.maps = [], {}

    # Threads

    def launch(self, kernel, grid, threads, *args, cluster=1):
        """Run the thread blocks of a grid one after the other, those of a cluster together."""
        self.grid, self.cluster = (*grid, 1, 1)[:3], cluster
        assert self.grid[0] % cluster == 0
        for z, y, x in np.ndindex(*self.grid[::-1]):
            if x % cluster == 0:
                blocks = [(x + rank, y, z) for rank in range(cluster)]
                self._run(lambda: kernel(*args), threads, blocks)

    def _run(self, thread_block, threads, blocks):
        size = (len(blocks) - 1 << RANK_BIT) + SHARED_BYTES
        self.shared = np.full(size, self.random.randrange(256), np.uint8)
        self.static, self.barriers, self.meetings, self.copies = {}, {}, {}, []
        self.arrivals, self.products = [], {}
        self.scheduler = greenlet.getcurrent()
        self.threads, self.block_threads = [], threads
        self.running = [threads] * len(blocks)
        warps, groups = [], -(-threads // 128)
        for (rank, block), tid in itertools.product(enumerate(blocks), range(threads)):
            thread = greenlet.greenlet(thread_block)
            thread.rank, thread.block, thread.tid = rank, block, tid
            thread.warpgroup = rank * groups + tid // 128
            thread.met, thread.started, thread.groups = {}, 0, []
            thread.stores, thread.waits_for, thread.static_arrays = [], "", 0
            thread.ready = None
            self.threads.append(thread)
            warps += [[]] if tid % 32 == 0 else []
            warps[-1].append(thread)
        asleep = [0] * (groups * len(blocks))  # rounds in which a warpgroup does not run
        if len(blocks) > 1:  # one block begins after the others
            late = groups * self.random.randrange(len(blocks))
            asleep[late : late + groups] = [LONGEST_SLEEP] * groups
        idle, self.progress = 0, True
        while any(self.running):
            # Often one of many warpgroups is asleep: such rounds do not begin the count anew.
            idle = 0 if self.progress else idle + (not any(asleep))
            if idle > IDLE_ROUNDS:
                raise HangError(sorted({t.waits_for for t in self.threads if not t.dead}))
            self.progress = False
            for i, rounds in enumerate(asleep):
                falls_asleep = self.random.random() < ASLEEP
                asleep[i] = (
                    self.random.randrange(LONGEST_SLEEP) if falls_asleep else max(0, rounds - 1)
                )
            self.random.shuffle(warps)
            for warp in warps:
                if not asleep[warp[0].warpgroup]:
                    for thread in warp:
                        if not thread.dead and (thread.ready is None or thread.ready()):
                            thread.switch()
                            self.running[thread.rank] -= thread.dead
                if (self.copies or self.arrivals) and self.random.random() < COPIED:
                    self._copy()
            if not self.progress and (self.copies or self.arrivals):
                self._copy()
        assert not self.copies

    def _copy(self):
        """Make a copy, or an arrival in another block, that is under way."""
        number = self.random.randrange(len(self.copies) + len(self.arrivals))
        later = number - len(self.copies)
        (self.copies.pop(number) if later < 0 else self.arrivals.pop(later))()
        self.progress = True

    def _wait(self, what, ready=None):
        """Let others run; with `ready`, a function, until it is true: most waits are long."""
        thread = greenlet.getcurrent()
        thread.waits_for, thread.ready = what, ready
        self.scheduler.switch()

    def _me(self):
        return greenlet.getcurrent()

    def _meet(self, name, size, value=None, action=None):
        """All of `size` neighbouring threads meet; `action` gets their values, once.

        Returns the values by index.
        """
        thread = self._me()
        key = name, thread.rank, thread.tid // size
        return self._join(key, thread.tid % size, size, value, action)

    def _join(self, key, index, size, value=None, action=None):
        """The index-th of `size` threads meets the others at `key`; returns all values."""
        thread, self.progress = self._me(), True
        thread.met[key] = times = thread.met.get(key, 0) + 1
        values = self.meetings.setdefault((key, times), {})
        values[index] = value
        if len(values) == size and action:
            action([values[i] for i in range(size)])
        while len(values) < size:
            self._wait(key[0], lambda: len(values) == size)
        return values

    # Barriers

    def mbarrier_init(self, barrier, count):
        self.barriers[barrier] = Barrier(count)

    def fence_mbarrier_init(self):
        pass

    fence_async_proxy = wgmma_fence = fence_mbarrier_init

    def setmaxnreg_dec(self, count):
        pass

    setmaxnreg_inc = setmaxnreg_dec

    def mbarrier_arrive(self, barrier):
        self.mbarrier_arrive_expect_tx(barrier, 0)

    def mbarrier_arrive_at(self, barrier, rank):
        self.arrivals.append(lambda: self.mbarrier_arrive(self._in_block(barrier, rank)))

    def _in_block(self, address, rank):
        """The same address of another block, to which something arrives."""
        assert self.running[rank], "arrives at a thread block that has ended"
        return address & (1 << RANK_BIT) - 1 | rank << RANK_BIT

    def mbarrier_arrive_expect_tx(self, barrier, num_bytes):
        found, self.progress = self.barriers[barrier], True
        found.bytes += num_bytes
        found.pending -= 1
        found.settle()

    def mbarrier_try_wait(self, barrier, parity):
        found = self.barriers[barrier]
        if found.phases & 1 != parity:
            return 1
        self._wait(f"mbarrier {barrier}", lambda: found.phases & 1 != parity)
        return 0

    def _deliver(self, barrier, num_bytes):
        self.barriers[barrier].bytes -= num_bytes
        self.barriers[barrier].settle()

    def named_barrier_sync(self, barrier, num_threads):
        thread = self._me()
        self._join(
            (f"barrier {barrier}", thread.rank), thread.tid, num_threads
        )  # whichever threads

    def let_next_kernel_begin(self):
        pass

    def wait_for_kernel_before(self):
        """Now what the kernel before has written is visible: `late`, of arrays that hold NaN."""
        for x, written in self.late:
            x[...] = written

    def cluster_of(self, num_blocks):
        assert num_blocks == self.cluster

    def cluster_sync(self):
        def arrive(_):
            for arrival in self.arrivals:
                arrival()
            self.arrivals.clear()

        thread = self._me()
        index = thread.rank * self.block_threads + thread.tid
        self._join(("cluster",), index, len(self.threads), action=arrive)

    def _word(self, address):
        return self._global(address, 4).view(np.uint32)

    def counter_take(self, address, x):
        before = int(self._word(address)[0])
        self._word(address)[0] += x
        return before

    def counter_release(self, address, x):
        self.counter_take(address, x)
        self.progress = True

    def counter_acquire(self, address):
        self._wait("counter")
        return int(self._word(address)[0])

    def _atomic_add(self, array, i, x):
        before = int(array[i])
        array[i] = before + x
        return before

    # Memory

    def shared_address(self, array):
        return self._me().rank << RANK_BIT | 16

    def global_address(self, view):
        return view.address if isinstance(view, GlobalArray) else view

    def opaque(self, x):
        return x

    def _global(self, address, num_bytes):
        array, start = self.arrays[(address >> BASE_BITS) - 1], address & ((1 << BASE_BITS) - 1)
        assert start + num_bytes <= array.bytes.size, "beyond the end of an array"
        assert start % num_bytes == 0 or num_bytes > 16, "an address that is no multiple of 16"
        return array.bytes[start : start + num_bytes]

    def _floats(self, address, count):
        assert address % (4 * count) == 0
        return self.shared[address : address + 4 * count].view(np.float32)

    def load_shared_x2(self, x, address):
        x[:2] = self._floats(address, 2)

    def load_shared_x4(self, x, address):
        x[:4] = self._floats(address, 4)

    def store_shared_x4(self, address, x):
        self._floats(address, 4)[:] = x

    def atomic_add_x4(self, address, x):
        self._global(address, 16).view(np.float32)[:] += x

    def load_global_x4(self, x, address):
        x.view(np.uint8)[:] = self._global(address, 16)

    def store_global_x4(self, address, x):
        self._global(address, 16)[:] = x.view(np.uint8)

    def stmatrix_x4(self, address, fragment):
        def store(given):
            starts = np.array([start for start, _ in given])
            assert (starts % 16 == 0).all()
            words = np.array([x for _, x in given]).reshape(8, 4, 4)  # [row, word, matrix]
            places = starts[:, None] // 4 + np.arange(4)
            self.shared.view(np.uint32)[places] = words.transpose(2, 0, 1).reshape(32, 4)

        self._meet("stmatrix", 32, (address, fragment.copy()), store)

    def _box(self, tile, rows):
        """Indices of a box of 64 columns in shared memory, in 16-bit numbers."""
        assert tile % 1024 == 0
        row, col = np.mgrid[:rows, :64]
        return (tile + layouts.tile_offset(row, col, rows)) // 2

    def _part(self, tensor_map, col, row, head, batch):
        """The rows of a box that lie in the array, 64 columns of each, and its number of rows."""
        array, rows, *windows = self.maps[tensor_map]
        end = row + rows
        if windows:
            data, row, end = array.data, batch - rows + row, batch
            assert row >= 0, "a copy begins before the array"
        else:
            data = array.data[batch]
        return data[row:end, head, col : col + 64], rows

    def tma_load_4d(self, destination, tensor_map, col, row, head, batch, barrier, ranks=None):
        part, rows = self._part(tensor_map, col, row, head, batch)
        tile = np.zeros((rows, 64), part.dtype)
        tile[: part.shape[0], : part.shape[1]] = part

        def copy(rank):
            box = self._box(self._in_block(destination, rank), rows)
            self.shared.view(np.uint16)[box] = tile.view(np.uint16)
            self._deliver(self._in_block(barrier, rank), rows * layouts.ROW_BYTES)

        for rank in [self._me().rank] if ranks is None else ranks:
            self.copies.append(functools.partial(copy, rank))

    def tma_load_4d_multicast(self, num_blocks, *box):
        self.tma_load_4d(*box, ranks=range(num_blocks))

    def bulk_load(self, destination, source, num_bytes, barrier):
        assert destination % 16 == source % 16 == num_bytes % 16 == 0

        def copy():
            self.shared[destination : destination + num_bytes] = self._global(source, num_bytes)
            self._deliver(barrier, num_bytes)

        self.copies.append(copy)

    def tma_store_4d(self, tensor_map, col, row, head, batch, source):
        assert row >= 0
        part, rows = self._part(tensor_map, col, row, head, batch)

        def copy():
            tile = self.shared.view(np.uint16)[self._box(source, rows)].view(part.dtype)
            part[:] = tile[: part.shape[0], : part.shape[1]]

        self._me().stores.append(copy)

    def tma_store_commit(self):
        self._me().stores.append(None)  # the end of a group

    def tma_store_wait_read(self, pending):
        stores = self._me().stores
        groups = [i + 1 for i, store in enumerate(stores) if store is None]
        done = groups[-1 - pending] if len(groups) > pending else 0
        for store in filter(None, stores[:done]):
            store()
        self._me().stores = stores[done:]

    load_global_x4_relaxed, store_global_x4_relaxed = load_global_x4, store_global_x4

    def store_global_b32(self, address, x):
        self._word(address)[0] = x

    # Numbers

    def low_bits(self, count):
        return (1 << min(count, 32)) - 1

    def exp2(self, x):
        return np.exp2(np.float32(x))

    def max3_bits(self, x, y, z):
        bits = np.array([x, y, z], np.float32).view(np.int32)
        return bits.max(keepdims=True).view(np.float32)[0]

    def pack_f16x2(self, low, high):
        try:
            return int.from_bytes(struct.pack("<ee", low, high), "little")
        except OverflowError:  # these are infinite in float16
            return int(np.array([low, high], np.float16).view(np.uint32)[0])

    def unpack_f16x2(self, x, two):
        x[:2] = np.array([two], np.uint32).view(np.float16)

    # Products

    def hold(self, x, length):
        pass

    def wgmma_commit(self):
        self._me().groups.append(self._me().started)

    def wgmma_wait(self, pending, d, length):
        groups = self._me().groups[: -pending or None]
        if groups:
            self._finish(groups[-1])

    def wgmma_wait_with(self, pending, d, length, a, a_length):
        self.wgmma_wait(pending, d, length)

    def wgmma_f16(self, n, k, d, a, b):
        self._start(d, n, (), lambda _: self._rows(a, 64, k, 64) @ self._rows(b, n, k, n).T)

    def wgmma_rows_f16(self, n, k, a_rows, d, a, b):
        def product(_):
            return self._rows(a, 64, k, a_rows) @ self._rows(b, n, k, n).T

        self._start(d, n, (), product)

    def wgmma_columns_f16(self, n, k, d, a, b):
        self._start(d, n, (), lambda _: self._columns(a, k, 64).T @ self._columns(b, k, n))

    def wgmma_more_columns_f16(self, n, k, d, a, b):
        def product(_):
            return self._columns(a, k, 64).T @ self._columns(b, k, n)

        self._start(d, n, (), product, add=True)

    def wgmma_wait_group(self, pending):
        self.wgmma_wait(pending, None, 0)

    def wgmma_more_f16(self, n, k, d, a, b):
        def product(_):
            return self._rows(a, 64, k, 64) @ self._rows(b, n, k, n).T

        self._start(d, n, (), product, add=True)

    def wgmma_tiles_f16(self, n, k, d, a, b):
        def product(_):
            return self._rows(a, 64, k, 64) @ self._columns(b, k, n)

        self._start(d, n, (), product, add=True)

    def wgmma_f16_registers(self, n, k, d, a, b):
        def product(fragments):
            row, col = layouts.mma_a()  # of [lane, register, half]
            halves = np.stack([x.reshape(-1, 4)[: k // 16] for x in fragments]).view(np.float16)
            halves = halves.reshape(4, 32, k // 16, 4, 2)  # [warp, lane, step, register, half]
            matrix = np.zeros((4, 16, k // 16, 16), np.float32)  # [warp, row, step, column]
            for step in range(k // 16):
                matrix[:, row, step, col] = halves[:, :, step]
            return matrix.reshape(64, k) @ self._columns(b, k, n)

        self._start(d, n, a, product, add=True)

    def _start(self, d, n, a, product, add=False):
        thread, self.progress = self._me(), True
        queue = self.products.setdefault(thread.warpgroup, [])
        if len(queue) == thread.started:
            queue.append({})
        queue[thread.started][thread.tid % 128] = d, n, a, product, add
        thread.started += 1

    def _finish(self, count):
        """Compute a warpgroup's first `count` products, as far as that is not done."""
        for given in self.products[self._me().warpgroup][:count]:
            while len(given) < 128:
                self._wait("wgmma", lambda given=given: len(given) == 128)
            if given[0] is None:
                continue
            _, n, _, product, add = given[0]
            result = product([given[tid][2] for tid in range(128)])[wgmma_d(n)]
            for tid in range(128):
                d = given[tid][0].reshape(-1)[: n // 2]
                d[:] = d + result[tid] if add else result[tid]
                given[tid] = None
            self.progress = True

    def _descriptor(self, bits):
        assert bits >> 62 == 1  # swizzled in rows of 128 bytes
        start, leading, stride = ((bits >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        return self._me().rank << RANK_BIT | start, leading, stride

    def _read(self, address):
        swizzled = address ^ (address >> 7 & 7) << 4
        return self.shared.view(np.float16)[swizzled // 2].astype(np.float32)

    def _rows(self, bits, rows, k, tile_rows):
        """A matrix with its rows along the sum."""
        start, _, stride = self._descriptor(bits)
        return self._read(start + _offsets_of_rows(rows, k, tile_rows, stride))

    def _columns(self, bits, k, n):
        """A matrix with a row for each term of the sum."""
        start, leading, stride = self._descriptor(bits)
        return self._read(start + _offsets_of_columns(k, n, leading, stride))


wgmma_d = functools.cache(layouts.wgmma_d)


@functools.cache
def _offsets_of_rows(rows, k, tile_rows, stride):
    row, col = np.mgrid[:rows, :k]
    panel = col // 64 * tile_rows * layouts.ROW_BYTES
    return panel + col % 64 * 2 + row // 8 * stride + row % 8 * 128


@functools.cache
def _offsets_of_columns(k, n, leading, stride):
    row, col = np.mgrid[:k, :n]
    step = row // 16 * 16 * layouts.ROW_BYTES + row % 16 // 8 * stride + row % 8 * 128
    return col // 64 * leading + step + col % 64 * 2


class Indices:
    """threadIdx, blockIdx or gridDim."""

    def __init__(self, of_axis):
        self.of_axis = of_axis

    def __getattr__(self, axis):
        return self.of_axis("xyz".index(axis))


def replace_instructions(model, modules):
    """Reload these modules of fa_numba, lowest first, with a model's instructions; return them."""
    for module in modules:
        importlib.import_module(f"fa_numba.{module}")
    _replace_jit(model)
    _replace_types(model)
    cuda.threadIdx = Indices(lambda axis: model._me().tid if axis == 0 else 0)
    cuda.blockIdx = Indices(lambda axis: model._me().block[axis])
    cuda.gridDim = Indices(lambda axis: model.grid[axis])
    cuda.atomic = types.SimpleNamespace(add=model._atomic_add)
    cuda.syncthreads = lambda: model._meet("syncthreads", model.block_threads)
    cuda.syncwarp = lambda: model._meet("syncwarp", 32)
    cuda.shfl_sync = lambda mask, x, lane: x  # by one thread alone
    cuda.shfl_xor_sync = lambda mask, x, lanes: _exchange(model, x, lanes)
    cuda.all_sync = lambda mask, x: _exchange(model, x, None)
    cuda.any_sync = lambda mask, x: any(model._meet("shuffle", 32, x).values())
    cuda.ballot_sync = lambda mask, x: sum(
        1 << lane for lane, y in model._meet("shuffle", 32, x).items() if y
    )
    cuda.ffs = lambda x: (int(x) & -int(x)).bit_length()
    cuda.clz = lambda x: 32 - int(x).bit_length()
    return [importlib.reload(sys.modules[f"fa_numba.{module}"]) for module in modules]


def _exchange(model, x, lanes):
    """The number of lane ^ lanes; with lanes None whether all lanes' are true."""
    others = model._meet("shuffle", 32, x)
    return all(others.values()) if lanes is None else others[model._me().tid % 32 ^ lanes]


def _replace_jit(model):
    def jit(function=None, **options):
        return function or (lambda f: f)

    def intrinsic(function):
        def absent(*args):
            raise NotImplementedError(f"the model has no {function.__name__}")

        return getattr(model, function.__name__, absent)

    cuda.jit, extending.intrinsic = jit, intrinsic


def _replace_types(model):
    dtypes = {}
    for name in ("uint16", "int32", "int64", "uint32", "uint64"):
        bits, signed = int(name[-2:]), name.startswith("i")

        def cut(x, half=1 << bits - 1, signed=signed):
            x = int(x) & (2 * half - 1)
            return x - 2 * half if signed and x >= half else x

        dtypes[cut] = np.dtype(name)
        setattr(numba, name, cut)
    numba.float32 = np.float32
    dtypes[np.float32] = np.dtype(np.float32)

    @functools.cache
    def unwritten(shape, dtype):
        return np.full(shape, np.nan if dtype.kind == "f" else 77, dtype)

    class Local:
        @staticmethod
        def array(shape, dtype):
            return unwritten(shape, dtypes[dtype]).copy()

    class Shared:
        @staticmethod
        def array(shape, dtype):
            if not shape:  # dynamic memory, from its address on
                return model.shared[model.shared_address(None) :].view(dtypes.get(dtype, np.uint8))
            thread = model._me()
            thread.static_arrays += 1  # all threads declare them in the same order
            key = thread.rank, thread.static_arrays
            if key not in model.static:
                model.static[key] = np.full(shape, 77, dtypes[dtype])
            return model.static[key]

    cuda.local, cuda.shared = Local, Shared
