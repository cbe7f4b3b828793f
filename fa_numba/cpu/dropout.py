"""Dropout of P on a CPU: the bits of `kernels.dropout`, LANES queries at once.

Philox4x32-7 gives four words of 32 random bits for a counter and the seed as its key. A counter
serves a patch: queries m and m + 8, keys n, n + 1, n + 8 and n + 9. The words of a query have two
keys each, 15 bits a key; bits below dropout_p · 2¹⁵ drop the entry. So the entries that are dropped
are those that every other kernel of this package drops.

Paper: Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3, SC11.
"""

import numpy as np
from llvmlite import ir
from numba import types

from fa_numba import checks
from fa_numba.constants import ONE
from fa_numba.cpu.tiles import WIDTH
from fa_numba.cpu.vectors import (
    _BITS,
    _I32,
    _I64,
    _LLVM,
    LANES,
    _constant,
    _splat,
    inner,
    instruction,
    load,
    store,
    vector,
)

M0, M2 = 0xD2511F53, 0xCD9E8D57  # factors of words 0 and 2
W0, W1 = 0x9E3779B9, 0xBB67AE85  # added to the key in each round
ROUNDS = 7
NO_DROPOUT = False, 0, np.uint64(0), ONE
BITS = 15  # that decide on an entry
KEYS = 4  # of one counter
_PRODUCTS = ir.VectorType(_I64, LANES)


def options(dropout_p, seed):
    """Whether there is any, the threshold of the bits, the seed, and the factor of a kept entry."""
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    threshold = int(dropout_p * 2**BITS)
    return dropout_p > 0, threshold, seed, np.float32(2**BITS / (2**BITS - threshold))


def _philox(builder, counter, key):
    """Four vectors of words, of a counter of four vectors and a key of two numbers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key

    def multiply(words, factor):
        product = builder.mul(builder.zext(words, _PRODUCTS), _constant(_PRODUCTS, factor))
        high = builder.lshr(product, _constant(_PRODUCTS, 32))
        return builder.trunc(high, _BITS), builder.trunc(product, _BITS)

    for _ in range(ROUNDS):
        high_0, low_0 = multiply(c0, M0)
        high_2, low_2 = multiply(c2, M2)
        c0 = builder.xor(builder.xor(high_2, c1), _splat(builder, k0))
        c2 = builder.xor(builder.xor(high_0, c3), _splat(builder, k1))
        c1, c3 = low_2, low_0
        k0, k1 = builder.add(k0, _I32(W0)), builder.add(k1, _I32(W1))
    return c0, c1, c2, c3


@instruction(
    types.UniTuple(vector, KEYS), *(types.int64,) * 4, types.uint64, types.int64, types.float32
)
def keep_factors(builder, group, query, head, b, seed, threshold, factor):
    """For each of the keys of a group, a vector over queries: `factor` where kept, else 0.

    The keys of group 4 N + ν are 16 N + 2 ν, the next one, and these two plus 8.
    """

    def in_all_lanes(x):
        return _splat(builder, builder.trunc(x, _I32))

    def bits(x, mask):
        return builder.and_(x, _constant(_BITS, mask))

    queries = builder.add(in_all_lanes(query), ir.Constant(_BITS, list(range(LANES))))
    patches = builder.add(  # 8 (query // 16) + query % 8
        builder.lshr(bits(queries, -16), _constant(_BITS, 1)), bits(queries, 7)
    )
    counter = in_all_lanes(group), patches, in_all_lanes(head), in_all_lanes(b)
    key = builder.trunc(seed, _I32), builder.trunc(builder.lshr(seed, _I64(32)), _I32)
    w0, w1, w2, w3 = _philox(builder, counter, key)
    is_first = builder.icmp_unsigned("==", bits(queries, 8), _constant(_BITS, 0))
    factors = []
    for first, second in ((w0, w1), (w2, w3)):  # of keys n, n + 1, then of n + 8, n + 9
        word = builder.select(is_first, first, second)
        for half in (word, builder.lshr(word, _constant(_BITS, 16))):
            kept = builder.icmp_unsigned(">=", bits(half, 2**BITS - 1), in_all_lanes(threshold))
            factors.append(builder.select(kept, _splat(builder, factor), _constant(_LLVM, 0.0)))
    return factors


@inner
def drop(w, tile, rows, n, query, head, b, dropout):
    """Multiply a tile, as it is transposed, by 0 or by the factor of a kept entry.

    Its rows are keys from n on, and its columns queries from `query` on.
    """
    _, threshold, seed, factor = dropout
    for group in range(n // 16 * KEYS, ((n + rows - 1) // 16 + 1) * KEYS):
        for i in range(0, WIDTH, LANES):
            factors = keep_factors(group, query + i, head, b, seed, threshold, factor)
            for j in range(KEYS):
                row = group // KEYS * 16 + group % KEYS * 2 + j % 2 + j // 2 * 8 - n
                if 0 <= row < rows:
                    at = tile + row * WIDTH + i
                    store(w, at, load(w, at) * factors[j])
