"""flash_decode on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import (
    LENGTHS,
    TWO_HEAD_DIMS,
    WIDE_HEAD_DIMS,
    assert_equal,
    check_decode,
    check_forward,
    each_mask,
    each_option,
    each_shape,
    each_value,
    make_qkv,
    mask_options,
    on_full_caches,
)
from few_cases import pairs

from fa_numba import analysis, flash_attn_v2, reference, simt
from fa_numba.kernels.flash_decode import flash_decode, make_flash_decode
from fa_numba.tiling.num_splits import most_key_tiles

pytestmark = pytest.mark.usefixtures("checked")


@each_mask
@each_shape
def test_shapes(rng, shape, causal):
    q, k, v = make_qkv(rng, *shape.sizes)
    options = {"causal": causal, "num_splits": 3, "block_m": 8, "block_n": 8}
    check_forward(on_full_caches(flash_decode), q, k, v, **options)


@each_mask
@each_value
@pytest.mark.parametrize("num_splits", [1, 2, 5])
@pytest.mark.few(lambda values, num_splits, causal: pairs(values, num_splits, causal))
def test_values(rng, values, num_splits, causal):
    options = {"causal": causal, "num_splits": num_splits, "block_m": 8, "block_n": 4}
    check_forward(on_full_caches(flash_decode), *values(rng), **options)


@each_mask
@pytest.mark.parametrize("num_splits", [0, 1, 2, 3, 4, 5, 6, 7, 64])  # the longest has 5 tiles
def test_the_number_of_splits_does_not_change_the_answer(rng, num_splits, causal):
    q, k, v = make_qkv(rng, len(LENGTHS), 3, 40, 4, 2, 8)
    options = {"num_splits": num_splits, "block_m": 8, "block_n": 8}
    check_decode(flash_decode, q, k, v, LENGTHS, causal=causal, **options)


@pytest.mark.parametrize(
    "head_dims", [(1,), (59,), (111,), (256,), *TWO_HEAD_DIMS, *WIDE_HEAD_DIMS], ids=str
)
def test_chosen_tiles_and_splits(rng, head_dims):
    q, k, v = make_qkv(rng, 3, 1, 70, 4, 2, *head_dims)
    check_decode(flash_decode, q, k, v, [70, 1, 33])


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    q, k, v = make_qkv(rng, 1, 1, 9, 1, 1, 8)
    check_forward(on_full_caches(flash_decode), q, k, v, softmax_scale=softmax_scale)


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_the_heads_of_a_group_share_one_read_of_the_cache(rng, num_heads):
    q, k, v = make_qkv(rng, 1, 1, 64, num_heads, 1, 16)
    with simt.tracing() as traces:
        on_full_caches(flash_decode)(q, k, v, num_splits=4)
    for cache in ("k_cache", "v_cache"):
        assert traces[0].arrays[cache].loads == 64 * 16  # each number once, however many heads


def test_causal_rows_load_no_tile_that_none_of_them_sees(rng):
    q, k, v = make_qkv(rng, 1, 64, 64, 1, 1, 4)
    options = {"num_splits": 2, "block_m": 8, "block_n": 8}
    loads = []
    for causal in (False, True):
        with simt.tracing() as traces:
            on_full_caches(flash_decode)(q, k, v, causal=causal, **options)
        loads.append(traces[0].arrays["k_cache"].loads)
    assert loads[1] * 16 == loads[0] * 9  # 1 + 2 + ... + 8 of 8 · 8 tiles


# --- windows, softcap, ALiBi ------------------------------------------------------------------


@each_option
@pytest.mark.parametrize("seqlen_q", [1, 5])
@pytest.mark.parametrize("num_splits", [1, 3, 7])
@pytest.mark.few(lambda seqlen_q, num_splits, mask: [*pairs(seqlen_q, num_splits), mask])
def test_masks(rng, seqlen_q, num_splits, mask):
    q, k, v = make_qkv(rng, len(LENGTHS), seqlen_q, 40, 4, 2, 6)
    tiles = {"num_splits": num_splits, "block_m": 4, "block_n": 8}
    check_decode(flash_decode, q, k, v, LENGTHS, **mask_options(mask, 4), **tiles)


@each_option
def test_one_split_of_a_mask_is_flash_attn_v2_bit_for_bit(rng, mask):
    q, k, v = make_qkv(rng, 2, 5, 21, 2, 2, 8)
    options = {**mask_options(mask, 2), "block_m": 4, "block_n": 4}
    got = on_full_caches(flash_decode)(q, k, v, num_splits=1, **options)
    assert_equal(got, flash_attn_v2(q, k, v, **options))


@pytest.mark.parametrize("num_splits", [1, 2, 5])
def test_keys_left_of_a_window_are_not_loaded(rng, num_splits):
    """The query at key 60 sees 45 to 60: with tiles of 8 that is the tiles from 40 on."""
    q, k, v = make_qkv(rng, 1, 1, 64, 2, 1, 4)
    k[:, :40] = v[:, :40] = np.nan
    options = {"window_size": (15, -1), "num_splits": num_splits, "block_m": 2, "block_n": 8}
    with simt.tracing() as traces:
        out, lse = flash_decode(q, k, v, np.array([61], np.int32), **options)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    for cache in ("k_cache", "v_cache"):
        assert traces[0].arrays[cache].loads == (61 - 40) * 4


@pytest.mark.parametrize("num_splits", [1, 3])
def test_each_tile_of_queries_loads_a_window_of_its_own(rng, num_splits):
    """Tiles of 8 queries of 2 heads, and a window of 8: its own tile of keys and the one before."""
    q, k, v = make_qkv(rng, 1, 64, 64, 2, 1, 4)
    options = {"window_size": (8, 0), "num_splits": num_splits, "block_m": 16, "block_n": 8}
    with simt.tracing() as traces:
        on_full_caches(flash_decode)(q, k, v, **options)
    for cache in ("k_cache", "v_cache"):
        assert traces[0].arrays[cache].loads == (1 + 7 * 2) * 8 * 4


def test_the_splits_share_the_tiles_of_a_window(rng):
    """A window of 8 tiles far into the cache: each of 4 splits attends to 2 of them."""
    q, k, v = make_qkv(rng, 1, 1, 256, 1, 1, 4)
    out_partial, lse_partial = np.empty((4, *q.shape), np.float32), np.empty((4, 1, 1, 1), "f4")
    scales = (np.float32(0),) * 2
    args = (q, k, v, (), np.array([256], np.int32), *scales, out_partial, lse_partial)
    kernel = make_flash_decode(4, 1, 8, False, (63, 0))
    simt.run(kernel, (4, 1, 1), (8, 1), *args, np.float32(0.5), np.float32(0), ())
    for split in range(4):
        n = slice(192 + 16 * split, 208 + 16 * split)
        out, lse = reference.attention(q, k[:, n], v[:, n])
        np.testing.assert_allclose(out_partial[split], out, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lse_partial[split], lse, rtol=1e-5)


@pytest.mark.parametrize(
    "batch, max_len, splits",
    [
        (1, 100_000, 80),  # 2 thread blocks without splitting, 160 wanted: 4 for each of 40 SMs
        (40, 100_000, 2),
        (80, 100_000, 1),
        (500, 100_000, 1),
        (1, 200, 4),  # there are but four tiles of 64 keys
        (1, 0, 1),
    ],
)
def test_zero_splits_fill_the_gpu(batch, max_len, splits):
    assert analysis.kernel_block_sizes("flash_decode", 64, num_rows=4) == (4, 64)
    q = np.zeros((batch, 1, 8, 64), np.float32)
    cache = np.broadcast_to(np.zeros(64, np.float32), (batch, max_len, 2, 64))
    with simt.tracing() as traces:
        flash_decode(q, cache, cache, np.zeros(batch, np.int32))  # short, but who knows it?
    assert traces[0].grid == (splits, 2, batch)


def test_no_more_splits_than_a_window_has_tiles():
    q = np.zeros((1, 1, 8, 64), np.float32)
    cache = np.broadcast_to(np.zeros(64, np.float32), (1, 100_000, 2, 64))
    with simt.tracing() as traces:
        for window_size in ((0, 0), (63, 0), (64, -1), (1000, 0), (10**6, 0), (-1, 5)):
            flash_decode(q, cache, cache, np.zeros(1, np.int32), window_size=window_size)
    # 64 keys lie in two tiles of 64 unless they begin with one, 1001 keys in 17
    assert [trace.grid[0] for trace in traces[::2]] == [1, 2, 2, 17, 80, 80]


@pytest.mark.parametrize("left, seqlen_q, block_n", [(0, 1, 1), (3, 2, 4), (7, 1, 8), (12, 5, 5)])
def test_the_tiles_of_a_window_are_counted_wherever_it_begins(left, seqlen_q, block_n):
    seen = [
        len({n // block_n for n in range(max(0, end - seqlen_q - left), end)}) for end in range(41)
    ]
    assert most_key_tiles(40, seqlen_q, (left, 0), block_n) == max(seen)


def test_splits_are_chosen_by_the_sms_of_the_gpu():
    assert analysis.choose_num_splits(1, 10_000, 40) == 4 * 40  # a T4
    assert analysis.choose_num_splits(1, 10_000, 132) == 4 * 132  # an H200
    assert analysis.choose_num_splits(100, 10_000, 132) == 6  # 528 / 100, rounded up
    assert analysis.choose_num_splits(528, 10_000, 132) == 1
    assert analysis.choose_num_splits(1, 7, 132) == 7
    assert analysis.choose_num_splits(0, 0, 132) == 1
