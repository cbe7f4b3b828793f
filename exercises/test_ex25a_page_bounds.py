"""Grader of ex25a: the least and largest number of each column of a page's keys."""

from dataclasses import replace

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.few import AXES, bounds_of, expect
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.pages import make_paged


def check(exercise, step):
    """Run checked, compare with the definition; the trace."""
    want = dict(zip(("k_min", "k_max"), bounds_of(step), strict=True))
    given = {name: step.inputs[name] for name in ("k_cache", "block_table", "seq_lens")}
    results = {name: np.full_like(x, UNWRITTEN) for name, x in want.items()}
    grid = step.block_table.shape[1], step.k_cache.shape[2], len(step.seq_lens)
    got, trace = launched(exercise.kernel, grid, 32, tuple(want), **given, **results)
    for name, x in want.items():
        other = "k_max" if name == "k_min" else "k_min"
        first, size = step.k_cache[:, 0], step.k_cache.shape[1]
        less = bounds_of(replace(step, seq_lens=step.seq_lens - 1))
        in_order = np.broadcast_to(np.arange(step.block_table.shape[1]), step.block_table.shape)
        of_i = bounds_of(replace(step, block_table=in_order))
        full = bounds_of(replace(step, seq_lens=step.seq_lens // size * size))
        own = np.full_like(x, UNWRITTEN)  # page i of a sequence at i
        ends = step.k_cache.copy()  # without the last token of each page that has two
        for pages, n in zip(step.block_table, step.seq_lens, strict=True):
            for i in range(-(-n // size)):
                own[i] = x[pages[i]]
                ends[pages[i], min(size, n - i * size) - 1] = ends[pages[i], 0]
        mistakes = [
            ("Bounds are stored at block_table[b, i], as the keys are, not at i.", own),
            ("The last token of a page takes no part.", bounds_of(replace(step, k_cache=ends))[
                name == "k_max"]),
            (f"This is {other}.", want[other]),
            ("A slot that holds no token takes part.", np.where(x == UNWRITTEN, x, np.nan)),
            ("Only the first token of the page takes part.", np.where(x == UNWRITTEN, x, first)),
            ("The last token of a sequence takes no part.", less[name == "k_max"]),
            ("A last page that is not full is left out.", full[name == "k_max"]),
            ("That is page i of the pool, not page block_table[b, i].", of_i[name == "k_max"]),
            ("0 is no key of the page: begin with its first.", np.where(
                x == UNWRITTEN, x, np.minimum(x, 0) if name == "k_min" else np.maximum(x, 0)
            )),
        ]  # fmt: skip
        expect(name, got[name], x, AXES["bounds"], mistakes)
    return trace


def test_full_pages(exercise):
    """full pages, 32 columns"""
    check(exercise, make_paged([16], 4, head_dim=32))


@pytest.mark.parametrize("page_size", [1, 3, 16, 40])
def test_part_filled(exercise, page_size):
    """a last page that is not full: its empty slots are NaN"""
    check(exercise, make_paged([25], page_size))


def test_batch(exercise):
    """several sequences of different lengths; one is empty; pages that nobody has are left alone"""
    check(exercise, make_paged([13, 0, 1, 22], 4))


@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_heads(exercise, num_kv_heads):
    """each K/V head has bounds of its own"""
    check(exercise, make_paged([9], 4, 3, num_kv_heads))


@pytest.mark.parametrize("head_dim", [1, 31, 33, 128])
def test_columns(exercise, head_dim):
    """columns that are no whole warps, fewer and more than 32"""
    check(exercise, make_paged([9], 4, 2, 1, head_dim))


@pytest.mark.parametrize("sign", [1, -1])
def test_one_sign(exercise, sign):
    """keys that are all above 0, or all below; very large and very small ones"""
    step = make_paged([11, 6], 4)
    step.k_cache[...] = sign * np.abs(step.k_cache)
    check(exercise, step)
    step.k_cache *= np.float32(1e37)
    check(exercise, step)


def test_many(exercise):
    """300 pages; a page of 300 tokens; 300 columns; 70 sequences, 70 heads"""
    check(exercise, make_paged([300], 1, 1, 1, 2))
    check(exercise, make_paged([293], 300, 1, 1, 2))
    check(exercise, make_paged([3], 2, 1, 1, 300))
    check(exercise, make_paged([1 + b % 3 for b in range(70)], 2, 1, 1, 2))
    check(exercise, make_paged([3], 2, 70, 70, 2))


def test_traffic(exercise):
    """each key is loaded once, no empty slot; each bound is stored once, and not loaded"""
    trace = check(exercise, make_paged([37, 0, 16], 16, 4, 2, 40))
    if trace.arrays["k_cache"].loads == 4 * 16 * 2 * 40:
        causes = [
            "The empty slots of the last page are loaded: end with the sequence's last token."
        ]
        raise Wrong(
            "k_cache: all slots of each page are loaded, not its tokens alone", causes=causes
        )
    bounds = (4 * 2 * 40, "pages that have tokens * num_kv_heads * head_dim")
    expect_traffic(trace, {
        ("k_cache", "loads"): (53 * 2 * 40, "sum(seq_lens) * num_kv_heads * head_dim"),
        ("k_min", "stores"): bounds, ("k_max", "stores"): bounds,
        ("k_min", "loads"): (0, "a result"), ("k_max", "loads"): (0, "a result"),
    })  # fmt: skip


def test_coalesced(exercise):
    """a warp loads neighbouring columns of a row: 4 sectors for 32 floats"""
    got = check(exercise, make_paged([16], 8, 1, 1, 64)).arrays["k_cache"].load_sectors
    assert got <= 16 * 2 * 4, (
        f"k_cache: {16 * 2 * 4} sectors of 32 bytes hold its keys, and {got} were loaded: the "
        "lanes of a warp load neighbouring columns of one row"
    )


def test_memory(exercise):
    """no shared memory, no local array, no barrier"""
    trace = check(exercise, make_paged([16], 8, 2, 1, 40))
    expect_chip_memory(trace, shared=0, local=0, allowed="low and high are two numbers of a lane")
    assert trace.barriers == 0, f"lanes share nothing: no barrier, got {trace.barriers}"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    step = make_paged([16], 8, 2, 1, 40)
    check(exercise, step)
    bounds = bounds_of(step)
    gpu_ready(exercise.kernel, (step.k_cache, step.block_table, step.seq_lens, *bounds))
