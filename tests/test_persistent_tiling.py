"""How the thread blocks of a persistent kernel divide the work."""

import itertools

import numpy as np
import pytest

from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import (
    FIXED_TILES,
    choose_num_slices,
    longest_work,
    persistent_tiling,
    slice_of,
    tiles_of_keys,
)


@pytest.mark.parametrize(
    "causal, window_size", [(False, (-1, -1)), (True, (-1, -1)), (True, (5, 0))]
)
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(37, 37), (9, 40), (40, 9), (16, 32), (1, 1)])
def test_tiles_of_keys(seqlen_q, seqlen_k, causal, window_size):
    position = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    n, (left, right) = np.arange(seqlen_k), window_size
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if left >= 0:
        seen &= n >= position - left
    if causal or right >= 0:
        seen &= n <= position + (0 if causal else right)

    def tiles_of(rows):
        keys = np.flatnonzero(seen[rows].any(axis=0))
        return keys[-1] // 4 - keys[0] // 4 + 1 if keys.size else 1

    cut = seqlen_q, seqlen_k, 8, 4, causal, window_size
    starts = range(0, seqlen_q, 8)
    assert tiles_of_keys(*cut) == [tiles_of(slice(m, m + 8)) for m in starts]
    halves = [tiles_of(slice(m, m + 4)) + tiles_of(slice(m + 4, m + 8)) for m in starts]
    assert tiles_of_keys(*cut, parts=2) == [both / 2 for both in halves]


@pytest.mark.parametrize("num_m_tiles", [7, 8, 21])
@pytest.mark.parametrize("num_slices", [1, 2, 3, 7])
def test_slices_mix_long_and_short_tiles_evenly(num_slices, num_m_tiles):
    work_slice = slice_of(num_slices, num_m_tiles)
    lengths = np.arange(num_m_tiles, 0, -1)  # causal, the last tile first
    sums = np.bincount(work_slice, lengths, num_slices)
    assert (np.bincount(work_slice) > 0).all() and sums.max() - sums.min() <= num_m_tiles
    for step in range(0, num_m_tiles - 2 * num_slices + 1, 2 * num_slices):  # snake order
        pair = slice(step, step + 2 * num_slices)
        assert len(set(np.bincount(work_slice[pair], lengths[pair]))) == 1


@pytest.mark.parametrize("num_slices, num_heads, num_blocks", [(3, 5, 4), (2, 1, 8), (5, 7, 6)])
def test_longest_work_is_that_of_the_snake_order(num_slices, num_heads, num_blocks):
    counts = [2, 3, 5, 6, 8]
    work = np.zeros(num_blocks)
    for index in range(num_slices * num_heads):
        round_, block = divmod(index, num_blocks)
        block = num_blocks - 1 - block if round_ % 2 else block
        for tile, work_slice in enumerate(slice_of(num_slices, len(counts))):
            if work_slice == index % num_slices:
                work[block] += counts[len(counts) - 1 - tile] + FIXED_TILES
    assert longest_work(num_slices, counts, num_heads, num_blocks) == work.max()


def test_slices_fill_the_gpu():
    """In the measured sizes the thread blocks are busy at least 94 % of the time."""
    for seqlen, head_dim, causal in itertools.product(
        (512, 1024, 2048, 4096, 8192, 16384), (64, 128, 256), (False, True)
    ):
        num_heads = 16384 // seqlen * 2048 // head_dim
        consumers, block_n, *_ = persistent_tiling(head_dim, seqlen, causal)
        cut = seqlen, seqlen, 64 * consumers, block_n, causal, (-1, -1)
        counts = tiles_of_keys(*cut)
        num_slices = choose_num_slices(num_heads, 132, *cut)
        assert 1 <= num_slices <= ceil_div(seqlen, 64 * consumers)
        total = num_heads * sum(n + FIXED_TILES for n in counts)
        assert total / 132 / longest_work(num_slices, counts, num_heads, 132) > 0.94


def test_short_sequences_have_tiles_of_few_keys_past_the_end():
    for seqlen, block_n in ((1, 80), (77, 80), (100, 112), (128, 128), (150, 80), (197, 112)):
        tiling = persistent_tiling(64, seqlen, True, seqlen_q=seqlen)
        assert (tiling.consumers, tiling.block_n) == (2, block_n)
        assert persistent_tiling(64, seqlen, True, packed=True, seqlen_q=seqlen).consumers == 3
    assert persistent_tiling(64, 77, False, seqlen_q=4096).consumers == 3
    assert persistent_tiling(128, 77, False, seqlen_q=77).block_n == 128


def test_very_large_calls_pair_their_tiles():
    assert choose_num_slices(100_000, 132, 4096, 4096, 128, 128, True, (-1, -1)) == 16


def test_of_equally_good_numbers_the_nearest():
    problem = 1024, 132, 576, 512, 192, 128, True, (-1, -1), 3
    most, two = choose_num_slices(*problem), choose_num_slices(*problem, nearest=2)
    counts = tiles_of_keys(*problem[2:])
    assert two == 2 < most
    assert longest_work(two, counts, 1024, 132) == longest_work(most, counts, 1024, 132)
