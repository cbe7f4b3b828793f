"""Bytes of one head by the papers' own counts, without tiles' remainders and without lse."""

from fa_numba.tiling.block_sizes import ceil_div


def standard_attention(N, d, dtype_bytes=2):
    """Bytes that attention moves for one head when S and P go through HBM.

    Source: the textbook count. Each matrix moves once per use: S = Q Kᵀ reads Q, K and writes S;
    P = softmax(S) reads S and writes P; out = P V reads P, V and writes out.

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


def flash_attention(N, d, B_r, B_c, dtype_bytes=2):
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
