"""ex18a · Where does token t live?

The KV cache is a pool of pages, each of page_size slots, one slot per token:

    k_cache, v_cache   (num_pages, page_size, num_kv_heads, head_dim)
    block_table        (batch, max_pages) int32: row b names the page of the first page_size
                       tokens of sequence b, the page of the next page_size tokens, ...; -1 where
                       no page has been given out
    seq_lens           (batch,) int32: how many tokens each sequence has

Token t of sequence b lives in page block_table[b, t // page_size], in the slot with
offset t % page_size of that page. Slots are also numbered through the whole pool:
slot = page * page_size + offset.

pages_needed(seq_len, page_size)     pages that hold seq_len tokens; 0 for an empty sequence
page_address(block_table, seq_lens, b, t, page_size)     (page, offset, slot), three Python ints
    IndexError where sequence b has no token t: t < 0, or t >= seq_lens[b]
    ValueError where the token's page is -1
wasted_slots(seq_lens, page_size)    empty slots in the last pages of all sequences, added up;
                                     a full last page has none, an empty sequence has no page

page_size is any whole number >= 1. block_table and seq_lens are int32, and all results must be
exact, also above 2^31 - 1 and where no float is: compute with Python's ints. No loops over tokens.
About 12 lines in all.
"""


def pages_needed(seq_len, page_size):
    """Return the number of pages that seq_len tokens take."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18a: pages_needed")


def page_address(block_table, seq_lens, b, t, page_size):
    """Return (page, offset, slot) of token t of sequence b."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18a: page_address")


def wasted_slots(seq_lens, page_size):
    """Return how many slots of the given-out pages hold no token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18a: wasted_slots")


# Stub 0c45de55 of solutions/ex18a_page_address.py: `fa-numba reset ex18a` brings it back.
