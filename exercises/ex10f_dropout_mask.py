"""ex10f · Dropout that nobody stores

Dropout sets each entry of P to 0 with probability p, and the backward pass needs the same entries
at 0 again. Instead of storing which ones, both passes draw them: `philox` makes four random words
from a counter and a key, with no state in between. The counter is the position of the entry, the
key is the seed. Fill in the verdict on one entry.

keeps     whether the entry of batch b, head, query m and key n is kept. The counter is (n // 4, m,
          head, b), the key is (lower half of seed, upper half of seed). Of the four words n % 4
          picks one; the entry is kept if that word is at least `threshold`, which is p * 2**32
types     seed is uint64, threshold uint32; b, head, m, n are int64, not negative, and n // 4, m,
          head and b are below 2**32. philox takes uint32: uint32(x) is the lower 32 bits of any
          integer
memory    registers only: no shared memory, no local arrays, no floating-point operation

About 5 lines.
"""

import numpy as np
from numba import cuda, uint32

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@cuda.jit(device=True)
def philox_round(c0, c1, c2, c3, k0, k1):
    """Return the counter's four words after one round with the key k0, k1."""
    product_0 = M0 * c0  # 64 bits
    product_2 = M2 * c2
    c0 = uint32((product_2 >> np.uint64(32)) ^ c1 ^ k0)
    c2 = uint32((product_0 >> np.uint64(32)) ^ c3 ^ k1)
    return c0, uint32(product_2), c2, uint32(product_0)


@cuda.jit(device=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Return four random words: Philox4x32-10."""
    for _ in range(10):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = uint32(k0 + W0)
        k1 = uint32(k1 + W1)
    return c0, c1, c2, c3


@cuda.jit(device=True)
def word_of(c0, c1, c2, c3, i):
    """Return the i-th of four words, 0 <= i < 4."""
    low = c1 if i % 2 == 1 else c0
    high = c3 if i % 2 == 1 else c2
    return high if i >= 2 else low


@cuda.jit(device=True)
def keeps(seed, b, head, m, n, threshold):
    """Return whether dropout keeps entry (m, n) of P in this batch and head."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10f: keeps")


# Stub 21e2454d of solutions/ex10f_dropout_mask.py: `fa-numba reset ex10f` brings it back.
