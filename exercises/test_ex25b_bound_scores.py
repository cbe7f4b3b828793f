"""Grader of ex25b: the largest score that a page's bounds allow."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import UNWRITTEN
from fa_numba.workbook.graders.few import AXES, expect, with_bounds
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32


def by_definition(step, bounds, of_column=np.maximum, of_group=np.max, page_of=None, q=None):
    """(batch, num_kv_heads, max_pages), float64."""
    (batch, num_heads, _), kv_heads = step.q.shape, step.k_cache.shape[2]
    max_pages = step.block_table.shape[1]
    scores = np.full((batch, kv_heads, max_pages), -np.inf)
    q = (step.q if q is None else q).astype(np.float64)
    q = q.reshape(batch, kv_heads, num_heads // kv_heads, -1)
    for b, g, i in np.ndindex(*scores.shape):
        if i * step.page_size < step.seq_lens[b]:
            page = step.block_table[b, i] if page_of is None else page_of(b, i)
            low, high = (x[page, g].astype(np.float64) for x in bounds)
            scores[b, g, i] = of_group(of_column(q[b, g] * low, q[b, g] * high).sum(axis=1))
    return scores


def check(exercise, step, bounds):
    """Run checked, compare with the definition; the trace."""
    want = by_definition(step, bounds)
    names = dict(zip(("k_min", "k_max"), bounds, strict=True))
    given = {"q": step.q, **names, "block_table": step.block_table, "seq_lens": step.seq_lens}
    got, trace = launched(
        exercise.kernel, want.shape[::-1], 32, ("scores",), **given,
        scores=np.full(want.shape, UNWRITTEN), page_size=np.int32(step.page_size),
    )  # fmt: skip
    heads = np.arange(step.q.shape[1]).reshape(step.group_size, -1).T.ravel()
    known = {
        "A key is bounded from below here.": {"of_column": np.minimum},
        "k_min bounds products with a negative q_d.": {"of_column": lambda low, high: high},
        "Heads of a group are not added: the largest counts.": {"of_group": np.sum},
        "The largest head of the group counts, not its first.": {"of_group": lambda u: u[0]},
        "The largest head of the group counts, not its last.": {"of_group": lambda u: u[-1]},
        "A group has neighbouring heads: h is in that of h // group_size.": {"q": step.q[:, heads]},
        "The table is not looked at.": {"page_of": lambda b, i: i},
    }
    mistakes = [
        *((said, by_definition(step, bounds, **how)) for said, how in known.items()),
        ("The bound is not scaled.", want / np.sqrt(step.q.shape[2])),
        ("The sum of the 32 lanes is counted 32 times.", 32 * want),
        ("The largest of no numbers is -inf, not 0.", np.maximum(want, 0)),
    ]
    size = np.abs(step.q).sum(axis=2).max(initial=0) * np.nanmax(np.abs(bounds), initial=0)
    expect("scores", got["scores"], want, AXES["scores"], mistakes, 1e-6 * (1 + size))
    return trace


def test_one_page(exercise):
    """one page, one head, 32 columns"""
    check(exercise, *with_bounds([4], 4, 1, 1, 32))


def test_negative(exercise):
    """queries of both signs, boxes on both sides of 0"""
    step, bounds = with_bounds([8], 4, 1, 1, 8)
    for shift in (-5, 5):
        check(exercise, step, [x + np.float32(shift) for x in bounds])
    step.q[...] = -np.abs(step.q)
    check(exercise, step, bounds)


def test_batch(exercise):
    """several sequences; an empty one, and pages behind the last, get -inf"""
    check(exercise, *with_bounds([13, 0, 1, 22], 4))


@pytest.mark.parametrize("num_heads, num_kv_heads", [(3, 3), (6, 2), (5, 1)])
def test_heads(exercise, num_heads, num_kv_heads):
    """the largest bound of the heads of a group"""
    check(exercise, *with_bounds([18], 5, num_heads, num_kv_heads))


def test_all_bounds_below_zero(exercise):
    """a group whose bounds are all below 0, and far below"""
    step, bounds = with_bounds([10], 4, 4, 2)
    step.q[...] = np.abs(step.q)
    for size in (50, 1e30):
        check(exercise, step, [np.sign(size) * (x - np.float32(size)) for x in bounds])


@pytest.mark.parametrize("head_dim", [1, 31, 33, 128])
def test_columns(exercise, head_dim):
    """columns that are no whole warps, fewer and more than 32"""
    check(exercise, *with_bounds([9], 4, 4, 2, head_dim))


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_page_size(exercise, page_size):
    """pages of 1, 3 and 16 tokens, the last one part-filled"""
    check(exercise, *with_bounds([29], page_size))


def test_no_key_exceeds_it(exercise):
    """no score of a key is above the bound of its page"""
    step, bounds = with_bounds([21, 8], 4, 4, 2)
    check(exercise, step, bounds)
    scores = np.full((2, 2, step.block_table.shape[1]), UNWRITTEN)
    given = {"q": step.q, "k_min": bounds[0], "k_max": bounds[1]}
    tables = {"block_table": step.block_table, "seq_lens": step.seq_lens}
    got, _ = launched(
        exercise.kernel, scores.shape[::-1], 32, ("scores",), **given, **tables, scores=scores,
        page_size=np.int32(4),
    )  # fmt: skip
    for b in range(2):
        keys, _ = step.dense(b)
        for n, h in np.ndindex(len(keys), 4):
            product = float(step.q[b, h] @ keys[n, h // 2])
            bound = got["scores"][b, h // 2, n // 4]
            assert product <= bound + 1e-4, (
                f"sequence {b}, head {h}, key {n}: q·k is {product:.5g}, above {bound:.5g}, the "
                "bound of its page"
            )


def test_many(exercise):
    """300 pages, 300 columns, 70 sequences, 70 heads, 70 tokens a page"""
    check(exercise, *with_bounds([300], 1, 1, 1, 2))
    check(exercise, *with_bounds([75], 70, 1, 1, 2))
    check(exercise, *with_bounds([3], 2, 1, 1, 300))
    check(exercise, *with_bounds([1 + b % 3 for b in range(70)], 2, 1, 1, 2))
    check(exercise, *with_bounds([3], 2, 70, 70, 2))
    check(exercise, *with_bounds([3], 2, 70, 1, 2))


def test_traffic(exercise):
    """bounds and q are loaded once for each page and head of the group, scores stored once"""
    step, bounds = with_bounds([37, 0, 16], 4, 4, 2, 40)
    trace = check(exercise, step, bounds)
    pages, columns = 14, step.block_table.shape[1]
    expect_traffic(trace, {
        ("scores", "stores"): (3 * 2 * columns, "batch * num_kv_heads * max_pages"),
        ("scores", "loads"): (0, "a result"),
    })  # fmt: skip
    of_heads = pages * 4 * 40, "pages * num_heads * head_dim"
    expect_at_most(trace, q_loads=of_heads, k_min_loads=of_heads, k_max_loads=of_heads)


def test_coalesced(exercise):
    """a warp loads neighbouring columns of a row: 4 sectors for 32 floats"""
    got = check(exercise, *with_bounds([16], 8, 1, 1, 64)).arrays["k_min"].load_sectors
    assert got <= 2 * 2 * 4, (
        f"k_min: {2 * 2 * 4} sectors of 32 bytes hold its rows, and {got} were loaded: the lanes "
        "of a warp load neighbouring columns of one row"
    )


def test_memory(exercise):
    """no shared memory, no local array, no barrier"""
    trace = check(exercise, *with_bounds([16], 8, 2, 1, 40))
    expect_chip_memory(trace, shared=0, local=0, allowed="lanes add by shuffles")
    assert trace.barriers == 0, f"one warp needs no barrier, got {trace.barriers}"


def test_float32(exercise):
    """computes in float32"""
    expect_float32(check(exercise, *with_bounds([16], 8, 2, 1, 40)))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    step, bounds = with_bounds([16], 8, 2, 1, 40)
    check(exercise, step, bounds)
    scores = np.zeros((1, 1, step.block_table.shape[1]), np.float32)
    args = step.q, *bounds, step.block_table, step.seq_lens, scores, np.int32(8)
    gpu_ready(exercise.kernel, args)
