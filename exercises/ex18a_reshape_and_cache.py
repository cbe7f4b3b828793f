"""ex18a · Where does token t live? Write it there

The KV cache is a pool of pages, each of page_size slots, one slot per token:

    k_cache, v_cache   (num_pages, page_size, num_kv_heads, head_dim) float32
    block_table        (batch, max_pages) int32: row b names the page of the first page_size
                       tokens of sequence b, the page of the next page_size tokens, ...; -1 where
                       no page has been given out

Token t of sequence b lives in page block_table[b, t // page_size], in the slot with offset
t % page_size of that page. In a step each sequence has some new tokens: the whole prompt, or one.

slot_of(block_table, b, t, page_size)   device function, int: page * page_size + offset, the number
                                        of the slot in the whole pool; -1 where the token has no
                                        page. Exact also above 2^31
kernel(k, v, sequence, position, block_table, k_cache, v_cache)   writes the new tokens

launch   kernel[number of new tokens, threads], any number of threads: a thread block per token
arrays   k, v (tokens, num_kv_heads, head_dim) float32: the new keys and values
         sequence, position (tokens,) int32: new token i is token position[i] of sequence
         sequence[i]. A sequence of -1 is padding: nothing is written. Nor is a token without page
HBM      k and v are loaded once, and stored once; neighbouring threads move neighbouring floats

About 4 lines and 9 lines. No shared memory and no barrier.
"""

from numba import cuda


@cuda.jit(device=True)
def slot_of(block_table, b, t, page_size):
    """The number of the slot in which token t of sequence b lives, or -1."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18a: slot_of")


@cuda.jit
def kernel(k, v, sequence, position, block_table, k_cache, v_cache):
    """Write the keys and values of new tokens into their pages, a thread block for each token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex18a: kernel")


# Stub 85a53ddd of solutions/ex18a_reshape_and_cache.py: `fa-numba reset ex18a` brings it back.
