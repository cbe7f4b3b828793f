"""A user's mask and score in the jobs: tiles that are hidden, and what happens to the scores.

The workers are compiled once. For each tile that is not whole, and each with a score, they call
one of four small functions by its address, which Numba compiles for these expressions alone:

seen          which keys of a tile some query of a panel sees
modify        score and mask of a tile of Sᵀ
modify_row    the same of one query, for `decode`
differentiate gradients of the score's arguments

`user`, an argument of the workers, is a `User`; without a mask and a score `NO_USER`, so that the
first mask does not compile them again.
"""

import functools
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.ccallback import CFunc

from fa_numba import checks
from fa_numba.constants import NEG_INF, ONE, ZERO
from fa_numba.cpu import disk_cache
from fa_numba.cpu.tiles import BLOCK_N, WIDTH
from fa_numba.cpu.vector_code import (
    MOST_AXES,
    SLOT,
    ExpressionsType,
    add_gradients,
    any_seen,
    score,
    score_of_keys,
    slope,
    where_key_seen,
    where_seen,
)
from fa_numba.cpu.vectors import GIVEN, LANES, ROWS, broadcast, inner, instruction, load, store
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.indices import check_indices
from fa_numba.expressions.nodes import const
from fa_numba.expressions.tiles import HIDDEN, WHOLE
from fa_numba.tiling.block_sizes import ceil_div

MOST_TILES = 2**20  # classified at once, where sequences differ: some 50 MB of intermediate results
SMALL = 2**18  # bytes of arrays: classes are kept for their contents, which are compared in 0.1 ms
MOST_SUMS = 2**24  # 128 MB
NO_CLASSES = np.zeros(0, np.int8), np.zeros((0, 3), np.int64)


class User(NamedTuple):
    """A mask and a score, for the workers: integers alone, which are passed on in few instructions.

    Attributes
    ----------
    given, has_mask, has_score, has_slope : int
        1 or 0.
    seen, modify, differentiate : int
        Addresses of functions, 0 where none is needed; in `decode`, `modify` is `modify_row`.
    table : int
        Address of the int64 array of arguments that `vector_code` describes.
    classes : int
        Address of an int8 array: those of all tiles, end to end.
    classes_of : int
        Address of an int64 array of shape (batch, 3): where those of a sequence begin; from a head,
        and from a row of tiles, to the next.
    sums, sums_of_task : int
        Address of a float64 array for the gradients of the score's arguments, and its numbers for
        each task: 0 without.
    """

    given: int
    has_mask: int
    has_score: int
    has_slope: int
    seen: int
    modify: int
    differentiate: int
    table: int
    classes: int
    classes_of: int
    sums: int
    sums_of_task: int


NO_USER = User(*[0] * len(User._fields))


# --- functions that are compiled for expressions ---------------------------------------------


@inner(forceinline=True)
def _panel_sees(expressions, table, b, head, m, key, last):
    """Whether some query of a panel sees a key. What depends on the key alone is computed once."""
    for i in range(0, WIDTH, LANES):
        if any_seen(expressions, table, b, head, m + i, key, last):
            return True
    return False


def seen(expressions, table, b, head, m, num_queries, n, num_keys):
    """2³² · the first key of a tile that some query of a panel sees + the one after the last."""
    first, end, last = 0, num_keys, m + num_queries - 1
    while first < end and not _panel_sees(expressions, table, b, head, m, n + first, last):
        first += 1
    while first < end and not _panel_sees(expressions, table, b, head, m, n + end - 1, last):
        end -= 1
    return first << 32 | end


def modify(
    expressions, table, b, head, m, num_queries, n, num_keys, pointer, st, rows, slope_at, masked,
    scale,
):  # fmt: skip
    """Scale, score and mask of a tile of Sᵀ, in the float32 array at `pointer`.

    The multiplication also prevents masked stores, which take some 12 cycles on AMD's processors:
    LLVM makes one of a number that is loaded, selected and stored again.

    Parameters
    ----------
    expressions, table
        As for the functions of `vector_code`.
    b, head, m, num_queries, n, num_keys : int
        Of the first score, m a position; how many there are.
    pointer, st, rows, slope_at, scale
        As for `scores.scores`.
    masked : int
        Whether each score needs the mask.
    """
    w, last = carray(pointer, (1,)), m + num_queries - 1
    all_seen = not masked and num_queries == WIDTH
    for key in range(num_keys):
        for i in range(0, WIDTH, LANES):
            to = key * WIDTH + i
            s = load(w, st + to) * broadcast(scale)
            x = score(expressions, table, b, head, m + i, n + key, last, s)
            if not all_seen:
                x = where_seen(
                    expressions, table, b, head, m + i, n + key, last, x, broadcast(NEG_INF)
                )
            store(w, st + to, x)
            if slope_at >= 0:
                x = slope(expressions, table, b, head, m + i, n + key, last, s)
                if not all_seen:  # of a hidden pair it may be NaN, which times 0 is NaN
                    x = where_seen(
                        expressions, table, b, head, m + i, n + key, last, x, broadcast(ZERO)
                    )
                store(w, slope_at + to, x)
    for to in range(num_keys * WIDTH, rows * WIDTH, LANES):
        store(w, st + to, broadcast(NEG_INF))
        if slope_at >= 0:
            store(w, slope_at + to, broadcast(ZERO))
    return 0


def modify_row(
    expressions, table, b, head, m, num_queries, n, num_keys, pointer, s, rows, slope_at, masked,
    scale,
):  # fmt: skip
    """As `modify`, of one query, whose keys lie along vectors from number s on."""
    w, last = carray(pointer, (1,)), n + num_keys - 1
    for key in range(0, num_keys, LANES):
        x, hidden = load(w, s + key) * broadcast(scale), broadcast(NEG_INF)
        x = score_of_keys(expressions, table, b, head, m, n + key, last, x)
        if masked or key + LANES > num_keys:
            x = where_key_seen(expressions, table, b, head, m, n + key, last, x, hidden)
        store(w, s + key, x)
    return 0


def differentiate(
    expressions, table, b, head, m, num_queries, n, num_keys, pointer, pt, dpt, st, delta, scale,
    sums,
):  # fmt: skip
    """Add the gradients of the score's arguments, of a tile, to `sums`.

    Parameters
    ----------
    expressions, table, b, head, m, num_queries, n, num_keys, pointer, scale
        As for `modify`.
    pt, dpt, st, delta : int
        Where in the float32 array Pᵀ, dPᵀ, K Qᵀ and δ are.
    sums : pointer to float64
    """
    w, last = carray(pointer, (1,)), m + num_queries - 1
    for i in range(0, WIDTH, LANES):
        for key in range(num_keys):
            to = key * WIDTH + i
            ds = load(w, pt + to) * (load(w, dpt + to) - load(w, delta + i))
            s = load(w, st + to) * broadcast(scale)
            add_gradients(expressions, table, b, head, m + i, n + key, last, s, ds, sums)
    return 0


OF_A_TILE = (types.CPointer(types.int64), *(types.int64,) * 6)
OF_SCORES = (types.CPointer(types.float32), *(types.int64,) * 4, types.float32)


@functools.cache
def address(function, expressions) -> int:
    """The address of one of the four functions, compiled for these expressions."""
    arguments = OF_A_TILE if function is seen else OF_A_TILE + OF_SCORES
    if function is differentiate:
        arguments += (types.CPointer(types.float64),)
    arguments = ExpressionsType(expressions), *arguments
    compiled = CFunc(function, (arguments, types.int64), {}, {})
    disk_cache.keep(compiled)
    compiled.compile()
    _compiled.append(compiled)
    return compiled.address


_compiled = []  # their machine code


@instruction(types.int64, types.int64, GIVEN, whole=True)
def call(context, builder, signature, to, packed):
    """The int64 that a function at an address returns; of an array it gets the address."""
    nothing = ir.Constant(ir.IntType(8).as_pointer(), None)  # the expressions
    given, kinds = [nothing], signature.args[1].types
    for kind, x in zip(kinds, cgutils.unpack_tuple(builder, packed), strict=True):
        if isinstance(kind, types.Array):
            x = cgutils.create_struct_proxy(kind)(context, builder, x).data
        elif kind != types.float32:
            x = context.cast(builder, x, kind, types.int64)
        given.append(x)
    number = ir.IntType(64)
    function = ir.FunctionType(number, [x.type for x in given])
    return builder.call(builder.inttoptr(to, function.as_pointer()), given)


def _reader(bits):
    """A function that reads one of the integers at an address."""

    @instruction(types.int64, types.int64, types.int64)
    def read(builder, address, at):
        pointer = builder.inttoptr(address, ir.IntType(bits).as_pointer())
        value = builder.load(builder.gep(pointer, [at]))
        return value if bits == 64 else builder.sext(value, ir.IntType(64))

    return read


_read_int8, _read_int64 = _reader(8), _reader(64)


# --- what the workers call -------------------------------------------------------------------


@inner
def class_of(user, b, head, row, n):
    """The class of a tile: its row of tiles, and the first of its keys."""
    begin = _read_int64(user.classes_of, 3 * b) + head * _read_int64(user.classes_of, 3 * b + 1)
    begin += row * _read_int64(user.classes_of, 3 * b + 2)
    return _read_int8(user.classes, begin + n // BLOCK_N)


@inner
def is_hidden(user, b, heads, rows, n):
    """Whether no query of some rows of tiles sees a key of the tile from key n on.

    heads and rows are the first, and the one after the last.
    """
    if not user.has_mask:
        return False
    of_each_head = _read_int64(user.classes_of, 3 * b + 1) != 0
    for head in range(heads[0], heads[1] if of_each_head else heads[0] + 1):
        for row in range(rows[0], rows[1]):
            if class_of(user, b, head, row, n) != HIDDEN:
                return False
    return True


@inner
def seen_keys(user, b, head, m, row, num_queries, n, num_keys):
    """Which keys of a tile some query of a panel sees.

    Parameters
    ----------
    user : User
    b, head, m, row : int
        m is the position of the panel's first query, row its number.
    num_queries, n, num_keys : int

    Returns
    -------
    first, end : int
        Numbers in the tile; first is a multiple of ROWS.
    masked : bool
        Whether each score needs the mask.
    """
    if not user.has_mask:
        return 0, num_keys, False
    found = class_of(user, b, head, row, n)
    if found == WHOLE:
        return 0, num_keys, False
    if found == HIDDEN:
        return 0, 0, False
    both = call(user.seen, (user.table, b, head, m, num_queries, n, num_keys))
    return (both >> 32) // ROWS * ROWS, both & 0xFFFFFFFF, True


@inner
def modified(w, st, rows, num_keys, scale, slope_at, user, at):
    """Score and mask of a tile of Sᵀ; the factor that is left to multiply by, above 0.

    Parameters
    ----------
    w, st, rows, num_keys, scale, slope_at
        As for `scores.scores`.
    user : User
    at : (b, head, m, n, num_queries, masked)
        Of the first score, m a position; how many queries there are; whether the mask is needed.
    """
    b, head, m, n, num_queries, masked = at
    if user.has_score or masked or num_queries < WIDTH or num_keys < rows or scale <= ZERO:
        of_tile = user.table, b, head, m, num_queries, n, num_keys
        call(user.modify, of_tile + (w, st, rows, slope_at, masked, scale))
        return ONE
    return scale


@inner
def add_argument_gradients(w, pt, dpt, st, delta, num_keys, scale, user, at, task):
    """Add those of a tile to the sums of a task.

    Parameters
    ----------
    w, pt, dpt, st, delta, scale
        As for `differentiate`.
    num_keys, user, at
        As for `modified`.
    task : int
    """
    b, head, m, n, num_queries, _ = at
    of_tile = user.table, b, head, m, num_queries, n, num_keys
    sums = user.sums + 8 * task * user.sums_of_task
    call(user.differentiate, of_tile + (w, pt, dpt, st, delta, scale, sums))


@inner
def modified_row(w, s, num_keys, scale, user, b, head, m, row, n):
    """As `modified`, of one query, with `modify_row`."""
    masked = user.has_mask != 0 and class_of(user, b, head, row, n) != WHOLE
    if user.has_score or masked or num_keys % LANES or scale <= ZERO:
        of_tile = user.table, b, head, m, 1, n, num_keys
        call(user.modify, of_tile + (w, s, 0, -1, masked, scale))
        return ONE
    return scale


# --- before the workers begin ----------------------------------------------------------------


def prepared(given, sequences, num_heads, block_m, *, decoding=False, tasks=0):
    """What the workers need of a user's mask and score, for one call.

    Parameters
    ----------
    given : Given
        Of `checks.check_expressions`.
    sequences : int64 array of shape (batch, 4)
        As for `forward.forward`.
    num_heads : int
    block_m : int
        Queries of a tile.
    decoding : bool, default=False
        For `decode.decode`.
    tasks : int, default=0
        Of `backward.backward`, if the gradients of the score's arguments are asked for.

    Returns
    -------
    user : User
    arrays : Arrays
        Those whose addresses are in it.
    """
    expressions, arguments, _ = given
    checks.check_axes_of_arguments(given, MOST_AXES)
    mask, score = expressions
    _check_indices(given, sequences, num_heads)
    if mask is None:
        classes = NO_CLASSES
    else:
        sizes = tuple(map(tuple, sequences[:, 1::2].tolist()))
        if len(set(sizes)) == 1:  # one table serves all sequences
            sizes = (*sizes[0], len(sizes))
        read = [
            x if i in _arrays_of(mask) or not np.ndim(x) else None for i, x in enumerate(arguments)
        ]
        if sum(x.nbytes for x in read if np.ndim(x)) <= SMALL:
            read = tuple((x.dtype, x.shape, x.tobytes()) if np.ndim(x) else x for x in read)
            classes = _kept_classes(mask, sizes, num_heads, block_m, read)
        else:
            classes = _classes(mask, sizes, num_heads, block_m, read)
    arrays = tuple(map(_readable, arguments))
    addresses = (
        0 if decoding else address(seen, expressions),
        address(modify_row if decoding else modify, expressions),
    )
    has = mask is not None, score is not None, expressions.changes_gradients
    table, size = _table(arrays, arguments)
    checks.check_sums_of_arguments(tasks, size, MOST_SUMS)
    arrays = Arrays(table, *classes, np.zeros((tasks, size)), arrays)
    add = address(differentiate, expressions) if tasks * size else 0
    places = (x.ctypes.data for x in arrays[:4])
    user = User(1, *map(int, has), *addresses, add, *places, size if tasks else 0)
    return user, arrays


class Arrays(NamedTuple):
    """What a `User` has the addresses of; and the arrays of the user's that are in its table."""

    table: np.ndarray
    classes: np.ndarray
    classes_of: np.ndarray
    sums: np.ndarray
    arguments: tuple


def _check_indices(given, sequences, num_heads):
    """Raise unless every array has all numbers that the mask and the score read."""
    if any(x is not None and _arrays_of(x) for x in given.expressions):
        queries, keys = (x[sequences[:, 1::2].all(axis=1)] for x in sequences[:, 1::2].T)
        if keys.size:  # positions from the least to the last
            longest, least = int(keys.max()), int((keys - queries).min())
            check_indices(given, len(sequences), num_heads, longest - least, longest)


@functools.lru_cache(maxsize=1024)
def _arrays_of(node):
    """The numbers of the arguments that an expression reads as arrays."""
    return frozenset(x.args[0] for x in nodes.walk(node) if x.op == "load")


def _readable(x):
    """An array as the workers read it: contiguous, of 32 bits."""
    if not np.ndim(x):
        return None
    kind = np.int32 if x.dtype.kind in "biu" else np.float32
    return np.ascontiguousarray(x, kind)


def _table(arrays, arguments):
    """The table of `vector_code`, and how many floats are in arrays."""
    table, size = np.zeros(SLOT * len(arguments), np.int64), 0
    for i, (array, x) in enumerate(zip(arrays, arguments, strict=True)):
        if array is not None:
            table[i * SLOT] = array.ctypes.data
            table[i * SLOT + 1 : i * SLOT + 1 + array.ndim] = array.shape
            if array.dtype == np.float32:
                table[i * SLOT + SLOT - 1] = size
                size += array.size
        else:
            table[i * SLOT] = np.asarray(x, np.float32 if x.dtype.kind == "f" else np.int32).view(
                np.int32
            )
    return table, size


def argument_gradients(arrays, given, score_args):
    """For each of the score's arguments its gradient, in its shape and dtype; None if no floats."""
    sums, gradients = arrays.sums.sum(axis=0), []
    for i, x in enumerate(score_args, given.num_mask_args):
        if not np.ndim(x) or x.dtype.kind in "biu":
            gradients.append(None)
        else:
            begin = arrays.table[i * SLOT + SLOT - 1]
            gradients.append(sums[begin : begin + x.size].reshape(x.shape).astype(x.dtype))
    return tuple(gradients)


def _classes(mask, sizes, num_heads, block_m, arguments):
    """The classes of all tiles, end to end, and where those of a sequence, head and row begin.

    Parameters
    ----------
    mask : Node
    sizes : (seqlen_q, seqlen_k, batch), or a tuple of (seqlen_q, seqlen_k)
    num_heads, block_m : int
    arguments : tuple

    Returns
    -------
    classes : int8 array
    classes_of : int64 array of shape (batch, 3)
        Where a sequence begins; from a head, and from a row of tiles, to the next.
    """
    if sizes and not isinstance(sizes[0], tuple):
        *one, batch = sizes
        groups = [(mask, one, batch)]
    elif len(sizes) * _most_tiles(sizes, block_m) <= MOST_TILES:
        groups = [(mask, np.array(sizes).reshape(-1, 2).T, len(sizes))]
    else:
        groups = [(nodes.replaced(mask, {"b": const(b)}), one, 1) for b, one in enumerate(sizes)]
    found, begins, start = [], [], 0
    for node, of_group, batch in groups:
        classes = tiles.tile_classes(node, of_group, block_m, BLOCK_N, arguments, batch, num_heads)
        batches, heads, num_rows, num_tiles = classes.shape
        per_head = num_rows * num_tiles
        for b in range(batch):
            begin = start + (b * heads * per_head if batches > 1 else 0)
            begins.append((begin, per_head if heads > 1 else 0, num_tiles))
        found.append(np.ravel(classes))
        start += classes.size
    return np.concatenate(found), np.array(begins, np.int64).reshape(-1, 3)


@functools.lru_cache(maxsize=16)
def _kept_classes(mask, sizes, num_heads, block_m, arguments):
    """`_classes`, with (dtype, shape, bytes) in place of an array."""
    arrays = (
        np.frombuffer(x[2], x[0]).reshape(x[1]) if isinstance(x, tuple) else x for x in arguments
    )
    return _classes(mask, sizes, num_heads, block_m, tuple(arrays))


def _most_tiles(sizes, block_m):
    return max((ceil_div(q, block_m) * ceil_div(k, BLOCK_N) for q, k in sizes), default=0)
