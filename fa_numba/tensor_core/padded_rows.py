"""Copies of 16-bit arrays with rows that TMA takes, and back: several arrays in one launch.

TMA takes rows that begin and end at multiples of 16 bytes. Rows of another length are copied to
rows of the next multiple of 8 columns, zero-padded; results are copied back without the padding.

A thread stores 16 bytes, and loads 8 numbers of 2 bytes for them: on one side of the copy rows
begin at any even address. A warp's 8 loads read the same 512 bytes, so seven of them hit L1.
Numbers are copied as bits (int16).
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int16, uint16, uint32, uint64

from fa_numba import checks
from fa_numba.on_cuda_cores.decode_problem import divide
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

CHUNK = 8  # numbers in 16 bytes
THREADS = 256  # of a thread block, at most
MOST = 5  # arrays of a launch


class Numbers(NamedTuple):
    """Device functions that load and store the bits of numbers; y is flat.

    Attributes
    ----------
    load : load(x, b, n, head, col)
        A number of a matrix of four axes, in the low half of a uint32.
    load_flat : load_flat(x, i)
    store_chunk : store_chunk(y, offset, words)
        Store 8 numbers, two in a word, to y[offset] and after it.
    """

    load: Any
    load_flat: Any
    store_chunk: Any


@functools.cache
def make_numbers(BY_PTX):
    """The `Numbers`; without BY_PTX as the CPU engine can."""
    if BY_PTX:  # imported here: PTX needs numba-cuda
        from fa_numba.ptx.statement import global_address
        from fa_numba.ptx.vectors import load_global_u16, store_global_x4

        @cuda.jit(device=True)
        def load(x, b, n, head, col):
            row = global_address(x[uint64(b), uint64(n), uint64(head)])
            return load_global_u16(row + uint64(2 * col))

        @cuda.jit(device=True)
        def load_flat(x, i):
            return load_global_u16(global_address(x) + uint64(2) * uint64(i))

        @cuda.jit(device=True)
        def store_chunk(y, offset, words):
            store_global_x4(global_address(y) + uint64(2 * offset), words)

        return Numbers(load, load_flat, store_chunk)

    @cuda.jit(device=True)
    def load_one(x, b, n, head, col):
        return uint32(uint16(x[uint64(b), uint64(n), uint64(head), uint64(col)]))

    @cuda.jit(device=True)
    def load_one_flat(x, i):
        return uint32(uint16(x[uint64(i)]))

    @cuda.jit(device=True)
    def store_numbers(y, offset, words):
        for i in range(CHUNK):
            y[uint64(offset + i)] = int16(uint16(words[i >> 1] >> uint32(16 * (i & 1))))

    return Numbers(load_one, load_one_flat, store_numbers)


@functools.cache
def make_for_each_array(copy):
    """The kernel that runs copy(x, y) for a pair of arrays, whose number is blockIdx.z."""

    @cuda.jit(launch_bounds=(THREADS, 6))
    def copy_rows_kernel(x0, x1, x2, x3, x4, y0, y1, y2, y3, y4):
        """Copies rows of x to rows of y.

        grid      (thread blocks of the largest array, batch or 1, arrays); THREADS threads at most
        private   words (4,): 8 numbers
        HBM       each x and each y once
        budget    40 registers
        """
        pair = cuda.blockIdx.z
        if pair == 0:
            copy(x0, y0)
        elif pair == 1:
            copy(x1, y1)
        elif pair == 2:
            copy(x2, y2)
        elif pair == 3:
            copy(x3, y3)
        else:
            copy(x4, y4)

    return copy_rows_kernel


@functools.cache
def make_pad(COLS, BY_PTX, MULTIPLE=CHUNK):
    """pad(x, y): rows of COLS columns to rows that end at a multiple of MULTIPLE, zero-padded.

    x has the shape (batch, seqlen, heads, COLS), y is flat. A thread block has ROWS rows of one
    batch entry, blockIdx.y; a thread stores chunk threadIdx.x of row threadIdx.y.
    """
    CHUNKS = padded_cols(COLS, MULTIPLE) // CHUNK
    ROWS = max(1, THREADS // CHUNKS)
    numbers = make_numbers(BY_PTX)
    load, store_chunk = numbers.load, numbers.store_chunk

    @cuda.jit(device=True)
    def pad(x, y):
        words = cuda.local.array(4, uint32)
        b, chunk = cuda.blockIdx.y, cuda.threadIdx.x
        _, seqlen, heads, _ = x.shape
        row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        if row >= seqlen * heads:
            return
        n, head = divide(row, heads)
        for i in range(CHUNK):
            col = CHUNK * chunk + i
            number = uint32(0)
            if col < COLS:
                number = load(x, b, n, head, col)
            if i & 1:
                words[i >> 1] = uint32(words[i >> 1] | (number << uint32(16)))
            else:
                words[i >> 1] = number
        store_chunk(y, CHUNK * (CHUNKS * (b * (seqlen * heads) + row) + chunk), words)

    return pad


@functools.cache
def make_unpad(COLS, BY_PTX):
    """unpad(x, y): the first COLS columns of rows that end at a multiple of CHUNK; both are flat.

    Neighbouring rows of y have no gap, so a thread's 8 numbers may be in two rows, or in more.
    """
    PADDED = CHUNK * ceil_div(COLS, CHUNK)
    numbers = make_numbers(BY_PTX)
    load_flat, store_chunk = numbers.load_flat, numbers.store_chunk

    @cuda.jit(device=True)
    def unpad(x, y):
        words = cuda.local.array(4, uint32)
        first = CHUNK * (cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        size = y.shape[0]
        if first >= size:
            return
        row = uint64(first) // uint64(COLS)
        col = uint64(first) - row * uint64(COLS)
        source = row * uint64(PADDED) + col
        for i in range(CHUNK):
            number = uint32(0)
            if first + i < size:
                number = load_flat(x, source)
            if i & 1:
                words[i >> 1] = uint32(words[i >> 1] | (number << uint32(16)))
            else:
                words[i >> 1] = number
            source += uint64(1)
            col += uint64(1)
            if col == uint64(COLS):
                col = uint64(0)
                source += uint64(PADDED - COLS)
        if first + CHUNK <= size:
            store_chunk(y, first, words)
        else:  # the last numbers of y
            for i in range(CHUNK):
                if first + i < size:
                    y[uint64(first + i)] = int16(uint16(words[i >> 1] >> uint32(16 * (i & 1))))

    return unpad


def padded_cols(num_cols, multiple=CHUNK):
    """The next multiple of so many columns."""
    return multiple * ceil_div(num_cols, multiple)


def pad_rows(*inputs, multiple=CHUNK):
    """Arrays that TMA takes: those that it takes already, and zero-padded copies of the others.

    Parameters
    ----------
    *inputs : arrays of shape (batch, seqlen, heads, cols), float16 or bfloat16
        At most `MOST`; seqlen and heads may differ.
    multiple : int, default=CHUNK
        A power of 2. Rows begin at multiples of so many numbers, if the array does.

    Returns
    -------
    list of array
        Of shape (batch, seqlen, heads, padded_cols(cols, multiple)), or the array itself.
    """
    batch, _, _, cols = inputs[0].shape
    shapes = [(*x.shape[:3], padded_cols(cols, multiple)) for x in inputs]
    padded = [
        x if rows_begin_at(x, multiple) else arrays.empty(x, shape, x.dtype)
        for x, shape in zip(inputs, shapes, strict=True)
    ]
    pairs = [(x, y) for x, y in zip(inputs, padded, strict=True) if x is not y]
    chunks = padded_cols(cols, multiple) // CHUNK
    rows = THREADS // chunks
    most_rows = max((x.shape[1] * x.shape[2] for x, _ in pairs), default=0)
    copies = [(arrays.as_int16(x), arrays.as_int16(y, flat=True)) for x, y in pairs]
    make_copy = functools.partial(make_pad, MULTIPLE=multiple)
    _copy(make_copy, cols, copies, (ceil_div(most_rows, rows), batch), (chunks, rows))
    return padded


def first_columns(cols, *inputs):
    """The first columns of arrays that `pad_rows` made wider; with no more columns the arrays.

    Parameters
    ----------
    cols : int
    *inputs : arrays of shape (batch, seqlen, heads, padded_cols(cols)), contiguous
        At most `MOST`; seqlen and heads may differ.

    Returns
    -------
    list of array
        Of shape (batch, seqlen, heads, cols), contiguous.
    """
    if padded_cols(cols) == cols:
        return list(inputs)
    results = [arrays.empty(x, (*x.shape[:3], cols), x.dtype) for x in inputs]
    sizes = [y.shape[0] * y.shape[1] * y.shape[2] * cols for y in results]
    copies = [
        (arrays.as_int16(x, flat=True), arrays.as_int16(y, flat=True))
        for x, y, size in zip(inputs, results, sizes, strict=True)
        if size
    ]
    _copy(make_unpad, cols, copies, (ceil_div(max(sizes), CHUNK * THREADS), 1), (THREADS,))
    return results


def rows_begin_at(x, multiple):
    """Whether TMA takes an array, and its rows begin at multiples of so many 16-bit numbers."""
    x = arrays.facts(x)
    strides = [n for n, size in zip(x.strides[:-1], x.shape, strict=False) if size > 1]
    return checks.rows_suit_tensor_maps(x) and not any(n % (2 * multiple) for n in strides)


def _copy(make_copy, cols, copies, grid, block):
    """Launch one kernel for all pairs of arrays."""
    if not copies or 0 in grid:
        return
    on_gpu = arrays.library_of(copies[0][0]) != "numpy" and arrays.gpu_available()
    kernel = make_for_each_array(make_copy(cols, on_gpu))
    unread = copies[0]
    xs, ys = zip(*copies, *[unread] * (MOST - len(copies)), strict=True)
    arrays.launch(kernel, (*grid, len(copies)), block, *xs, *ys)
