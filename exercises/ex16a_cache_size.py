"""ex16a · How large is the cache, and what does it cost to read?

A transformer of num_layers layers has num_heads query heads in each, and num_kv_heads heads of keys
and values; num_heads is a multiple of num_kv_heads:

    multi-head attention (MHA)      num_kv_heads = num_heads
    grouped-query attention (GQA)   in between: num_heads / num_kv_heads query heads share one
    multi-query attention (MQA)     num_kv_heads = 1

Each token leaves one key and one value, head_dim numbers each, per layer and K/V head. The cache
keeps them all: they are needed again for every token that is still to come.

cache_bytes      of one sequence of seqlen tokens: what its cache takes
max_batch        the greatest number of sequences of seqlen tokens whose caches fit into
                 memory_bytes together; a whole number, rounded down
decode_bytes     one decoding step of one sequence, all layers: what its attention moves through HBM
                 if every number is moved once. K and V of all seqlen tokens (the new one included)
                 and the new token's queries are read, and its output written; queries and output
                 are num_heads * head_dim numbers per layer. Scores stay on the chip
decode_intensity FLOP per byte of that attention. Two products count, scores and P V: head_dim
                 multiplications and as many additions for each, per layer, query head and token

All arguments are whole numbers >= 1; dtype_bytes is the size of one number. The first three return
ints, the last a float. One or two lines each.
"""


def cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes):
    """Bytes of the keys and values of one sequence."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16a: cache_bytes")


def max_batch(memory_bytes, seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes):
    """How many sequences of seqlen tokens have room for their caches."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16a: max_batch")


def decode_bytes(seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes):
    """Bytes that attention moves through HBM to decode one token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16a: decode_bytes")


def decode_intensity(seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes):
    """FLOP per byte of the attention of one decoded token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16a: decode_intensity")


# Stub 69e1c0aa of solutions/ex16a_cache_size.py: `fa-numba reset ex16a` brings it back.
