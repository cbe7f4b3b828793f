"""ex18b · The paged lookup

Gather the keys and values of every sequence out of their pages, side by side, so that any attention
kernel can read them.

    k_cache, v_cache   (num_pages, page_size, num_kv_heads, head_dim) float32
    block_table        (batch, max_pages) int32, -1 = no page; its columns suffice for the tokens,
                       not always for max_len
    seq_lens           (batch,) int32; 0 is allowed
    k_out, v_out       (batch, max_len, num_kv_heads, head_dim) float32, max_len >= every seq_len

k_out[b, t] is the key of token t of sequence b, for all heads: k_cache[page, offset] with
page = block_table[b, t // page_size] and offset = t % page_size. For t >= seq_lens[b] it is 0. The
same for v_out. k_out and v_out may hold anything before.

Launch   grid (max_len, batch), thread block of any number of threads (1-D): the thread block
         (t, b) moves one token. num_kv_heads and head_dim may be smaller or larger than the
         thread block, and need not be multiples of it.
HBM      each key and value of a token is loaded once and stored once; padding is stored and not
         loaded. A thread looks up the page of a token at most once, and none for padding. Slots
         that hold no token are never loaded.
Access   neighbouring threads move neighbouring floats.

About 12 lines. No shared memory, no local array and no barrier: nobody reads what another thread
wrote.
"""

from numba import cuda


@cuda.jit
def kernel(k_cache, v_cache, block_table, seq_lens, k_out, v_out):
    """Gather pages to dense, padded k_out and v_out: one thread block per token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18b: kernel")


# Stub ef408db0 of solutions/ex18b_paged_kv_lookup.py: `fa-numba reset ex18b` brings it back.
