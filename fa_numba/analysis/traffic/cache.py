"""Traffic of the kernels that move keys and values, and of `merge_states`."""

from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.row_tiling import MAX_THREADS, PAGES_OF_BLOCK, WARPS_PER_BLOCK, rows_of_pages

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


def page_scores(seq_lens, page_size, max_pages, num_heads, num_kv_heads, head_dim, *, itemsize=4):
    """Bounds of each page in use, the last page of a block again until a step is full.

    Some lanes share a row of bounds. They read q once per head for as many pages as they hold.
    """
    width = 16 // itemsize if head_dim * itemsize % 16 == 0 else 1
    lanes, _, pages, pages_of_warp = rows_of_pages(head_dim, width)
    step, read = WARPS_PER_BLOCK * pages_of_warp, 0
    for length in seq_lens:
        used = ceil_div(int(length), page_size)
        for start in range(0, max_pages, PAGES_OF_BLOCK):
            read += max(0, ceil_div(min(PAGES_OF_BLOCK, used - start), step)) * step
    blocks = len(seq_lens) * num_kv_heads * ceil_div(max_pages, PAGES_OF_BLOCK)
    rows = read * num_kv_heads * head_dim
    loads = {"k_min": rows, "k_max": rows, "q": read // pages * num_heads * head_dim}
    loads["block_table"] = read * num_kv_heads * lanes
    loads["seq_lens"] = blocks * WARPS_PER_BLOCK * WARP_SIZE
    return Traffic(loads, {"scores": len(seq_lens) * max_pages * num_kv_heads})


def top_pages(seq_lens, page_size, max_pages, num_kv_heads, num_top_pages):
    """Scores once where all pages are chosen; else once for each of eight digits, and once more."""
    pages = [ceil_div(int(length), page_size) for length in seq_lens]
    loads = {"scores": num_kv_heads * sum(n * (1 if n <= num_top_pages else 9) for n in pages)}
    loads["block_table"] = num_kv_heads * sum(min(n, num_top_pages) for n in pages)
    rows = len(seq_lens) * num_kv_heads
    loads["seq_lens"] = rows * (MAX_THREADS + 1)
    return Traffic(loads, {"table": rows * min(num_top_pages, max_pages), "lengths": rows})


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
