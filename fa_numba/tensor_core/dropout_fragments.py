"""Dropout of P in registers: the mask of `kernels.dropout`, a patch of 8 entries for each thread.

Arrays are those of `fragments`. Where rows are queries, a thread has whole patches: queries m and
m + 8, keys n, n + 1, n + 8 and n + 9, which are 16 columns' four registers of P as A of P V. One
call of Philox makes four words, one for each of these registers.

Where rows are keys (`gradient_fragments`), a thread has queries m and m + 1 of a patch and half of
each word: the lane four further on, with the odd key, has the other halves. So the lane with the
even key calls Philox for the even query, the other one for the odd query. Each leaves a bit for
each of its entries, and the two exchange their bits: a shuffle for 32 entries of each.

Instructions: in the machine code a call of Philox has 9 wide multiplications, 11 three-input
logical operations and 3 shuffles where the counter's query is the same in all calls, and 11 of the
first two where its key is; the rest of its seven rounds is computed once for many calls. The
forward pass compares and masks in 8 more: 4 for each entry, beside 5 of the softmax. An SM issues
128 in a cycle; meanwhile its tensor cores do 4096 floating-point operations, 8 entries of head_dim
128 or 16 of head_dim 64. So while they are busy dropout takes 4 · 8 / 128 = 25 % of all
instructions with head_dim 128 and 50 % with head_dim 64. A wide multiplication keeps its unit busy
for several cycles, which is why Philox runs beside the exponentials, or while the tensor cores
compute S.

The gradients take 6.5 to 7 for each entry: Philox, a bit for each entry, its test, a selection.
With five products in place of two that is 17 % and 33 %.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba.constants import FULL_WARP
from fa_numba.kernels import dropout
from fa_numba.kernels.dropout import HALF, M0, philox_round
from fa_numba.ptx.halves import byte_permute, column_lane, keep_mask, keep_pair, word
from fa_numba.ptx.statement import opaque
from fa_numba.ptx.vectors import load_shared_x2
from fa_numba.tensor_core.fragments import fragment_function

PATCHES = 4  # patches, of 8 entries, whose flags are one register
# Selectors of byte_permute for this lane's flags and the other's: bytes of both in turn, the even
# query's first; of the low halves, which are the even key's, or of the high halves.
LOW_BYTES, HIGH_BYTES = 0x5140, 0x3726


class Dropout(NamedTuple):
    """The arguments of a kernel that describe a call's dropout.

    Attributes
    ----------
    keys : tuple of uint64
        The keys of Philox's rounds. The host computes them: as parameters of the kernel they are
        operands of an instruction, in constant memory, and cost nothing.
    limits : uint32
        The limit of the random bits, in both halves.
    scale : float32
        Factor of the entries that are kept.
    """

    keys: Any
    limits: Any
    scale: Any


class Place(NamedTuple):
    """Counter of a thread's first patch: words 0 to 3 of Philox."""

    key: Any
    query: Any
    head: Any
    b: Any


class QueryRows(NamedTuple):
    """Functions for P whose rows are queries.

    Attributes
    ----------
    place_of(m, head, b, lane)
        The `Place` of key 0 and a warp's rows, the first of which is query m.
    draw_keys(words, n_start, place, dropout, lane)
        The first steps of Philox that depend on the key alone, for one of the tile's patches of
        keys in each lane: three words. The tile's first column is key n_start.
    drop(p, words, n_start, place, dropout)
        Set the dropped entries of P to 0: p in 16 bits, as A of the next product. It gets words
        of other lanes, so that all lanes of a warp must call it.
    """

    place_of: Callable
    draw_keys: Callable
    drop: Callable


class KeyRows(NamedTuple):
    """Functions for Pᵀ, whose rows are keys.

    Attributes
    ----------
    place_of(n, head, b, lane)
        The `Place` of query 0 and key n, the first one of this lane.
    draw(flags, m_start, place, dropout, lane)
        Set the flags of the entries that are kept. The first column is query m_start.
    differentiate(s, dp, delta_rows, p, ds, flags, lane)
        As `gradient_fragments` has it, under dropout: with Z = 1 for an entry that is kept, p is
        P ∘ Z, and ds is P ∘ (Z ∘ dP − delta). delta is divided by `Dropout.scale` already: p and
        ds lack the factor `scale`. s and dp are overwritten.
    """

    place_of: Callable
    draw: Callable
    differentiate: Callable


NO_DROPOUT = Dropout((), np.uint32(0), np.float32(1))  # of a kernel without dropout


def dropout_arguments(dropout_p, seed):
    """A call's `Dropout` as the arguments of a kernel: the keys one by one, limits, scale."""
    limit = dropout.threshold_of(dropout_p)
    limits = np.uint32(limit << 16 | limit)
    return *dropout.round_keys(seed), limits, dropout.keep_scale(dropout_p)


@fragment_function()
def one_round(c, key):
    c0, c1, c2, c3 = philox_round(c[0], c[1], c[2], c[3], uint32(key), uint32(key >> HALF))
    return word(c0), c1, word(c2), c3


@fragment_function()
def words_of(c0, c1, place, keys):
    """Philox of a patch; written out, as a loop over the keys would put them into memory."""
    c = uint32(c0), uint32(c1), uint32(place.head), uint32(place.b)
    c = one_round(one_round(c, keys[0]), keys[1])
    c = one_round(one_round(c, keys[2]), keys[3])
    c = one_round(one_round(c, keys[4]), keys[5])
    return one_round(c, keys[6])


def unrolled(make_step, number):
    """A function that calls the steps make_step(0), ..., all with the arguments that it gets.

    LLVM does not unroll a loop over calls of Philox, and arrays would not be registers.
    """

    def followed(step, rest):
        @fragment_function()
        def both(registers, words, counter, place, dropout):
            step(registers, words, counter, place, dropout)
            rest(registers, words, counter, place, dropout)

        return both

    steps = make_step(number - 1)
    for k in reversed(range(number - 1)):
        steps = followed(make_step(k), steps)
    return steps


@functools.cache
def make_query_rows(BLOCK_N):
    """`QueryRows` for P of BLOCK_N columns, at most 128: 4 patches of 16 of them, one per lane.

    In Philox's first round, and in half of its second and third, a word depends on the key alone
    or on the query alone (drawn: words 0 to 3 of the counter, and after each round):

        key              query            head             b
        head, query      head             key, b           key
        head, key, b     key, b           query, key       query
        both             both             head, key, query, b    head, key, b

    Eight lanes of a warp have the same keys, and their products of keys would be the same. So each
    lane computes those of one patch's keys, and `drop` gets them by shuffles.
    """

    @fragment_function()
    def place_of(m, head, b, lane):
        return Place(int32(lane & 3), int32((m >> 1) + (lane >> 2)), head, b)

    @fragment_function()
    def draw_keys(words, n_start, place, dropout, lane):
        keys, zero = dropout.keys, uint32(0)
        c = uint32((n_start >> 2) + lane), zero, uint32(place.head), uint32(place.b)
        _, c1, c2, _ = one_round(c, keys[0])
        c0, c1, _, _ = one_round((zero, c1, c2, zero), keys[1])
        _, _, c2, c3 = one_round((c0, zero, zero, zero), keys[2])
        words[0], words[1], words[2] = c1, c2, c3

    def make_step(K):
        FIRST, PRODUCT = 4 * K, np.uint32(4 * K * int(M0) % 2**32)

        @fragment_function()
        def step(p, words, key, place, dropout):
            keys, zero = dropout.keys, uint32(0)
            product = uint32(key * uint32(M0) + PRODUCT)  # of the patch's key, its low word
            c = zero, uint32(place.query), uint32(place.head), zero
            c0, _, _, _ = one_round(c, keys[0])
            _, _, c2, c3 = one_round((c0, zero, zero, product), keys[1])
            c1 = column_lane(words[0], FIRST)
            c0, c1, _, _ = one_round((zero, c1, c2, zero), keys[2])
            c2 = word(uint32(column_lane(words[1], FIRST) ^ c3))
            c = c0, c1, c2, column_lane(words[2], FIRST)
            c = one_round(one_round(c, keys[3]), keys[4])
            w0, w1, w2, w3 = one_round(one_round(c, keys[5]), keys[6])
            p[K, 0] = keep_pair(p[K, 0], w0, dropout.limits)
            p[K, 1] = keep_pair(p[K, 1], w1, dropout.limits)
            p[K, 2] = keep_pair(p[K, 2], w2, dropout.limits)
            p[K, 3] = keep_pair(p[K, 3], w3, dropout.limits)

        return step

    steps = unrolled(make_step, BLOCK_N // 16)

    @fragment_function()
    def drop(p, words, n_start, place, dropout):
        steps(p, words, uint32((n_start >> 2) + place.key), place, dropout)

    return QueryRows(place_of, draw_keys, drop)


@functools.cache
def make_key_rows(BLOCK_M, pack, CAPPED=False):
    """`KeyRows` for Pᵀ of BLOCK_M columns; flags has BLOCK_M / 64 registers."""
    M16 = BLOCK_M // 16
    AT_ONCE = BLOCK_M // 64  # of 16 columns; with head_dim 128 there are no registers for more
    DELTA_SHAPE = AT_ONCE, 2, 2

    @fragment_function()
    def place_of(n, head, b, lane):
        # With an odd key the lane calls Philox for an odd query.
        key = int32((n >> 4 << 2) + (n >> 1 & 3))
        return Place(key, int32(2 * (lane & 3) + (n & 1)), head, b)

    def make_step(K):
        REGISTER, SHIFT = K // PATCHES, 4 * (K % PATCHES)

        @fragment_function()
        def step(flags, _, query, place, dropout):
            w0, w1, w2, w3 = words_of(place.key, query + 8 * K, place, dropout.keys)
            # Word 2 h + j is bit 2 j + h. One half of it is of the even key, the other of the odd.
            bits = keep_mask(w0, dropout.limits) & uint32(0x10001 << SHIFT)
            bits |= keep_mask(w1, dropout.limits) & uint32(0x40004 << SHIFT)
            bits |= keep_mask(w2, dropout.limits) & uint32(0x20002 << SHIFT)
            bits |= keep_mask(w3, dropout.limits) & uint32(0x80008 << SHIFT)
            flags[REGISTER] = uint32(bits if SHIFT == 0 else flags[REGISTER] | bits)

        return step

    steps = unrolled(make_step, M16)

    @fragment_function()
    def draw(flags, m_start, place, dropout, lane):
        # Opaque: else the compiler would call Philox earlier, before the products that it is to
        # overlap with.
        key, query = int32(opaque(place.key)), int32(opaque((m_start >> 1) + place.query))
        place = Place(key, query, place.head, place.b)
        steps(flags, (), query, place, dropout)
        selector = uint32(HIGH_BYTES if lane & 4 else LOW_BYTES)
        for i in range(M16 // PATCHES):
            other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(flags[i]), 4))
            flags[i] = byte_permute(flags[i], other, selector)

    @fragment_function()
    def differentiate(s, dp, delta_rows, p, ds, flags, lane):
        delta = cuda.local.array(DELTA_SHAPE, float32)
        # Opaque: else the compiler would test the flags as soon as they are drawn, and there are
        # not so many predicates.
        for i in range(M16 // PATCHES):
            flags[i] = opaque(flags[i])
        for first in range(0, M16, AT_ONCE):
            for i in range(AT_ONCE):
                for j in range(2):
                    rows = delta_rows + (lane & 3) * 8 + 64 * (first + i) + 32 * j
                    load_shared_x2(delta[i, j], rows)
            # In the order of the bits: then one instruction tests up to seven of them.
            for c in range(2):
                for i in range(AT_ONCE):
                    for j in range(2):
                        for h in range(2):
                            k, n, r = first + i, 2 * (first + i) + j, 2 * h + c
                            bit = 16 * (k // 2 % 2) + 8 * c + 4 * (k % 2) + 2 * j + h
                            keep = flags[k // PATCHES] & uint32(1 << bit) != 0
                            whole = s[n, r]
                            s[n, r] = whole if keep else float32(0)
                            dp[n, r] = s[n, r] * dp[n, r] - whole * delta[i, j, c]
                            if CAPPED and not keep:
                                p[k, 2 * j + h] &= uint32(0xFFFF0000 >> (16 * c))
            for i in range(AT_ONCE):
                for j in range(2):
                    for h in range(2):
                        k, n = first + i, 2 * (first + i) + j
                        if not CAPPED:
                            p[k, 2 * j + h] = pack(s[n, 2 * h], s[n, 2 * h + 1])
                        ds[k, 2 * j + h] = pack(dp[n, 2 * h], dp[n, 2 * h + 1])

    return KeyRows(place_of, draw, differentiate)
