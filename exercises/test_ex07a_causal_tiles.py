"""Grader of ex07a: live tiles and masked tiles of a bottom-right causal mask."""

import math

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

LENGTHS = [(1, 1), (8, 8), (16, 16), (13, 13), (5, 17), (17, 5), (1, 40), (40, 1), (33, 30)]
TILES = [(4, 4), (8, 4), (4, 8), (5, 3), (1, 16), (16, 1), (100, 80)]
TOP_LEFT = (
    "The mask is bottom-right aligned: query m sees seqlen_k - seqlen_q keys more than m + 1."
)
CASES = [(*tile, *lengths) for lengths in LENGTHS for tile in TILES]


def several(BLOCK_M, BLOCK_N):
    """Lengths of several tiles each way, the last ones not full."""
    return 3 * BLOCK_M - 1, 4 * BLOCK_N + 3


def visible(seqlen_q, seqlen_k):
    """The mask, written out: True where query m sees key n."""
    m, n = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)
    return n <= m + seqlen_k - seqlen_q


def tile_of(mask, m_tile, n_tile, BLOCK_M, BLOCK_N):
    m_start, n_start = m_tile * BLOCK_M, n_tile * BLOCK_N
    return mask[m_start : m_start + BLOCK_M, n_start : n_start + BLOCK_N]


def grid(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    return math.ceil(seqlen_q / BLOCK_M), math.ceil(seqlen_k / BLOCK_N)


def drawn(mask, m_tile, BLOCK_M, BLOCK_N):
    """The mask of one m-tile: 1 where a query sees a key, a gap after each n-tile."""
    lines = []
    for m in range(m_tile * BLOCK_M, min((m_tile + 1) * BLOCK_M, len(mask))):
        row = "".join(".1"[int(x)] for x in mask[m])
        tiles = [row[n : n + BLOCK_N] for n in range(0, len(row), BLOCK_N)]
        lines.append(f"\n  query {m:>2}   {' '.join(tiles)}")
    return (
        f"m-tile {m_tile}, a gap after each n-tile:"
        + "".join(lines[:8])
        + "\n  ..." * (len(lines) > 8)
    )


def check_counts(exercise, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    mask = visible(seqlen_q, seqlen_k)
    num_m_tiles, num_n_tiles = grid(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
    for m_tile in range(num_m_tiles):
        want = sum(
            tile_of(mask, m_tile, n_tile, BLOCK_M, BLOCK_N).any() for n_tile in range(num_n_tiles)
        )
        got = exercise.num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        if got == want:
            continue
        m_end, more = (m_tile + 1) * BLOCK_M, seqlen_k - seqlen_q
        keys = min(m_end, seqlen_q) + more  # that the last query of the m-tile sees
        counts = {
            "A count is never negative: it is 0 where no query sees a key.": keys,
            "last_key is an index: a query sees last_key + 1 keys.": max(0, keys - 1),
            "Queries of the last m-tile that do not exist are counted.": max(0, m_end + more),
            TOP_LEFT: min(m_end, seqlen_q),
        }
        raise Wrong(
            f"{seqlen_q=}, {seqlen_k=}, {BLOCK_M=}, {BLOCK_N=}: num_live_n_tiles({m_tile}, ...) "
            f"must be {want}, got {got}. {drawn(mask, m_tile, BLOCK_M, BLOCK_N)}",
            causes=[cause for cause, seen in counts.items() if got == -(-seen // BLOCK_N)],
        )


def check_needs_mask(exercise, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k):
    mask = visible(seqlen_q, seqlen_k)
    num_m_tiles, num_n_tiles = grid(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
    for m_tile in range(num_m_tiles):
        for n_tile in range(num_n_tiles):
            tile = tile_of(mask, m_tile, n_tile, BLOCK_M, BLOCK_N)
            if not tile.any():
                continue  # dead: nobody asks
            want = not (tile.all() and tile.shape[1] == BLOCK_N)
            got = exercise.needs_mask(m_tile, n_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
            if got == want:
                continue
            m_end, n_end = (m_tile + 1) * BLOCK_M, (n_tile + 1) * BLOCK_N
            seen = [m + seqlen_k - seqlen_q for m in (m_end, min(m_end, seqlen_q))]
            mistakes = (
                ("The last key of the tile is n_start + BLOCK_N - 1.", not want),
                ("The first query of an m-tile sees least: it decides, not the last.",
                 want and max(seen) >= n_end),
            )  # fmt: skip
            raise Wrong(
                f"{seqlen_q=}, {seqlen_k=}, {BLOCK_M=}, {BLOCK_N=}: needs_mask({m_tile}, {n_tile}, "
                f"...) must be {want}, got {got}. {drawn(mask, m_tile, BLOCK_M, BLOCK_N)}",
                causes=[cause for cause, likely in mistakes if likely],
            )


def test_last_key(exercise):
    """last_key: the last query sees the last key, each query one key more than the one before"""
    for seqlen_q, seqlen_k in LENGTHS:
        got = [exercise.last_key(m, seqlen_q, seqlen_k) for m in range(seqlen_q)]
        want = list(range(seqlen_k - seqlen_q, seqlen_k))
        if got != want:
            raise Wrong(
                f"{seqlen_q=}, {seqlen_k=}: last_key(m) must be {want}, got {got}",
                causes=[TOP_LEFT] if got[:1] == [0] else [],
            )


def test_square(exercise):
    """live n-tiles: as many keys as queries"""
    check_counts(exercise, 4, 4, 16, 16)


def test_more_keys(exercise):
    """live n-tiles: more keys than queries"""
    check_counts(exercise, 4, 4, 5, 17)


def test_more_queries(exercise):
    """live n-tiles: more queries than keys, so that the first m-tiles see nothing"""
    check_counts(exercise, 4, 4, 17, 5)


def test_ragged_queries(exercise):
    """live n-tiles: queries that do not exist in the last m-tile do not count"""
    check_counts(exercise, 8, 4, 9, 9)
    check_counts(exercise, 16, 1, 33, 33)


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILES)
def test_counts(exercise, BLOCK_M, BLOCK_N):
    """live n-tiles: every case agrees with the mask written out"""
    for lengths in (*LENGTHS, several(BLOCK_M, BLOCK_N)):
        check_counts(exercise, BLOCK_M, BLOCK_N, *lengths)


def test_decoding(exercise):
    """one query, many keys: it sees them all"""
    got = exercise.num_live_n_tiles(0, 16, 64, 1, 1000)
    assert got == 16, f"the one query is the last one: ceil(1000 / 64) = 16 tiles, got {got}"


@pytest.mark.parametrize("BLOCK_M, BLOCK_N", TILES)
def test_needs_mask(exercise, BLOCK_M, BLOCK_N):
    """needs_mask: every live tile agrees with the mask written out"""
    for lengths in (*LENGTHS, several(BLOCK_M, BLOCK_N)):
        check_needs_mask(exercise, BLOCK_M, BLOCK_N, *lengths)


def test_mask_on_the_diagonal_only(exercise):
    """needs_mask: in a square problem of square tiles, the diagonal tiles alone"""
    got = [n for n in range(4) if exercise.needs_mask(3, n, 16, 16, 64, 64)]
    assert got == [3], f"m-tile 3 of 4 crosses the staircase in n-tile 3 alone, got {got}"


def test_num_live_tiles(exercise):
    """num_live_tiles: the whole grid"""
    for BLOCK_M, BLOCK_N, seqlen_q, seqlen_k in CASES:
        mask = visible(seqlen_q, seqlen_k)
        num_m_tiles, num_n_tiles = grid(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        want = sum(
            bool(tile_of(mask, i, j, BLOCK_M, BLOCK_N).any())
            for i in range(num_m_tiles)
            for j in range(num_n_tiles)
        )
        got = exercise.num_live_tiles(BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        case = f"{seqlen_q=}, {seqlen_k=}, {BLOCK_M=}, {BLOCK_N=}"
        assert got == want, f"{case}: {want} of {num_m_tiles * num_n_tiles} tiles live, got {got}"


def test_half_of_the_work(exercise):
    """a long square problem skips nearly half of its tiles"""
    got = exercise.num_live_tiles(64, 64, 8192, 8192)
    assert got == 128 * 129 // 2, f"1 + 2 + ... + 128 = {128 * 129 // 2} of 16384 tiles, got {got}"


LONG = 10**12 + 7  # more than a loop can count, and than int32 or float32 holds


def test_no_loop(exercise):
    """a count for a row of 10^12 keys is exact, and comes at once"""
    for m_tile in (LONG // 64, LONG // 64 - 1, LONG // 128):
        want = -(-(min((m_tile + 1) * 64, LONG) + 5) // 48)  # five keys more than queries
        got = exercise.num_live_n_tiles(m_tile, 64, 48, LONG, LONG + 5)
        assert got == want, (
            f"num_live_n_tiles({m_tile}, 64, 48, {LONG}, {LONG + 5}) must be {want}, got {got}: "
            "are these whole numbers all the way?"
        )


def test_exact_for_long_sequences(exercise):
    """last_key and needs_mask are exact for 10^12 keys"""
    got = exercise.last_key(LONG - 3, LONG, LONG + 6)
    assert got == LONG + 3, (
        f"last_key({LONG - 3}, {LONG}, {LONG + 6}) must be {LONG + 3}, got {got}"
    )
    m_tile = LONG // 64 - 1
    for n_tile in ((64 * m_tile + 6) // 48 - 1, (64 * m_tile + 6) // 48):
        want = 48 * (n_tile + 1) - 1 > 64 * m_tile + 5
        got = exercise.needs_mask(m_tile, n_tile, 64, 48, LONG, LONG + 5)
        assert got == want, f"needs_mask({m_tile}, {n_tile}, 64, 48, ...) must be {want}, got {got}"


def test_ints_and_bools(exercise):
    """counts are ints, needs_mask is a bool"""
    counts = [
        exercise.last_key(3, 8, 8),
        exercise.num_live_n_tiles(0, 4, 4, 8, 8),
        exercise.num_live_tiles(4, 4, 8, 8),
    ]
    assert all(type(x) is int for x in counts), f"want ints, got {counts}"
    flag = exercise.needs_mask(0, 0, 4, 4, 8, 8)
    assert type(flag) is bool, f"want a bool, got {flag!r}"
