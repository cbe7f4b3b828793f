"""Kernels that make a table of runs on the GPU, of a mask with arrays there.

The CPU would have to wait for the arrays' numbers, and for the lengths of a packed batch. Kernels,
and the same classes as of `expressions.tiles`: the least and the greatest number of each range of
an array whose length is a power of two; the class of each tile; the runs of each thread block or
split, or backward those of each tile of keys.
"""

import functools

import numpy as np
from numba import boolean, cuda, int8, int32, int64, uint32

from fa_numba.checks.refused import RefusedValueError
from fa_numba.checks.requirements import MAX_GRID
from fa_numba.constants import FULL_WARP
from fa_numba.expressions import nodes
from fa_numba.expressions.functions import device_function_of
from fa_numba.expressions.interval_source import NoIntervalError, interval_source
from fa_numba.expressions.tiles import HIDDEN, MIXED, WHOLE
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

THREADS = 128
WARPS = THREADS // 32
PLACES = 2 * THREADS  # in shared memory, of `ranges_of`
STEPS = 7  # levels of `ranges_of` in a launch: THREADS is 2^STEPS
TILE, WIDEST = 2 * THREADS - 1, 1 << 30  # numbers in a range: at most so many rows or columns
AT_ONCE = 4  # loads of a thread before it waits for the first one
MAX_RUNS = 64  # of a thread block; what comes after is one mixed run
# A row of a packed batch: a thread block of tiles of queries (forward), a tile of queries,
# or a tile of keys.
BLOCKS, QUERIES, KEYS = range(3)


def make_extreme(WHICH, function, integer):
    """The least (0) or the greatest (1) number of a row of `ranges_of` from index low to high."""

    @cuda.jit(device=True)
    def extreme(table, row, low, high):
        zero, one = integer(0), integer(1)
        end = integer(table.shape[2] - 1)
        low, high = max(min(low, end), zero), max(min(high, end), zero)
        # Two ranges of 2^level, which may overlap.
        level = integer(31 - cuda.clz(int32(high - low + one)))
        last = integer(high + one - (one << level))
        return function(
            integer(table[level, row, low, WHICH]), integer(table[level, row, last, WHICH])
        )

    return extreme


@functools.cache
def interval_function(mask, integer):
    """interval(b, h, m0, m1, n0, n1, args, ranges) of `interval_source`, and its needs.

    `integer` is the type that it computes with; ranges is that of `ranges_of`. In int64, for a
    kernel of its own, it may walk the numbers of a tile.
    """
    text, needs = interval_source(mask, "interval", walks=integer is int64)
    names = {"least": make_extreme(0, min, integer), "most": make_extreme(1, max, integer)}
    return device_function_of(text, "interval", {"integer": integer, **names}), needs


@cuda.jit
def ranges_kernel(x, table, first):
    """The least and greatest of 2^level numbers from each index on, for STEPS levels after first.

    A thread block has THREADS indices, 2^first apart, and as many after them, which the ranges of
    the highest level reach: 2^STEPS is THREADS. From level to level a range doubles, in shared
    memory. An index beyond the last one is the last one.

    grid      (2^first · ceil(length / 2^first / THREADS), rows)
    HBM       writes STEPS rows of the table; at level 0 reads x, else the first of them, twice
    shared    2 · PLACES numbers of 32 bits
    """
    low = cuda.shared.array(PLACES, int32)
    high = cuda.shared.array(PLACES, int32)
    tid, row, stride = cuda.threadIdx.x, cuda.blockIdx.y, 1 << first
    last = x.shape[1] - 1
    i = cuda.blockIdx.x % stride + stride * (cuda.blockIdx.x // stride * THREADS + tid)
    for half in range(2):
        j, place = min(i + half * THREADS * stride, last), tid + half * THREADS
        if first == 0:
            low[place] = high[place] = int32(x[row, j])
        else:
            low[place], high[place] = table[first, row, j, 0], table[first, row, j, 1]
    cuda.syncthreads()
    if first == 0 and i <= last:
        table[0, row, i, 0] = table[0, row, i, 1] = low[tid]
    for step in range(min(STEPS, table.shape[0] - 1 - first)):
        a, b = tid + (1 << step), min(tid + THREADS + (1 << step), PLACES - 1)
        low_a, high_a = min(low[tid], low[a]), max(high[tid], high[a])
        low_b, high_b = min(low[tid + THREADS], low[b]), max(high[tid + THREADS], high[b])
        cuda.syncthreads()  # all have read
        low[tid], high[tid] = low_a, high_a
        low[tid + THREADS], high[tid + THREADS] = low_b, high_b
        cuda.syncthreads()
        if i <= last:
            table[first + step + 1, row, i, 0] = low_a
            table[first + step + 1, row, i, 1] = high_a


@cuda.jit(device=True)
def anything(b, h, m0, m1, n0, n1, args, ranges):
    """An `interval` that knows nothing: each tile is mixed."""
    return True, True


def make_class_of(interval):
    """The device function that classifies a tile by `interval`.

    A tile that goes beyond the keys is mixed; with cut also one that goes beyond the queries.
    """

    @cuda.jit(device=True)
    def class_of(b, h, m0, n0, sizes, block_m, block_n, cut, args, ranges):
        seqlen_q, seqlen_k = sizes
        shift = seqlen_k - seqlen_q
        m1, n1 = min(m0 + block_m, seqlen_q) - 1, min(n0 + block_n, seqlen_k) - 1
        may_not, may = interval(
            int64(b), int64(h), int64(m0 + shift), int64(m1 + shift), int64(n0), int64(n1),
            args, ranges,
        )  # fmt: skip
        beyond = n0 + block_n > seqlen_k or (cut != 0 and m0 + block_m > seqlen_q)
        if may and (may_not or beyond):
            return int8(MIXED)
        return int8(WHOLE) if may else int8(HIDDEN)

    return class_of


@functools.cache
def make_classes_kernel(mask):
    """The kernel that classifies tiles, and what it needs of its arguments."""
    interval, needs = interval_function(mask, int64)
    class_of = make_class_of(interval)

    @cuda.jit
    def classes_kernel(classes, seqlen_q, seqlen_k, block_m, block_n, cut, args, ranges):
        """The class of a tile of block_m queries and block_n keys: see `make_class_of`.

        grid      (ceil(n tiles / THREADS), m tiles, batch · heads): a thread has a tile
        HBM       writes classes once; for each tile some numbers of args and ranges
        """
        n_tile, m_tile = cuda.grid(1), cuda.blockIdx.y
        b, h = cuda.blockIdx.z // classes.shape[1], cuda.blockIdx.z % classes.shape[1]
        if n_tile < classes.shape[3]:
            tile = m_tile * block_m, n_tile * block_n, (seqlen_q, seqlen_k), block_m, block_n
            classes[b, h, m_tile, n_tile] = class_of(b, h, *tile, cut, args, ranges)

    return classes_kernel, needs


@functools.cache
def make_packed_classes_kernel(mask, BLOCK_M, BLOCK_N, ALONG, PARTS=1):
    """The kernel that classifies the tiles of a packed batch, whose lengths are on the GPU.

    `sequence_of` numbers the tiles ALONG QUERIES or ALONG KEYS of all sequences, or blocks of PARTS
    of them; the tiles along the other axis are those of a sequence. A mask that has no intervals on
    a GPU makes every tile of its sequence mixed.
    """
    try:
        interval = interval_function(mask, int64)[0]
    except NoIntervalError:
        interval = anything
    class_of = make_class_of(interval)
    OF_KEYS, IN_BLOCKS = ALONG == KEYS, ALONG == BLOCKS
    sequence_of = make_sequence_of(BLOCK_N if OF_KEYS else BLOCK_M * PARTS)

    @cuda.jit
    def packed_classes_kernel(classes, cu_seqlens_q, cu_seqlens_k, cut, args, ranges):
        """The class of a tile; HIDDEN outside of its sequence.

        grid      (rows, ceil(tiles of a row / THREADS), heads): a thread has a tile
        HBM       writes classes once; cu_seqlens about log2(batch) times in every thread; for each
                  tile some numbers of args and ranges
        """
        row, h = cuda.blockIdx.x, cuda.blockIdx.z
        tile = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        b, _, length, start = sequence_of(row // PARTS, cu_seqlens_k if OF_KEYS else cu_seqlens_q)
        other = cu_seqlens_q if OF_KEYS else cu_seqlens_k
        sizes = length, other[b + 1] - other[b]
        start += row % PARTS * BLOCK_M
        m0, n0 = start, tile * BLOCK_N
        if OF_KEYS:
            sizes, m0, n0 = (sizes[1], sizes[0]), tile * BLOCK_M, start
        kind = int8(HIDDEN)
        if m0 < sizes[0] and n0 < sizes[1]:
            kind = class_of(b, h, m0, n0, sizes, BLOCK_M, BLOCK_N, cut, args, ranges)
        if IN_BLOCKS and tile < classes.shape[3]:
            classes[0, h, row, tile] = kind
        elif not IN_BLOCKS and tile < classes.shape[2]:
            classes[0, h, tile, row] = kind

    return packed_classes_kernel


@functools.cache
def make_runs_kernel(PARTS, ALONG=BLOCKS):
    """The kernel of `tiles.runs_of_warpgroups` for PARTS warpgroups.

    ALONG QUERIES or KEYS, with one part: that of `tiles.runs_both_ways`, where a tile that sees
    none has no run.
    """

    ALL_MIXED = sum(MIXED << (2 * w) for w in range(PARTS))
    OF_KEYS, KINDS = ALONG == KEYS, (AT_ONCE, PARTS)

    @cuda.jit(device=True)
    def flags_of(classes, b, h, block, tile, begin, end, last):
        """The classes of a tile for all warpgroups; 0 if it is not loaded."""
        if tile < 0 or tile >= classes.shape[2 if OF_KEYS else 3]:
            return 0
        if OF_KEYS:
            return int32(classes[b, h, tile, block])
        if ALONG == QUERIES:
            return int32(classes[b, h, block, tile])
        flags, loaded = 0, tile == last
        for w in range(PARTS):
            m_tile, kind = block * PARTS + w, HIDDEN
            if m_tile < classes.shape[2]:
                kind = int32(classes[b, h, m_tile, tile])
            loaded = loaded or kind != HIDDEN
            if kind == HIDDEN and begin[w] <= tile < end[w]:
                kind = MIXED
            flags |= kind << (2 * w)
        return flags if loaded else 0

    @cuda.jit
    def runs_kernel(classes, runs):
        """The runs of a thread block or tile: a warp walks its row of tiles twice.

        grid      (ceil(thread blocks / WARPS), batch · heads): a warp has a row, a lane a tile
        HBM       reads classes, writes runs once
        """
        lane = cuda.threadIdx.x % 32
        block = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
        b, h = cuda.blockIdx.y // classes.shape[1], cuda.blockIdx.y % classes.shape[1]
        begin, end = cuda.local.array(PARTS, int32), cuda.local.array(PARTS, int32)
        num_tiles, most_runs = classes.shape[2 if OF_KEYS else 3], runs.shape[3]
        if block >= runs.shape[2]:
            return
        last = 0  # tile that the thread block loads; the first where it sees none
        for w in range(PARTS):
            begin[w], end[w] = num_tiles, 0
        seen = cuda.local.array(KINDS, boolean)
        for start in range(0, num_tiles, 32 * AT_ONCE):
            for i in range(AT_ONCE):  # the loads do not wait for each other
                for w in range(PARTS):
                    m_tile, tile, kind = block * PARTS + w, start + 32 * i + lane, HIDDEN
                    if OF_KEYS and tile < num_tiles:
                        kind = int32(classes[b, h, tile, block])
                    elif not OF_KEYS and m_tile < classes.shape[2] and tile < num_tiles:
                        kind = int32(classes[b, h, m_tile, tile])
                    seen[i, w] = kind != HIDDEN
            for i in range(AT_ONCE):
                for w in range(PARTS):
                    of_warp = uint32(cuda.ballot_sync(FULL_WARP, seen[i, w]))
                    if of_warp != 0:
                        begin[w] = min(begin[w], start + 32 * i + cuda.ffs(of_warp) - 1)
                        end[w] = start + 32 * i + 32 - cuda.clz(of_warp)
                        last = max(last, end[w] - 1)
        for w in range(PARTS):
            if end[w] == 0:  # a warpgroup that sees none: its loop begins with this one
                begin[w], end[w] = last, last + 1
        count = 0
        for start in range(0, num_tiles, 32):
            tile = start + lane
            flags = flags_of(classes, b, h, block, tile, begin, end, last)
            begins = flags != 0
            begins = begins and flags != flags_of(classes, b, h, block, tile - 1, begin, end, last)
            of_warp = uint32(cuda.ballot_sync(FULL_WARP, begins))
            r = count + cuda.popc(of_warp & uint32((2 << lane) - 1)) - 1
            if begins and r < most_runs:
                runs[b, h, block, r, 0] = tile
                runs[b, h, block, r, 2] = flags
            if flags != 0 and r < most_runs:
                if flags != flags_of(classes, b, h, block, tile + 1, begin, end, last):
                    runs[b, h, block, r, 1] = tile + 1
            count += cuda.popc(of_warp)
        cuda.syncwarp()  # all runs are written
        for r in range(count + lane, most_runs, 32):
            for i in range(3):
                runs[b, h, block, r, i] = 0
        if count > most_runs and lane == 0:  # no room: the last run has the rest
            runs[b, h, block, most_runs - 1, 1] = last + 1
            runs[b, h, block, most_runs - 1, 2] = ALL_MIXED

    return runs_kernel


@functools.cache
def make_split_classes_kernel(PARTS, TOGETHER):
    """The kernel that divides the tiles of keys of a thread block among splits.

    A thread block has PARTS tiles of queries, one for each warpgroup; TOGETHER it has one, with the
    rows of several heads, any of them in any warpgroup.
    """

    @cuda.jit(device=True)
    def class_in(classes, b, h, heads, block, w, tile):
        m_tile = block if TOGETHER else block * PARTS + w
        if tile >= classes.shape[3] or m_tile >= classes.shape[2]:
            return int8(HIDDEN)
        kind = classes[b, h * heads, m_tile, tile]
        for i in range(1, heads):
            if classes[b, h * heads + i, m_tile, tile] != kind:
                kind = int8(MIXED)
        return kind

    @cuda.jit
    def split_classes_kernel(classes, of_splits, num_splits):
        """The classes of each split: those of its own tiles, HIDDEN in all others.

        As `flash_attn_split._runs_of_splits`: the splits have the tiles that are seen in their
        order, each as many or one more. One without any has the tile behind the last one, mixed.

        grid      (ceil(rows / WARPS), batch · heads): a warp has a row, a lane a tile
        HBM       reads classes twice for each split, writes of_splits once
        """
        lane = cuda.threadIdx.x % 32
        row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
        b, h = cuda.blockIdx.y // of_splits.shape[1], cuda.blockIdx.y % of_splits.shape[1]
        heads = classes.shape[1] // of_splits.shape[1]
        block, split = row // num_splits, row % num_splits
        behind, total, number = classes.shape[3], 0, 0
        if (row + 1) * PARTS > of_splits.shape[2]:
            return
        for start in range(0, behind, 32):
            seen = False
            for w in range(PARTS):
                seen = seen or class_in(classes, b, h, heads, block, w, start + lane) != HIDDEN
            total += cuda.popc(uint32(cuda.ballot_sync(FULL_WARP, seen)))
        each, more = total // num_splits, total % num_splits
        begin = split * each + min(split, more)
        end = begin + each + (1 if split < more else 0)
        for start in range(0, behind + 1, 32):
            tile, seen = start + lane, False
            for w in range(PARTS):
                seen = seen or class_in(classes, b, h, heads, block, w, tile) != HIDDEN
            of_warp = uint32(cuda.ballot_sync(FULL_WARP, seen))
            mine = begin <= number + cuda.popc(of_warp & uint32((1 << lane) - 1)) < end
            number += cuda.popc(of_warp)
            if tile <= behind:
                for w in range(PARTS):
                    kind = class_in(classes, b, h, heads, block, w, tile)
                    if tile == behind and begin == end:
                        kind = int8(MIXED)
                    elif not mine:
                        kind = int8(HIDDEN)
                    of_splits[b, h, row * PARTS + w, tile] = kind

    return split_classes_kernel


@cuda.jit
def queue_kernel(runs, order, counter):
    """The thread blocks of a table of runs, those with the most tiles of keys first; counter is 0.

    grid      (ceil(thread blocks / THREADS), batch · heads): a thread finds the rank of one
    HBM       reads runs once for each THREADS thread blocks, writes order once
    """
    tid, block, num_blocks = cuda.threadIdx.x, cuda.grid(1), runs.shape[2]
    b, h = cuda.blockIdx.y // runs.shape[1], cuda.blockIdx.y % runs.shape[1]
    work = cuda.shared.array(THREADS, int32)
    mine, rank = tiles_in(runs, b, h, block), 0
    for start in range(0, num_blocks, THREADS):
        work[tid] = mine if start + tid == block else tiles_in(runs, b, h, start + tid)
        cuda.syncthreads()
        for i in range(min(THREADS, num_blocks - start)):
            more = work[i] - mine
            if more > 0 or (more == 0 and start + i > block):  # of equal ones the last comes first
                rank += 1
        cuda.syncthreads()
    if block < num_blocks:
        order[b, h, rank] = block
    if block == 0 and cuda.blockIdx.y == 0:
        counter[0] = 0


@cuda.jit(device=True)
def tiles_in(runs, b, h, block):
    """The tiles of keys that a thread block loads; runs behind its last one are 0."""
    tiles, r, end = 0, 0, 1
    while block < runs.shape[2] and r < runs.shape[3] and end > 0:
        for i in range(r, r + AT_ONCE):  # the loads do not wait for each other
            if i < runs.shape[3]:
                end = runs[b, h, block, i, 1]
                tiles += end - runs[b, h, block, i, 0]
        r += AT_ONCE
    return tiles


def queue_of(like, runs):
    """The queue from which the thread blocks of a launch take tiles of queries.

    Parameters
    ----------
    like : array
    runs : array
        That of `make_table`.

    Returns
    -------
    order : int32 array of shape (batch or 1, num_heads or 1, thread blocks)
        Those with the most tiles of keys first.
    counter : int32 array of shape (1,)
        How many are taken: 0.
    """
    order, counter = (
        arrays.empty(like, runs.shape[:3], np.int32),
        arrays.empty(like, (1,), np.int32),
    )
    grid = ceil_div(runs.shape[2], THREADS), runs.shape[0] * runs.shape[1]
    arrays.launch(queue_kernel, grid, (THREADS,), runs, order, counter)
    return order, counter


def make_table(like, mask, arguments, ranges, problem):
    """The runs of `tiles.runs_of_warpgroups`, in the library of `like` and on its GPU.

    Parameters
    ----------
    like : array
    mask : Node
    arguments : tuple
        Those of the mask, arrays or NumPy scalars; others are not read.
    ranges : tuple of array
        Those of `ranges_of`.
    problem : (seqlen_q, seqlen_k, batch, num_heads, block_n, parts)

    Returns
    -------
    int32 array of shape (batch or 1, num_heads or 1, thread blocks, most runs, 3)

    Raises
    ------
    NoIntervalError
        Only the CPU can classify the tiles of this mask.
    """
    *sizes, block_n, parts = problem
    classes = _classes(like, mask, arguments, ranges, (*sizes, ROWS, block_n), 0)
    blocks = ceil_div(classes.shape[2], parts)
    return _runs(like, classes, blocks, classes.shape[3], make_runs_kernel(parts))


def make_split_table(like, mask, arguments, ranges, sizes, tiling, num_splits):
    """The runs of each part of `flash_attn_split`; `make_table` says how.

    Parameters
    ----------
    like, mask, arguments, ranges
        As of `make_table`.
    sizes : (seqlen_q, seqlen_k, batch, num_heads)
    tiling : SplitTiling
    num_splits : int

    Returns
    -------
    int32 array of shape (batch or 1, tiles of heads or 1, thread blocks, most runs, 3)
        The splits of a tile of queries lie side by side.
    """
    parts, block_n, together = tiling.tiles.consumers, tiling.tiles.block_n, tiling.heads > 1
    block_m = tiling.head_rows if together else ROWS
    classes = _classes(like, mask, arguments, ranges, (*sizes, block_m, block_n), 0)
    batch, heads, m_tiles, n_tiles = classes.shape
    rows = ceil_div(m_tiles, 1 if together else parts) * num_splits
    shape = batch, ceil_div(heads, tiling.heads), rows * parts, n_tiles + 1
    of_splits = arrays.empty(like, shape, np.int8)
    kernel = make_split_classes_kernel(parts, together)
    grid = ceil_div(rows, WARPS), batch * shape[1]
    arrays.launch(kernel, grid, (THREADS,), classes, of_splits, np.int32(num_splits))
    return _runs(like, of_splits, rows, n_tiles + 1, make_runs_kernel(parts))


def make_tables_both_ways(like, mask, arguments, problem, both=True):
    """The tables of `tiles.runs_both_ways`; `make_table` says how.

    Parameters
    ----------
    like, mask, arguments
        As of `make_table`.
    problem : (seqlen_q, seqlen_k, batch, num_heads, block_m, block_n)
    both : bool, default=True
        Without, of_queries is None. With both there is room for any number of runs, so that the
        tables have the same tiles (see `make_packed_table`).

    Returns
    -------
    of_queries : int32 array of shape (batch or 1, num_heads or 1, m tiles, most runs, 3)
    of_keys : int32 array of shape (batch or 1, num_heads or 1, n tiles, most runs, 3)
    """
    ranges = ranges_of(like, mask, arguments)
    classes = _classes(like, mask, arguments, ranges, problem, 1)
    m_tiles, n_tiles = classes.shape[2:]
    of_keys = _runs(like, classes, n_tiles, m_tiles, make_runs_kernel(1, KEYS), both)
    if not both:
        return None, of_keys
    return _runs(like, classes, m_tiles, n_tiles, make_runs_kernel(1, QUERIES), True), of_keys


def make_packed_table(
    like, mask, arguments, ranges, starts, problem, along, parts=1, all_runs=False
):
    """The runs of the tiles of a packed batch.

    Parameters
    ----------
    like, mask, arguments
        As of `make_table`.
    ranges : tuple of array
        Those of `ranges_of_packed`.
    starts : (cu_seqlens_q, cu_seqlens_k)
    problem : (num_tokens_q, num_tokens_k, num_heads, block_m, block_n)
    along : BLOCKS, QUERIES or KEYS
        The rows of the table, as `sequence_of` numbers them. BLOCKS are of `parts` tiles of
        queries, with the runs of `make_table`; the others have those of `tiles.runs_both_ways`.
    parts : int
    all_runs : bool, default=False
        Room for any number of runs: the tables along QUERIES and along KEYS of a kernel that reads
        both must have the same tiles, and after MAX_RUNS a table has tiles that are hidden.

    Returns
    -------
    int32 array of shape (1, num_heads or 1, rows, most runs, 3)
    """
    num_tokens_q, num_tokens_k, num_heads, block_m, block_n = problem
    assert max(block_m, block_n) <= TILE
    kernel = make_packed_classes_kernel(mask, block_m, block_n, along, parts)
    require_positive_divisors(mask, arguments)
    of_queries, of_keys = (num_tokens_q, block_m * parts), (num_tokens_k, block_n)
    if along == KEYS:
        of_queries, of_keys = of_keys, of_queries
    tokens, block = of_queries
    rows, num_tiles = tokens // block + starts[0].shape[0] - 1, ceil_div(*of_keys)
    heads = num_heads if "h" in nodes.variables(mask) else 1
    shape = (rows * parts, num_tiles) if along == BLOCKS else (num_tiles, rows)
    classes = arrays.empty(like, (1, heads, *shape), np.int8)
    grid = rows * parts, ceil_div(num_tiles, THREADS), heads
    cut = np.int32(along != BLOCKS)
    arrays.launch(kernel, grid, (THREADS,), classes, *starts, cut, arguments, ranges)
    # Along QUERIES the classes lie as those along KEYS.
    runs_kernel = make_runs_kernel(parts, BLOCKS if along == BLOCKS else KEYS)
    return _runs(like, classes, rows, num_tiles, runs_kernel, all_runs)


def ranges_of_packed(like, mask, arguments):
    """`ranges_of`, or nothing for a mask that has no intervals on a GPU."""
    try:
        return ranges_of(like, mask, arguments)
    except NoIntervalError:
        return ()


def require_positive_divisors(mask, arguments):
    """Raise for a negative divisor among the arguments: `interval_source` takes positive ones."""
    for x in nodes.walk(mask):
        if x.op in ("floordiv", "mod") and x.args[1].op == "var":
            name = x.args[1].args[0]
            value = arguments[int(name[3:])] if name.startswith("arg") else 1
            if value <= 0:
                raise RefusedValueError(
                    f"mask must divide by positive numbers in this kernel, got {value}: "
                    f"{nodes.described(x)}"
                )


def ranges_of(like, mask, arguments):
    """For each array that the mask indexes by a range, what `least` and `most` look up.

    Returns
    -------
    tuple of array of shape (levels, rows, length, 2)
        The least and the greatest number of each range of a row whose length is a power of two;
        of an array that is indexed by m or n alone, up to the largest power in a tile.

    Raises
    ------
    NoIntervalError
        Only the CPU can classify the tiles of this mask.
    """
    _, needs = interval_function(mask, int64)
    loads = [x.args for x in nodes.walk(mask) if x.op == "load"]
    wide = {i for i, *index in loads if not all(x.op in ("const", "var") for x in index)}
    return tuple(_ranges(like, arguments[i], i in wide) for i in needs.ranged)


def _classes(like, mask, arguments, ranges, problem, cut):
    seqlen_q, seqlen_k, batch, num_heads, block_m, block_n = problem
    assert max(block_m, block_n) <= TILE
    kernel, needs = make_classes_kernel(mask)
    if not all(arguments[i] > 0 for i in needs.positive):
        raise NoIntervalError("a divisor that is not positive")
    used = nodes.variables(mask)
    of_batch, of_heads = (n if x in used else 1 for n, x in ((batch, "b"), (num_heads, "h")))
    m_tiles, n_tiles = ceil_div(seqlen_q, block_m), ceil_div(seqlen_k, block_n)
    classes = arrays.empty(like, (of_batch, of_heads, m_tiles, n_tiles), np.int8)
    if max(m_tiles, of_batch * of_heads) > MAX_GRID:
        raise NoIntervalError("more tiles of queries, or batch · heads, than a grid has")
    grid = ceil_div(n_tiles, THREADS), m_tiles, of_batch * of_heads
    sizes = map(np.int32, (seqlen_q, seqlen_k, block_m, block_n, cut))
    arrays.launch(kernel, grid, (THREADS,), classes, *sizes, arguments, ranges)
    return classes


def _runs(like, classes, rows, num_tiles, kernel, all_runs=False):
    shape = *classes.shape[:2], rows, num_tiles if all_runs else min(num_tiles, MAX_RUNS), 3
    runs = arrays.empty(like, shape, np.int32)
    grid = ceil_div(rows, WARPS), classes.shape[0] * classes.shape[1]
    arrays.launch(kernel, grid, (THREADS,), classes, runs)
    return runs


def _ranges(like, x, wide):
    x = arrays.with_axis(x) if len(x.shape) == 1 else x
    rows, length = x.shape
    levels = min(max(length, 1), WIDEST if wide else TILE).bit_length()
    table = arrays.empty(like, (levels, rows, length, 2), np.int32)
    for first in range(0, max(levels - 1, 1), STEPS):
        grid = ceil_div(length, THREADS << first) << first, rows
        arrays.launch(ranges_kernel, grid, (THREADS,), x, table, np.int32(first))
    return table
