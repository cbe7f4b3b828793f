"""Grader of ex18d: the split kernel over keys and values in pages."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_clean
from fa_numba.workbook.graders.kernels import expect_at_most
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic
from fa_numba.workbook.graders.pages import check, make_paged, prepare, with_scores


@pytest.mark.parametrize("page_size", [8, 16, 32])
def test_whole_tiles(exercise, page_size):
    """pages of whole tiles, whole last pages"""
    check(exercise, make_paged([32], page_size))


@pytest.mark.parametrize("page_size", [1, 3, 5, 7, 12])
def test_tile_crosses_pages(exercise, page_size):
    """tiles that cross page borders"""
    check(exercise, make_paged([29], page_size))


def test_batch(exercise):
    """several sequences, each with its own row of the table; one is empty"""
    check(exercise, make_paged([13, 0, 1, 22], 4))


@pytest.mark.parametrize("num_splits", [1, 2, 5, 9])
def test_splits(exercise, num_splits):
    """any number of splits; those without keys leave (0, -inf)"""
    check(exercise, make_paged([40, 7], 6), num_splits)


@pytest.mark.parametrize("num_heads, num_kv_heads", [(3, 3), (6, 2), (20, 1)])
def test_heads(exercise, num_heads, num_kv_heads):
    """each query head reads the K/V head of its group"""
    check(exercise, make_paged([18], 5, num_heads, num_kv_heads))


@pytest.mark.parametrize("BLOCK_N", [1, 4, 16, 33])
def test_tile_size(exercise, BLOCK_N):
    """tile size does not change the answer"""
    check(exercise, make_paged([35, 9], 6), BLOCK_N=BLOCK_N)


@pytest.mark.parametrize("head_dim", [1, 13, 128, 130])
def test_head_dim(exercise, head_dim):
    """head_dim odd, and larger than the thread block is wide"""
    check(exercise, make_paged([11], 4, 2, 1, head_dim))


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before; the last one may be 0"""
    for scores in (np.linspace(-10, 9.5, 40), np.linspace(-9, 0, 19)):
        check(exercise, with_scores(scores.round(1), 6), num_splits=2)


@pytest.mark.parametrize("size", [3e4, 2e30])
def test_low_scores(exercise, size):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    check(exercise, with_scores(np.full(21, -size), 4), num_splits=1)


def test_many(exercise):
    """270 splits and pages; a page of 300; 70 sequences; 70 K/V heads"""
    check(exercise, make_paged([270], 1, 1, 1, 2), 270, 1)
    check(exercise, make_paged([293], 300, 1, 1, 2), 2, 8)
    check(exercise, make_paged([1 + b % 3 for b in range(70)], 2, 1, 1, 2), 2, 4)
    check(exercise, make_paged([3], 2, 70, 70, 2), 1, 4)


@pytest.mark.parametrize("page_size", [3, 16])
def test_traffic(exercise, page_size):
    """each key and value is loaded once, no empty slot; a page is looked up once per tile"""
    step = make_paged([37, 0, 16], page_size, 4, 2, 32)
    launch, _ = prepare(exercise, step, 3, 8)
    trace = simt.trace(*launch)
    keys = (53 * 2 * 32, "sum(seq_lens) * num_kv_heads * HEAD_DIM")
    none = 0, "a thread block keeps its result to itself"
    rows = 3 * 3 * 4
    expect_traffic(trace, {
        ("k_cache", "loads"): keys, ("v_cache", "loads"): keys,
        ("out_partial", "stores"): (rows * 32, "num_splits * batch * num_heads * HEAD_DIM"),
        ("lse_partial", "stores"): (rows, "num_splits * batch * num_heads"),
        ("out_partial", "loads"): none, ("lse_partial", "loads"): none,
    })  # fmt: skip
    lookups = 53 * 2 * 8, "once for each key, K/V head and thread of a row of the tile"
    expect_at_most(trace, block_table_loads=lookups, q_loads=(rows * 32, "once per split"))


def test_memory(exercise):
    """shared memory: five tiles; a thread keeps its columns of out"""
    trace = simt.trace(*prepare(exercise, make_paged([48], 6, 16, 1, 32), 2, 16)[0])
    tiles = 3 * 16 * 33 + 2 * 16 * 17 + 4 * 16
    allowed = "tiles of q, k, v, s and p are shared; a thread has its columns of acc"
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread, and no tile behind the last key"""
    trace = simt.trace(*prepare(exercise, make_paged([48], 6, 16, 1, 32), 2, 16)[0])
    how = "(ty, tx) computes one score of a tile, and there are ceil(seq_len / BLOCK_N) tiles"
    expect_products(trace, 2 * 16 * 48 * 32, "q k^T and P v are", how)


def test_inputs_and_edges(exercise):
    """inputs stay as they are, and nothing is written beside the results"""
    step = make_paged([11, 18], 4)
    expect_clean(*prepare(exercise, step, 2, 8), " ".join(step.inputs))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, make_paged([4], 16, 4, 1, 64), 2, 16)
    gpu_ready(kernel, args)
