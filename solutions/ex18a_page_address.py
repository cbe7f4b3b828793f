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

### HINT 1: pages_needed rounds up: 17 tokens in pages of 16 take 2 pages. -(-a // b) is a / b
### rounded up, in whole numbers.
### HINT 2: page_address: the column of block_table is t // page_size, the offset t % page_size.
### int(...) turns NumPy's integers into Python's. Test t first: a negative t would count from the
### end of the row.
### HINT 3: wasted_slots is the sum of pages_needed(n, page_size) * page_size - n over sequences, n
### a Python int: the slots of the pages less the tokens in them.
### DEBRIEF: A table of pages is what an operating system has for every process: a token's number is
### a virtual address, (page, offset) the physical one. A sequence never wastes a whole page: at
### most page_size - 1 slots, whatever its length. Contiguous allocation wastes max_len - seq_len.


def pages_needed(seq_len, page_size):
    """Return the number of pages that seq_len tokens take."""
    ### BEGIN SOLUTION
    return -(-seq_len // page_size)
    ### END SOLUTION


def page_address(block_table, seq_lens, b, t, page_size):
    """Return (page, offset, slot) of token t of sequence b."""
    ### BEGIN SOLUTION
    if not 0 <= t < seq_lens[b]:
        raise IndexError(f"sequence {b} has {seq_lens[b]} tokens, there is no token {t}")
    page, offset = int(block_table[b, t // page_size]), t % page_size
    if page < 0:
        raise ValueError(f"token {t} of sequence {b} is in a page that was never given out")
    return page, offset, page * page_size + offset
    ### END SOLUTION


def wasted_slots(seq_lens, page_size):
    """Return how many slots of the given-out pages hold no token."""
    ### BEGIN SOLUTION
    return sum(pages_needed(int(n), page_size) * page_size - int(n) for n in seq_lens)
    ### END SOLUTION
