"""Packets: the 16 bytes that one instruction moves between a row in HBM and a thread's registers.

A warp that loads 32 packets requests 512 bytes with one instruction. For the same bytes in flight
it needs a quarter of the instructions, or an eighth if numbers have 16 bits. Numba emits one load
per element, because it does not know how an array is aligned. `make_packet` returns two functions
that move a packet of any dtype, converted to float32. A packet must begin at a multiple of 16
bytes; `packets_of_rows` tells whether the rows of an array allow that.

Rows of an odd length begin at other offsets each. Such a row is cut: elements before the first
multiple of 16 bytes, whole packets, elements after the last one.

    16 bits, rows of 21    row 1 begins 5 elements after a multiple of 16 bytes
    columns of row 1       0 1 2 | 3 … 10 | 11 … 18 | 19 20
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint64

from fa_numba.runtime import arrays

try:
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic
except ImportError:  # no numba-cuda, or its simulator: nothing is compiled
    intrinsic = None
else:
    INT32 = ir.IntType(32)

PACKET_BYTES = 16


class RowPackets(NamedTuple):
    """How the rows of a matrix are made of packets.

    Width and cut do not depend on strides and addresses, so that these change no bit of a result.

    Attributes
    ----------
    width : int
        Elements of a packet.
    cut : bool
        False if each row consists of whole packets.
    aligned : bool
        True if packets begin at multiples of 16 bytes; others are loaded element by element.
    """

    width: int
    cut: bool
    aligned: bool


def packets_of_rows(x):
    """The `RowPackets` of a matrix: those of a contiguous one that begins at a multiple of 16."""
    num_rows, num_cols = x.shape
    itemsize = x.dtype.itemsize
    width = PACKET_BYTES // itemsize
    aligned = True
    if arrays.gpu_available() and arrays.library_of(x) != "numpy":
        # Arrays on the CPU engine have no address: it moves a packet element by element.
        address, strides = arrays.address_and_strides(x)
        skewed = num_rows > 1 and (strides[0] - num_cols * itemsize) % PACKET_BYTES
        aligned = not (address % PACKET_BYTES or skewed)
    return RowPackets(width, num_cols % width > 0, aligned)


class Cut(NamedTuple):
    """Device functions that cut a row.

    Attributes
    ----------
    skew : skew(row, num_cols)
        Elements between the last multiple of 16 bytes and the row.
    body : body(row, num_cols)
        First column of the first whole packet, and end of the last one.
    edge : edge(i, begin, end, num_cols)
        The i-th column outside of body (begin, end); not below num_cols if there are not so many.
        There are at most 2 · WIDTH − 2.
    """

    skew: Any
    body: Any
    edge: Any


@functools.cache
def make_cut(WIDTH):
    """The `Cut` for packets of WIDTH elements."""

    @cuda.jit(device=True)
    def skew(row, num_cols):
        return row * num_cols & (WIDTH - 1)

    @cuda.jit(device=True)
    def body(row, num_cols):
        begin = min(-row * num_cols & (WIDTH - 1), num_cols)
        return begin, begin + ((num_cols - begin) & -WIDTH)

    @cuda.jit(device=True)
    def edge(i, begin, end, num_cols):
        return i if i < begin else i - begin + end

    return Cut(skew, body, edge)


class Packet(NamedTuple):
    """Device functions that move WIDTH neighbours of a row.

    Attributes
    ----------
    load : load(x, row, col, registers, first)
        registers[first + i] = float32(x[row, col + i]) for i < WIDTH
    store : store(y, row, col, registers, first)
        y[row, col + i] = registers[first + i], rounded to the dtype of y
    """

    load: Any
    store: Any


@functools.cache
def make_packet(WIDTH, ALIGNED=True):
    """The `Packet` of WIDTH neighbours: all elements of 16 bytes, or 1.

    Without ALIGNED it loads them one by one.
    """

    def load(x, row, col, registers, first):
        for i in range(WIDTH):
            registers[first + i] = float32(x[uint64(row), uint64(col + i)])

    def store(y, row, col, registers, first):
        for i in range(WIDTH):
            y[uint64(row), uint64(col + i)] = registers[first + i]

    if WIDTH == 1 or intrinsic is None:
        return Packet(*(cuda.jit(f, device=True) for f in (load, store)))

    @intrinsic
    def load_packet(typingctx, x, row, col, registers, first):
        def codegen(context, builder, signature, args):
            packet, elements, bits = _pointers(context, builder, signature, args, WIDTH)
            loaded = builder.load(packet, align=PACKET_BYTES)
            for i, pointer in enumerate(elements):
                word = builder.extract_element(loaded, INT32(i * bits // 32))
                element = builder.trunc(builder.lshr(word, INT32(i * bits % 32)), ir.IntType(bits))
                element = builder.bitcast(element, context.get_data_type(x.dtype))
                builder.store(context.cast(builder, element, x.dtype, types.float32), pointer)
            return context.get_dummy_value()

        return types.void(x, row, col, registers, first), codegen

    @intrinsic
    def store_packet(typingctx, y, row, col, registers, first):
        def codegen(context, builder, signature, args):
            packet, elements, bits = _pointers(context, builder, signature, args, WIDTH)
            words = [INT32(0)] * (PACKET_BYTES // 4)
            for i, pointer in enumerate(elements):
                element = context.cast(builder, builder.load(pointer), types.float32, y.dtype)
                element = builder.zext(builder.bitcast(element, ir.IntType(bits)), INT32)
                element = builder.shl(element, INT32(i * bits % 32))
                words[i * bits // 32] = builder.or_(words[i * bits // 32], element)
            stored = ir.Constant(packet.type.pointee, ir.Undefined)
            for i, word in enumerate(words):
                stored = builder.insert_element(stored, word, INT32(i))
            builder.store(stored, packet, align=PACKET_BYTES)
            return context.get_dummy_value()

        return types.void(y, row, col, registers, first), codegen

    load_packet.py_func, store_packet.py_func = load, store  # for the CPU engine
    return Packet(load_packet if ALIGNED else cuda.jit(load, device=True), store_packet)


def _pointers(context, builder, signature, args, length):
    """Pointer to a packet in HBM, pointers to its elements in the registers, bits of an element."""
    matrix_type, row_type, col_type, registers_type, first_type = signature.args

    def as_int64(value, kind):
        return context.cast(builder, value, kind, types.int64)

    matrix = cgutils.create_struct_proxy(matrix_type)(context, builder, value=args[0])
    row_bytes = builder.extract_value(matrix.strides, 0)
    start = builder.mul(as_int64(args[1], row_type), row_bytes)
    element = matrix.data.type.pointee
    data = builder.bitcast(matrix.data, ir.IntType(8).as_pointer())
    data = builder.bitcast(builder.gep(data, [start]), element.as_pointer())
    data = builder.gep(data, [as_int64(args[2], col_type)])
    vector = ir.VectorType(INT32, PACKET_BYTES // 4).as_pointer()
    packet = builder.addrspacecast(builder.bitcast(data, vector), vector.pointee.as_pointer(1))

    registers = cgutils.create_struct_proxy(registers_type)(context, builder, value=args[3])
    first = as_int64(args[4], first_type)
    elements = [
        builder.gep(registers.data, [builder.add(first, ir.IntType(64)(i))]) for i in range(length)
    ]
    return packet, elements, 8 * PACKET_BYTES // length
