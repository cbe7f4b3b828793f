"""Traffic of the backward kernels."""

from dataclasses import replace

from fa_numba.analysis.traffic.counts import Traffic, total
from fa_numba.analysis.traffic.forward import looks_at_starts, sequences_of
from fa_numba.analysis.traffic.walks import key_rows_walked, query_rows_walked
from fa_numba.tiling.register_tiling import backward_tiling


def flash_attn_bwd(problem):
    """Traffic of the three kernels of `fa_numba.flash_attn_bwd`: delta, dK/dV and dQ.

    In the kernel for dK/dV a thread block has a tile of keys and walks queries; in the kernel for
    dQ it has a tile of queries and walks keys.
    """
    problem = problem.tiled_for("flash_attn_bwd")
    rows, keys, head_dim = problem.rows, problem.kv_rows, problem.head_dim
    rows_walked = problem.heads * query_rows_walked(problem)
    keys_walked = problem.heads * key_rows_walked(problem)
    num_tiles = problem.num_m_tiles + problem.num_n_tiles
    threads = problem.heads * num_tiles * problem.block_m * problem.block_n
    loads = {
        "out": rows * head_dim,  # delta
        "dout": (rows + rows_walked + rows) * head_dim,  # delta, dK/dV, dQ
        "q": (rows_walked + rows) * head_dim,
        "k": (keys + keys_walked) * head_dim,
        "v": (keys + keys_walked) * head_dim,
        "lse": rows_walked + rows,
        "delta": rows_walked + rows,
        "alibi_slopes": problem.alibi * threads,
    }
    stores = {"delta": rows, "dk": keys * head_dim, "dv": keys * head_dim, "dq": rows * head_dim}
    return Traffic(loads, stores)


def flash_attn_bwd_registers(problem, *, tile_size, deterministic=False):
    """Traffic of the two or three kernels of `fa_numba.flash_attn_bwd_registers`.

    Parameters
    ----------
    problem : Problem
    tile_size : int
    deterministic : bool, default=False
        Otherwise dq is neither loaded nor stored: it is set to 0, and then as many elements are
        added to it atomically as are loaded of q.
    """
    problem.refuse("flash_attn_bwd_registers", "block_m", "block_n")
    problem = replace(problem, block_m=tile_size, block_n=tile_size)
    rows, keys, head_dim = problem.rows, problem.kv_rows, problem.head_dim
    rows_walked = problem.heads * query_rows_walked(problem)
    tiling = backward_tiling(head_dim, tile_size)
    slopes = problem.alibi * problem.heads * tiling.threads  # of a tile of each head
    # delta, dK/dV
    loads = {
        "out": rows * head_dim,
        "dout": (rows + rows_walked) * head_dim,
        "q": rows_walked * head_dim,
        "k": keys * head_dim,
        "v": keys * head_dim,
        "lse": rows_walked,
        "delta": rows_walked,
        "alibi_slopes": slopes * problem.num_n_tiles,
    }
    stores = {"delta": rows, "dk": keys * head_dim, "dv": keys * head_dim}
    if deterministic:  # dQ
        keys_walked = problem.heads * key_rows_walked(problem)
        loads["q"] += rows * head_dim
        loads["dout"] += rows * head_dim
        loads["k"] += keys_walked * head_dim
        loads["v"] += keys_walked * head_dim
        loads["lse"] += rows * tiling.threads_x  # every thread of a row reads them
        loads["delta"] += rows * tiling.threads_x
        loads["alibi_slopes"] += slopes * problem.num_m_tiles
        stores["dq"] = rows * head_dim
    return Traffic(loads, stores)


def flash_attn_varlen_bwd(problem, cu_seqlens_q, cu_seqlens_k):
    """Traffic of the three kernels of `fa_numba.flash_attn_varlen_bwd`.

    Parameters, and what every thread reads, are those of `forward.flash_attn_varlen`.
    """
    problem = problem.tiled_for("flash_attn_bwd")
    sequences = sequences_of(problem, cu_seqlens_q, cu_seqlens_k)
    loads, stores = total(map(flash_attn_bwd, sequences))
    threads = problem.block_m * problem.block_n
    num_m_tiles = problem.num_heads * sum(sequence.num_m_tiles for sequence in sequences)
    num_n_tiles = problem.num_kv_heads * sum(sequence.num_n_tiles for sequence in sequences)
    looks_q = problem.num_heads * looks_at_starts(cu_seqlens_q, problem.block_m)  # dQ
    looks_k = problem.num_kv_heads * looks_at_starts(cu_seqlens_k, problem.block_n)  # dK/dV
    loads["cu_seqlens_q"] = (looks_q + 2 * num_n_tiles) * threads
    loads["cu_seqlens_k"] = (looks_k + 2 * num_m_tiles) * threads
    return Traffic(loads, stores)
