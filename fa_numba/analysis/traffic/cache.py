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
