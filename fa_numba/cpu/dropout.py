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
from numba.extending import intrinsic

from fa_numba import checks
from fa_numba.constants import ONE
from fa_numba.cpu.tiles import WIDTH
from fa_numba.cpu.vectors import LANES, inner, load, store, vector

M0, M2 = 0xD2511F53, 0xCD9E8D57  # factors of words 0 and 2
W0, W1 = 0x9E3779B9, 0xBB67AE85  # added to the key in each round
ROUNDS = 7
NO_DROPOUT = False, 0, np.uint64(0), ONE
BITS = 15  # that decide on an entry
KEYS = 4  # of one counter
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS, _PRODUCTS = ir.VectorType(_I32, LANES), ir.VectorType(_I64, LANES)


def options(dropout_p, seed):
    """Whether there is any, the threshold of the bits, the seed, and the factor of a kept entry."""
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    threshold = int(dropout_p * 2**BITS)
    return dropout_p > 0, threshold, seed, np.float32(2**BITS / (2**BITS - threshold))


def _all(builder, scalar, vector_type=_WORDS):
    """The same integer in every lane."""
    undefined = ir.Constant(vector_type, ir.Undefined)
    one = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_WORDS, [0] * LANES))


def _philox(builder, counter, key):
    """Four vectors of words, of a counter of four vectors and a key of two numbers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    half = ir.Constant(_PRODUCTS, [32] * LANES)

    def multiply(words, factor):
        constant = ir.Constant(_PRODUCTS, [factor] * LANES)
        product = builder.mul(builder.zext(words, _PRODUCTS), constant)
        return builder.trunc(builder.lshr(product, half), _WORDS), builder.trunc(product, _WORDS)

    for _ in range(ROUNDS):
        high_0, low_0 = multiply(c0, M0)
        high_2, low_2 = multiply(c2, M2)
        c0 = builder.xor(builder.xor(high_2, c1), _all(builder, k0))
        c2 = builder.xor(builder.xor(high_0, c3), _all(builder, k1))
        c1, c3 = low_2, low_0
        k0, k1 = builder.add(k0, _I32(W0)), builder.add(k1, _I32(W1))
    return c0, c1, c2, c3


@intrinsic
def keep_factors(typingctx, group, query, head, b, seed, threshold, factor):
    """For each of the keys of a group, a vector over queries: `factor` where kept, else 0.

    The keys of group 4 N + ν are 16 N + 2 ν, the next one, and these two plus 8.
    """

    def emit(context, builder, signature, args):
        *numbers, seed, threshold, factor = args
        group, query, head, b = (builder.trunc(x, _I32) for x in numbers)
        lanes = ir.Constant(_WORDS, list(range(LANES)))
        queries = builder.add(_all(builder, query), lanes)
        eight, sixteen = _all(builder, _I32(8)), _all(builder, _I32(16))
        patches = builder.add(  # 8 (query // 16) + query % 8
            builder.lshr(builder.and_(queries, _all(builder, _I32(-16))), _all(builder, _I32(1))),
            builder.and_(queries, _all(builder, _I32(7))),
        )
        counter = _all(builder, group), patches, _all(builder, head), _all(builder, b)
        key = builder.trunc(seed, _I32), builder.trunc(builder.lshr(seed, _I64(32)), _I32)
        threshold = _all(builder, builder.trunc(threshold, _I32))
        floats = ir.VectorType(ir.FloatType(), LANES)
        kept, dropped = _all(builder, factor, floats), ir.Constant(floats, [0.0] * LANES)
        w0, w1, w2, w3 = _philox(builder, counter, key)
        is_first = builder.icmp_unsigned("==", builder.and_(queries, eight), _all(builder, _I32(0)))
        halves = [  # of the word of keys n, n + 1, then of that of n + 8, n + 9
            half
            for first, second in ((w0, w1), (w2, w3))
            for word in (builder.select(is_first, first, second),)
            for half in (word, builder.lshr(word, sixteen))
        ]
        low = _all(builder, _I32(2**BITS - 1))
        factors = [
            builder.select(
                builder.icmp_unsigned(">=", builder.and_(half, low), threshold), kept, dropped
            )
            for half in halves
        ]
        return context.make_tuple(builder, signature.return_type, factors)

    index = types.int64
    arguments = (index, index, index, index, types.uint64, index, types.float32)
    return types.UniTuple(vector, KEYS)(*arguments), emit


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
