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

### KIND: predict
### HINT 1: Start with one token, one layer, one K/V head: how many numbers does it leave? Then
### multiply: tokens, layers, K/V heads, bytes.
### HINT 2: The cache knows nothing of query heads: num_heads is no argument of cache_bytes. The
### arithmetic knows nothing of K/V heads: every query head has scores of its own.
### HINT 3: decode_bytes is cache_bytes plus 2 * num_layers * num_heads * head_dim * dtype_bytes,
### for the queries and the output. The FLOPs are 4 * num_layers * num_heads * head_dim * seqlen.
### DEBRIEF: For long sequences queries and output are nothing beside the cache, and the intensity
### is 2 * (num_heads / num_kv_heads) / dtype_bytes, whatever the length: the group size, in 16-bit
### numbers. An A100 wants 200 FLOP per byte from 16-bit tensor cores, and a batch does not help:
### unlike weights, every sequence brings a cache of its own. Decoding attention is bound by memory.


def cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes):
    """Bytes of the keys and values of one sequence."""
    ### BEGIN SOLUTION
    return 2 * seqlen * num_layers * num_kv_heads * head_dim * dtype_bytes
    ### END SOLUTION


def max_batch(memory_bytes, seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes):
    """How many sequences of seqlen tokens have room for their caches."""
    ### BEGIN SOLUTION
    return memory_bytes // cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes)
    ### END SOLUTION


def decode_bytes(seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes):
    """Bytes that attention moves through HBM to decode one token."""
    ### BEGIN SOLUTION
    q_and_out = 2 * num_layers * num_heads * head_dim * dtype_bytes
    return cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes) + q_and_out
    ### END SOLUTION


def decode_intensity(seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes):
    """FLOP per byte of the attention of one decoded token."""
    ### BEGIN SOLUTION
    flops = 4 * num_layers * num_heads * head_dim * seqlen
    moved = decode_bytes(seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes)
    return flops / moved
    ### END SOLUTION
