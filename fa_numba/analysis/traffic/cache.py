"""Traffic of the kernels that move keys and values, and of `merge_states`."""

from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 8 * WARP_SIZE  # of a thread block that moves keys and values


def merge_states(batch, seqlen_q, num_heads, head_dim):
    """Both parts read once, where none is empty; every thread reads lse_a and lse_b."""
    rows = batch * seqlen_q * num_heads
    out = rows * head_dim
    lse = rows * WARP_SIZE
    loads = {"out_a": out, "out_b": out, "lse_a": lse, "lse_b": lse}
    return Traffic(loads, {"out": out, "lse": rows})


def paged_kv_lookup(seq_lens, page_size, num_kv_heads, head_dim, *, max_len=None):
    """Each key and value read once; every thread of a thread block reads the tables."""
    seq_lens = [int(length) for length in seq_lens]
    max_len = max(seq_lens, default=0) if max_len is None else max_len
    token = num_kv_heads * head_dim
    used, dense = sum(seq_lens) * token, len(seq_lens) * max_len * token
    pages = sum(ceil_div(length, page_size) for length in seq_lens)
    loads = {
        "k_cache": used,
        "v_cache": used,
        "block_table": pages * THREADS,
        "seq_lens": len(seq_lens) * ceil_div(max_len, page_size) * THREADS,
    }
    return Traffic(loads, {"k": dense, "v": dense})


def reshape_and_cache(slot_mapping, num_kv_heads, head_dim, *, scales=""):
    """Each written token once; every thread of a thread block reads slot_mapping.

    Parameters
    ----------
    slot_mapping : sequence of int
        −1 for a token that is not written.
    num_kv_heads, head_dim : int
    scales : "", "head" or "token"
        Of a cache of e4m3: every thread reads the scale of its head, or K and V are read twice, for
        the scale of the token and for its numbers.
    """
    rows = sum(slot >= 0 for slot in slot_mapping) * num_kv_heads
    written, reads = rows * head_dim, 1 + (scales == "token")
    loads = {
        "k": reads * written,
        "v": reads * written,
        "slot_mapping": len(slot_mapping) * THREADS,
    }
    stores = {"k_cache": written, "v_cache": written}
    if scales == "head":
        loads |= dict.fromkeys(("k_scale", "v_scale"), rows * WARP_SIZE)
    if scales == "token":
        stores |= dict.fromkeys(("k_scale", "v_scale"), rows)
    return Traffic(loads, stores, in_8_bits=("k_cache", "v_cache") if scales else ())


def update_page_bounds(slot_mapping, page_size, num_kv_heads, head_dim):
    """K of written tokens once; the bounds of their pages, read where a page had tokens before.

    A thread block per token reads slot_mapping, that of a page's first one for all its tokens.
    """
    k, begun, pages, numbers = 0, 0, 0, 0
    for i, slot in enumerate(slot_mapping):
        numbers += 1 if slot < 0 or i == 0 else 2
        if slot < 0 or (i > 0 and slot_mapping[i - 1] // page_size == slot // page_size):
            continue
        stop = i + 1
        while stop < len(slot_mapping) and slot_mapping[stop] // page_size == slot // page_size:
            stop += 1
        numbers += stop - i - (stop == len(slot_mapping))
        k, pages, begun = k + stop - i, pages + 1, begun + (slot % page_size > 0)
    row = num_kv_heads * head_dim
    loads = {"k": k * row, "k_min": begun * row, "k_max": begun * row}
    loads["slot_mapping"] = numbers * THREADS
    return Traffic(loads, {"k_min": pages * row, "k_max": pages * row})


def page_scores(seq_lens, page_size, max_pages, num_heads, num_kv_heads, head_dim):
    """Bounds of each page in use once for each query head of the group; a warp per page and head.

    Every thread reads seq_lens, and of a page in use block_table.
    """
    pages = sum(ceil_div(int(length), page_size) for length in seq_lens)
    warps = len(seq_lens) * max_pages * num_kv_heads
    loads = dict.fromkeys(("q", "k_min", "k_max"), pages * num_heads * head_dim)
    loads["block_table"] = pages * num_kv_heads * WARP_SIZE
    loads["seq_lens"] = warps * WARP_SIZE
    return Traffic(loads, {"scores": warps})


def copy_pages(num_copies, page_size, num_kv_heads, head_dim):
    """Each copied page once; every thread of a thread block reads src and dst.

    The kernel's names of k_cache are k_src and k_dst.
    """
    pages = num_copies * page_size * num_kv_heads * head_dim
    numbers = num_copies * THREADS
    loads = {"k_src": pages, "v_src": pages, "src": numbers, "dst": numbers}
    return Traffic(loads, {"k_dst": pages, "v_dst": pages})


def swap_pages(num_pages, page_size, num_kv_heads, head_dim):
    """Traffic of the kernel in the GPU's memory, which is that of `copy_pages`.

    As many bytes of K and V also cross the bus between host and GPU.
    """
    return copy_pages(num_pages, page_size, num_kv_heads, head_dim)
