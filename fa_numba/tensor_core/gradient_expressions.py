"""Backward: the user's mask and score in a tile, and the tiles of queries that see a tile of keys.

As `expression_tiles` forward. Here the rows of a tile are keys and its columns are queries, so that
the runs are those of a column of tiles (`find_run`). On Hopper one thread, the producer, walks them
and tells the consumers of each tile of queries by a few numbers in shared memory; in a kernel
without a producer every thread walks them.

Arrays are those of `fragments`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba.constants import FULL_WARP, LN2, LOG2_E, ZERO
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.interval_source import NoIntervalError
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.statement import opaque
from fa_numba.ptx.vectors import load_shared_x2
from fa_numba.runtime import arrays
from fa_numba.tensor_core.expression_tiles import (
    END,
    FIRST,
    has_unknown_work,
    make_element_functions,
    make_run_functions,
    tables_of,
)
from fa_numba.tensor_core.fragments import SMALL, fragment_function
from fa_numba.tensor_core.gradient_fragments import bits_before
from fa_numba.tensor_core.run_tables import make_tables_both_ways
from fa_numba.tensor_core.tile_scheduler import divided

# Elements by which the producer names a tile of queries to the consumers.
M_TILE, HEAD, DQ_TILE, KIND = range(4)
MESSAGE_LENGTH = 4
MASKED_TILE, LAST_TILE = 1, 2  # KIND: the tile is mixed; it is the last one of these keys
# Up to this head_dim, where a tile has 128 queries, a softcap beside a mask stays in the score: the
# kernel's own would need too many registers there.
CAP_IN_SCORE = 64
run_of = make_run_functions(1).run_of


class ExpressedQueries(NamedTuple):
    """`gradient_mainloop.QueriesToDrop`, with the values that expressions need.

    Attributes
    ----------
    messages : shared array
        The producer's, of all stages.
    b, head : int32
    args : tuple
        The arguments of the expressions.
    """

    stage: Any
    parity: Any
    m_start: Any
    kept: Any
    place: Any
    dropout: Any
    messages: Any
    b: Any
    head: Any
    args: Any


class WalkedQueries(NamedTuple):
    """`ExpressedQueries` in a kernel whose threads walk the runs themselves.

    Attributes
    ----------
    m_start : int32
        The query of the first column.
    flags : int32
        The tile's KIND.
    b, head : int32
    args : tuple
        The arguments of the expressions.
    """

    m_start: Any
    flags: Any
    b: Any
    head: Any
    args: Any


class SizesOfTile(NamedTuple):
    """What `ExpressionFunctions` read of `key_tiles.Sizes`."""

    seqlen_k: Any
    shift: Any


class ExpressionFunctions(NamedTuple):
    """Functions of `make_expression_functions`; n is this lane's first key, n + 8 its second.

    Attributes
    ----------
    judge(bits, queries, n, sizes, lane)
        bits[h] gets a bit for each column: does the query see the key of row h? In the order of
        `gradient_fragments.make_select`.
    exponentiate(s, p, lse_rows, bits, queries, n, sizes, scale, lane)
        s becomes P; where the score changes gradients p becomes P in 16 bits, and s becomes P times
        the derivative of the score. Both are 0 without a bit.
    hide(s, p, bits, queries, n, sizes, lane)
        s and p, after a softcap of the kernel's, become 0 where the query does not see the key.
    """

    judge: Callable
    exponentiate: Callable
    hide: Callable


@functools.cache
def make_expression_functions(BLOCK_M, EXPRESSIONS, pack, WALKED=False):
    """`ExpressionFunctions` for scores of BLOCK_M columns.

    `queries` is an `ExpressedQueries`, with WALKED a `WalkedQueries`.
    """
    M8 = BLOCK_M // 8
    BITS_SHAPE = (M8, 2)
    HAS_MASK, HAS_SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    CHANGES = EXPRESSIONS.changes_gradients
    functions = make_element_functions(EXPRESSIONS)
    sees, angle_of, there = functions.sees, functions.angle_of, functions.there
    HAS_TANH = angle_of is not None

    @cuda.jit(device=True, forceinline=True)
    def is_masked(queries):
        if WALKED:
            return queries.flags & MASKED_TILE != 0
        # Read when it is needed: kept, it would take a register. So is m_start.
        return queries.messages[queries.stage, KIND] & MASKED_TILE != 0

    @cuda.jit(device=True, forceinline=True)
    def first_position(queries, sizes, lane):
        """Of this lane's columns."""
        if WALKED:
            m_start = queries.m_start
        else:
            m_start = int32(queries.messages[queries.stage, M_TILE] * BLOCK_M)
        return int32(m_start + 2 * (lane & 3) - sizes.shift)

    @fragment_function()
    def judge(bits, queries, n, sizes, lane):
        if is_masked(queries):
            seqlen_k, first = sizes.seqlen_k, first_position(queries, sizes, lane)
            found = cuda.local.array(BITS_SHAPE, uint32)  # an array, so that the loop is unrolled
            if HAS_MASK:
                for j in range(M8):
                    for h in range(2):
                        found[j, h] = uint32(0)
                    for c in range(2):
                        m = there(int32(first + 8 * j + c), seqlen_k, True)
                        for h in range(2):
                            key = there(int32(n + 8 * h), seqlen_k, True)
                            if sees(queries.b, queries.head, m, key, queries.args):
                                found[j, h] |= uint32(1 << (2 * j + c))
            exist = bits_before(int32(seqlen_k - first))
            for h in range(2):
                bits[h] = exist if n + 8 * h < seqlen_k else uint32(0)
                if HAS_MASK:
                    all_found = uint32(0)
                    for j in range(M8):
                        all_found |= found[j, h]
                    bits[h] &= all_found
                # Opaque: else the compiler would judge when it needs the bits, and not before.
                bits[h] = uint32(opaque(bits[h]))

    @cuda.jit(device=True, forceinline=True)
    def seen(bits, h, j, c):
        return bits[h] & uint32(1 << (2 * j + c)) != uint32(0)

    @fragment_function()
    def hide(s, p, bits):
        for j in range(M8):
            for h in range(2):
                halves = uint32(0)
                for c in range(2):
                    if seen(bits, h, j, c):
                        halves |= uint32(0xFFFF << (16 * c))
                    else:
                        s[j, 2 * h + c] = ZERO
                p[j // 2, 2 * (j & 1) + h] &= halves

    @fragment_function()
    def hide_masked(s, p, bits, queries, n, sizes, lane):
        if is_masked(queries):
            if HAS_TANH:  # not before: the bits would take registers
                judge(bits, queries, n, sizes, lane)
            hide(s, p, bits)

    @fragment_function()
    def are_small(s, queries, n, sizes, scale, lane):
        first, most = first_position(queries, sizes, lane), ZERO
        for j in range(M8):
            for c in range(2):
                m = there(int32(first + 8 * j + c), sizes.seqlen_k, True)
                for h in range(2):
                    key = there(int32(n + 8 * h), sizes.seqlen_k, True)
                    x = s[j, 2 * h + c] * (scale * LN2)
                    most = max(most, angle_of(x, queries.b, queries.head, m, key, queries.args))
        return cuda.all_sync(FULL_WARP, most <= SMALL)

    def make_exponentiate(score, slope):
        @fragment_function()
        def exponentiate(s, p, lse_rows, EDGE, bits, queries, n, sizes, scale, lane):
            lse = cuda.local.array(2, float32)
            e = cuda.local.array(2, float32)
            first = first_position(queries, sizes, lane)
            for j in range(M8):
                load_shared_x2(lse, lse_rows + (lane & 3) * 8 + 32 * j)
                for h in range(2):
                    key = there(int32(n + 8 * h), sizes.seqlen_k, EDGE)
                    for c in range(2):
                        m = there(int32(first + 8 * j + c), sizes.seqlen_k, EDGE)
                        hidden = (EDGE and not HAS_TANH) and not seen(bits, h, j, c)
                        x, y = s[j, 2 * h + c], s[j, 2 * h + c] * scale
                        if HAS_SCORE:
                            x *= scale * LN2
                            y = LOG2_E * score(x, queries.b, queries.head, m, key, queries.args)
                        e[c] = exp2(y - lse[c])
                        s[j, 2 * h + c] = e[c]
                        if CHANGES:
                            d = slope(x, queries.b, queries.head, m, key, queries.args)
                            s[j, 2 * h + c] = e[c] * d
                        if hidden:  # the score and its derivative may be infinite there
                            e[c] = ZERO
                            s[j, 2 * h + c] = ZERO
                    if CHANGES:
                        p[j // 2, 2 * (j & 1) + h] = pack(e[0], e[1])

        return exponentiate

    exponentiate_any = make_exponentiate(functions.score, functions.slope)
    exponentiate_small = make_exponentiate(functions.score_of_small, functions.slope_of_small)

    @fragment_function()
    def exponentiate(s, p, lse_rows, bits, queries, n, sizes, scale, lane):
        tile = queries, n, sizes, scale, lane
        if HAS_TANH:
            if are_small(s, *tile):
                exponentiate_small(s, p, lse_rows, True, bits, *tile)
            else:
                exponentiate_any(s, p, lse_rows, True, bits, *tile)
            hide_masked(s, p, bits, queries, n, sizes, lane)
        elif is_masked(queries):
            exponentiate_any(s, p, lse_rows, True, bits, *tile)
        else:
            exponentiate_any(s, p, lse_rows, False, bits, *tile)

    @fragment_function()
    def judge_early(bits, queries, n, sizes, lane):
        if not HAS_TANH:
            judge(bits, queries, n, sizes, lane)

    return ExpressionFunctions(judge_early, exponentiate, hide_masked)


@cuda.jit(device=True, forceinline=True)
def find_run(runs, b, n_tile, head, r, end_head):
    """Run r of a head, or the first run of a later head that has one.

    Returns
    -------
    head, r, first, end, kind : int32
        end is 0 after the last run of head end_head - 1.
    """
    first, end, kind = run_of(runs, b, head, n_tile, r)
    while end == 0 and head + 1 < end_head:
        head, r = int32(head + 1), int32(0)
        first, end, kind = run_of(runs, b, head, n_tile, r)
    return head, r, first, end, kind


@cuda.jit(device=True, forceinline=True)
def next_of_run(runs, b, n_tile, run, end_head):
    """What `find_run` returned, one tile of queries further on, and the KIND of this tile.

    The next tile first: the message of the last one says that it is.
    """
    head, r, tile, end, kind = run
    flags, tile = int32(MASKED_TILE if kind == tiles.MIXED else 0), int32(tile + 1)
    if tile == end:
        head, r, tile, end, kind = find_run(runs, b, n_tile, head, int32(r + 1), end_head)
        if end == 0:
            flags = int32(flags | LAST_TILE)
    return (head, r, tile, end, kind), flags


@cuda.jit(device=True, forceinline=True)
def number_of_tiles(runs, b, n_tile, head, end_head):
    """How many tiles of queries the runs of some heads have together."""
    total = int32(0)
    head, r, first, end, _ = find_run(runs, b, n_tile, head, int32(0), end_head)
    while end > 0:
        total = int32(total + end - first)
        head, r, first, end, _ = find_run(runs, b, n_tile, head, int32(r + 1), end_head)
    return total


@cuda.jit(device=True, forceinline=True)
def place_of_part(rows, dq_tile, n_tile):
    """The last index of a tile of dQ, and the index of n_tile's part: the last keys come first.

    rows is the table of the runs of each tile of queries, the number of heads, and that of tiles of
    queries.
    """
    rows, num_heads, num_m_tiles = rows
    of_all, m_tile = divided(dq_tile, num_m_tiles)
    b, head = divided(of_all, num_heads)
    last, index, r = int32(-1), int32(0), int32(0)
    first, end, _ = run_of(rows, b, head, m_tile, r)
    while end > 0:
        last = int32(last + end - first)
        index = int32(index + max(int32(0), int32(end - max(first, int32(n_tile + 1)))))
        r = int32(r + 1)
        first, end, _ = run_of(rows, b, head, m_tile, r)
    return last, index


@cuda.jit(device=True, forceinline=True)
def step_of_keys(step, turns, num_n_tiles, heads):
    """The tile of keys of a step, and its head of K and V among those of all sequences.

    First the long tiles of all heads, then the others head by head: a long one that began late
    would be computed alone in the end.
    """
    num_long = turns[0]
    if num_long == 0:
        head, tile = divided(step, num_n_tiles)
        return tile, head
    if step < uint32(num_long * heads):
        tile, head = divided(step, heads)
    else:
        head, tile = divided(step - uint32(num_long * heads), int32(num_n_tiles - num_long))
        tile = int32(tile + num_long)
    return turns[uint32(tile + 1)], head


class Runs(NamedTuple):
    """Tables of `runs_of_keys`, arrays of the library of q.

    Attributes
    ----------
    of_keys, of_queries
        The runs of tiles of queries of each tile of keys, and the reverse, as of `tiles.runs`. In a
        tile beyond the last query or key the mask is needed.
    turns
        The number of long tiles of keys, those, and then the others; or 0 alone, where none is long
        or the GPU made of_keys.
    """

    of_keys: Any
    of_queries: Any
    turns: Any


LONG = 2  # times the average number of tiles of queries


def runs_of_keys(q, k, given, block_m, block_n, both) -> Runs:
    """The tiles that a backward kernel walks; `both` says whether it needs both tables."""
    batch, seqlen_q, num_heads, _ = q.shape
    problem = seqlen_q, k.shape[1], batch, num_heads, block_m, block_n
    mask = nodes.TRUE if given.expressions.mask is None else given.expressions.mask
    if has_unknown_work(given.expressions):
        try:
            of_queries, of_keys = make_tables_both_ways(q, mask, given.arguments, problem, both)
            return Runs(of_keys, of_queries, arrays.constant(q, (1,), 0, np.int32))
        except NoIntervalError:
            pass
    return Runs(*tables_of(q, given, _tables, *problem))


def _tables(mask, arguments, seqlen_q, seqlen_k, batch, num_heads, block_m, block_n):
    sizes = seqlen_q, seqlen_k
    classes = tiles.tile_classes(mask, sizes, block_m, block_n, arguments, batch, num_heads)
    of_queries, of_keys = tiles.runs_both_ways(classes, sizes, block_m, block_n)
    lengths = (of_keys[..., END] - of_keys[..., FIRST]).sum(axis=-1).mean(axis=(0, 1))
    is_long = lengths > LONG * lengths.mean()
    turns = [is_long.sum()]
    if is_long.any():
        turns += [*np.flatnonzero(is_long), *np.flatnonzero(~is_long)]
    return of_keys, of_queries, np.array(turns, np.int32)
