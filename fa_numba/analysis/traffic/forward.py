"""Traffic of the attention kernels."""

import itertools
import math
from dataclasses import replace

from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.analysis.traffic.walks import key_rows_walked, query_rows_walked, walks_of_keys
from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.register_tiling import forward_tiling


def naive_attn(problem):
    """Traffic of `fa_numba.naive_attn`; a mask saves nothing."""
    problem = problem.tiled_for("naive_attn")
    scores = problem.rows * problem.seqlen_k
    q = problem.rows * problem.head_dim
    k = problem.heads * problem.seqlen_k * problem.head_dim
    threads = problem.heads * problem.num_m_tiles * problem.num_n_tiles * _block_size(problem)
    loads = {
        "q": q * problem.num_n_tiles,  # once for each tile of keys
        "k": k * problem.num_m_tiles,  # once for each tile of queries
        "v": k * problem.num_m_tiles,
        "s": 3 * scores,  # for the maximum, the sum, the quotient
        "p": scores,
        "alibi_slopes": problem.alibi * threads,
    }
    return Traffic(loads, {"s": scores, "p": scores, "out": q, "lse": problem.rows})


def lazy_softmax_attn(problem, *, query_chunk_size=1024, key_chunk_size=None):
    """Traffic of the two kernels of `fa_numba.lazy_softmax_attn`.

    Parameters
    ----------
    problem : Problem
    query_chunk_size : int, default=1024
        It makes no difference to the traffic.
    key_chunk_size : int, default=⌈√seqlen_k⌉

    Returns
    -------
    Traffic
        Every thread of the second kernel reads l_partial and m_partial.
    """
    problem.refuse("lazy_softmax_attn", "window_size", "alibi", "block_m", "block_n")
    if key_chunk_size is None:
        key_chunk_size = max(1, math.ceil(math.sqrt(problem.seqlen_k)))
    num_chunks = max(1, ceil_div(problem.seqlen_k, key_chunk_size))
    rows, head_dim = problem.rows, problem.head_dim
    pairs = problem.heads * key_rows_walked(replace(problem, block_m=1, block_n=1))
    partial = rows * num_chunks
    loads = {
        "q": partial * head_dim,  # once for each chunk of keys
        "k": pairs * head_dim,  # once for each query
        "v": pairs * head_dim,
        "acc_partial": partial * head_dim,
        "l_partial": partial * WARP_SIZE,
        "m_partial": 2 * partial * WARP_SIZE,  # for the maximum, then for the sums
    }
    stores = {
        "acc_partial": partial * head_dim,
        "l_partial": partial,
        "m_partial": partial,
        "out": rows * head_dim,
        "lse": rows,
    }
    return Traffic(loads, stores)


def flash_attn_v1(problem, *, block_mask=None):
    """Traffic of `fa_numba.flash_attn_v1`, without filling out, l and m and rounding out.

    Parameters
    ----------
    problem : Problem
    block_mask : bool array of shape (num_m_tiles, num_n_tiles), default=None
        Every thread of a thread block reads it.
    """
    problem = problem.tiled_for("flash_attn_v1")
    if block_mask is None:
        rows, looks = query_rows_walked(problem), 0
        left, _ = (
            problem.window_size
        )  # the kernel skips the keys before the first that query 0 sees
        first = max(0, problem.seqlen_k - problem.seqlen_q - left) if left >= 0 else 0
        keys = problem.seqlen_k - first // problem.block_n * problem.block_n
    else:
        rows, keys, looks = _live_rows(problem, block_mask)
    threads = problem.heads * _block_size(problem)
    rows, k = problem.heads * rows, problem.heads * keys * problem.head_dim
    read_and_written = {"out": rows * problem.head_dim, "l": rows, "m": rows}
    loads = {"q": rows * problem.head_dim, "k": k, "v": k, **read_and_written}
    loads |= {"alibi_slopes": problem.alibi * threads, "block_mask": looks * threads}
    return Traffic(loads, read_and_written, in_float32=("out",))


def flash_attn_v2(problem):
    """Traffic of `fa_numba.flash_attn_v2`: Q once, K and V once for each tile of queries."""
    problem = problem.tiled_for("flash_attn_v2")
    return _one_pass(problem, _block_size(problem))


def flash_attn_registers(problem):
    """Traffic of `fa_numba.flash_attn_registers`: that of `flash_attn_v2` with larger tiles.

    The function chooses block_m and block_n by GPU, so the problem must name them.
    """
    for name in ("block_m", "block_n"):
        if getattr(problem, name) is None:
            raise ValueError(f"{name} must be given for flash_attn_registers, got None")
    tiling = forward_tiling(problem.head_dim, problem.block_m, problem.block_n)
    return _one_pass(problem, tiling.threads)


def flash_attn_varlen(problem, cu_seqlens_q, cu_seqlens_k):
    """Traffic of `fa_numba.kernels.flash_attn_varlen`.

    Parameters
    ----------
    problem : Problem
        Its seqlen_q and seqlen_k are the tokens of all sequences together, and its batch is 1.
    cu_seqlens_q, cu_seqlens_k : sequences of int

    Returns
    -------
    Traffic
        Every thread of a thread block reads cu_seqlens_q, cu_seqlens_k and alibi_slopes.
    """
    problem = problem.tiled_for("flash_attn_v2")
    sequences = sequences_of(problem, cu_seqlens_q, cu_seqlens_k)
    num_m_tiles = sum(sequence.num_m_tiles for sequence in sequences)
    threads = problem.num_heads * _block_size(problem)
    rows = problem.rows
    k = problem.num_heads * sum(map(key_rows_walked, sequences)) * problem.head_dim
    loads = {
        "q": rows * problem.head_dim,
        "k": k,
        "v": k,
        "cu_seqlens_q": looks_at_starts(cu_seqlens_q, problem.block_m) * threads,
        "cu_seqlens_k": 2 * num_m_tiles * threads,
        "alibi_slopes": problem.alibi * num_m_tiles * threads,
    }
    return Traffic(loads, {"out": rows * problem.head_dim, "lse": rows})


def sequences_of(problem, cu_seqlens_q, cu_seqlens_k):
    """A problem for each sequence of a packed batch."""
    ends = {"seqlen_q": cu_seqlens_q, "seqlen_k": cu_seqlens_k}
    for name, starts in ends.items():
        if getattr(problem, name) != starts[-1]:
            raise ValueError(
                f"{name} must be the tokens of all sequences together, {starts[-1]}, got "
                f"{getattr(problem, name)}"
            )
    if problem.batch != 1:
        raise ValueError(f"batch must be 1 for a packed batch, got {problem.batch}")
    lengths = (
        [int(end) - int(start) for start, end in itertools.pairwise(starts)]
        for starts in ends.values()
    )
    return [
        replace(problem, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
        for seqlen_q, seqlen_k in zip(*lengths, strict=True)
    ]


def looks_at_starts(starts, block):
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


def _one_pass(problem, threads):
    """Traffic of FlashAttention-2's loop with so many threads in a thread block."""
    q = problem.rows * problem.head_dim
    k = problem.heads * key_rows_walked(problem) * problem.head_dim
    slopes = problem.alibi * problem.heads * problem.num_m_tiles * threads
    loads = {"q": q, "k": k, "v": k, "alibi_slopes": slopes}
    return Traffic(loads, {"out": q, "lse": problem.rows})


def _block_size(problem):
    """Threads of a thread block: one for each score of a tile."""
    return problem.block_m * problem.block_n


def _live_rows(problem, block_mask):
    """Rows of Q and of K loaded for one head, and the reads of block_mask by one thread."""
    block_m, block_n = problem.block_m, problem.block_n
    rows = keys = looks = 0
    for n_tile, (start, stop) in enumerate(walks_of_keys(problem)):
        m_tiles = range(start // block_m, stop // block_m)
        live = [m_tile for m_tile in m_tiles if block_mask[m_tile, n_tile]]
        looks += len(m_tiles)
        if live:
            looks += 1  # the search ends at the first live tile, where the walk looks again
            keys += min(block_n, problem.seqlen_k - n_tile * block_n)
            rows += sum(min(block_m, problem.seqlen_q - m_tile * block_m) for m_tile in live)
    return rows, keys, looks
