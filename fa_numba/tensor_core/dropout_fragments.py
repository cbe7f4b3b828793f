"""Dropout of P in registers: the mask of `kernels.dropout`, a patch of 8 entries for each thread.

Arrays are those of `fragments`. Where rows are queries, a thread has whole patches: queries m and
m + 8, keys n, n + 1, n + 8 and n + 9, which are 16 columns' four registers of P as A of P V. One
call of Philox makes four words, one for each of these registers.

Where rows are keys (`gradient_fragments`), a thread has queries m and m + 1 of a patch and half of
each word: the lane four further on, with the odd key, has the other halves. So the lane with the
even key calls Philox for the even query, the other one for the odd query, and the two exchange
their words: four shuffles and four byte permutations for 8 entries.

Instructions: in the machine code a call of Philox has 12 wide multiplications and 12 three-input
logical operations where the counter's query is the same in all calls, and 11 of each where its key
is; the rest of its seven rounds is computed once for many calls. The forward pass compares and
masks in 8 more: (12 + 12 + 8) / 8 = 4 for each entry, beside 5 of the softmax. An SM issues 128 in
a cycle; meanwhile its tensor cores do 4096 floating-point operations, 8 entries of head_dim 128 or
16 of head_dim 64. So while they are busy dropout takes 4 · 8 / 128 = 25 % of all instructions with
head_dim 128 and 50 % with head_dim 64. A wide multiplication keeps its unit busy for several
cycles, which is why Philox runs beside the exponentials, or while the tensor cores compute S.

The gradients take about 8 for each entry: Philox, the exchange, a bit for each entry, a test, a
selection. With five products in place of two that is 20 % and 40 %.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba.constants import FULL_WARP
from fa_numba.kernels import dropout
from fa_numba.kernels.dropout import HALF, philox_round
from fa_numba.ptx.halves import byte_permute, keep_mask, keep_pair, word
from fa_numba.ptx.statement import opaque
from fa_numba.ptx.vectors import load_shared_x2
from fa_numba.tensor_core.fragments import fragment_function

PATCHES = 4  # patches, of 8 entries, whose flags are one register
# Selectors of byte_permute: the low half of each of two registers, and the high half of each.
LOW_HALVES, HIGH_HALVES = 0x5410, 0x3276


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
    drop(p, n_start, place, dropout)
        Set the dropped entries of P to 0: p in 16 bits, as A of the next product; its first column
        is key n_start.
    """

    place_of: Callable
    drop: Callable


class KeyRows(NamedTuple):
    """Functions for Pᵀ, whose rows are keys.

    Attributes
    ----------
    place_of(n, head, b, lane)
        The `Place` of query 0 and key n, the first one of this lane.
    draw(flags, m_start, place, dropout, lane)
        Set the flags of the entries that are kept. The first column is query m_start.
    differentiate(s, dp, delta_rows, p, ds, flags, dropout, lane)
        As `gradient_fragments` has it, under dropout: with Z = 1 for an entry that is kept, p is
        P ∘ Z, and ds is P ∘ (Z ∘ dP − delta / scale), both without the factor `scale`.
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
        def both(registers, counter, place, selector, dropout):
            step(registers, counter, place, selector, dropout)
            rest(registers, counter, place, selector, dropout)

        return both

    steps = make_step(number - 1)
    for k in reversed(range(number - 1)):
        steps = followed(make_step(k), steps)
    return steps


@functools.cache
def make_query_rows(BLOCK_N):
    """`QueryRows` for P of BLOCK_N columns."""

    @fragment_function()
    def place_of(m, head, b, lane):
        return Place(int32(lane & 3), int32((m >> 1) + (lane >> 2)), head, b)

    def make_step(K):
        @fragment_function()
        def step(p, key, place, _, dropout):
            w0, w1, w2, w3 = words_of(key + 4 * K, place.query, place, dropout.keys)
            p[K, 0] = keep_pair(p[K, 0], w0, dropout.limits)
            p[K, 1] = keep_pair(p[K, 1], w1, dropout.limits)
            p[K, 2] = keep_pair(p[K, 2], w2, dropout.limits)
            p[K, 3] = keep_pair(p[K, 3], w3, dropout.limits)

        return step

    steps = unrolled(make_step, BLOCK_N // 16)

    @fragment_function()
    def drop(p, n_start, place, dropout):
        steps(p, int32((n_start >> 2) + place.key), place, uint32(0), dropout)

    return QueryRows(place_of, drop)


@functools.cache
def make_key_rows(BLOCK_M, pack, CAPPED=False):
    """`KeyRows` for Pᵀ of BLOCK_M columns; flags has BLOCK_M / 64 registers."""
    M16 = BLOCK_M // 16

    @fragment_function()
    def place_of(n, head, b, lane):
        # With an odd key the lane calls Philox for an odd query.
        key = int32((n >> 4 << 2) + (n >> 1 & 3))
        return Place(key, int32(2 * (lane & 3) + (n & 1)), head, b)

    @fragment_function()
    def kept_pair(own, selector, limits):
        """The mask of queries m and m + 1, from a word of each of two lanes."""
        other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(own), 4))
        return keep_mask(byte_permute(own, other, selector), limits)

    def make_step(K):
        REGISTER, SHIFT = K // PATCHES, 4 * (K % PATCHES)

        @fragment_function()
        def step(flags, query, place, selector, dropout):
            w0, w1, w2, w3 = words_of(place.key, query + 8 * K, place, dropout.keys)
            # Word 2 h + j is bit 2 j + h.
            bits = kept_pair(w0, selector, dropout.limits) & uint32(0x10001 << SHIFT)
            bits |= kept_pair(w1, selector, dropout.limits) & uint32(0x40004 << SHIFT)
            bits |= kept_pair(w2, selector, dropout.limits) & uint32(0x20002 << SHIFT)
            bits |= kept_pair(w3, selector, dropout.limits) & uint32(0x80008 << SHIFT)
            flags[REGISTER] = uint32(bits if SHIFT == 0 else flags[REGISTER] | bits)

        return step

    steps = unrolled(make_step, M16)

    @fragment_function()
    def draw(flags, m_start, place, dropout, lane):
        selector = uint32(HIGH_HALVES if lane & 4 else LOW_HALVES)
        # Opaque: else the compiler would call Philox earlier, before the products that it is to
        # overlap with.
        key, query = int32(opaque(place.key)), int32(opaque((m_start >> 1) + place.query))
        place = Place(key, query, place.head, place.b)
        steps(flags, query, place, selector, dropout)

    @fragment_function()
    def differentiate(s, dp, delta_rows, p, ds, flags, dropout, lane):
        delta = cuda.local.array(2, float32)
        x = cuda.local.array(2, float32)
        y = cuda.local.array(2, float32)
        kept = float32(1) / dropout.scale
        # Opaque: else the compiler would test the flags as soon as they are drawn, and there are
        # not so many predicates.
        for i in range(M16 // PATCHES):
            flags[i] = opaque(flags[i])
        for k in range(M16):
            for j in range(2):
                load_shared_x2(delta, delta_rows + (lane & 3) * 8 + 64 * k + 32 * j)
                for h in range(2):
                    mask = uint32(0)
                    for c in range(2):
                        bit = uint32(1 << (4 * (k % PATCHES) + 2 * j + h + 16 * c))
                        keep = flags[k // PATCHES] & bit != 0
                        whole = s[2 * k + j, 2 * h + c]
                        x[c] = whole if keep else float32(0)
                        y[c] = x[c] * dp[2 * k + j, 2 * h + c] - whole * (delta[c] * kept)
                        if CAPPED and keep:
                            mask |= uint32(0xFFFF << (16 * c))
                    p[k, 2 * j + h] = p[k, 2 * j + h] & mask if CAPPED else pack(x[0], x[1])
                    ds[k, 2 * j + h] = pack(y[0], y[1])

    return KeyRows(place_of, draw, differentiate)
