"""Grader of ex21b: the zigzag layout, and the pairs of a rank, against a mask that is counted."""

import numpy as np
import pytest

SIZES = pytest.mark.parametrize(
    "world_size, seqlen", [(4, 16), (2, 4), (2, 16), (3, 18), (4, 64), (5, 300), (1, 2), (1, 10)]
)


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
    assert (counts == 1).all(), (
        f"{seqlen} tokens, W = {world_size}: token {token} is on {counts[token]} ranks, not on one"
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
        assert got == want, (
            f"{seqlen} tokens, W = {world_size}, chunks of {chunk}: rank {rank} must have "
            f"{want}, got {got}" + (": in ascending order" if sorted(got) == want else "")
        )


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@SIZES
def test_pairs(exercise, layout, world_size, seqlen):
    """pairs: as many as in the causal mask, in any layout"""
    mask = np.tri(seqlen, dtype=bool)
    for rank, tokens in enumerate(tokens_of(exercise, layout, world_size, seqlen)):
        got, want = exercise.pairs(tokens), int(mask[tokens].sum())
        assert got == want, (
            f"rank {rank} holds the tokens {tokens.tolist()[:8]}{' ...' * (len(tokens) > 8)}: "
            f"{want} pairs, got {got}: token m sees the keys 0 to m, itself included"
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
