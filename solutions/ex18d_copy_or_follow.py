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
    ints; seq_lens is a list of int, at least one; itemsize is the bytes of a number: 4 in float32,
    2 in float16
table_share(page_size, num_kv_heads, head_dim, itemsize)
    a fraction: the bytes of a table entry (4), divided by the bytes of keys and values of the
    full page that it names
"""

### KIND: predict
### HINT 1: A token is 2 num_kv_heads head_dim numbers: its key and its value.
### HINT 2: The lookup loads each token once, and stores max_len rows for each sequence. The
### HINT 2: attention after it loads each token again.
### HINT 3: copy: (sum + batch * max + sum) tokens; follow: sum tokens.
### DEBRIEF: Keys and values are moved three times, and the padding is stored, where once would do.
### DEBRIEF: Where lengths differ much, the padding is the larger part: every dense array of a batch
### DEBRIEF: with different lengths costs that. The table costs nothing: with 8 heads of 128 in
### DEBRIEF: float16, an entry has 0.006 % of the bytes of its page of 16.


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
