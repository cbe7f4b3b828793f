"""Traffic of the decoding kernels: attention of new queries on a KV cache."""

import itertools
from dataclasses import replace

from fa_numba.analysis.traffic.counts import Traffic, total
from fa_numba.analysis.traffic.problem import Problem
from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import MLA_BLOCK_M, MLA_BLOCK_N, ceil_div
from fa_numba.tiling.decode_tiling import WARPS, combine_warps, decode_tiling
from fa_numba.tiling.num_splits import choose_num_splits, most_key_tiles
from numba_cuda_simulator.devices import CHIPS, DEFAULT


def flash_decode(problem, seq_lens, *, num_splits=0, scales=False):
    """Traffic of the two kernels of `fa_numba.kernels.flash_decode`.

    Parameters
    ----------
    problem : Problem
        Its seqlen_k is the cache's max_len.
    seq_lens : sequence of int
    num_splits : int, default=0
        0 is the number that the CPU engine chooses.
    scales : bool, default=False
        The cache is e4m3, with scales of heads or of tokens: one is read with each number.

    Returns
    -------
    Traffic
        Every thread of the first kernel reads seq_lens, every thread of the second lse_partial.
    """
    seq_lens = _lengths(problem, seq_lens)
    num_rows = problem.seqlen_q * problem.group_size  # that share a K/V head
    problem = problem.tiled_for("flash_decode", num_rows)
    num_m_tiles = ceil_div(num_rows, problem.block_m)
    thread_blocks = num_m_tiles * problem.num_kv_heads * problem.batch
    if num_splits == 0:
        num_n_tiles = most_key_tiles(
            problem.seqlen_k, problem.seqlen_q, problem.window_size, problem.block_n
        )
        num_splits = choose_num_splits(thread_blocks, num_n_tiles, CHIPS[DEFAULT].num_sms)
    threads = thread_blocks * num_splits * problem.block_m * problem.block_n
    keys = sum(
        _keys_of_split(problem, seq_len, m_tile, split, num_splits)
        for seq_len, m_tile, split in itertools.product(
            seq_lens, range(num_m_tiles), range(num_splits)
        )
    )
    k = problem.num_kv_heads * keys * problem.head_dim
    loads = {
        "q": num_splits * problem.rows * problem.head_dim,  # once for each split
        "k_cache": k,
        "v_cache": k,
        "k_scale": scales * k,
        "v_scale": scales * k,
        "seq_lens": threads,
        "alibi_slopes": problem.alibi * threads,
    }
    again, stores = _of_splits(num_splits, problem.rows, problem.head_dim)
    return Traffic(loads | again, stores, in_8_bits=("k_cache", "v_cache") if scales else ())


def paged_attn_decode(problem, seq_lens, *, num_splits=0, scales=False):
    """Traffic of `fa_numba.kernels.paged_attn_decode`: that of `flash_decode`, and the block table.

    Parameters
    ----------
    problem : Problem
        Its seqlen_k is max_pages · page_size, the most keys that the block table has room for.
    seq_lens : sequence of int
    num_splits : int, default=0
        0 is the number that the CPU engine chooses.
    scales : bool, default=False
        As for `flash_decode`.

    Returns
    -------
    Traffic
        For each key that a thread block loads, block_n threads read block_table.
    """
    traffic = flash_decode(problem, seq_lens, num_splits=num_splits, scales=scales)
    tiled = problem.tiled_for("flash_decode", problem.seqlen_q * problem.group_size)
    keys = traffic.loads["k_cache"] // problem.head_dim
    return replace(traffic, loads=traffic.loads | {"block_table": keys * tiled.block_n})


def mla_decode(problem, seq_lens, *, latent_dim=512, num_splits=0, paged=False):
    """Traffic of the two kernels of `fa_numba.mla_decode`.

    Parameters
    ----------
    problem : Problem
        Its head_dim is row_dim, its num_kv_heads is 1; its seqlen_k is the cache's max_len, or
        with pages max_pages · page_size.
    seq_lens : sequence of int
    latent_dim : int, default=512
    num_splits : int, default=0
        0 is the number that the CPU engine chooses.
    paged : bool, default=False
        A block table is given: for each key that a thread block loads, a warp reads it.

    Returns
    -------
    Traffic
        Every thread of the first kernel reads seq_lens, every thread of the second lse_partial.
    """
    seq_lens = _lengths(problem, seq_lens)
    problem = replace(problem, block_m=MLA_BLOCK_M, block_n=MLA_BLOCK_N)
    num_m_tiles = ceil_div(problem.seqlen_q * problem.num_heads, MLA_BLOCK_M)
    if num_splits == 0:
        work, num_sms = num_m_tiles * problem.batch, CHIPS[DEFAULT].num_sms
        num_splits = choose_num_splits(work, problem.num_n_tiles, num_sms)
    walks = itertools.product(seq_lens, range(num_m_tiles), range(num_splits))
    keys = sum(_keys_of_split(problem, *walk, num_splits) for walk in walks)
    warps = num_m_tiles * problem.batch * num_splits * MLA_BLOCK_M
    loads = {
        "q": num_splits * problem.rows * problem.head_dim,
        "latent_cache": keys * problem.head_dim,
        "seq_lens": warps * WARP_SIZE,
        "block_table": paged * keys * WARP_SIZE,
    }
    again, stores = _of_splits(num_splits, problem.rows, latent_dim)
    return Traffic(loads | again, stores)


def flash_decode_wide(problem, seq_lens, *, num_splits, paged=False):
    """Traffic of the one or two kernels of `flash_decode_wide`, without a mask.

    Parameters
    ----------
    problem : Problem
        Its seqlen_k is the cache's max_len.
    seq_lens : sequence of int
    num_splits : int
    paged : bool, default=False
        Whether a block table is given.

    Returns
    -------
    Traffic
        A warp loads K for one iteration more than it has. It does not use that K; most of it is
        in cache.
    """
    problem.refuse("flash_decode_wide", "causal", "window_size", "alibi", "block_m", "block_n")
    seq_lens = _lengths(problem, seq_lens)
    num_rows, head_dim = problem.seqlen_q * problem.group_size, problem.head_dim
    tiling = decode_tiling(num_rows, head_dim)
    tiles = ceil_div(num_rows, tiling.rows) * problem.num_kv_heads
    iterations = warps = 0  # of the thread blocks of one tile
    for seq_len, split in itertools.product(seq_lens, range(num_splits)):
        num_n_tiles = ceil_div(seq_len, tiling.block_n)
        n_first, n_end = (
            tiling.block_n * (s * (num_n_tiles // num_splits) + min(s, num_n_tiles % num_splits))
            for s in (split, split + 1)
        )
        for n_warp in range(n_first, n_first + tiling.block_n, tiling.warp_keys):
            of_warp = ceil_div(max(0, min(seq_len, n_end) - n_warp), tiling.block_n)
            iterations += of_warp
            warps += of_warp > 0
    rows = problem.rows
    num_groups = WARPS * WARP_SIZE // tiling.lanes
    keys = tiles * tiling.warp_keys * head_dim
    loads = {
        "q": num_splits * rows * head_dim * num_groups,
        "k_cache": keys * (iterations + warps),
        "v_cache": keys * iterations,
        "seq_lens": tiles * num_splits * len(seq_lens) * WARPS * WARP_SIZE,
        "block_table": paged * tiles * WARP_SIZE * tiling.keys * (iterations + 2 * warps),
    }
    if num_splits == 1:  # the first kernel's out_partial and lse_partial are out and lse
        return Traffic(loads, {"out_partial": rows * head_dim, "lse_partial": rows})
    readers = 2 * combine_warps(num_splits) + WARP_SIZE
    again, stores = _of_splits(num_splits, rows, head_dim, readers)
    return Traffic(loads | again, stores)


def _of_splits(num_splits, rows, columns, readers=WARP_SIZE):
    """Loads of the splits' results, lse by so many threads of each row; stores of both kernels."""
    partial = num_splits * rows
    loads = {"out_partial": partial * columns, "lse_partial": partial * readers}
    stores = {"out_partial": partial * columns, "lse_partial": partial}
    return loads, stores | {"out": rows * columns, "lse": rows}


def _lengths(problem, seq_lens):
    seq_lens = [int(length) for length in seq_lens]
    if len(seq_lens) != problem.batch:
        raise ValueError(
            f"seq_lens must have one length for each of batch = {problem.batch} sequences, got "
            f"{len(seq_lens)}"
        )
    return seq_lens


def _keys_of_split(problem, seq_len, m_tile, split, num_splits):
    """Keys that a thread block loads for its tile of queries and its split of a sequence."""
    left, right = problem.sides
    block_m, block_n = problem.block_m, problem.block_n
    first_tile = 0
    if left >= 0:  # the tile's first query sees the keys from position − left
        first_m = m_tile * block_m // problem.group_size
        first_tile = max(0, first_m + seq_len - problem.seqlen_q - left) // block_n
    num_n_tiles = ceil_div(seq_len, block_n) - first_tile
    n_first, n_end = (
        (first_tile + s * num_n_tiles // num_splits) * block_n for s in (split, split + 1)
    )
    if right >= 0:  # the tile's last query sees the keys before n_end; tiles are loaded whole
        last_m = ((m_tile + 1) * block_m - 1) // problem.group_size
        n_end = min(n_end, last_m + seq_len - problem.seqlen_q + right + 1)
    n_tiles = ceil_div(max(0, n_end - n_first), block_n)
    return min(seq_len, n_first + n_tiles * block_n) - min(seq_len, n_first)


def cascade_decode(plan, num_heads, num_kv_heads, head_dim):
    """Traffic of `fa_numba.cascade_decode` with `fa_numba.kernels.paged_attn_decode`.

    Parameters
    ----------
    plan : CascadePlan
        Of `fa_numba.kv_cache.cascade_plan`.
    num_heads, num_kv_heads, head_dim : int

    Returns
    -------
    Traffic
        That of a call for the suffixes and of one for each segment, whose queries are those of all
        its sequences; then the merge of the states.
    """
    heads = num_heads, num_kv_heads, head_dim
    batch, max_pages = plan.block_table.shape
    calls = [(batch, plan.seqlen_q, max_pages, plan.seq_lens)]
    for segment in plan.segments:
        queries = len(segment.rows) * plan.seqlen_q
        calls.append((1, queries, segment.pages.shape[1], segment.seq_lens))
    parts = [
        paged_attn_decode(Problem(b, m, pages * plan.page_size, *heads), lengths)
        for b, m, pages, lengths in calls
    ]
    if plan.segments:
        rows, states = batch * plan.seqlen_q * num_heads, 2 + plan.segments[-1].depth
        loads = {"out_partial": states * rows * head_dim, "lse_partial": states * rows * WARP_SIZE}
        parts.append(Traffic(loads, {"out": rows * head_dim, "lse": rows}))
    return Traffic(*total(parts))
