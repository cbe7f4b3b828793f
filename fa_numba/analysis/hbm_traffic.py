"""How many elements each kernel moves to and from HBM, by formula.

The formulas count what the kernels ask for, element by element; `simt.trace` counts the same by
watching, and the two are equal. A cache may serve some of it: a GPU's DRAM counters can show less.
Arguments are sizes, so that a formula answers for problems too large to run.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from fa_numba.simt.devices import CHIPS, DEFAULT
from fa_numba.tiling.block_sizes import ceil_div, kernel_block_sizes
from fa_numba.tiling.decode_tiling import WARPS, combine_warps, decode_tiling
from fa_numba.tiling.linear_attn import feature_dim, recurrent_by_default
from fa_numba.tiling.num_splits import choose_num_splits, most_key_tiles
from fa_numba.tiling.register_tiling import backward_tiling, forward_tiling
from fa_numba.tiling.row_tiling import LONGEST_HELD_ROW, WARP_SIZE, warps_of_row

# Parameters with the dtype of q, k, v; the others are float32 or int32 whatever that is.
LIKE_Q = frozenset(
    """q k v out dout dq dk dv out_a out_b k_cache v_cache k_src v_src k_dst v_dst
    x y w values""".split()
)


@dataclass(frozen=True)
class Traffic:
    """Elements loaded from and stored to HBM by all kernels of a function.

    Attributes
    ----------
    loads, stores : dict of str to int
        By name of the kernels' parameters.
    in_float32 : tuple of str
        Parameters that are float32 in this function, though elsewhere they have the dtype of q.
    """

    loads: dict = field(default_factory=dict)
    stores: dict = field(default_factory=dict)
    in_float32: tuple = ()

    def elements(self):
        """All loads and stores together."""
        return sum(self.loads.values()) + sum(self.stores.values())

    def bytes(self, dtype_bytes=4):
        """The same in bytes, where an element of q, k, v has `dtype_bytes`."""
        return sum(
            count * self._bytes_of(name, dtype_bytes)
            for counts in (self.loads, self.stores)
            for name, count in counts.items()
        )

    def _bytes_of(self, name, dtype_bytes):
        if name == "block_mask":  # bool
            return 1
        return dtype_bytes if name in LIKE_Q.difference(self.in_float32) else 4


def naive_softmax(num_rows, num_cols):
    """Traffic of `fa_numba.naive_softmax`: x for the sum, x again for the quotient."""
    return Traffic({"x": 2 * num_rows * num_cols}, {"y": num_rows * num_cols})


def safe_softmax(num_rows, num_cols):
    """Traffic of `fa_numba.safe_softmax`: x for the maximum, for the sum, for the quotient."""
    return Traffic({"x": 3 * num_rows * num_cols}, {"y": num_rows * num_cols})


def online_softmax(num_rows, num_cols):
    """Traffic of `fa_numba.online_softmax`: x for maximum and sum, x again for the quotient."""
    return Traffic({"x": 2 * num_rows * num_cols}, {"y": num_rows * num_cols})


def softmax_registers(num_rows, num_cols):
    """Traffic of `fa_numba.softmax_registers`: x once, where its rows fit in registers."""
    reads = 1 if num_cols <= LONGEST_HELD_ROW else 2
    return Traffic({"x": reads * num_rows * num_cols}, {"y": num_rows * num_cols})


def softmax_topk(num_rows, num_cols, k):
    """Traffic of `fa_numba.softmax_topk`: x once, and nothing of the rest of its softmax."""
    kept = num_rows * k
    return Traffic({"x": num_rows * num_cols}, {"values": kept, "columns": kept})


def softmax_topk_warps(num_rows, num_cols, k, num_sms=CHIPS[DEFAULT].num_sms):
    """Traffic of `fa_numba.softmax_topk_warps`: x once, and what the parts of split rows found.

    Each lane of a warp reads m_split and l_split: the hardware makes one access of a warp's.
    """
    _, num_splits = warps_of_row(num_rows, num_cols, num_sms)
    parts = num_rows * num_splits if num_splits > 1 else 0
    lists = dict.fromkeys(("x_split", "col_split"), parts * k)
    loads = dict.fromkeys(("m_split", "l_split"), parts * WARP_SIZE)
    stores = dict.fromkeys(("m_split", "l_split"), parts)
    kept = dict.fromkeys(("values", "columns"), num_rows * k)
    return Traffic({"x": num_rows * num_cols} | lists | loads, kept | lists | stores)


def naive_attn(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.naive_attn`; a mask saves nothing.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of a thread block reads.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
    """
    block_m, block_n = _tiles("naive_attn", head_dim, block_m, block_n)
    heads = batch * num_heads
    scores = heads * seqlen_q * seqlen_k
    q, k = heads * seqlen_q * head_dim, heads * seqlen_k * head_dim
    num_tiles = ceil_div(seqlen_q, block_m) * ceil_div(seqlen_k, block_n)
    loads = {
        "q": q * ceil_div(seqlen_k, block_n),  # once per tile of keys
        "k": k * ceil_div(seqlen_q, block_m),  # once per tile of queries
        "v": k * ceil_div(seqlen_q, block_m),
        "s": 3 * scores,  # for the maximum, the sum, the quotient
        "p": scores,
        "alibi_slopes": alibi * heads * num_tiles * block_m * block_n,
    }
    return Traffic(loads, {"s": scores, "p": scores, "out": q, "lse": heads * seqlen_q})


def lazy_softmax_attn(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    query_chunk_size=1024,
    key_chunk_size=None,
):
    """Traffic of `fa_numba.lazy_softmax_attn`, its two kernels together.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    query_chunk_size : int, default=1024
        It makes no difference: every query moves what it moves.
    key_chunk_size : int, default=⌈√seqlen_k⌉

    Returns
    -------
    Traffic
        l_partial and m_partial are read by every thread of the second kernel: the hardware makes
        one access of a warp's.
    """
    if key_chunk_size is None:
        key_chunk_size = max(1, math.ceil(math.sqrt(seqlen_k)))
    num_chunks = max(1, ceil_div(seqlen_k, key_chunk_size))
    heads = batch * num_heads
    rows, pairs = heads * seqlen_q, heads * _key_rows_walked(seqlen_q, seqlen_k, 1, 1, causal)
    partial = rows * num_chunks
    loads = {
        "q": partial * head_dim,  # once per chunk of keys
        "k": pairs * head_dim,  # once per query
        "v": pairs * head_dim,
        "acc_partial": partial * head_dim,
        "l_partial": partial * 32,
        "m_partial": 2 * partial * 32,  # for the maximum, then for the sums
    }
    stores = {
        "acc_partial": partial * head_dim,
        "l_partial": partial,
        "m_partial": partial,
        "out": rows * head_dim,
        "lse": rows,
    }
    return Traffic(loads, stores)


def flash_attn_v1(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_mask=None,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_attn_v1`; filling out, l, m and rounding out are not counted.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of a thread block reads.
    block_mask : bool array of shape (num_m_tiles, num_n_tiles), default=None
        It is read by every thread of a thread block, as a kernel's scalars are.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
    """
    block_m, block_n = _tiles("flash_attn_v1", head_dim, block_m, block_n)
    heads = batch * num_heads
    problem = (seqlen_q, seqlen_k, block_m, block_n, causal, window_size)
    if block_mask is None:
        rows, looks = _query_rows_walked(*problem), 0
        left, _ = window_size  # the keys before those that query 0 sees are skipped
        first = max(0, seqlen_k - seqlen_q - left) if left >= 0 else 0
        keys = seqlen_k - first // block_n * block_n
    else:
        rows, keys, looks = _live_rows(*problem, block_mask)
    every_thread = heads * block_m * block_n
    rows, k = heads * rows, heads * keys * head_dim
    back_and_forth = {"out": rows * head_dim, "l": rows, "m": rows}
    loads = {"q": rows * head_dim, "k": k, "v": k, **back_and_forth}
    loads |= {"alibi_slopes": alibi * every_thread, "block_mask": looks * every_thread}
    return Traffic(loads, back_and_forth, in_float32=("out",))


def flash_attn_v2(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_attn_v2`.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of a thread block reads.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
    """
    block_m, block_n = _tiles("flash_attn_v2", head_dim, block_m, block_n)
    heads = batch * num_heads
    q = heads * seqlen_q * head_dim
    walked = _key_rows_walked(seqlen_q, seqlen_k, block_m, block_n, causal, window_size)
    k = heads * walked * head_dim
    slopes = alibi * heads * ceil_div(seqlen_q, block_m) * block_m * block_n
    loads = {"q": q, "k": k, "v": k, "alibi_slopes": slopes}
    return Traffic(loads, {"out": q, "lse": heads * seqlen_q})


def flash_attn_registers(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    block_m,
    block_n,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
):
    """Traffic of `fa_numba.flash_attn_registers`: as `flash_attn_v2` with tiles of these sizes.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    block_m, block_n : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False

    Returns
    -------
    Traffic
    """
    sizes = batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
    options = {"causal": causal, "window_size": window_size}
    traffic = flash_attn_v2(*sizes, **options, block_m=block_m, block_n=block_n)
    threads = forward_tiling(head_dim, block_m, block_n).threads  # each reads a slope
    traffic.loads["alibi_slopes"] = (
        alibi * batch * num_heads * ceil_div(seqlen_q, block_m) * threads
    )
    return traffic


def flash_attn_varlen(
    cu_seqlens_q,
    cu_seqlens_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_attn_varlen`.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : sequences of int
    num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
        cu_seqlens_q, cu_seqlens_k and alibi_slopes are read by every thread of a thread block: the
        hardware makes one access of each warp's.
    """
    block_m, block_n = _tiles("flash_attn_v2", head_dim, block_m, block_n)
    problems = _sequences(cu_seqlens_q, cu_seqlens_k)
    tiles = (block_m, block_n, causal, window_size)
    walked = sum(_key_rows_walked(*problem, *tiles) for problem in problems)
    num_m_tiles = sum(ceil_div(seqlen_q, block_m) for seqlen_q, _ in problems)
    threads = num_heads * block_m * block_n
    rows = num_heads * sum(seqlen_q for seqlen_q, _ in problems)
    k = num_heads * walked * head_dim
    loads = {
        "q": rows * head_dim,
        "k": k,
        "v": k,
        "cu_seqlens_q": _looks_at_starts(cu_seqlens_q, block_m) * threads,
        "cu_seqlens_k": 2 * num_m_tiles * threads,
        "alibi_slopes": alibi * num_m_tiles * threads,
    }
    return Traffic(loads, {"out": rows * head_dim, "lse": rows})


def flash_attn_bwd(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_attn_bwd`, its three kernels together.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of a thread block reads.
    block_m, block_n : int, default=what the kernels choose

    Returns
    -------
    Traffic
    """
    block_m, block_n = _tiles("flash_attn_bwd", head_dim, block_m, block_n)
    heads = batch * num_heads
    rows = heads * seqlen_q
    # dK/dV: keys outside, queries inside. dQ: queries outside, keys inside.
    problem = (seqlen_q, seqlen_k, block_m, block_n, causal, window_size)
    rows_walked = heads * _query_rows_walked(*problem)
    keys_walked = heads * _key_rows_walked(*problem)
    num_tiles = ceil_div(seqlen_q, block_m) + ceil_div(seqlen_k, block_n)
    keys = batch * num_kv_heads * seqlen_k
    loads = {
        "out": rows * head_dim,  # delta
        "dout": (rows + rows_walked + rows) * head_dim,  # delta, dK/dV, dQ
        "q": (rows_walked + rows) * head_dim,
        "k": (keys + keys_walked) * head_dim,
        "v": (keys + keys_walked) * head_dim,
        "lse": rows_walked + rows,
        "delta": rows_walked + rows,
        "alibi_slopes": alibi * heads * num_tiles * block_m * block_n,
    }
    stores = {
        "delta": rows,
        "dk": keys * head_dim,
        "dv": keys * head_dim,
        "dq": rows * head_dim,
    }
    return Traffic(loads, stores)


def flash_attn_bwd_registers(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    tile_size,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    deterministic=False,
):
    """Traffic of `fa_numba.flash_attn_bwd_registers`, its two or three kernels together.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    tile_size : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
    deterministic : bool, default=False
        Otherwise dq is neither loaded nor stored: as many elements as are loaded of q are added to
        it atomically, after it has been set to 0.

    Returns
    -------
    Traffic
    """
    heads, rows = batch * num_heads, batch * num_heads * seqlen_q
    keys = batch * num_kv_heads * seqlen_k
    problem = (seqlen_q, seqlen_k, tile_size, tile_size, causal, window_size)
    rows_walked = heads * _query_rows_walked(*problem)
    tiling = backward_tiling(head_dim, tile_size)
    slopes = heads * ceil_div(seqlen_k, tile_size) * tiling.threads
    # delta, dK/dV
    loads = {
        "out": rows * head_dim,
        "dout": (rows + rows_walked) * head_dim,
        "q": rows_walked * head_dim,
        "k": keys * head_dim,
        "v": keys * head_dim,
        "lse": rows_walked,
        "delta": rows_walked,
        "alibi_slopes": alibi * slopes,
    }
    stores = {"delta": rows, "dk": keys * head_dim, "dv": keys * head_dim}
    if deterministic:  # dQ
        keys_walked = heads * _key_rows_walked(*problem)
        num_m_tiles = ceil_div(seqlen_q, tile_size)
        loads["q"] += rows * head_dim
        loads["dout"] += rows * head_dim
        loads["k"] += keys_walked * head_dim
        loads["v"] += keys_walked * head_dim
        loads["lse"] += rows * tiling.threads_x  # every thread of a row reads them
        loads["delta"] += rows * tiling.threads_x
        loads["alibi_slopes"] += alibi * heads * num_m_tiles * tiling.threads
        stores["dq"] = rows * head_dim
    return Traffic(loads, stores)


def flash_attn_varlen_bwd(
    cu_seqlens_q,
    cu_seqlens_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_attn_varlen_bwd`, its three kernels together.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : sequences of int
    num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes.
    block_m, block_n : int, default=what the kernels choose

    Returns
    -------
    Traffic
        cu_seqlens_q, cu_seqlens_k and alibi_slopes are read by every thread of a thread block: the
        hardware makes one access of each warp's.
    """
    block_m, block_n = _tiles("flash_attn_bwd", head_dim, block_m, block_n)
    problems = _sequences(cu_seqlens_q, cu_seqlens_k)
    each = [  # sequence on its own, but for what is read of its place among the others
        flash_attn_bwd(
            1,
            *problem,
            num_heads,
            num_kv_heads,
            head_dim,
            causal=causal,
            window_size=window_size,
            alibi=alibi,
            block_m=block_m,
            block_n=block_n,
        )
        for problem in problems
    ]
    loads, stores = Counter(), Counter()
    for one in each:
        loads.update(one.loads)
        stores.update(one.stores)
    threads = block_m * block_n
    num_m_tiles = num_heads * sum(ceil_div(seqlen_q, block_m) for seqlen_q, _ in problems)
    num_n_tiles = num_kv_heads * sum(ceil_div(seqlen_k, block_n) for _, seqlen_k in problems)
    looks_q = num_heads * _looks_at_starts(cu_seqlens_q, block_m)  # dQ
    looks_k = num_kv_heads * _looks_at_starts(cu_seqlens_k, block_n)  # dK/dV
    loads["cu_seqlens_q"] = (looks_q + 2 * num_n_tiles) * threads
    loads["cu_seqlens_k"] = (looks_k + 2 * num_m_tiles) * threads
    return Traffic(dict(loads), dict(stores))


def flash_decode(
    seq_lens,
    max_len,
    seqlen_q,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    num_splits=0,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.flash_decode`, its two kernels together.

    Parameters
    ----------
    seq_lens : sequence of int
    max_len, seqlen_q, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of the first kernel reads.
    num_splits : int, default=0
        0 is what the CPU engine chooses.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
        seq_lens is read by every thread of the first kernel, lse_partial by every thread of the
        second: the hardware makes one access of each warp's.
    """
    seq_lens = [int(length) for length in seq_lens]
    batch, group_size = len(seq_lens), num_heads // num_kv_heads
    num_rows = seqlen_q * group_size  # that share a K/V head
    block_m, block_n = _tiles("flash_decode", head_dim, block_m, block_n, num_rows)
    num_m_tiles = ceil_div(num_rows, block_m)
    thread_blocks = num_m_tiles * num_kv_heads * batch
    if num_splits == 0:
        num_n_tiles = most_key_tiles(max_len, seqlen_q, window_size, block_n)
        num_splits = choose_num_splits(thread_blocks, num_n_tiles, CHIPS[DEFAULT].num_sms)
    thread_blocks *= num_splits

    left, right = _sides(causal, window_size)
    keys = 0  # that the thread blocks of one K/V head load
    for seqlen_k, m_tile, split in itertools.product(
        seq_lens, range(num_m_tiles), range(num_splits)
    ):
        first_tile = 0
        if left >= 0:  # the tile's first query sees the keys from position − left
            first_m = m_tile * block_m // group_size
            first_tile = max(0, first_m + seqlen_k - seqlen_q - left) // block_n
        num_n_tiles = ceil_div(seqlen_k, block_n) - first_tile
        n_first, n_end = (
            (first_tile + s * num_n_tiles // num_splits) * block_n for s in (split, split + 1)
        )
        if right >= 0:  # the tile's last query sees the keys before n_end; tiles are loaded whole
            last_m = ((m_tile + 1) * block_m - 1) // group_size
            n_end = min(n_end, last_m + seqlen_k - seqlen_q + right + 1)
        n_tiles = ceil_div(max(0, n_end - n_first), block_n)
        keys += min(seqlen_k, n_first + n_tiles * block_n) - min(seqlen_k, n_first)

    rows = batch * num_heads * seqlen_q
    partial = num_splits * rows
    k = num_kv_heads * keys * head_dim
    loads = {
        "q": partial * head_dim,  # once per split
        "k_cache": k,
        "v_cache": k,
        "seq_lens": thread_blocks * block_m * block_n,
        "alibi_slopes": alibi * thread_blocks * block_m * block_n,
        "out_partial": partial * head_dim,
        "lse_partial": partial * 32,
    }
    stores = {
        "out_partial": partial * head_dim,
        "lse_partial": partial,
        "out": rows * head_dim,
        "lse": rows,
    }
    return Traffic(loads, stores)


def paged_attn_decode(
    seq_lens,
    max_pages,
    page_size,
    seqlen_q,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    causal=False,
    window_size=(-1, -1),
    alibi=False,
    num_splits=0,
    block_m=None,
    block_n=None,
):
    """Traffic of `fa_numba.paged_attn_decode`: that of `flash_decode`, and the block table.

    Parameters
    ----------
    seq_lens : sequence of int
    max_pages, page_size, seqlen_q, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        With alibi_slopes, which every thread of the first kernel reads.
    num_splits : int, default=0
        0 is what the CPU engine chooses.
    block_m, block_n : int, default=what the kernel chooses

    Returns
    -------
    Traffic
        For each key that a thread block loads, block_n threads read block_table: the hardware makes
        one access of each warp's.
    """
    traffic = flash_decode(
        seq_lens,
        max_pages * page_size,
        seqlen_q,
        num_heads,
        num_kv_heads,
        head_dim,
        causal=causal,
        window_size=window_size,
        alibi=alibi,
        num_splits=num_splits,
        block_m=block_m,
        block_n=block_n,
    )
    num_rows = seqlen_q * (num_heads // num_kv_heads)
    _, block_n = _tiles("flash_decode", head_dim, block_m, block_n, num_rows)
    keys = traffic.loads["k_cache"] // head_dim
    return Traffic(traffic.loads | {"block_table": keys * block_n}, traffic.stores)


def linear_attn(
    batch,
    seqlen_q,
    seqlen_k,
    num_heads,
    num_kv_heads,
    head_dim,
    *,
    feature_map="elu1",
    num_features=None,
    causal=False,
    form=None,
    chunk_size=16,
):
    """Traffic of `fa_numba.linear_attn`, its kernels together.

    Parameters
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    feature_map : "elu1", "relu", "taylor2" or "hedgehog", default="elu1"
    num_features : int, default=None
        Columns of the weights of "hedgehog".
    causal : bool, default=False
    form : "recurrent" or "chunked", default=what the function chooses
    chunk_size : int, default=16

    Returns
    -------
    Traffic
        x, w and phi are those of φ(q) and φ(k) together. The recurrent form reads phi_q and phi_k
        in every thread: the hardware makes one access of a warp's.
    """
    features, columns = feature_dim(feature_map, head_dim, num_features), head_dim + 1
    rows_q, rows_k = batch * seqlen_q * num_heads, batch * seqlen_k * num_kv_heads
    w = (rows_q + rows_k) * head_dim * features if feature_map == "hedgehog" else 0
    loads = {"x": (rows_q + rows_k) * head_dim, "w": w}
    stores = {"phi": (rows_q + rows_k) * features, "out": rows_q * head_dim}
    state = batch * num_kv_heads * features * columns

    if form is None:
        one = recurrent_by_default(causal, seqlen_q, num_heads // num_kv_heads)
        form = "recurrent" if one else "chunked"
    if form == "recurrent":
        loads |= {
            "phi_q": rows_q * features * columns,
            "phi_k": rows_k * features * columns,
            "v": rows_k * head_dim,
            "state_in": state,
            "state": state * seqlen_k,
        }
        return Traffic(loads, stores | {"state": state + state * seqlen_k})

    num_chunks = ceil_div(seqlen_q, chunk_size)
    keys = batch * seqlen_k * num_heads if causal else 0  # of its own chunk, for each query head
    states = batch * num_heads * num_chunks * features * columns
    loads |= {
        "phi_q": rows_q * features,
        "phi_k": rows_k * features * ceil_div(columns, 16) + keys * features,
        "v": rows_k * head_dim * ceil_div(features, 16) + keys * head_dim,
        "state_in": state,
        "states": states,
    }
    return Traffic(loads, stores | {"state": state, "states": state * num_chunks * causal})


def merge_states(batch, seqlen_q, num_heads, head_dim):
    """Traffic of `fa_numba.merge_states` where no part is empty.

    Parameters
    ----------
    batch, seqlen_q, num_heads, head_dim : int

    Returns
    -------
    Traffic
        lse_a and lse_b are read by every thread: the hardware makes one access of a warp's.
    """
    rows = batch * seqlen_q * num_heads
    out = rows * head_dim
    loads = {"out_a": out, "out_b": out, "lse_a": rows * 32, "lse_b": rows * 32}
    return Traffic(loads, {"out": out, "lse": rows})


def paged_kv_lookup(seq_lens, page_size, num_kv_heads, head_dim, *, max_len=None):
    """Traffic of `fa_numba.paged_kv_lookup`.

    Parameters
    ----------
    seq_lens : sequence of int
    page_size, num_kv_heads, head_dim : int
    max_len : int, default=max(seq_lens)

    Returns
    -------
    Traffic
        The tables are read by every thread of a thread block: 256 loads of one number, which
        the hardware makes 8, one for each warp.
    """
    seq_lens = [int(length) for length in seq_lens]
    max_len = max(seq_lens, default=0) if max_len is None else max_len
    token = num_kv_heads * head_dim
    used, dense = sum(seq_lens) * token, len(seq_lens) * max_len * token
    thread_blocks = len(seq_lens) * ceil_div(max_len, page_size)
    pages = sum(ceil_div(length, page_size) for length in seq_lens)
    threads = 32 * 8  # of a thread block
    loads = {
        "k_cache": used,
        "v_cache": used,
        "block_table": pages * threads,
        "seq_lens": thread_blocks * threads,
    }
    return Traffic(loads, {"k": dense, "v": dense})


def reshape_and_cache(slot_mapping, num_kv_heads, head_dim):
    """Traffic of `fa_numba.reshape_and_cache`.

    Parameters
    ----------
    slot_mapping : sequence of int
        −1 for a token that is not written.
    num_kv_heads, head_dim : int

    Returns
    -------
    Traffic
        slot_mapping is read by every thread of a thread block: 256 loads of one number, which the
        hardware makes 8.
    """
    written = sum(slot >= 0 for slot in slot_mapping) * num_kv_heads * head_dim
    loads = {"k": written, "v": written, "slot_mapping": len(slot_mapping) * 32 * 8}
    return Traffic(loads, {"k_cache": written, "v_cache": written})


def copy_pages(num_copies, page_size, num_kv_heads, head_dim):
    """Traffic of `fa_numba.copy_pages`, by the kernel's names: k_src and k_dst are k_cache.

    Parameters
    ----------
    num_copies, page_size, num_kv_heads, head_dim : int

    Returns
    -------
    Traffic
        src and dst are read by every thread of a thread block, as slot_mapping above.
    """
    pages = num_copies * page_size * num_kv_heads * head_dim
    numbers = num_copies * 32 * 8
    loads = {"k_src": pages, "v_src": pages, "src": numbers, "dst": numbers}
    return Traffic(loads, {"k_dst": pages, "v_dst": pages})


def swap_pages(num_pages, page_size, num_kv_heads, head_dim):
    """Traffic of the kernel of `fa_numba.swap_pages` in the GPU's memory: that of `copy_pages`.

    Between host and GPU as many bytes of K and V again cross the bus.
    """
    return copy_pages(num_pages, page_size, num_kv_heads, head_dim)


def standard_attention_traffic(N, d, dtype_bytes=2):
    """Bytes that attention moves for one head when S and P go through HBM.

    Source: the textbook count, each matrix moved once per use, with no tiles and no lse:
    S = Q Kᵀ reads Q, K and writes S; P = softmax(S) reads S and writes P; out = P V reads P, V and
    writes out.

    Parameters
    ----------
    N, d : int
        Sequence length and head_dim.
    dtype_bytes : int, default=2

    Returns
    -------
    dict of str to int
        Bytes by step, and their sum, `total`.
    """
    elements = {
        "q_reads": N * d,
        "k_reads": N * d,
        "s_writes": N * N,
        "s_reads": N * N,
        "p_writes": N * N,
        "p_reads": N * N,
        "v_reads": N * d,
        "out_writes": N * d,
    }
    return _in_bytes(elements, dtype_bytes)


def flash_attention_traffic(N, d, B_r, B_c, dtype_bytes=2):
    """Bytes that FlashAttention-2 moves for one head, without lse.

    A thread block for each tile of B_r queries reads its tile of Q and all of K and V, and writes
    its tile of out. B_c, the size of the key tiles, makes no difference: it only cuts the same
    K and V into more or fewer pieces.

    Parameters
    ----------
    N, d, B_r, B_c : int
        Sequence length, head_dim, tile sizes.
    dtype_bytes : int, default=2

    Returns
    -------
    dict of str to int
        Bytes by step, and their sum, `total`.
    """
    elements = {
        "q_reads": N * d,
        "k_reads": N * d * ceil_div(N, B_r),
        "v_reads": N * d * ceil_div(N, B_r),
        "out_writes": N * d,
    }
    return _in_bytes(elements, dtype_bytes)


def _in_bytes(elements, dtype_bytes):
    moved = {name: count * dtype_bytes for name, count in elements.items()}
    return {**moved, "total": sum(moved.values())}


def _tiles(kernel_name, head_dim, block_m, block_n, num_rows=math.inf):
    best_m, best_n = kernel_block_sizes(kernel_name, head_dim, num_rows=num_rows)
    return best_m if block_m is None else block_m, best_n if block_n is None else block_n


def _sequences(cu_seqlens_q, cu_seqlens_k):
    """(seqlen_q, seqlen_k) of each sequence of a packed batch."""
    lengths = (
        [int(end) - int(start) for start, end in itertools.pairwise(starts)]
        for starts in (cu_seqlens_q, cu_seqlens_k)
    )
    return list(zip(*lengths, strict=True))


def _looks_at_starts(starts, block):
    """How often a thread reads cu_seqlens to find its tile's sequence, summed over all tiles."""
    looks, batch = 0, len(starts) - 1
    for tile in range(int(starts[-1]) // block + batch):
        b, b_end = 0, batch
        while b_end - b > 1:
            middle = (b + b_end) // 2
            found = starts[middle] // block + middle <= tile
            b, b_end = (middle, b_end) if found else (b, middle)
            looks += 1
        looks += 2  # where the sequence begins, and where it ends
    return looks


def _key_rows_walked(seqlen_q, seqlen_k, block_m, block_n, causal, window_size=(-1, -1)):
    """Rows of K that the thread blocks of one head load, each walking the keys its queries see."""
    left, right = _sides(causal, window_size)
    return sum(
        min(seqlen_k, stop) - start
        for start, stop in _walks(seqlen_q, block_m, seqlen_k, block_n, left, right)
    )


def _query_rows_walked(seqlen_q, seqlen_k, block_m, block_n, causal, window_size=(-1, -1)):
    """Rows of Q loaded for one head, for each tile of keys those of the tiles that see it."""
    left, right = _sides(causal, window_size)
    return sum(
        min(seqlen_q, stop) - start
        for start, stop in _walks(seqlen_k, block_n, seqlen_q, block_m, right, left)
    )


def _sides(causal, window_size):
    left, right = window_size
    return left, 0 if causal else right


def _walks(seqlen, block, seqlen_other, block_other, before, after):
    """For each tile of one side the range that it walks of the other, in whole tiles."""
    for start in range(0, seqlen, block):
        position = start + seqlen_other - seqlen  # of the tile's first row
        first = max(0, position - before) if before >= 0 else 0
        end = min(seqlen_other, position + block + after) if after >= 0 else seqlen_other
        first = first // block_other * block_other
        yield first, max(first, ceil_div(end, block_other) * block_other)


def _live_rows(seqlen_q, seqlen_k, block_m, block_n, causal, window_size, block_mask):
    """Rows of Q and of K loaded for one head, and the looks of a thread at block_mask."""
    rows = keys = looks = 0
    left, right = _sides(causal, window_size)
    seen_by = _walks(seqlen_k, block_n, seqlen_q, block_m, right, left)
    for n_tile, (start, stop) in enumerate(seen_by):
        m_tiles = range(start // block_m, stop // block_m)
        live = [m_tile for m_tile in m_tiles if block_mask[m_tile, n_tile]]
        looks += len(m_tiles)
        if live:
            looks += 1  # the search ends at the first live tile, where the walk looks again
            keys += min(block_n, seqlen_k - n_tile * block_n)
            rows += sum(min(block_m, seqlen_q - m_tile * block_m) for m_tile in live)
    return rows, keys, looks


def decode_traffic(seq_lens, seqlen_q, num_heads, num_kv_heads, head_dim, num_splits, *, paged):
    """Traffic of `flash_decode_wide` without a mask, number by number: its one or two kernels.

    Parameters
    ----------
    seq_lens : sequence of int
    seqlen_q, num_heads, num_kv_heads, head_dim, num_splits : int
    paged : bool

    Returns
    -------
    Traffic
        A warp loads K for a turn more than it has: the last ones are not used, and lie in cache.
    """
    tiling = decode_tiling(seqlen_q * (num_heads // num_kv_heads), head_dim, "")
    num_m_tiles = ceil_div(seqlen_q * (num_heads // num_kv_heads), tiling.rows)
    turns = warps = 0  # of the thread blocks of one tile of rows of one K/V head
    for seq_len in seq_lens:
        each, more = divmod(ceil_div(seq_len, tiling.block_n), num_splits)
        n_first = 0
        for split in range(num_splits):
            n_end = min(seq_len, n_first + (each + (split < more)) * tiling.block_n)
            for n_warp in range(n_first, n_first + tiling.block_n, tiling.warp_keys):
                warp_turns = ceil_div(max(0, n_end - n_warp), tiling.block_n)
                turns += warp_turns
                warps += warp_turns > 0
            n_first += (each + (split < more)) * tiling.block_n
    tiles = num_m_tiles * num_kv_heads
    thread_blocks = tiles * num_splits * len(seq_lens)
    rows = len(seq_lens) * num_heads * seqlen_q
    partial = num_splits * rows
    num_groups = WARPS * WARP_SIZE // tiling.lanes
    keys = tiles * tiling.warp_keys * head_dim
    loads = {
        "q": partial * head_dim * num_groups,
        "k_cache": keys * (turns + warps),
        "v_cache": keys * turns,
        "seq_lens": thread_blocks * WARPS * WARP_SIZE,
        "block_table": paged * tiles * WARP_SIZE * tiling.keys * (turns + 2 * warps),
    }
    stores = {"out": rows * head_dim, "lse": rows}
    if num_splits > 1:
        loads["out_partial"] = stores["out_partial"] = partial * head_dim
        loads["lse_partial"] = partial * (2 * combine_warps(num_splits) + WARP_SIZE)
        stores["lse_partial"] = partial
    else:  # the first kernel's out_partial and lse_partial are out and lse
        stores = {"out_partial": rows * head_dim, "lse_partial": rows}
    return Traffic(loads, stores)
