"""Row softmax: x (num_rows, num_cols) float32 -> y, same shape.

safe        max, then sum, then divide               3 reads + 1 write
online      max and sum in one pass, then divide     2 reads + 1 write
registers   read a row once, keep it in registers    1 read + 1 write    <- this file

The registers of an SM hold 256 KiB, as much as its L1 or more. A row of up to 32768 columns fits in
the registers of one thread block, 32 numbers per thread. The kernel reads it once, in packets of 16
bytes that are all in flight together, and computes e^x and then the quotient in the same registers.
A short row belongs to one warp and needs no barrier.

Each warp subtracts its own maximum, so that it need not wait for the other warps. The ⊕ of
online_softmax merges the partial results of the warps, with one barrier; then e^(m_warp − m) / l is
one factor for all numbers of a warp. Rows of 16 bits of up to 65536 columns remain packed, two
numbers in a register. Longer rows are read twice, as in online_softmax, but in packets.

Rows that begin at no multiple of 16 bytes are cut (`packets`): the first threads also take one of
the few numbers before and after the packets. So these are one more load of a warp, and each number
is read and written once.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1.
"""

import functools
import math
from typing import Any, NamedTuple

from numba import cuda, float32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E, NEG_INF
from fa_numba.on_cuda_cores.packets import make_cut, make_packet, packets_of_rows
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.row_tiling import (
    HELD_NUMBERS,
    LONGEST_HELD_ROW,
    LONGEST_PACKED_ROW,
    MAX_THREADS,
    WARP_SIZE,
    registers_of_row,
)


class Reductions(NamedTuple):
    """Device functions that reduce over a warp, and over the warps of a thread block.

    Attributes
    ----------
    warp_max : warp_max(m)
    warp_sum : warp_sum(l)
    merge : merge(m_i, l_i, m_warp, l_warp)
        (m, l) of all warps from the (m_i, l_i) of each. If m is −∞ it returns 0 for m, so that
        x − m is not NaN. It contains the barrier between the stores to m_warp and l_warp, in shared
        memory, and the loads.
    """

    warp_max: Any
    warp_sum: Any
    merge: Any


@functools.cache
def make_reductions(NUM_WARPS):
    """The `Reductions` for thread blocks of NUM_WARPS warps."""

    @cuda.jit(device=True)
    def warp_max(m):
        for step in range(5):  # after 16, 8, 4, 2, 1 each lane has the maximum of all 32
            m = max(m, cuda.shfl_xor_sync(FULL_WARP, m, 16 >> step))
        return m

    @cuda.jit(device=True)
    def warp_sum(l):
        for step in range(5):
            l += cuda.shfl_xor_sync(FULL_WARP, l, 16 >> step)
        return l

    @cuda.jit(device=True)
    def merge(m_i, l_i, m_warp, l_warp):
        lane, warp = cuda.threadIdx.x % WARP_SIZE, cuda.threadIdx.x // WARP_SIZE
        if lane == 0:
            m_warp[warp] = m_i
            l_warp[warp] = l_i
        cuda.syncthreads()  # every warp's result is there: each warp merges them all
        m_i, l_i = NEG_INF, float32(0.0)
        if lane < NUM_WARPS:
            m_i, l_i = m_warp[lane], l_warp[lane]
        m = warp_max(m_i)
        m = float32(0.0) if m == NEG_INF else m
        return m, warp_sum(l_i * math.exp2((m_i - m) * LOG2_E))

    return Reductions(warp_max, warp_sum, merge)


@functools.cache
def make_softmax_registers(THREADS, ROWS, PACKETS, WIDTH, CUT=False, ALIGNED=True):
    """The kernel for ROWS rows in a thread block, each with THREADS threads of PACKETS packets.

    THREADS is a power of two from 32 to 1024; ROWS may exceed 1 only if THREADS is 32. The last
    three are the `RowPackets` of x; y is contiguous.
    """
    NUM_WARPS = THREADS // WARP_SIZE
    LENGTH = PACKETS * WIDTH
    NUMBERS = LENGTH + (1 if CUT else 0)  # the last one is not in a packet
    BLOCKS = min(
        16, MAX_THREADS // (THREADS * ROWS)
    )  # thread blocks per SM: a thread may have 64 registers
    packet, single, cut = make_packet(WIDTH, ALIGNED), make_packet(1), make_cut(WIDTH)
    load, store, load_one, store_one = *packet, *single
    body, edge, reductions = cut.body, cut.edge, make_reductions(NUM_WARPS)
    warp_max, warp_sum, merge = reductions.warp_max, reductions.warp_sum, reductions.merge

    # All of fastmath would assume that no number is infinite.
    @cuda.jit(launch_bounds=(THREADS * ROWS, BLOCKS), fastmath={"contract"})
    def softmax_registers_kernel(x, y):
        """THREADS threads own a row; thread tid takes packets tid, tid + THREADS, ...

        grid      (num_rows / ROWS,); threads (THREADS, ROWS)
        shared    m_warp, l_warp (NUM_WARPS,): each warp's partial result
        private   numbers (NUMBERS,): x_j, then e^(x_j - m), then y_j
        HBM       x once, y once
        paper     Online normalizer calculation for softmax, section 3.1
        budget    64 registers, 256 bytes shared (THREADS=1024)
        """
        m_warp = cuda.shared.array(NUM_WARPS, float32)
        l_warp = cuda.shared.array(NUM_WARPS, float32)
        numbers = cuda.local.array(NUMBERS, float32)
        tid = cuda.threadIdx.x
        row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        num_rows, num_cols = x.shape
        if row >= num_rows:  # the whole warp returns; with ROWS > 1 there is no barrier
            return

        begin, end = body(row, num_cols) if CUT else (0, num_cols)
        if CUT:
            numbers[LENGTH], col = NEG_INF, edge(tid, begin, end, num_cols)
            if col < num_cols:
                load_one(x, row, col, numbers, LENGTH)
        for p in range(PACKETS):
            col = begin + (tid + p * THREADS) * WIDTH
            if col < end:
                load(x, row, col, numbers, p * WIDTH)
            else:
                for i in range(WIDTH):
                    numbers[p * WIDTH + i] = NEG_INF

        m_i = NEG_INF  # the maximum of this warp
        for i in range(NUMBERS):
            m_i = max(m_i, numbers[i])
        m_i = warp_max(m_i)
        shift = float32(0.0) if m_i == NEG_INF else m_i  # -inf - -inf is NaN
        l_i = float32(0.0)
        for i in range(NUMBERS):
            numbers[i] = math.exp2((numbers[i] - shift) * LOG2_E)  # e^(x_j - m_warp)
            l_i += numbers[i]
        l_i = warp_sum(l_i)

        factor = float32(1.0) / l_i
        if NUM_WARPS > 1:
            m, l = merge(m_i, l_i, m_warp, l_warp)
            factor = math.exp2((shift - m) * LOG2_E) / l  # e^(m_warp - m) / l
        for p in range(PACKETS):
            for i in range(WIDTH):
                numbers[p * WIDTH + i] *= factor
            col = begin + (tid + p * THREADS) * WIDTH
            if col < end:
                store(y, row, col, numbers, p * WIDTH)
        if CUT:
            numbers[LENGTH] *= factor
            col = edge(tid, begin, end, num_cols)
            if col < num_cols:
                store_one(y, row, col, numbers, LENGTH)

    return softmax_registers_kernel


class Held(NamedTuple):
    """Device functions for packets of 8 numbers of 16 bits that remain in registers as they are.

    Attributes
    ----------
    hold : hold(x, row, col, held, p)
        Load packet p of a thread, from column col on, to held[p].
    hold_nothing : hold_nothing(held, p)
        Eight times −∞.
    largest : largest(held, m)
        The largest number of all packets, or m.
    numbers_of : numbers_of(numbers, held, p)
        The eight numbers as float32, in a local array of shape (4, 2).
    forget : forget(held)
        Hide from the compiler that numbers_of gives the same again: or it keeps too many float32
        numbers in registers.
    store : store(y, row, col, numbers)
        Round them, and store them.
    dtype, length : numba dtype and int
        Of held[p].
    """

    hold: Any
    hold_nothing: Any
    largest: Any
    numbers_of: Any
    forget: Any
    store: Any
    dtype: Any
    length: int


@functools.cache
def make_held(DTYPE, PACKETS, ALIGNED):
    """The `Held` for "float16" or "bfloat16"; for "" as the CPU engine can, in float32."""
    if not DTYPE:
        packet = make_packet(8)
        load_numbers, store_numbers = packet.load, packet.store

        @cuda.jit(device=True)
        def hold_numbers(x, row, col, held, p):
            load_numbers(x, row, col, held[p], 0)

        @cuda.jit(device=True)
        def hold_no_numbers(held, p):
            for i in range(8):
                held[p, i] = NEG_INF

        @cuda.jit(device=True)
        def copy_numbers(numbers, held, p):
            for i in range(8):
                numbers[i >> 1, i & 1] = held[p, i]

        @cuda.jit(device=True)
        def store_copies(y, row, col, numbers):
            store_numbers(y, row, col, numbers.reshape(8), 0)

        @cuda.jit(device=True)
        def largest_number(held, m):
            for p in range(PACKETS):
                for i in range(8):
                    m = max(m, held[p, i])
            return m

        @cuda.jit(device=True)
        def forget_nothing(held):
            pass

        functions = hold_numbers, hold_no_numbers, largest_number, copy_numbers, forget_nothing
        return Held(*functions, store_copies, float32, 8)

    # Imported here: PTX needs numba-cuda, and the CPU engine runs without it.
    from fa_numba.ptx import convert, vectors
    from fa_numba.ptx.statement import global_address

    load_u16, load_b128 = vectors.load_global_u16, vectors.load_global_b128
    store_x4 = vectors.store_global_x4
    if DTYPE == "bfloat16":
        unpack, pack, max_x2 = vectors.unpack_bf16x2, convert.pack_bf16x2, vectors.max_bf16x2
        INFINITIES = 0xFF80FF80
    else:
        unpack, pack, max_x2 = vectors.unpack_f16x2, convert.pack_f16x2, vectors.max_f16x2
        INFINITIES = 0xFC00FC00

    @cuda.jit(device=True)
    def hold(x, row, col, held, p):
        source = global_address(x[uint64(row)]) + uint64(2 * col)
        if ALIGNED:
            load_b128(held[p], source)
        else:
            for i in range(4):
                low, high = load_u16(source + uint64(4 * i)), load_u16(source + uint64(4 * i + 2))
                held[p, i] = uint32(low | (high << uint32(16)))

    @cuda.jit(device=True)
    def hold_nothing(held, p):
        for i in range(4):
            held[p, i] = uint32(INFINITIES)

    @cuda.jit(device=True)
    def largest(held, m):
        two = cuda.local.array(2, float32)
        most = uint32(INFINITIES)
        for p in range(PACKETS):
            for i in range(4):
                most = max_x2(most, held[p, i])
        unpack(two, most)
        return max(m, max(two[0], two[1]))

    @cuda.jit(device=True)
    def numbers_of(numbers, held, p):
        for i in range(4):
            unpack(numbers[i], held[p, i])

    @cuda.jit(device=True)
    def forget(held):
        zero = uint32(cuda.blockIdx.y)  # the compiler does not know that
        for p in range(PACKETS):
            for i in range(4):
                held[p, i] = uint32(held[p, i] ^ zero)

    @cuda.jit(device=True)
    def store(y, row, col, numbers):
        words = cuda.local.array(4, uint32)
        for i in range(4):
            words[i] = pack(numbers[i, 0], numbers[i, 1])
        store_x4(global_address(y[uint64(row)]) + uint64(2 * col), words)

    return Held(hold, hold_nothing, largest, numbers_of, forget, store, uint32, 4)


@functools.cache
def make_softmax_packed(PACKETS, DTYPE, CUT, ALIGNED):
    """The kernel for rows of 16 bits of up to PACKETS · 8 · MAX_THREADS columns.

    Twice as many numbers fit in the registers as they do in float32. They are converted twice,
    and e^x is computed twice. DTYPE is that of `make_held`.
    """
    THREADS, NUM_WARPS = MAX_THREADS, MAX_THREADS // WARP_SIZE
    single, cut, reductions = make_packet(1), make_cut(8), make_reductions(NUM_WARPS)
    load_one, store_one, body, edge = *single, cut.body, cut.edge
    warp_max, warp_sum, merge = reductions.warp_max, reductions.warp_sum, reductions.merge
    of_packets = make_held(DTYPE, PACKETS, ALIGNED)
    hold, hold_nothing, largest, numbers_of, forget, store, HELD_DTYPE, HELD_LENGTH = of_packets
    HELD_SHAPE, SHAPE = (PACKETS, HELD_LENGTH), (4, 2)

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def softmax_packed_kernel(x, y):
        """A thread block owns a row; thread tid takes packets tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    m_warp, l_warp (NUM_WARPS,): each warp's partial result
        private   held (PACKETS, 4): x_j, two in a register; numbers (4, 2); with CUT one more
        HBM       x once, y once
        paper     Online normalizer calculation for softmax, section 3.1
        budget    64 registers, 256 bytes shared
        """
        m_warp = cuda.shared.array(NUM_WARPS, float32)
        l_warp = cuda.shared.array(NUM_WARPS, float32)
        held = cuda.local.array(HELD_SHAPE, HELD_DTYPE)
        numbers = cuda.local.array(SHAPE, float32)
        one = cuda.local.array(1, float32)  # outside of the packets
        tid, row, num_cols = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]
        begin, end = body(row, num_cols) if CUT else (0, num_cols)
        col_of_one = edge(tid, begin, end, num_cols)
        one[0] = NEG_INF
        if CUT and col_of_one < num_cols:
            load_one(x, row, col_of_one, one, 0)
        for p in range(PACKETS):
            col = begin + (tid + p * THREADS) * 8
            if col < end:
                hold(x, row, col, held, p)
            else:
                hold_nothing(held, p)

        m_i = warp_max(largest(held, one[0]))  # the maximum of this warp
        shift = float32(0.0) if m_i == NEG_INF else m_i  # -inf - -inf is NaN
        l_i = math.exp2((one[0] - shift) * LOG2_E)
        for p in range(PACKETS):
            numbers_of(numbers, held, p)
            for i in range(8):
                l_i += math.exp2((numbers[i >> 1, i & 1] - shift) * LOG2_E)
        m, l = merge(m_i, warp_sum(l_i), m_warp, l_warp)
        inverse = float32(1.0) / l

        forget(held)
        for p in range(PACKETS):
            numbers_of(numbers, held, p)
            for i in range(8):
                number = math.exp2((numbers[i >> 1, i & 1] - m) * LOG2_E)
                numbers[i >> 1, i & 1] = number * inverse
            col = begin + (tid + p * THREADS) * 8
            if col < end:
                store(y, row, col, numbers)
        if CUT and col_of_one < num_cols:
            one[0] = math.exp2((one[0] - m) * LOG2_E) * inverse
            store_one(y, row, col_of_one, one, 0)

    return softmax_packed_kernel


@functools.cache
def make_softmax_long_rows(THREADS, PACKETS, WIDTH, CUT=False, ALIGNED=True):
    """The kernel for rows of any length: online_softmax in packets, PACKETS per thread at once."""
    NUM_WARPS = THREADS // WARP_SIZE
    LENGTH = PACKETS * WIDTH
    STEP = THREADS * LENGTH
    packet, single, cut = make_packet(WIDTH, ALIGNED), make_packet(1), make_cut(WIDTH)
    load, store, load_one, store_one = *packet, *single
    body, edge, reductions = cut.body, cut.edge, make_reductions(NUM_WARPS)
    warp_max, warp_sum, merge = reductions.warp_max, reductions.warp_sum, reductions.merge

    @cuda.jit(launch_bounds=(THREADS, MAX_THREADS // THREADS), fastmath={"contract"})
    def softmax_long_rows_kernel(x, y):
        """A thread block owns a row; thread tid takes packets tid, tid + THREADS, ...

        grid      (num_rows,); threads (THREADS,)
        shared    m_warp, l_warp (NUM_WARPS,): each warp's partial result
        private   numbers (PACKETS · WIDTH,): x_j, then y_j; with CUT one more; m_i, l_i
        HBM       x twice, y once
        paper     Online normalizer calculation for softmax, Algorithm 3
        budget    64 registers, 256 bytes shared (THREADS=1024)
        """
        m_warp = cuda.shared.array(NUM_WARPS, float32)
        l_warp = cuda.shared.array(NUM_WARPS, float32)
        numbers = cuda.local.array(LENGTH, float32)
        one = cuda.local.array(1, float32)  # outside of the packets
        tid, row, num_cols = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]
        begin, end = body(row, num_cols) if CUT else (0, num_cols)
        col_of_one = edge(tid, begin, end, num_cols)

        m_i = NEG_INF
        l_i = float32(0.0)
        if CUT and col_of_one < num_cols:
            load_one(x, row, col_of_one, one, 0)
            m_i = one[0]
            l_i = math.exp2((m_i - (float32(0.0) if m_i == NEG_INF else m_i)) * LOG2_E)
        for start in range(begin, end, STEP):
            for p in range(PACKETS):
                col = start + (tid + p * THREADS) * WIDTH
                if col < end:
                    load(x, row, col, numbers, p * WIDTH)
                else:
                    for i in range(WIDTH):
                        numbers[p * WIDTH + i] = NEG_INF
            m_new = m_i  # (m, l) <- (m, l) ⊕ (x_j, 1), for LENGTH numbers at once
            for i in range(LENGTH):
                m_new = max(m_new, numbers[i])
            shift = float32(0.0) if m_new == NEG_INF else m_new
            l_i *= math.exp2((m_i - shift) * LOG2_E)
            for i in range(LENGTH):
                l_i += math.exp2((numbers[i] - shift) * LOG2_E)
            m_i = m_new

        m_warp_i = warp_max(m_i)
        shift = float32(0.0) if m_warp_i == NEG_INF else m_warp_i
        l_i = warp_sum(l_i * math.exp2((m_i - shift) * LOG2_E))
        m, l = merge(m_warp_i, l_i, m_warp, l_warp)
        inverse = float32(1.0) / l

        # Backwards: the end of the row may still be in L2.
        last = begin + (end - begin - 1) // STEP * STEP
        for start in range(last, begin - 1, -STEP):
            for p in range(PACKETS):
                col = start + (tid + p * THREADS) * WIDTH
                if col < end:
                    load(x, row, col, numbers, p * WIDTH)
            for p in range(PACKETS):
                for i in range(WIDTH):
                    n = p * WIDTH + i
                    numbers[n] = math.exp2((numbers[n] - m) * LOG2_E) * inverse
                col = start + (tid + p * THREADS) * WIDTH
                if col < end:
                    store(y, row, col, numbers, p * WIDTH)
        if CUT and col_of_one < num_cols:
            load_one(x, row, col_of_one, one, 0)
            one[0] = math.exp2((one[0] - m) * LOG2_E) * inverse
            store_one(y, row, col_of_one, one, 0)

    return softmax_long_rows_kernel


def softmax_registers(x):
    """Softmax of each row, read once and kept in registers: a faster `online_softmax`.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
        Slower if x does not begin at a multiple of 16 bytes, or if its rows do not begin where
        those of a contiguous matrix do, modulo 16 bytes. Rows of more than 32768 columns, or 65536
        of 16 bits, are read twice.

    Returns
    -------
    array of the shape, dtype and library of x
        NaN for a row of −inf only.
    """
    checks.check_rows(x)
    num_rows, num_cols = x.shape
    y = arrays.empty(x, x.shape, x.dtype)
    packets_of_x = packets_of_rows(x)
    width = packets_of_x.width
    on_gpu = arrays.library_of(x) != "numpy" and arrays.gpu_available()
    # From Ampere on, a GPU rounds two numbers at a time.
    packs = width == 8 and on_gpu and arrays.compute_capability(x) >= (8, 0)
    if packs and LONGEST_HELD_ROW < num_cols <= LONGEST_PACKED_ROW:
        packets = ceil_div(num_cols, MAX_THREADS * width)
        kernel = make_softmax_packed(packets, arrays.dtype_name(x), *packets_of_x[1:])
        arrays.launch(kernel, (num_rows,), (MAX_THREADS,), x, y)
    elif num_cols > LONGEST_HELD_ROW:
        kernel = make_softmax_long_rows(MAX_THREADS, HELD_NUMBERS // 2 // width, *packets_of_x)
        arrays.launch(kernel, (num_rows,), (MAX_THREADS,), x, y)
    else:
        threads, rows, packets = registers_of_row(num_cols, width)
        kernel = make_softmax_registers(threads, rows, packets, *packets_of_x)
        arrays.launch(kernel, (ceil_div(num_rows, rows),), (threads, rows), x, y)
    return y
