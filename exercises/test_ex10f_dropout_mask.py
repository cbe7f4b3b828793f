"""Grader of ex10f: Philox4x32-10, and the dropout mask that it draws."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import reference, simt
from fa_numba.workbook.graders.causes import Wrong, diagnosis
from fa_numba.workbook.graders.meter import expect_chip_memory

LOW = 2**32 - 1
ONES = (LOW,) * 4
DIGITS = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)  # of pi
PUBLISHED = [  # counter, key, words after ten rounds: test vectors of the authors of Philox
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (ONES, ONES[:2], (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*DIGITS, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def _hex(words):
    return "(" + ", ".join(f"{word:08x}" for word in words) + ")"


def draw(exercise, seed, threshold, shape, first=(0, 0, 0, 0), threads=8):
    """keeps of every entry of (batch, heads, queries, keys), the first of which is at `first`."""
    keeps = exercise.keeps

    @cuda.jit
    def kernel(mask, seed, threshold, first):
        num_n = mask.shape[3]
        i = cuda.grid(1)  # entry i of the last two axes
        if i < mask.shape[2] * num_n:
            m, n = i // num_n, i % num_n
            head, b = cuda.blockIdx.y, cuda.blockIdx.z
            mask[b, head, m, n] = keeps(
                seed, b + first[0], head + first[1], m + first[2], n + first[3], threshold
            )

    mask = np.zeros(shape, bool)
    grid = -(-shape[2] * shape[3] // threads), shape[1], shape[0]
    place = np.array(first, np.int64)
    trace = simt.trace(kernel, grid, threads, mask, np.uint64(seed), np.uint32(threshold), place)
    check_registers(trace)
    return mask


def check_registers(trace):
    """Integers in registers, and nothing else."""
    expect_chip_memory(trace, allowed="four words and a key, in registers")
    assert not trace.flops.total, (
        f"{trace.flops.total} floating-point operations: the words are integers, and so is the "
        "threshold; compare these"
    )


def definition(seed, threshold, shape):
    """The mask that the exercise asks for, of (batch, heads, queries, keys)."""
    quads = *shape[:3], -(-shape[3] // 4)
    counter = np.indices(quads, sparse=True)[::-1]  # n // 4, m, head, batch
    words = reference.philox(counter, (seed % 2**32, seed // 2**32))
    words = np.stack([np.broadcast_to(x, quads) for x in words], axis=-1)
    return words.reshape(*shape[:3], -1)[..., : shape[3]] >= threshold


def causes(exercise):
    """Mistakes that explain the mask of a small problem."""
    seed, shape = (7 << 32) + 5, (2, 3, 5, 12)
    b, head, m, n = np.indices(shape)
    order = "The counter is (n // 4, m, head, b), in this order."
    key = "The key is (lower half of seed, upper half of seed)."
    word = "Word n % 4 of the four belongs to key n."
    low, high = seed % 2**32, seed // 2**32
    mistakes = [
        *((order, (c, (low, high), n % 4)) for c in ((b, head, m, n // 4), (m, n // 4, head, b),
                                                     (n // 4, m, b, head))),
        ("Four neighbouring keys share a call: the counter has n // 4, not n.",
         ((n, m, head, b), (low, high), n % 4)),
        *((key, ((n // 4, m, head, b), k, n % 4)) for k in ((high, low), (low, low), (low, 0))),
        *((word, ((n // 4, m, head, b), (low, high), i)) for i in (0 * n, 3 - n % 4, m % 4)),
    ]  # fmt: skip
    with diagnosis():
        got = draw(exercise, seed, 2**31, shape)
    if (got == ~definition(seed, 2**31, shape)).all():
        return ["An entry is kept if its word is at least the threshold: these are the others."]
    return [
        sentence
        for sentence, (counter, halves, i) in mistakes
        if (got == (np.choose(i, reference.philox(counter, halves)) >= 2**31)).all()
    ][:1]


def check_mask(exercise, seed, p, shape, **how):
    threshold = int(p * 2**32)
    got, want = draw(exercise, seed, threshold, shape, **how), definition(seed, threshold, shape)
    for b, head, m, n in np.argwhere(got != want)[:1]:
        verdict = ["dropped", "kept"]
        raise Wrong(
            f"seed={seed}, p={p}, batch {b}, head {head}, query {m}, key {n}: must be "
            f"{verdict[int(want[b, head, m, n])]}, got {verdict[int(got[b, head, m, n])]}; "
            f"{(got != want).sum()} of {want.size} entries are wrong",
            causes=causes(exercise),
        )


def check_word(exercise, counter, key, i, word):
    """The i-th word of a call is `word`: it keeps at that threshold and not one above."""
    seed, first = key[0] + (key[1] << 32), (*counter[:0:-1], 4 * counter[0] + i)
    for threshold, want in ((word, True), (word + 1, False)):
        got = draw(exercise, seed, threshold, (1, 1, 1, 1), first)[0, 0, 0, 0]
        if got != want:
            raise Wrong(
                f"counter {_hex(counter)}, key {_hex(key)}: word {i} is {word:08x}, so at "
                f"threshold {threshold:08x} the entry must be {'kept' if want else 'dropped'}",
                causes=causes(exercise),
            )


@pytest.mark.parametrize("case", range(3), ids=["zeros", "ones", "pi"])
def test_published_words(exercise, case):
    """ten rounds give the words that the authors of Philox published"""
    counter, key, words = PUBLISHED[case]
    for i, word in enumerate(words):
        check_word(exercise, counter, key, i, word)


def test_mask(exercise):
    """the mask is the one of the definition"""
    check_mask(exercise, 1234, 0.3, (2, 3, 7, 13))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1])
def test_seeds(exercise, seed):
    """both halves of the seed count"""
    check_mask(exercise, seed, 0.5, (1, 2, 4, 9))


def test_four_words(exercise):
    """four neighbouring keys use the four words of one call"""
    check_mask(exercise, 3, 0.5, (1, 1, 1, 64))


def test_every_index_counts(exercise):
    """batch, head, query and key each have their say"""
    shape = (8, 8, 8, 8)
    mask = draw(exercise, 5, 2**31, shape)
    for axis, name in enumerate(("b", "head", "m", "n")):
        lines = np.moveaxis(mask, axis, 0)
        assert not (lines == lines[0]).all(), f"the mask does not depend on {name}"
    check_mask(exercise, 5, 0.5, shape)


def test_threshold(exercise):
    """threshold 0 drops nothing, the largest nearly everything"""
    assert draw(exercise, 7, 0, (1, 1, 16, 16)).all(), "no word is below 0: nothing is dropped"
    kept = draw(exercise, 7, LOW, (1, 1, 16, 16)).sum()
    assert kept == 0, f"a word is at least 2**32 - 1 once in 4 billion times, got {kept} of 256"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_share(exercise, p):
    """the share of dropped entries is p"""
    dropped = (~draw(exercise, 11, int(p * 2**32), (1, 1, 64, 128), threads=256)).sum()
    size, deviation = 64 * 128, (64 * 128 * p * (1 - p)) ** 0.5
    assert abs(dropped - size * p) <= 4 * deviation, (
        f"p={p}: of {size} entries {size * p:.0f} ± {4 * deviation:.0f} must be dropped, got "
        f"{dropped}"
    )


@pytest.mark.parametrize("threads", [1, 7, 32, 91])
def test_threads(exercise, threads):
    """who draws an entry makes no difference"""
    check_mask(exercise, 13, 0.4, (2, 1, 7, 13), threads=threads)


def test_far_away(exercise):
    """positions of 32 bits"""
    rng = np.random.default_rng(1)
    for _ in range(5):
        counter = tuple(rng.integers(2**31, 2**32, 4).tolist())
        words = reference.philox(counter, (1, 2))
        for i in range(4):
            check_word(exercise, counter, (1, 2), i, int(words[i]))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in integers"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    keeps = exercise.keeps

    @cuda.jit
    def kernel(mask, seed, threshold):
        m, n = cuda.grid(2)
        mask[m, n] = keeps(seed, 0, cuda.blockIdx.z, m, n, threshold)

    mask = np.zeros((1, 1), bool)
    simt.run(kernel, 1, 1, mask, np.uint64(0), np.uint32(0))  # what is not written says so here
    gpu_ready(kernel, (mask, np.uint64(0), np.uint32(0)))
