"""ex09d · Dropout that nobody stores

Dropout sets each entry of P to 0 with probability p. The backward pass needs the same entries at 0
again. Instead of storing which ones, both passes draw them: a counter-based generator makes random
bits from a number (the counter) and a key, with no state in between. Here the counter is the
position of an entry and the key is the seed, so any thread can draw any entry, in any order.

The generator is Philox4x32-10: a counter c0, c1, c2, c3 and a key k0, k1, all uint32, go through
ten rounds. With hi(x) the upper and lo(x) the lower 32 bits of a product of 64 bits, one round is

    c0, c1, c2, c3  <-  hi(M2 * c2) ^ c1 ^ k0,   lo(M2 * c2),   hi(M0 * c0) ^ c3 ^ k1,   lo(M0 * c0)

and between two rounds the key grows: k0 <- k0 + W0, k1 <- k1 + W1, modulo 2**32. After the tenth
round c0, c1, c2, c3 are four words of 32 random bits. Write two device functions.

philox_round(c0, c1, c2, c3, k0, k1) -> (c0, c1, c2, c3)
    one round. uint32 in, uint32 out.
keeps(seed, b, head, m, n, threshold) -> bool
    whether the entry of batch b, head, query m, key n is kept. The counter is
    (n // 4, m, head, b), the key is (lower half of seed, upper half of seed). Of the four words
    n % 4 picks one; the entry is kept if that word is at least `threshold`, which is p * 2**32.

types     seed is uint64, threshold uint32; b, head, m, n are int64, not negative, and
          n // 4, m, head, b are below 2**32
Numba     computes with uint32 in uint64, so M0 * c0 of two unsigned numbers has all its 64 bits;
          uint32(x) takes the lower 32 bits of any integer
memory    registers only: no shared memory, no local arrays, no floating-point operation

About 5 lines and 10 lines.
"""

import numpy as np
from numba import cuda, uint32

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@cuda.jit(device=True)
def philox_round(c0, c1, c2, c3, k0, k1):
    """Return the counter's four words after one round with the key k0, k1."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09d: philox_round")


@cuda.jit(device=True)
def keeps(seed, b, head, m, n, threshold):
    """Return whether dropout keeps entry (m, n) of P in this batch and head."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09d: keeps")


# Stub 01126ef2 of solutions/ex09d_dropout_mask.py: `fa-numba reset ex09d` brings it back.
