"""One pool, heads on several devices: which heads each of them keeps.

Devices that split a model by heads (Megatron-LM's tensor parallelism) work on the same tokens, so a
token needs the same slot on each of them. One `PagePool` therefore plans for all: its page numbers,
slots and block tables are sent to every device, and each follows them in caches of its own, which
hold its K/V heads alone. Keys and values never travel.

Papers: Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053; Kwon et al. 2023, PagedAttention,
arXiv:2309.06180, section 4.6.
"""

from fa_numba import checks


def head_shard(num_heads, num_kv_heads, num_shards, shard):
    """The query heads and the K/V heads of one of `num_shards` devices.

    With more devices than K/V heads, as many neighbours as must hold the same K/V head.

    Parameters
    ----------
    num_heads, num_kv_heads : int
        num_heads is a multiple of num_kv_heads.
    num_shards : int
        A divisor of num_heads, and a divisor or a multiple of num_kv_heads, so that every device
        has as many heads.
    shard : int
        0 to num_shards − 1.

    Returns
    -------
    heads, kv_heads : slices
        ``q[:, :, heads]``, ``k[:, :, kv_heads]``: attention of these is ``out[:, :, heads]``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    """
    checks.check_head_shard(num_heads, num_kv_heads, num_shards, shard)
    heads = num_heads // num_shards
    kv_heads = max(1, num_kv_heads // num_shards)
    first_kv_head = shard * num_kv_heads // num_shards
    return (
        slice(shard * heads, (shard + 1) * heads),
        slice(first_kv_head, first_kv_head + kv_heads),
    )
