"""Grader of ex21b: the zigzag layout, and the pairs of a rank, against a mask that is counted."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

SIZES = pytest.mark.parametrize(
    "world_size, seqlen", [(4, 16), (2, 4), (2, 16), (3, 18), (4, 64), (5, 300), (1, 2), (1, 10)]
)


def causes_of(found, seqlen):
    """Name the mistakes that would give each rank these tokens."""
    world_size = len(found)
    chunks = np.arange(seqlen).reshape(2 * world_size, -1)
    pair, (r, last) = np.concatenate, (range(world_size), 2 * world_size - 1)
    mistakes = {
        "These are neighbours: the second chunk is the r-th from the end.": [
            pair([chunks[2 * i], chunks[2 * i + 1]]) for i in r
        ],
        "The second chunk is the r-th from the end, not chunk r + W.": [
            pair([chunks[i], chunks[i + world_size]]) for i in r
        ],
        "The r-th chunk from the end is chunk 2 W - 1 - r, not 2 W - r.": [
            pair([chunks[i], chunks[-i]]) for i in r
        ],
        "These are stripes: zigzag has chunks of neighbours.": [
            np.arange(i, seqlen, world_size) for i in r
        ],
        "The tokens of a rank are in ascending order.": [
            np.concatenate([chunks[last - i], chunks[i]]) for i in r
        ],
        "The second chunk is in ascending order, too.": [
            pair([chunks[i], chunks[last - i][::-1]]) for i in r
        ],
    }
    return [said for said, x in mistakes.items() if all(map(np.array_equal, found, x))]


def tokens_of(exercise, layout, world_size, seqlen):
    """The tokens of each rank, as arrays; fails if they are no arrays of integers."""
    found = []
    for rank in range(world_size):
        tokens = getattr(exercise, layout)(rank, world_size, seqlen)
        right = isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.dtype.kind in "iu"
        assert right, (
            f"{layout}({rank}, {world_size}, {seqlen}) must be an integer array (1-D), "
            + (
                f"got one of {tokens.dtype} in the shape {tokens.shape}"
                if isinstance(tokens, np.ndarray)
                else f"got {tokens!r}"
            )
        )
        found.append(tokens)
    return found


@SIZES
def test_each_token_once(exercise, world_size, seqlen):
    """zigzag: every token is on exactly one rank, and all ranks have equally many"""
    found = tokens_of(exercise, "zigzag", world_size, seqlen)
    lengths = [len(tokens) for tokens in found]
    assert set(lengths) == {seqlen // world_size}, (
        f"{seqlen} tokens, W = {world_size}: each rank has {seqlen // world_size}, got {lengths}"
    )
    counts = np.bincount(np.concatenate(found), minlength=seqlen)
    token = int(np.argmax(counts != 1))
    if not (counts == 1).all():
        raise Wrong(
            f"{seqlen} tokens, W = {world_size}: token {token} is on {counts[token]} ranks, not on "
            "one",
            causes=causes_of(found, seqlen),
        )


@SIZES
def test_chunks(exercise, world_size, seqlen):
    """zigzag: chunk r from the beginning, then chunk r from the end, ascending"""
    found = tokens_of(exercise, "zigzag", world_size, seqlen)
    chunk = seqlen // (2 * world_size)
    for rank, tokens in enumerate(found):
        early = list(range(rank * chunk, (rank + 1) * chunk))
        end = seqlen - rank * chunk
        want = early + list(range(end - chunk, end))
        got = tokens.tolist()
        if got != want:
            raise Wrong(
                f"{seqlen} tokens, W = {world_size}, chunks of {chunk}: rank {rank} must have "
                f"{want}, got {got}",
                causes=causes_of(found, seqlen),
                where=f"rank {rank} of {world_size}",
            )


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@SIZES
def test_pairs(exercise, layout, world_size, seqlen):
    """pairs: as many as in the causal mask, in any layout"""
    mask, parts = np.tri(seqlen, dtype=bool), tokens_of(exercise, layout, world_size, seqlen)
    found = [exercise.pairs(tokens) for tokens in parts]
    mistakes = {
        "A token sees itself, too: token m has m + 1 keys.": lambda t: t.sum(),
        "This is the number of tokens: token m has m + 1 keys.": len,
        "The keys are those of all ranks, not of this one alone.": lambda t: (
            len(t) * (len(t) + 1) // 2
        ),
        "These are the keys of the last token alone: add up those of all.": lambda t: t.max() + 1,
        "Each token has keys of its own: not all see as many as the last.": (
            lambda t: len(t) * (t.max() + 1)
        ),
    }
    for rank, (tokens, got) in enumerate(zip(parts, found, strict=True)):
        want = int(mask[tokens].sum())
        if got != want:
            raise Wrong(
                f"rank {rank} holds the tokens {tokens.tolist()[:8]}{' ...' * (len(tokens) > 8)}: "
                f"{want} pairs, got {got}: token m sees the keys 0 to m, itself included",
                causes=[said for said, of in mistakes.items() if found == [of(t) for t in parts]],
                where=f"rank {rank} of {world_size}",
            )


@pytest.mark.parametrize("world_size", [2, 4, 8, 64])
def test_all_ranks_are_equal(exercise, world_size):
    """zigzag: all ranks have the same number of pairs"""
    seqlen = 4 * world_size
    found = [exercise.pairs(x) for x in tokens_of(exercise, "zigzag", world_size, seqlen)]
    assert len(set(found)) == 1, f"W = {world_size}, {seqlen} tokens: the pairs are {found}"


def test_pairs_is_an_int(exercise):
    """pairs: a Python int, of any tokens"""
    for tokens, want in (
        (np.array([7, 2, 3]), 15),
        (np.array([0]), 1),
        (np.arange(4_000_000, dtype=np.int64) * 1000, 7_999_998_004_000_000),
    ):
        got = exercise.pairs(tokens)
        assert type(got) is int and got == want, f"{len(tokens)} tokens: want {want}, got {got!r}"
