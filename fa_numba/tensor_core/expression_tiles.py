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
from numba import cuda, float32, int32, uint32

from fa_numba.constants import FULL_WARP, LN2, LOG2_E
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.derivative import derivative
from fa_numba.expressions.functions import (
    FAST,
    NO_EXPRESSIONS,
    SCORE_VARIABLES,
    SMALL_TANH,
    S,
    device_function,
    device_functions,
)
from fa_numba.expressions.interval_source import NoIntervalError
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.statement import opaque
from fa_numba.runtime import arrays, replay
from fa_numba.tensor_core.fragments import MASKED, SMALL, fragment_function
from fa_numba.tensor_core.run_tables import (
    interval_function,
    make_table,
    ranges_of,
    require_positive_divisors,
)
from fa_numba.tiling.persistent_tiling import ROWS, tiles_of_keys

FIRST, END, CLASSES = range(3)  # of a run
AT_ONCE = 4  # mixed groups of 8 columns that a lane looks at without a branch between


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
    ranges : tuple of array
        Those of `run_tables.ranges_of`.
    """

    scale: Any
    place: Any
    dropout: Any
    masked: Any
    b: Any
    head: Any
    args: Any
    ranges: Any


class TileFunctions(NamedTuple):
    """Device functions of `make_tile_functions`."""

    exponent_scale_of: Any
    verdicts: Any
    modify_seen: Any
    modify: Any
    differentiate: Any


class RunFunctions(NamedTuple):
    """Device functions of `make_run_functions`."""

    run_of: Any
    class_of: Any


class ElementFunctions(NamedTuple):
    """Device functions of `make_element_functions`, those of one score or one pair.

    Attributes
    ----------
    sees, score, slope
        As of `expressions.functions.Functions`.
    score_of_small, slope_of_small
        The same where the arguments of all tanh are at most SMALL.
    angle_of
        The largest |argument| of a tanh in the score; None without a tanh.
    there(index, seqlen_k, EDGE)
        Returns an index that an array has: for a key or a position behind the last one, the last.
    """

    sees: Any
    score: Any
    slope: Any
    score_of_small: Any
    slope_of_small: Any
    angle_of: Any
    there: Any


@functools.cache
def make_element_functions(EXPRESSIONS):
    """The device functions of `Expressions`, for the tiles of kernels on tensor cores.

    A tanh takes two instructions of the special function unit. So a warp whose arguments of tanh
    are all small evaluates a polynomial, as `fragments.make_cap_tile` does.
    """
    written = S if EXPRESSIONS.score is None else EXPRESSIONS.score
    small = SCORE_VARIABLES, SMALL_TANH
    angle = largest_tanh_argument(written)
    LOADS = any(x.op == "load" for y in EXPRESSIONS if y is not None for x in nodes.walk(y))

    @cuda.jit(device=True, forceinline=True)
    def there(index, seqlen_k, EDGE):
        return min(index, int32(seqlen_k - 1)) if LOADS and EDGE else index

    return ElementFunctions(
        *device_functions(EXPRESSIONS, fast=True),
        device_function(written, "score", *small),
        device_function(derivative(written), "slope", *small),
        None if angle is None else device_function(angle, "angle", SCORE_VARIABLES, FAST),
        there,
    )


def largest_tanh_argument(score):
    """The expression of the largest |argument| of a score's tanh; None without one."""
    sizes = [nodes.make("abs", x.args[0]) for x in nodes.walk(score) if x.op == "tanh"]
    return functools.reduce(lambda x, y: nodes.make("max", x, y), sizes) if sizes else None


@functools.cache
def make_tile_functions(BLOCK_N, EXPRESSIONS):
    """The mask and the score of a warp's 16 rows of scores; None for EXPRESSIONS is neither.

    Returns
    -------
    TileFunctions
        exponent_scale_of(scale)
            Returns the scale of the softmax after `modify`: P = exp2((s − m_i) · exponent_scale).
        verdicts(n_start, position, seqlen_k, lane, score_mod_args)
            Returns a word for each of this lane's rows, with a bit for each of its scores: whether
            the mask lets it be seen. The first column is key n_start; `position` is that of this
            lane's first row among the keys. It needs no scores: it may run while they are computed.
        modify_seen(s, EDGE, seen, n_start, position, seqlen_k, lane, score_mod_args)
            Modifies the scores; with EDGE, a compile-time constant, those whose bit in `seen`, the
            two words, is 0 become MASKED.
        modify(s, EDGE, n_start, position, seqlen_k, lane, score_mod_args)
            Both.
        differentiate(dp, s, delta, EDGE, n_start, position, seqlen_k, lane, score_mod_args)
            Before `modify`: dP becomes (dP − delta) times the derivative of the score by s.
    """
    S8 = BLOCK_N // 8
    EXPRESSIONS = EXPRESSIONS or NO_EXPRESSIONS
    HAS_MASK, HAS_SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    sees, score, slope, score_of_small, _, angle_of, there = make_element_functions(EXPRESSIONS)
    HAS_TANH, LOADS = angle_of is not None, has_unknown_work(EXPRESSIONS)
    interval = interval_of_groups(EXPRESSIONS.mask)

    @fragment_function()
    def exponent_scale_of(scale):
        return LOG2_E if HAS_SCORE else scale

    def make_modify_scores(function):
        """Make the function that replaces each score by function(score, …)."""

        @fragment_function()
        def modify_scores(s, EDGE, n_start, position, seqlen_k, given):
            scale = given.scale * LN2
            for h in range(2):
                m = there(int32(position + 8 * h), seqlen_k, True)
                for j in range(S8):
                    for c in range(2):
                        n = there(int32(n_start + 8 * j + c), seqlen_k, EDGE)
                        x = s[j, 2 * h + c] * scale
                        s[j, 2 * h + c] = function(x, given.b, given.head, m, n, given.args)

        return modify_scores

    modify_scores, modify_small_scores = map(make_modify_scores, (score, score_of_small))

    @fragment_function()
    def are_small(s, EDGE, n_start, position, seqlen_k, given):
        scale, most = given.scale * LN2, float32(0)
        for h in range(2):
            m = there(int32(position + 8 * h), seqlen_k, True)
            for j in range(S8):
                for c in range(2):
                    n = there(int32(n_start + 8 * j + c), seqlen_k, EDGE)
                    x = s[j, 2 * h + c] * scale
                    most = max(most, angle_of(x, given.b, given.head, m, n, given.args))
        return cuda.all_sync(FULL_WARP, most <= SMALL)

    @cuda.jit(device=True, forceinline=True)
    def is_seen(n, m, seqlen_k, given):
        seen = n < seqlen_k
        if HAS_MASK:
            n = there(n, seqlen_k, True)
            seen = seen & sees(given.b, given.head, m, n, given.args)
        return seen

    @fragment_function()
    def hide(s, h, bits):
        """Replace the scores of one of a lane's rows whose bit is 0."""
        bits = uint32(opaque(bits))
        for j in range(S8):
            for c in range(2):
                if not bits & uint32(1 << (2 * j + c)):
                    s[j, 2 * h + c] = MASKED

    @fragment_function()
    def verdicts_by_groups(n_start, position, seqlen_k, lane, given):
        """Each lane classifies 8 columns of the warp's 16 rows; only mixed ones are looked at."""
        last = int32(seqlen_k - 1)
        m0 = position - (lane >> 2)
        n0 = int32(n_start + 8 * (lane & 15))
        m1, n1 = min(int32(m0 + 15), last), min(int32(n0 + 7), last)
        may_not, may = interval(
            given.b, given.head, min(m0, last), m1, min(n0, last), n1, given.args, given.ranges
        )
        if LOADS:  # decides nothing, but other lanes will find its numbers in L1
            # In a packed batch a position, and the last key, may be before the first one.
            n, m = int32(n0 + 7) if lane >= 16 else n0, max(min(m0, last), int32(0))
            may |= last >= 0 and is_seen(n, m, seqlen_k, given)
        hidden = uint32(cuda.ballot_sync(FULL_WARP, n0 > last or not may))
        whole = uint32(cuda.ballot_sync(FULL_WARP, n0 + 7 <= last and not may_not))
        mixed = uint32(~(hidden | whole) & uint32((1 << S8) - 1))
        upper = uint32(0)
        for j in range(S8):
            upper |= (whole & uint32(1 << j)) << j
        upper *= uint32(3)  # each bit twice: for two columns
        lower = upper
        first = int32(n_start + 2 * (lane & 3))
        m_upper, m_lower = min(position, last), min(int32(position + 8), last)
        groups = cuda.local.array(AT_ONCE, int32)
        while mixed != 0:
            left = mixed
            for i in range(AT_ONCE):  # the last one again where there are fewer: no branch
                groups[i] = cuda.ffs(left) - 1
                rest = uint32(left & uint32(left - uint32(1)))
                left = uint32(rest | left * (uint32(rest - uint32(1)) >> uint32(31)))
                mixed = uint32(mixed & uint32(mixed - uint32(1)))
            for i in range(AT_ONCE):  # their loads do not wait for each other
                for c in range(2):
                    n, bit = first + 8 * groups[i] + c, uint32(1) << uint32(2 * groups[i] + c)
                    upper |= bit if is_seen(int32(n), m_upper, seqlen_k, given) else uint32(0)
                    lower |= bit if is_seen(int32(n), m_lower, seqlen_k, given) else uint32(0)
        return upper, lower

    @fragment_function()
    def verdicts_one_by_one(n_start, position, seqlen_k, lane, given):
        first = int32(n_start + 2 * (lane & 3))
        last, upper, lower = int32(seqlen_k - 1), uint32(0), uint32(0)
        m_upper, m_lower = min(position, last), min(int32(position + 8), last)
        for j in range(S8):
            for c in range(2):
                n, bit = int32(first + 8 * j + c), uint32(1 << (2 * j + c))
                upper |= bit if is_seen(n, m_upper, seqlen_k, given) else uint32(0)
                lower |= bit if is_seen(n, m_lower, seqlen_k, given) else uint32(0)
        return upper, lower

    @fragment_function()
    def no_verdicts(n_start, position, seqlen_k, lane, given):
        return uint32(0), uint32(0)

    if not HAS_MASK:
        verdicts = no_verdicts
    else:
        verdicts = verdicts_one_by_one if interval is None else verdicts_by_groups

    @fragment_function()
    def modify_seen(s, EDGE, seen, n_start, position, seqlen_k, lane, given):
        first = int32(n_start + 2 * (lane & 3))  # this lane's first column
        if HAS_TANH and are_small(s, EDGE, first, position, seqlen_k, given):
            modify_small_scores(s, EDGE, first, position, seqlen_k, given)
        elif HAS_SCORE:
            modify_scores(s, EDGE, first, position, seqlen_k, given)
        if EDGE and HAS_MASK:
            for h in range(2):
                hide(s, h, seen[h])
        elif EDGE:  # the keys behind the last one
            for j in range(S8):
                for c in range(2):
                    if int32(first + 8 * j + c) >= seqlen_k:
                        s[j, c] = s[j, 2 + c] = MASKED

    @fragment_function()
    def modify(s, EDGE, n_start, position, seqlen_k, lane, given):
        seen = uint32(0), uint32(0)
        if EDGE:
            seen = verdicts(n_start, position, seqlen_k, lane, given)
        modify_seen(s, EDGE, seen, n_start, position, seqlen_k, lane, given)

    @fragment_function()
    def differentiate(dp, s, delta, EDGE, n_start, position, seqlen_k, lane, given):
        first, scale = int32(n_start + 2 * (lane & 3)), given.scale * LN2
        for h in range(2):
            m = there(int32(position + 8 * h), seqlen_k, True)
            for j in range(S8):
                for c in range(2):
                    n = there(int32(first + 8 * j + c), seqlen_k, EDGE)
                    x = s[j, 2 * h + c] * scale
                    by = slope(x, given.b, given.head, m, n, given.args)
                    dp[j, 2 * h + c] = (dp[j, 2 * h + c] - delta[h]) * by

    return TileFunctions(exponent_scale_of, verdicts, modify_seen, modify, differentiate)


def interval_of_groups(mask):
    """`run_tables.interval_function` in int32; None without one.

    The table of runs was made from intervals of all positions and keys, which fit int32, and with
    positive divisors (`require_positive_divisors`).
    """
    try:
        return interval_function(nodes.TRUE if mask is None else mask, int32)[0]
    except NoIntervalError:
        return None


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


_tables = {}  # of masks without arrays: by all that decides them
MAX_TABLES = 256  # when full, all are dropped


def tables_of(q, given, make, *sizes):
    """What `make` returns, with its tables in the library of q; kept if the mask has no arrays.

    Parameters
    ----------
    q : array
    given : Given
    make : callable
        ``make(mask, arguments, *sizes)`` returns a tuple. Arguments are on the CPU; None is in
        place of those of the score alone, which decide nothing.
    *sizes : int
    """
    expressions, values, *_ = given
    mask = nodes.TRUE if expressions.mask is None else expressions.mask
    loads = {x.args[0] for x in nodes.walk(mask) if x.op == "load"}
    numbers = nodes.variables(mask)
    arguments = [x if i in loads or f"arg{i}" in numbers else None for i, x in enumerate(values)]

    def made(arguments):
        found = make(mask, arguments, *sizes)
        return tuple(arrays.from_numpy(q, x) if isinstance(x, np.ndarray) else x for x in found)

    if loads:
        return made([arrays.to_numpy(x) if arrays.library_of(x) else x for x in arguments])
    key = make, mask, *map(repr, arguments), sizes, arrays.library_of(q), arrays.device_of(q)
    if key not in _tables:
        if len(_tables) >= MAX_TABLES:
            _tables.clear()
        _tables[key] = made(arguments)
    if recording := replay.current():
        for x in _tables[key]:
            if arrays.library_of(x):  # no number: a replay has the same table
                recording.note_allocation(x, lambda x=x: x)
    return _tables[key]


def has_unknown_work(expressions):
    """Whether the mask has arrays: then the CPU does not know which tiles it hides."""
    mask = None if expressions is None else expressions.mask
    return mask is not None and any(x.op == "load" for x in nodes.walk(mask))


def runs_of(scores, q, k, block_n, parts):
    """The runs of each tile of `parts` · ROWS queries, and how many tiles of keys each has.

    Parameters
    ----------
    scores : checks.Scores
    q, k : arrays
    block_n, parts : int

    Returns
    -------
    runs : tuple of array of the library of q
        That of `tiles.runs_of_warpgroups`; those of `run_tables.ranges_of`.
    counts : tuple of float
        Tiles of keys of each tile of queries, on average over heads and sequences.
    """
    (batch, seqlen_q, num_heads, _), seqlen_k = q.shape, k.shape[1]
    mask = nodes.TRUE if scores.expressions.mask is None else scores.expressions.mask
    require_positive_divisors(mask, scores.expression_args)
    sizes = seqlen_q, seqlen_k, batch, num_heads
    ranges = ()
    if has_unknown_work(scores.expressions):
        try:
            ranges = ranges_of(q, mask, scores.expression_args)
            problem = *sizes, block_n, parts
            table = make_table(q, mask, scores.expression_args, ranges, problem)
        except NoIntervalError:
            pass
        else:
            cut = seqlen_q, seqlen_k, ROWS * parts, block_n, False, (-1, -1)
            return (table, *ranges), tuple(tiles_of_keys(*cut))  # as if all tiles were seen
    given = scores.expressions, scores.expression_args
    table, counts = tables_of(q, given, _table, *sizes, block_n, parts)
    return (table, *ranges), counts


def _table(mask, arguments, seqlen_q, seqlen_k, batch, num_heads, block_n, parts):
    sizes = seqlen_q, seqlen_k
    classes = tiles.tile_classes(mask, sizes, ROWS, block_n, arguments, batch, num_heads)
    table = tiles.runs_of_warpgroups(classes, seqlen_k, block_n, parts)
    counts = (table[..., END] - table[..., FIRST]).sum(axis=-1).mean(axis=(0, 1))
    return table, tuple(counts.tolist())
