"""ex16b · A rolling cache: append to a ring

A sliding window asks for the last `window` tokens only, so the cache of a sequence has room for no
more, and a new token takes the place of the oldest. The first num_sinks tokens are the exception:
they have places of their own, in front of the ring, and stay. A row of the cache is

    0 .. num_sinks - 1                      token t in place t, for ever
    num_sinks .. num_sinks + window - 1     a ring: token num_sinks goes to its first place, the
                                            next token to the next, and after the last place
                                            comes the first again

num_sinks = 2, window = 4, after 9 tokens:    0 1 | 6 7 8 5    (token 9 will replace token 5)

place(t, end, num_sinks, window)     device function: the place of token t in its row, when tokens
    0 .. end - 1 have come, 0 <= t < end; -1 if token t is not kept any more
kernel                               appends the new tokens of every sequence:

    k_new, v_new       (batch, seqlen_new, num_kv_heads, head_dim) float32
    lengths            (batch,) int32: how many tokens sequence b has been given before
    num_new            (batch,) int32, 0 .. seqlen_new: of the new tokens, sequence b is given the
                       first num_new[b], as tokens lengths[b], lengths[b] + 1, ...; the others are
                       padding
    num_sinks          int, >= 0
    k_cache, v_cache   (batch, num_sinks + window, num_kv_heads, head_dim) float32, window >= 1

Launch   grid (seqlen_new, batch), thread block of any number of threads (1-D): the thread block
         (i, b) moves new token i of sequence b, or does nothing. num_kv_heads and head_dim are any.
Race     one call may bring more tokens than the ring has places. Thread blocks run in any order: of
         the tokens that would meet in one place, only the last may be written.
HBM      a token that is kept is loaded once and stored once; padding and tokens that are not kept
         are neither loaded nor stored. All other places of the cache stay as they are.
Access   neighbouring threads move neighbouring floats.

About 4 and 12 lines. No shared memory, no local array and no barrier. Token numbers are whole, up
to 2^31 - 1.
"""

from numba import cuda


@cuda.jit(device=True)
def place(t, end, num_sinks, window):
    """Place of token t in its row when `end` tokens have come; -1 if it is not kept."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16b: place")


@cuda.jit
def kernel(k_new, v_new, lengths, num_new, num_sinks, k_cache, v_cache):
    """Append to a rolling cache: thread block (i, b) moves new token i of sequence b."""
    # YOUR CODE HERE
    raise NotImplementedError("ex16b: kernel")


# Stub b719198b of solutions/ex16b_ring_buffer.py: `fa-numba reset ex16b` brings it back.
