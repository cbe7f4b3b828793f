"""Tensor parallelism with one page pool: the heads that each device keeps.

Devices that split a model by heads (Megatron-LM's tensor parallelism) process the same tokens, so a
token needs the same slot on each device. One `PagePool` therefore plans for all devices: they all
get its page numbers, slots and block tables, and each device applies them to its own caches, which
hold only its K/V heads. Keys and values are never sent between devices.

Papers: Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053; Kwon et al. 2023, PagedAttention,
arXiv:2309.06180, section 4.6.
"""

from fa_numba import checks


def head_shard(num_heads, num_kv_heads, num_shards, shard):
    """The query heads and the K/V heads of one of `num_shards` devices.

    With more devices than K/V heads, neighbouring devices hold the same K/V head.

    Parameters
    ----------
    num_heads, num_kv_heads : int
        num_heads is a multiple of num_kv_heads.
    num_shards : int
        A divisor of num_heads, and a divisor or a multiple of num_kv_heads, so that every device
        has the same number of heads.
    shard : int
        0 to num_shards − 1.

    Returns
    -------
    heads, kv_heads : slices
        Attention of ``q[:, :, heads]`` over ``k[:, :, kv_heads]`` and ``v[:, :, kv_heads]`` is
        ``out[:, :, heads]``.
    """
    checks.check_head_shard(num_heads, num_kv_heads, num_shards, shard)
    heads = num_heads // num_shards
    kv_heads = max(1, num_kv_heads // num_shards)
    first_kv_head = shard * num_kv_heads // num_shards
    return (
        slice(shard * heads, (shard + 1) * heads),
        slice(first_kv_head, first_kv_head + kv_heads),
    )
