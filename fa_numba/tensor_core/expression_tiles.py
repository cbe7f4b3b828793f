"""The user's mask and score in the tiles of a warp, and the runs of tiles that a kernel walks.

A kernel with `Expressions` has no other mask and no other score: `expressions.given` has put
causal, windows, softcap and ALiBi into them. Its tiles are those of `expressions.tiles`: hidden
ones are not loaded, whole ones need no mask, and in mixed ones the mask is evaluated for each
score.

Arrays are those of `fragments`.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint32

from fa_numba.constants import LN2, LOG2_E
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.functions import device_functions
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.statement import opaque
from fa_numba.runtime import arrays
from fa_numba.tensor_core.fragments import MASKED, fragment_function
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

FIRST, END, CLASSES = range(3)  # of a run


class ExpressionArgs(NamedTuple):
    """`mainloop.ScoreModArgs` and `DroppingArgs` in a main loop with expressions.

    Attributes
    ----------
    scale : float32
        softmax_scale · log2 e.
    place, dropout
        As of `DroppingArgs`; not read without dropout.
    masked : bool
        The tile is mixed.
    b, head : int32
    args : tuple
        The arguments of the expressions.
    """

    scale: Any
    place: Any
    dropout: Any
    masked: Any
    b: Any
    head: Any
    args: Any


class TileFunctions(NamedTuple):
    """Device functions of `make_tile_functions`."""

    exponent_scale_of: Any
    modify: Any


class RunFunctions(NamedTuple):
    """Device functions of `make_run_functions`."""

    run_of: Any
    class_of: Any


@functools.cache
def make_tile_functions(BLOCK_N, EXPRESSIONS):
    """The mask and the score of a warp's 16 rows of scores.

    Returns
    -------
    TileFunctions
        exponent_scale_of(scale)
            Returns the scale of the softmax after `modify`: P = exp2((s − m_i) · exponent_scale).
        modify(s, EDGE, n_start, position, seqlen_k, lane, score_mod_args)
            Modifies the scores, whose first column is key n_start; with EDGE, a compile-time
            constant, those that the mask hides become MASKED. `position` is that of this lane's
            first row among the keys.
    """
    S8 = BLOCK_N // 8
    HAS_MASK, HAS_SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    sees, score, _ = device_functions(EXPRESSIONS, fast=True)
    # An array is indexed by keys and positions that there are: the last ones in place of others.
    LOADS = any(x.op == "load" for y in EXPRESSIONS if y is not None for x in nodes.walk(y))

    @cuda.jit(device=True, forceinline=True)
    def there(index, seqlen_k, EDGE):
        return min(index, int32(seqlen_k - 1)) if LOADS and EDGE else index

    @fragment_function()
    def exponent_scale_of(scale):
        return LOG2_E if HAS_SCORE else scale

    @fragment_function()
    def modify_scores(s, EDGE, n_start, position, seqlen_k, lane, given):
        scale = given.scale * LN2
        for h in range(2):
            m = there(int32(position + 8 * h), seqlen_k, True)
            for j in range(S8):
                for c in range(2):
                    n = there(int32(n_start + 8 * j + c), seqlen_k, EDGE)
                    x = s[j, 2 * h + c] * scale
                    s[j, 2 * h + c] = score(x, given.b, given.head, m, n, given.args)

    @fragment_function()
    def mask_scores(s, n_start, position, seqlen_k, lane, given):
        # First all verdicts, as bits: mixed with the scores they need too many registers.
        for h in range(2):
            m = there(int32(position + 8 * h), seqlen_k, True)
            bits = uint32(0)
            for j in range(S8):
                for c in range(2):
                    n = int32(n_start + 8 * j + c)
                    seen = n < seqlen_k
                    if HAS_MASK:
                        n = there(n, seqlen_k, True)
                        seen = seen & sees(given.b, given.head, m, n, given.args)
                    bits |= uint32(1 << (2 * j + c)) if seen else uint32(0)
            bits = uint32(opaque(bits))
            for j in range(S8):
                for c in range(2):
                    if not bits & uint32(1 << (2 * j + c)):
                        s[j, 2 * h + c] = MASKED

    @fragment_function()
    def modify(s, EDGE, n_start, position, seqlen_k, lane, given):
        first = int32(n_start + 2 * (lane & 3))  # this lane's first column
        if HAS_SCORE:
            modify_scores(s, EDGE, first, position, seqlen_k, lane, given)
        if EDGE:
            mask_scores(s, first, position, seqlen_k, lane, given)

    return TileFunctions(exponent_scale_of, modify)


@functools.cache
def make_run_functions(BLOCK_M):
    """Functions for the table of `runs_of`.

    Returns
    -------
    RunFunctions
        run_of(runs, b, head, m_start, r)
            Returns first tile, end and classes of run r of the query tile from row m_start on; end
            is 0 after the last.
        class_of(classes, part)
            Returns the class for a warpgroup.
    """

    @cuda.jit(device=True, forceinline=True)
    def run_of(runs, b, head, m_start, r):
        if r >= runs.shape[3]:
            return int32(0), int32(0), int32(0)
        b, head = min(b, int32(runs.shape[0] - 1)), min(head, int32(runs.shape[1] - 1))
        run = runs[b, head, m_start // BLOCK_M, r]
        return run[FIRST], run[END], run[CLASSES]

    @cuda.jit(device=True, forceinline=True)
    def class_of(classes, part):
        return int32(classes >> (2 * part) & 3)

    return RunFunctions(run_of, class_of)


@fragment_function()
def add_sink(m_i, l_i, alpha, sink, scale, lane):
    """A further score in the sum of two rows: then out must be multiplied by alpha.

    m_i may be far below it: it rises to it first.
    """
    sink *= LOG2_E
    for h in range(2):
        m_new = max(m_i[h], sink / scale)
        alpha[h] = exp2((m_i[h] - m_new) * scale)
        m_i[h] = m_new
        l_i[h] *= alpha[h]
        if lane & 3 == 0:  # one lane of the quad that holds the row
            l_i[h] += exp2(sink - m_new * scale)


def runs_of(call, block_n, parts):
    """The runs of each tile of `parts` · ROWS queries, and how many tiles of keys each has.

    Returns
    -------
    runs : array of the library of q
        As of `tiles.runs_of_warpgroups`.
    counts : tuple of float
        Tiles of keys of each tile of queries, on average over heads and sequences.
    """
    sizes = call.seqlen_q, call.seqlen_k
    mask = call.expressions.mask
    mask = nodes.TRUE if mask is None else mask
    arguments = [arrays.to_numpy(x) if arrays.library_of(x) else x for x in call.expression_args]
    # A score's arguments decide no class.
    used = {x.args[0] for x in nodes.walk(mask) if x.op == "load"}
    arguments = [None if i not in used and np.ndim(x) else x for i, x in enumerate(arguments)]
    if used:
        table, counts = _runs_of(mask, sizes, block_n, parts, arguments, call.batch, call.num_heads)
    else:
        table, counts = _kept_runs_of(
            mask, sizes, block_n, parts, tuple(arguments), call.batch, call.num_heads
        )
    return arrays.from_numpy(call.q, table), counts


def _runs_of(mask, sizes, block_n, parts, arguments, batch, num_heads):
    classes = tiles.tile_classes(mask, sizes, ROWS, block_n, arguments, batch, num_heads)
    table = tiles.runs_of_warpgroups(classes, sizes[1], block_n, parts)
    counts = (table[..., END] - table[..., FIRST]).sum(axis=-1).mean(axis=(0, 1))
    assert table.shape[2] == ceil_div(sizes[0], ROWS * parts)
    return table, tuple(counts.tolist())


_kept_runs_of = functools.lru_cache(64)(_runs_of)
