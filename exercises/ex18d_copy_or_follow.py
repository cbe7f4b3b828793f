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


def follow_bytes(seq_lens, num_kv_heads, head_dim, itemsize):
    """Bytes of K and V that paged_attn_decode moves."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18d: follow_bytes")


def copy_bytes(seq_lens, num_kv_heads, head_dim, itemsize):
    """Bytes of K and V that paged_kv_lookup and flash_decode move together."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18d: copy_bytes")


def table_share(page_size, num_kv_heads, head_dim, itemsize):
    """A table entry over the keys and values of its page, in bytes."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18d: table_share")


# Stub 11ee8916 of solutions/ex18d_copy_or_follow.py: `fa-numba reset ex18d` brings it back.
