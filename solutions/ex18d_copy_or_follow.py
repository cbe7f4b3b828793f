"""ex18d · Predict: copy the pages first, or follow the table?

One decoding step over keys and values in pages, by two routes:

follow   paged_attn_decode reads each key and value from its page
copy     paged_kv_lookup gathers the pages into two dense arrays (batch, max_len, num_kv_heads,
         head_dim), max_len the longest length, zeros behind the shorter sequences; flash_decode
         then reads the keys and values of the tokens

Predict the bytes of keys and values that each route moves through HBM, loads and stores, without
the block table, queries and results. The meter grades you: the package's kernels run, and your
numbers must be exact.

follow_bytes(seq_lens, num_kv_heads, head_dim, itemsize)
copy_bytes(seq_lens, num_kv_heads, head_dim, itemsize)
    seq_lens   list of int, at least one; itemsize is bytes per number: 4, or 2 in float16
table_share(page_size, num_kv_heads, head_dim, itemsize)
    bytes of a table entry (4) over the bytes of keys and values of the full page that it names
"""

### KIND: predict
### HINT 1: A token is 2 num_kv_heads head_dim numbers: its key and its value.
### HINT 2: The lookup loads each token once, and stores max_len rows for each sequence. The
### HINT 2: attention after it loads each token again.
### HINT 3: copy: (sum + batch * max + sum) tokens; follow: sum tokens.
### DEBRIEF: Three trips and the padding, where one trip would do. With lengths that differ much,
### DEBRIEF: the padding is the larger part: that is the price of every dense array for a ragged
### DEBRIEF: batch. The table is nothing: with 8 heads of 128 in float16, an entry is 0.006 % of its
### DEBRIEF: page of 16.


def follow_bytes(seq_lens, num_kv_heads, head_dim, itemsize):
    """Bytes of K and V that paged_attn_decode moves."""
    ### BEGIN SOLUTION
    return sum(seq_lens) * 2 * num_kv_heads * head_dim * itemsize
    ### END SOLUTION


def copy_bytes(seq_lens, num_kv_heads, head_dim, itemsize):
    """Bytes of K and V that paged_kv_lookup and flash_decode move together."""
    ### BEGIN SOLUTION
    tokens = 2 * sum(seq_lens) + len(seq_lens) * max(seq_lens)
    return tokens * 2 * num_kv_heads * head_dim * itemsize
    ### END SOLUTION


def table_share(page_size, num_kv_heads, head_dim, itemsize):
    """A table entry over the keys and values of its page, in bytes."""
    ### BEGIN SOLUTION
    return 4 / (page_size * 2 * num_kv_heads * head_dim * itemsize)
    ### END SOLUTION
