"""How much memory the KV cache takes: two vectors per token, per layer, per K/V head."""

from fa_numba.analysis.intensity import positive
from fa_numba.tiling.block_sizes import ceil_div


def kv_cache_bytes(
    seqlen, num_layers, num_kv_heads, head_dim, *, batch=1, dtype_bytes=2, page_size=1
):
    """Bytes of the K and V of every token that a model has seen.

    Parameters
    ----------
    seqlen : int
        Tokens per sequence. A sliding window keeps no more than its own length.
    num_layers, num_kv_heads, head_dim : int
        num_kv_heads is num_heads for multi-head attention, 1 for multi-query attention.
    batch : int, default=1
        Sequences.
    dtype_bytes : int, default=2
    page_size : int, default=1
        Tokens per page: the last page of a sequence is paid for in full.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        A negative length or batch, or another size that is not positive.

    Examples
    --------
    GPT-3 at 4096 tokens, with a K/V head for each query head, as it is, and with a single one:

    >>> kv_cache_bytes(4096, 96, 96, 128)
    19327352832
    >>> kv_cache_bytes(4096, 96, 1, 128)
    201326592
    """
    for name, size in (("seqlen", seqlen), ("batch", batch)):
        if size < 0:
            raise ValueError(f"{name} must not be negative, got {size}")
    token = _bytes_per_token(num_layers, num_kv_heads, head_dim, dtype_bytes)
    positive(page_size=page_size)
    return batch * ceil_div(seqlen, page_size) * page_size * token


def kv_cache_tokens(
    memory_bytes, num_layers, num_kv_heads, head_dim, *, dtype_bytes=2, page_size=1
):
    """Tokens of all sequences together that fit in memory.

    Parameters
    ----------
    memory_bytes : int
        Memory that weights and activations do not use.
    num_layers, num_kv_heads, head_dim, dtype_bytes, page_size
        As for `kv_cache_bytes`.

    Returns
    -------
    int
        A multiple of page_size.
    """
    if memory_bytes < 0:
        raise ValueError(f"memory_bytes must not be negative, got {memory_bytes}")
    token = _bytes_per_token(num_layers, num_kv_heads, head_dim, dtype_bytes)
    positive(page_size=page_size)
    return memory_bytes // (token * page_size) * page_size


def _bytes_per_token(num_layers, num_kv_heads, head_dim, dtype_bytes):
    positive(num_layers=num_layers, num_kv_heads=num_kv_heads)
    positive(head_dim=head_dim, dtype_bytes=dtype_bytes)
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes  # K and V
