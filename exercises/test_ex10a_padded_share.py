"""Grader of ex10a: shares of padding, against pairs that are counted one by one."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

BATCHES = [[1], [7], [3, 1], [4, 4, 4], [9, 2, 5, 1], [16, 8], [1, 1, 30], [5, 17, 250, 2, 130]]
EACH = pytest.mark.parametrize("lengths", BATCHES, ids=str)


def count(lengths):
    """Real and padded tokens, real and padded pairs, by setting each of them."""
    longest = max(lengths)
    tokens = np.zeros((len(lengths), longest), bool)
    pairs = np.zeros((len(lengths), longest, longest), bool)
    for b, n in enumerate(lengths):
        tokens[b, :n] = True
        pairs[b, :n, :n] = True
    return tokens, pairs


def count_tiles(lengths, tile):
    """Pairs that tiles compute, and the real ones among them."""
    computed = real = 0
    for n in lengths:
        for m_start in range(0, n, tile):
            for n_start in range(0, n, tile):
                computed += tile * tile
                real += (min(m_start + tile, n) - m_start) * (min(n_start + tile, n) - n_start)
    return computed, real


def compare(got, want, what, mistakes):
    good = isinstance(got, float | int) and not isinstance(got, bool)
    if not (good and abs(got - want) <= 1e-12):
        causes = [c for c, value in mistakes.items() if good and abs(got - value) <= 1e-12]
        raise Wrong(f"{what}: want {want:.6g}, got {got!r}", causes=causes, where=what)


@EACH
def test_tokens(exercise, lengths):
    """padding_of_tokens: counted one by one"""
    tokens, _ = count(lengths)
    mistakes = {
        "That is the share of real tokens.": tokens.mean(),
        "That is padding for each real token: divide by the tokens of the rectangle.": (
            (~tokens).sum() / tokens.sum()
        ),
    }
    got = exercise.padding_of_tokens(list(lengths))
    compare(got, (~tokens).mean(), f"tokens of {lengths}", mistakes)


@EACH
def test_pairs(exercise, lengths):
    """padding_of_pairs: counted one by one"""
    tokens, pairs = count(lengths)
    mistakes = {
        "That is the share of real pairs.": pairs.mean(),
        "That is the share of tokens: pairs are squares.": (~tokens).mean(),
        "A pair is padding if its query or its key is.": (~tokens).mean() ** 2,
        "Each sequence has a square of its own: the sum of squares, not the square of the sum.": (
            1 - sum(lengths) ** 2 / (len(lengths) * max(lengths)) ** 2
        ),
        "That is padding for each real pair: divide by all pairs.": (~pairs).sum() / pairs.sum(),
    }
    got = exercise.padding_of_pairs(list(lengths))
    compare(got, (~pairs).mean(), f"pairs of {lengths}", mistakes)


@EACH
@pytest.mark.parametrize("tile", [1, 2, 5, 16, 100])
def test_tiles(exercise, lengths, tile):
    """waste_of_tiles: counted tile by tile"""
    computed, real = count_tiles(lengths, tile)
    one_side = sum(-(-n // tile) * tile * n for n in lengths)
    total = sum(lengths)
    mistakes = {
        "That is the share of real pairs.": real / computed,
        "Both sides of the square are rounded up, queries and keys.": 1 - real / one_side,
        "Each sequence begins a tile of its own: round up for each, not for the sum.": (
            1 - real / (-(-total // tile) * tile) ** 2
        ),
        "The last tile is computed as a whole: round up.": 1
        - real / max(sum((n // tile * tile) ** 2 for n in lengths), 1),
    }
    got = exercise.waste_of_tiles(list(lengths), tile)
    compare(got, 1 - real / computed, f"tiles of {tile}, {lengths}", mistakes)


def test_many_sequences(exercise):
    """lengths from 1 to 1000: half of the tokens, two thirds of the pairs"""
    lengths = list(range(1, 1001))
    compare(exercise.padding_of_tokens(lengths), 1 - 500.5 / 1000, "1 to 1000", {})
    pairs = 1000 * 1001 * 2001 / 6
    compare(exercise.padding_of_pairs(lengths), 1 - pairs / 1e9, "1 to 1000", {})
