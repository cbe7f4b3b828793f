"""Dropout of P without a mask in memory: a random function of its index drops or keeps an entry.

A counter-based generator is a function, not a stream. Philox4x32-10 computes four words of 32
random bits from a counter of four words and a key of two words, in ten rounds of multiplying and
mixing. Here the counter is (n // 4, m, head, batch), with one word for each of four neighbouring
keys, and the key is the seed. So the result does not depend on the tiles, the order of the thread
blocks or the strides; the backward pass computes the same words as the forward pass; and no kernel
stores a mask, which would be as large as P.

A word below dropout_p · 2³² drops its entry: integers are compared, nothing is rounded to a float.

Paper: Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3, SC11.
"""

import functools

import numpy as np
from numba import cuda, uint32

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # factors of words 0 and 2
W0, W1 = (
    np.uint32(0x9E3779B9),
    np.uint32(0xBB67AE85),
)  # added to the key in each round: 1/φ and √3 − 1
ROUNDS = 10
HALF = np.uint64(32)  # half the bits of a product


@cuda.jit(device=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Four random words of the counter c0, c1, c2, c3 and the key k0, k1; all are uint32."""
    for _ in range(ROUNDS):
        product_0 = M0 * c0  # uint64 holds all 64 bits
        product_2 = M2 * c2
        # Numba computes with uint32 in uint64, hence the casts: k0 + W0, for example, must wrap.
        c0 = uint32((product_2 >> HALF) ^ c1 ^ k0)
        c1 = uint32(product_2)
        c2 = uint32((product_0 >> HALF) ^ c3 ^ k1)
        c3 = uint32(product_0)
        k0 = uint32(k0 + W0)
        k1 = uint32(k1 + W1)
    return c0, c1, c2, c3


@functools.cache
def make_keeps(DROPOUT_P):
    """keeps(seed, b, head, m, n): True if the entry of query m and key n is kept.

    Without dropout (DROPOUT_P = 0) it is always True, and the compiler removes it.
    """
    DROPOUT, THRESHOLD = DROPOUT_P > 0, np.uint32(int(DROPOUT_P * 2**32))

    @cuda.jit(device=True)
    def keeps(seed, b, head, m, n):
        if not DROPOUT:
            return True
        k0, k1 = uint32(seed), uint32(seed >> HALF)
        w0, w1, w2, w3 = philox(uint32(n >> 2), uint32(m), uint32(head), uint32(b), k0, k1)
        low, high = (w1, w3) if n & 1 else (w0, w2)
        return (high if n & 2 else low) >= THRESHOLD

    return keeps


def keep_scale(dropout_p):
    """The factor of a kept entry: 1 / (1 − dropout_p); 1 without dropout."""
    return np.float32(1 / (1 - dropout_p))
