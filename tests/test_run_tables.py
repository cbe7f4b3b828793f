"""The table of runs that a GPU makes, on the CPU engine: as that of `expressions.tiles`."""

import inspect
import re

import expression_cases
import numpy as np
import pytest
from machine_code_cases import needs_compiler
from test_compile import launches_of

from fa_numba import masks
from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.checks import Mask, check_expressions
from fa_numba.expressions.interval_source import MOST_WALKED, NoIntervalError
from fa_numba.expressions.intervals import MOST_ROWS
from fa_numba.expressions.tiles import MIXED, runs_both_ways, runs_of_warpgroups, tile_classes
from fa_numba.expressions.trace import trace
from fa_numba.tensor_core import run_tables
from fa_numba.tiling.split_tiling import make_tiling

MASKS = [name for name, x in expression_cases.CASES.items() if x.mask and name != "a tree"]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("parts", [2, 3])
def test_table(name, parts):
    for seqlen_q, seqlen_k in ((300, 300), (70, 517)):
        table, wanted = tables(name, (seqlen_q, seqlen_k, 2, 4, 64, parts))
        most = wanted.shape[3]
        np.testing.assert_array_equal(table[..., :most, :], wanted)
        assert not table[..., most:, :].any()


@pytest.mark.parametrize("num_blocks", [5, 300])
def test_queue(num_blocks, rng):
    """Every thread block once, those with the most tiles first; of equal ones the last."""
    runs = np.zeros((2, 3, num_blocks, 4, 3), np.int32)
    runs[..., :2, 0], runs[..., :2, 1] = (
        (0, 20),
        rng.integers(1, 9, (2, 3, num_blocks, 2)) + (0, 20),
    )
    runs[:, :, 1::2, 1] = 0  # these have one run
    order, counter = run_tables.queue_of(runs, runs)
    work = (runs[..., 1] - runs[..., 0]).sum(axis=-1)
    wanted = num_blocks - 1 - np.argsort(-work[..., ::-1], axis=-1, kind="stable")
    np.testing.assert_array_equal(order, wanted)
    assert counter == 0


@pytest.mark.parametrize("name", MASKS)
def test_tables_both_ways(name, monkeypatch):
    monkeypatch.setattr(run_tables, "MAX_RUNS", 1)
    for sizes in ((300, 300), (70, 517)):
        q, given = problem_of(name, *sizes, 2, 4)
        mask, arguments = given.expressions.mask, given.arguments
        found = run_tables.make_tables_both_ways(q, mask, arguments, (*sizes, 2, 4, 64, 32))
        classes = tile_classes(mask, sizes, 64, 32, arguments, 2, 4)
        for table, wanted in zip(found, runs_both_ways(classes, sizes, 64, 32), strict=True):
            most = wanted.shape[3]
            np.testing.assert_array_equal(table[..., :most, :], wanted)
            assert not table[..., most:, :].any()


def test_a_tile_that_sees_nothing_has_no_run():
    """The ordered gradients set dQ to 0 there."""
    mask = trace(lambda b, h, m, n: (m >= 100) & (n >= 40), "mask", "b h m n", ())
    q = np.zeros((1, 200, 1, 8), np.float32)
    tables = run_tables.make_tables_both_ways(q, mask, (), (200, 200, 1, 1, 32, 32))
    for table, hidden in zip(tables, (3, 1), strict=True):
        assert not table[:, :, :hidden].any() and (table[:, :, hidden:, 0, 1] > 0).all()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("along", ["BLOCKS", "QUERIES", "KEYS"])
def test_packed_table(name, along):
    lengths = (70, 0, 300, 5, 64), (80, 9, 317, 0, 64)
    starts = [np.cumsum((0, *x), dtype=np.int32) for x in lengths]
    q, given = problem_of(name, 317, 317, 5, 4)
    mask, arguments, parts = given.expressions.mask, given.arguments, 2 if along == "BLOCKS" else 1
    problem = *(int(x[-1]) for x in starts), 4, 64, 32
    kind = getattr(run_tables, along)
    ranges = run_tables.ranges_of_packed(q, mask, arguments)
    table = run_tables.make_packed_table(q, mask, arguments, ranges, starts, problem, kind, parts)
    tables = expression_cases.packed_runs(
        mask, arguments, starts, 4, (64, 32), parts if along == "BLOCKS" else None
    )
    wanted = tables[along == "KEYS"]
    table = np.broadcast_to(table, (1, 4, *table.shape[2:]))
    met = wanted[0, 0, :, 0, 0] >= 0  # a row of a sequence
    most = min(table.shape[3], wanted.shape[3])
    np.testing.assert_array_equal(table[:, :, met, :most], wanted[:, :, met, :most])
    assert not table[:, :, met, most:].any() and not wanted[:, :, met, most:].any()


def test_more_runs_than_there_is_room_for(monkeypatch):
    """Each tile that is in a run stays in one; the last run has all after it, mixed."""
    monkeypatch.setattr(run_tables, "MAX_RUNS", 2)
    table, wanted = tables("window and first keys", (300, 900, 1, 1, 16, 2))
    assert wanted.shape[3] > 2
    for runs, all_runs in zip(table[0, 0], wanted[0, 0], strict=True):
        met = np.zeros(57, int)
        for first, end, flags in runs:
            met[first:end] = flags
        for first, end, flags in all_runs:
            assert np.all((met[first:end] == flags) | (met[first:end] == 0b0101))


def test_two_tables_of_many_runs_have_the_same_tiles(monkeypatch):
    """A part of dQ that one table has and the other has not would never come."""
    monkeypatch.setattr(run_tables, "MAX_RUNS", 2)
    mask = trace(lambda b, h, m, n: (m // 32 - n // 32) % 3 == 0, "mask", "b h m n", ())
    q, starts = np.zeros((300, 1, 8), np.float32), 2 * [np.array([0, 300], np.int32)]
    found = np.zeros((2, 10, 10), bool)
    for along, tiles in zip((run_tables.QUERIES, run_tables.KEYS), found, strict=True):
        problem = 300, 300, 1, 32, 32
        table = run_tables.make_packed_table(q, mask, (), (), starts, problem, along, all_runs=True)
        for row, runs in zip(tiles, table[0, 0], strict=True):
            for first, end, _ in runs:
                row[first:end] = True
    np.testing.assert_array_equal(found[0], found[1].T)
    assert found.sum() == 2 * 34


@pytest.mark.parametrize("block_m, block_n", [(64, 64), (32, 32), (8, 4), (64, 1), (1, 3)])
def test_block_lists(block_m, block_n, rng):
    """Tiles in a block, and tiles of some blocks, but not of more numbers than may be walked."""
    blocks = -(-300 // block_m), -(-300 // block_n)
    lists = rng.integers(-1, blocks[1], (2, 2, blocks[0], 1 + blocks[1] // 4))
    lists[:, :, : blocks[0] // 2] = 2
    given = masks.block_lists(lists, 300, block_m, block_n, group_size=2) & masks.causal
    q = np.zeros((2, 280, 4, 8), np.float32)
    given = check_expressions(q, given, (), None, (), Mask(), None)
    mask, arguments, problem = given.expressions.mask, given.arguments, (280, 300, 2, 4)
    sizes = *problem, 32, 32
    _, of_keys = run_tables.make_tables_both_ways(q, mask, arguments, sizes, both=False)
    classes = tile_classes(mask, problem[:2], 32, 32, arguments, 2, 4)
    ours = run_tables._classes(q, mask, arguments, (), (*problem, 32, 32), 0)
    if (32 // block_m + 1) * (32 // block_n + 1) <= MOST_WALKED and 32 // block_m < MOST_ROWS:
        np.testing.assert_array_equal(ours, classes)
        _, wanted = runs_both_ways(classes, problem[:2], 32, 32)
        np.testing.assert_array_equal(of_keys[..., : wanted.shape[3], :], wanted)
    else:
        assert ((ours == classes) | (ours == MIXED)).all()


@needs_compiler
def test_every_kernel_compiles():
    """The engine also runs what Numba cannot compile."""
    q, given = problem_of("documents", 300, 300, 1, 4)
    sizes, starts = (300, 300, 1, 4), [np.array([0, 300], np.int32)] * 2
    given = q, given.expressions.mask, given.arguments

    def make():
        ranges = run_tables.ranges_of(*given)
        table = run_tables.make_table(*given, ranges, (*sizes, 64, 3))
        run_tables.queue_of(q, table)
        run_tables.make_split_table(*given, ranges, sizes, make_tiling(64, 3), 2)
        run_tables.make_tables_both_ways(*given, (*sizes, 64, 64), both=False)
        packed = 300, 300, 4, 64, 64
        run_tables.make_packed_table(*given, ranges, starts, packed, run_tables.KEYS)

    seen = launches_of(make)
    seen.append((masks.chosen_blocks_kernel, (np.zeros((5, 2), int), np.zeros((5, 5), bool))))
    for kernel, args in {kernel: (kernel, args) for kernel, args in seen}.values():
        code = compile_kernel(kernel, args, cc=(9, 0, "a"))
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    kernels = set(re.findall(r"def ((?!make_)\w+_kernel)\(", inspect.getsource(run_tables)))
    assert kernels <= {kernel.py_func.__name__ for kernel, _ in seen}


def problem_of(name, seqlen_q, seqlen_k, batch, num_heads):
    options, _ = expression_cases.options_of(name, num_heads, seqlen_k)
    q = np.zeros((batch, seqlen_q, num_heads, 8), np.float32)
    return q, check_expressions(q, options["mask"], options["mask_args"], None, (), Mask(), None)


def tables(name, problem):
    seqlen_q, seqlen_k, batch, num_heads, block_n, parts = problem
    q, given = problem_of(name, seqlen_q, seqlen_k, batch, num_heads)
    mask, arguments = given.expressions.mask, given.arguments
    classes = tile_classes(mask, problem[:2], 64, block_n, arguments, batch, num_heads)
    return (
        run_tables.make_table(
            q, mask, arguments, run_tables.ranges_of(q, mask, arguments), problem
        ),
        runs_of_warpgroups(classes, seqlen_k, block_n, parts),
    )


@pytest.mark.parametrize("mask", [
    lambda b, h, m, n: n < 0.5 * m,
    lambda b, h, m, n: m // (n + 1) < 3,
    lambda b, h, m, n: 1 << n < m,
])  # fmt: skip
def test_a_mask_that_has_no_intervals_on_a_gpu(mask):
    with pytest.raises(NoIntervalError):
        run_tables.make_classes_kernel(trace(mask, "mask", "b h m n"))


@pytest.mark.parametrize("length", [1, 3, 128, 300, 40000])
def test_ranges(length):
    """The least and greatest number of every range whose length is a power of two."""
    x = np.random.default_rng(length).integers(-(10**6), 10**6, (2, length))
    mask = trace(lambda b, h, m, n, t: t[b, n] < m, "mask", "b h m n", (x,))
    (table,) = run_tables.ranges_of(x, mask, (x,))
    low, high = x, x
    for level in range(len(table)):
        np.testing.assert_array_equal(table[level, :, : low.shape[1], 0], low)
        np.testing.assert_array_equal(table[level, :, : low.shape[1], 1], high)
        step = 1 << level
        low = np.minimum(low[:, :-step], low[:, step:])
        high = np.maximum(high[:, :-step], high[:, step:])
