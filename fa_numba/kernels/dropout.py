"""Dropout of P without a mask in memory: a random function of its index drops or keeps an entry.

A counter-based generator is a function, not a stream. Philox4x32-7 computes four words of 32
random bits from a counter of four words and a key of two words, in seven rounds of multiplying and
mixing: the fewest that pass all tests of the paper, and those of FlashAttention-2. Here the key is
the seed, and the counter names a patch of 8 entries of a head in a sequence: queries m and m + 8,
keys n, n + 1, n + 8 and n + 9. So the result does not depend on the tiles, the order of the thread
blocks or the strides; the backward pass computes the same words as the forward pass; and no kernel
stores a mask, which would be as large as P.

    counter   (n without its bits 0 and 3, m without its bit 3, head, batch)
    word      2 (bit 3 of n) + (bit 3 of m)
    half      bit 0 of n: the low or the high 16 bits of the word

The patch is the one that a thread has in the accumulators of the tensor cores, whose rows are
queries (`tensor_core.fragments`): there one call of Philox serves 8 entries, and a word is the
mask of one register of two 16-bit numbers. The kernels here call it for each entry.

The low 15 bits of a half are below dropout_p · 2¹⁵, rounded down, if the entry is dropped: integers
are compared. So the probability is a multiple of 2⁻¹⁵, and the kept entries are divided by 1 minus
that probability.

Paper: Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3, SC11.
"""

import functools

import numpy as np
from numba import cuda, uint32

from fa_numba.runtime import replay

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # factors of words 0 and 2
W0, W1 = (
    np.uint32(0x9E3779B9),
    np.uint32(0xBB67AE85),
)  # added to the key in each round: 1/φ and √3 − 1
ROUNDS = 7
HALF = np.uint64(32)  # half the bits of a product
BITS = 15  # that decide on an entry
LARGEST_ON_TENSOR_CORES = 31 / 32  # dropout_p: there bits are compared as float16, up to infinity


@cuda.jit(device=True, forceinline=True)
def philox_round(c0, c1, c2, c3, k0, k1):
    """The counter's four words after one round with the key k0, k1; all are uint32."""
    product_0 = M0 * c0  # uint64 holds all 64 bits
    product_2 = M2 * c2
    # Numba computes with uint32 in uint64, hence the casts.
    c0 = uint32((product_2 >> HALF) ^ c1 ^ k0)
    c2 = uint32((product_0 >> HALF) ^ c3 ^ k1)
    return c0, uint32(product_2), c2, uint32(product_0)


@cuda.jit(device=True, forceinline=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Four random words of the counter c0, c1, c2, c3 and the key k0, k1; all are uint32."""
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = uint32(k0 + W0)  # wraps
        k1 = uint32(k1 + W1)
    return c0, c1, c2, c3


def round_keys(seed):
    """The keys of all rounds, each as a uint64: k0 in the low half, k1 in the high half."""
    keys = tuple(np.uint64(_round_key(int(seed), i)) for i in range(ROUNDS))
    if recording := replay.current():
        for i, key in enumerate(keys):
            recording.note_seed(key, lambda seed, _, i=i: _round_key(seed, i))
    return keys


def _round_key(seed, i):
    k0, k1 = (seed & 0xFFFFFFFF) + i * int(W0), (seed >> 32) + i * int(W1)
    return (k1 & 0xFFFFFFFF) << 32 | k0 & 0xFFFFFFFF


@functools.cache
def make_keeps(DROPOUT_P):
    """keeps(seed, b, head, m, n): True if the entry of query m and key n is kept.

    Without dropout (DROPOUT_P = 0) it is always True, and the compiler removes it.
    """
    DROPOUT, THRESHOLD = DROPOUT_P > 0, threshold_of(DROPOUT_P)

    @cuda.jit(device=True)
    def keeps(seed, b, head, m, n):
        if not DROPOUT:
            return True
        k0, k1 = uint32(seed), uint32(seed >> HALF)
        c0 = uint32((n >> 4 << 2) + (n >> 1 & 3))
        c1 = uint32((m >> 4 << 3) + (m & 7))
        w0, w1, w2, w3 = philox(c0, c1, uint32(head), uint32(b), k0, k1)
        left, right = (w1, w3) if m & 8 else (w0, w2)
        word = right if n & 8 else left
        return (word >> (16 if n & 1 else 0) & 0x7FFF) >= THRESHOLD

    return keeps


def threshold_of(dropout_p):
    """An entry is dropped if its BITS bits are below this."""
    return int(dropout_p * 2**BITS)


def keep_scale(dropout_p):
    """The factor of a kept entry: 1 / (1 − probability); 1 without dropout."""
    return np.float32(2**BITS / (2**BITS - threshold_of(dropout_p)))
