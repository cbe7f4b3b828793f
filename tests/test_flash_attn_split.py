"""flash_attn_split without a GPU: how it divides queries and keys, and its machine code."""

import re
from itertools import product

import expression_cases
import numpy as np
import pytest
from cases import thorough
from machine_code_cases import needs_compiler
from numba import cuda, typeof, types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from test_tensor_core import exponentials_beside_p_v, moves_before_products

from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.checks import Mask, check_expressions
from fa_numba.dispatch.attention import LEAST_GAIN
from fa_numba.expressions.tiles import HIDDEN, WHOLE, tile_classes
from fa_numba.kernels.masks import make_bounds
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME, UNREAD
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.tensor_core import flash_attn_split as split
from fa_numba.tensor_core import run_tables
from fa_numba.tensor_core.mainloop import make_mainloop, make_plan
from fa_numba.tensor_core.merge_splits import make_merge_splits
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS
from fa_numba.tiling.split_tiling import SplitProblem, choose_split, gain_of_splitting, make_tiling

MAP, FULL = types.uint64, (-1, -1)
ARGUMENTS = MAP, MAP, MAP, types.Array(types.float32, 5, "C"), types.Array(types.float32, 4, "C")
ARGUMENTS += types.int32, types.int32, types.float32
MASK_ARGS = types.int32, types.int32, types.float32, types.float32
NONE = types.Tuple(())  # no sinks, runs or arguments of a mask
PAGES = types.Tuple((types.Array(types.int32, 2, "C"),))
MASKS = [(False, FULL), (True, FULL), (True, (300, -1)), (False, (20, 200)), (False, (-1, 5))]


def kernel_of(head_dim, consumers, heads, causal, *rest):
    tiling = make_tiling(head_dim, consumers, heads)
    return tiling, split.make_flash_attn_split(head_dim, tiling, causal, "float16", *rest)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, consumers, heads, causal, window, softcap, alibi, page_size",
    [
        (128, 1, 4, False, FULL, 0.0, False, 16),
        thorough(128, 2, 4, False, FULL, 0.0, False, 16),
        thorough(64, 3, 1, False, FULL, 0.0, False, 8),
        thorough(256, 2, 1, False, FULL, float(AT_RUN_TIME), False, 24),
        thorough(64, 1, 1, False, FULL, 0.0, False, 0),
        thorough(64, 3, 1, True, FULL, 0.0, False, 0),
        (128, 1, 2, True, FULL, 0.0, False, 0),
        thorough(128, 2, 4, False, FULL, 0.0, False, 0),
        thorough(128, 2, 1, False, (AT_RUN_TIME, AT_RUN_TIME), float(AT_RUN_TIME), True, 0),
        thorough(64, 2, 1, True, FULL, 0.0, True, 0),
        thorough(256, 2, 1, True, (AT_RUN_TIME, -1), float(AT_RUN_TIME), True, 0),
        thorough(256, 2, 1, False, FULL, 0.0, False, 0),
    ],
)
def test_the_kernel_stays_in_registers(
    head_dim, consumers, heads, causal, window, softcap, alibi, page_size
):
    options = window, softcap, alibi, None, False, page_size
    tiling, kernel = kernel_of(head_dim, consumers, heads, causal, *options)
    slopes = types.Array(types.float32, 1, "C") if alibi else types.float32
    more = slopes, *MASK_ARGS, NONE, PAGES if page_size else NONE, NONE
    code = compile_kernel(kernel, (*ARGUMENTS, *more), cc=(9, 0, "a"))
    stated = re.search(r"budget +(\d+) registers.*consumers, (\d+)", kernel.py_func.__doc__)
    assert code.registers <= int(stated[1 if consumers == 2 else 2])
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    assert "C75" not in code.report  # ptxas serialises products, or ignores setmaxnreg
    if not softcap:
        assert moves_before_products(code) == 0  # a warp has an address once, not each thread
        # Of the exponentials, one for each score of a thread, most overlap with P V.
        assert exponentials_beside_p_v(code) >= 0.8 * tiling.tiles.block_n / 2


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, consumers, heads",
    [
        thorough("sinks and a mask", 128, 1, 2),
        thorough("documents", 64, 3, 1),
        thorough("a score and a mask", 128, 2, 4),
        thorough("T5", 256, 2, 1),
    ],
)
def test_functions_of_the_user_stay_in_registers(name, head_dim, consumers, heads):
    expressions, arguments, _ = expression_cases.given_of(name)
    options = {"EXPRESSIONS": expressions, "SINKS": "sinks" in name}
    tiling = make_tiling(head_dim, consumers, heads)
    kernel = split.make_flash_attn_split(head_dim, tiling, False, "float16", **options)
    sinks = types.Tuple((types.Array(types.float32, 1, "C"),)) if "sinks" in name else NONE
    more = sinks, expression_cases.runs_type(expressions), typeof(tuple(arguments))
    arguments = *ARGUMENTS, types.float32, *MASK_ARGS, *more
    code = compile_kernel(kernel, arguments, cc=(9, 0, "a"))
    stated = re.search(r"budget +(\d+) registers.*consumers, (\d+)", kernel.py_func.__doc__)
    assert code.registers <= int(stated[1 if consumers == 2 else 2])
    # Of indices: Numba tests whether one counts from the end of the array.
    spilled = {("T5", 256): 20, ("documents", 64): 24}.get((name, head_dim), 0)
    assert code.spill_bytes <= spilled and code.local_bytes <= spilled
    assert code.float64_instructions == 0
    assert "C75" not in code.report


@pytest.mark.parametrize(
    "name", ["documents", "a window per head", "nothing for some rows", "prefix"]
)
@pytest.mark.parametrize("consumers, heads", [(2, 1), (1, 4)])
@pytest.mark.parametrize("num_splits", [1, 3, 50])
def test_the_splits_divide_the_tiles_that_are_seen(name, consumers, heads, num_splits):
    """Each tile is in one split, of the class that it has; the splits have as many, or one more.

    A split without tiles has the one behind the last key. A GPU makes the same table as the CPU.
    """
    seqlen_q, seqlen_k, num_heads = 300 if heads == 1 else 16, 1000, 8
    written, _ = expression_cases.options_of(name, num_heads, seqlen_k)
    q = np.zeros((1, seqlen_q, num_heads, 128), np.float16)
    given = check_expressions(q, written["mask"], written["mask_args"], None, (), Mask(), None)
    tiling, mask = make_tiling(128, consumers, heads), given.expressions.mask
    block_n, sizes = tiling.tiles.block_n, (seqlen_q, seqlen_k)
    (table,) = split._runs_of_splits(
        mask, given.arguments, *sizes, 1, num_heads, tiling, num_splits
    )
    ranges = run_tables.ranges_of(q, mask, given.arguments)
    problem = (*sizes, 1, num_heads), tiling, num_splits
    of_gpu = run_tables.make_split_table(q, mask, given.arguments, ranges, *problem)
    np.testing.assert_array_equal(of_gpu[..., : table.shape[3], :], table)
    assert not of_gpu[..., table.shape[3] :, :].any()
    rows = ROWS if heads == 1 else tiling.head_rows
    classes = tile_classes(mask, sizes, rows, block_n, given.arguments, 1, num_heads)
    last = classes.shape[3] - 1
    classes = np.pad(classes, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=HIDDEN)
    for h, row in np.ndindex(*table.shape[1:3]):
        block, number = divmod(row, num_splits)
        for w in range(consumers):
            of_rows = classes[0, h : h + 1, consumers * block + w : consumers * block + w + 1]
            if heads > 1:
                of_rows = classes[0, heads * h : heads * h + heads]
            met = np.zeros((num_splits, classes.shape[3]), int)
            for i in range(num_splits):
                for first, end, flags in table[0, h, num_splits * block + i]:
                    met[i, first:end] = flags >> 2 * w & 3
            assert (met != HIDDEN).any(axis=1).all()  # a loop begins with one
            assert ((met[:, -1] == HIDDEN) | (met[:, :-1] == HIDDEN).all(axis=1)).all()
            found = met.max(axis=0)
            seen = (of_rows != HIDDEN).any(axis=(0, 1))
            whole = (of_rows == WHOLE).all(axis=(0, 1)) & (seen if of_rows.size else False)
            assert (found[seen] != HIDDEN).all() and ((met != HIDDEN).sum(axis=0)[seen] == 1).all()
            assert (found[:last][whole[:last]] == WHOLE).all()
            assert not (found == WHOLE)[~whole].any()
    lengths = (table[..., 1] - table[..., 0]).sum(axis=-1).reshape(table.shape[1], -1, num_splits)
    assert (lengths.max(axis=-1) - lengths.min(axis=-1) <= 1).all()


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", thorough("bfloat16"), thorough("float32")])
@pytest.mark.parametrize("head_dim", [thorough(8), 128])
def test_the_merge_stays_in_registers(head_dim, dtype):
    kernel = make_merge_splits(head_dim, dtype)
    # Nothing but the address of out is used: its 16-bit dtypes are alike.
    parts = ARGUMENTS[3:5]
    out = types.Array(types.float32 if dtype == "float32" else types.float16, 4, "C")
    code = compile_kernel(kernel, (*parts, out, types.Array(types.float32, 3, "C")), cc=(9, 0, "a"))
    stated = re.search(r"budget +(\d+) registers, 0 bytes shared", kernel.py_func.__doc__)
    assert code.registers <= int(stated[1]) and code.shared_bytes == 0
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    wide = [i for i in code.instructions if i.opcode.startswith("LDG") and "128" in i.opcode]
    assert len(wide) >= 4  # IN_FLIGHT


@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_thread_blocks_of_an_sm_fit(head_dim, consumers):
    if head_dim > (128, 256, 64)[consumers - 1]:
        pytest.skip("is never chosen")
    tiling = make_tiling(head_dim, consumers)
    num_bytes = make_plan(head_dim, tiling.tiles, ALIBI=True).bytes
    assert tiling.tiles.stages >= 2 and num_bytes <= 227 * 1024
    assert tiling.blocks_per_sm * (num_bytes + 1024) <= 228 * 1024
    producer, consumer = split.REGISTERS[consumers]
    at_start = 65536 // (2 if consumers == 1 else 1) // tiling.tiles.num_threads // 8 * 8
    assert producer + consumers * consumer <= (1 + consumers) * at_start


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("heads, seqlen_q, seqlen_k", [(1, 300, 1000), (4, 20, 700), (2, 64, 40)])
@pytest.mark.parametrize("num_splits", [1, 3, 50])
def test_each_tile_of_keys_is_in_one_split(num_splits, heads, seqlen_q, seqlen_k, causal, window):
    batch, num_heads, group_size, block_n = 2, 8, 4, 64
    tiling = make_tiling(128, 2, heads)
    head_rows = tiling.head_rows
    part_of = split.make_part_of(block_n, head_rows, heads, causal, window)
    num_parts = tiling.num_tiles(seqlen_q, num_heads) * num_splits * batch
    shape = num_splits, batch, num_heads, seqlen_q
    found = np.full((num_parts, 7), -1, np.int32)

    @cuda.jit
    def kernel(found):
        i = cuda.blockIdx.x
        part = part_of(i, shape, seqlen_k, group_size, UNREAD)
        found[i, 0], found[i, 1], found[i, 2] = part.b, part.split, part.head
        found[i, 3], found[i, 4] = part.kv_head, part.m_start
        found[i, 5], found[i, 6] = part.begin, part.end

    kernel[num_parts, 1](found)
    first_key, end_key, _ = (f.py_func for f in make_bounds(causal, window))
    tiles = {}
    for b, number, head, kv_head, m_start, begin, end in found.tolist():
        assert kv_head == head // group_size and 0 <= number < num_splits and begin <= end
        tiles.setdefault((b, head, m_start), {})[number] = begin, end
    wanted = {
        (b, head, m)
        for b in range(batch)
        for head in range(0, num_heads, heads)
        for m in range(0, seqlen_q, head_rows)
    }
    assert set(tiles) == wanted
    for (_, _, m), parts in tiles.items():
        assert sorted(parts) == list(range(num_splits))
        ordered = [parts[number] for number in range(num_splits)]
        lengths = [end - begin for begin, end in ordered]
        assert max(lengths) - min(lengths) <= 1
        for before, after in zip(ordered, ordered[1:], strict=False):
            assert before[1] == after[0]
        position = m + seqlen_k - seqlen_q
        last = min(m + head_rows, seqlen_q) - 1 + seqlen_k - seqlen_q
        if end_key(last, seqlen_k) > first_key(position):  # some row sees a key
            assert ordered[0][0] * block_n <= first_key(position)
            assert ordered[-1][1] * block_n >= end_key(last, seqlen_k)


@pytest.mark.parametrize(
    "sizes, heads, head_dim, options",
    [
        # two heads to a tile, in the second split a tile that ends with 7 pages
        ((17, 144), (4, 2), 64, {"page_size": 16, "num_splits": 2, "batch": 2}),
        thorough((70, 512), (2, 1), 64, {"page_size": 256, "num_splits": 3, "causal": True}),
        thorough((33, 240), (1, 1), 72, {"page_size": 24, "num_splits": 1}),
    ],
)
def test_pages_on_a_model(sizes, heads, head_dim, options, run_on_model):
    case = {"name": "split", "sizes": sizes, "heads": heads, "head_dim": head_dim}
    run_on_model("on_model.py", case | options)


def rows_of(tiling, part, rows):
    """(query, head) of these rows of a tile, as the kernel has them."""
    query_of = split.make_query_of(tiling.head_rows)
    found = np.full((len(rows), 2), -1, np.int32)

    @cuda.jit
    def kernel(rows, found):
        i = cuda.threadIdx.x
        found[i, 0], found[i, 1] = query_of(part, rows[i])

    kernel[1, len(rows)](np.array(rows, np.int32), found)
    return found.tolist()


@pytest.mark.parametrize("consumers, heads", [(1, 1), (1, 4), (2, 1), (2, 2), (2, 8), (3, 1)])
def test_boxes_of_queries_fill_the_tile(consumers, heads):
    """Box i is stored from row i · box_rows on, and holds rows of one head from one query on."""
    tiling = make_tiling(64, consumers, heads)
    part = split.Part(0, 0, 3 * heads, 0, 0 if heads > 1 else 5 * tiling.head_rows, 0, 1)
    block_m, box_rows = ROWS * consumers, min(ROWS, tiling.head_rows)
    starts = range(0, block_m, box_rows)
    rows = [[m + r, head] for m, head in rows_of(tiling, part, starts) for r in range(box_rows)]
    assert rows == rows_of(tiling, part, range(block_m))
    assert len(set(map(tuple, rows))) == block_m
    queries = np.array(rows)[:, 0]
    assert queries.min() == part.m_start and queries.max() == part.m_start + tiling.head_rows - 1
    assert {head for _, head in rows} == set(range(3 * heads, 4 * heads))
    # A warp's 16 rows are of one head, so that it has one; swizzled rows repeat after 8.
    assert tiling.head_rows % 16 == 0 and box_rows * ROW_BYTES % 1024 == 0


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("heads, seqlen_q, seqlen_k", [(1, 300, 1000), (4, 32, 700), (2, 50, 400)])
def test_a_tile_without_a_mask_is_seen_whole(heads, seqlen_q, seqlen_k, causal, window):
    tiling = make_tiling(128, 2, heads)
    block_n = tiling.tiles.block_n
    masked = causal or window != FULL
    loop = make_mainloop(128, tiling.tiles, causal, "float16", window, 0.0, False, masked)
    range_of = loop.unmasked_range_of
    found = np.zeros(2, np.int32)

    @cuda.jit
    def kernel(position, found):
        found[0], found[1] = range_of(position, seqlen_k)

    sees = make_bounds(causal, window).sees.py_func
    part = split.Part(0, 0, 0, 0, 0, 0, 1)
    for w in range(2):
        rows = rows_of(tiling, part, range(ROWS * w, ROWS * w + ROWS))
        kernel[1, 1](np.int32(rows[0][0] + seqlen_k - seqlen_q), found)
        for n_start in range(0, ceil_div(seqlen_k, block_n) * block_n, block_n):
            if found[0] <= n_start <= found[1]:
                for m, _ in rows:
                    position = m + seqlen_k - seqlen_q
                    assert sees(position, n_start, seqlen_k)
                    assert sees(position, n_start + block_n - 1, seqlen_k)


def chosen(head_dim, seqlen_q, seqlen_k, heads, mask=(), batch=1):
    return choose_split(SplitProblem(head_dim, batch, seqlen_q, seqlen_k, *heads, *mask), 132)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_splits_fill_the_gpu(head_dim):
    for heads, seqlen_q in product([(16, 16), (32, 8), (5, 1)], [17, 64, 128, 300, 512]):
        tiling, num_splits = chosen(head_dim, seqlen_q, 65536, heads)
        blocks = tiling.num_tiles(seqlen_q, heads[0]) * num_splits
        assert blocks / 132 / ceil_div(blocks, 132) >= 0.88, (heads, seqlen_q)


def test_keys_are_split_only_where_it_pays():
    assert chosen(128, 8192, 8192, (16, 16))[1] == 1  # 1024 tiles of queries
    assert chosen(128, 512, 512, (16, 16))[1] == 1  # merging takes longer than four tiles of keys
    assert chosen(128, 17, 100, (1, 1))[1] == 1  # one tile of keys
    assert chosen(128, 128, 65536, (16, 16))[1] == 8
    # At most four tiles are seen.
    assert chosen(128, 128, 65536, (16, 16), (True, (200, -1)))[1] <= 4
    assert chosen(64, 0, 5, (2, 2))[1] == chosen(64, 5, 5, (2, 2), batch=0)[1] == 1
    assert choose_split(SplitProblem(64, 1, 5, 5, 2, 2), 132, 7)[1] == 7


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_gain_grows_with_the_idle_sms(head_dim):
    def gain(batch, seqlen_q, seqlen_k):
        problem = SplitProblem(head_dim, batch, seqlen_q, seqlen_k, 16, 16)
        return gain_of_splitting(problem, 132)

    assert gain(1, 128, 65536) > 5  # 16 of 132 SMs are busy otherwise
    assert gain(1, 128, 65536) > gain(4, 128, 65536) > 1.25
    assert gain(8, 128, 65536) <= 1.05 and gain(2, 8192, 8192) <= 1.05


def test_small_tiles_are_taken_where_they_were_measured():
    def pays(*sizes):
        return gain_of_splitting(SplitProblem(*sizes), 132) >= LEAST_GAIN

    assert pays(64, 1, 1000, 1000, 8, 8)  # 0.0150 for 0.0214 ms on an H200
    assert not pays(128, 1, 512, 512, 16, 16)  # 0.0160 for 0.0145
    assert not pays(64, 1, 128, 128, 32, 32)
    assert not pays(64, 64, 197, 197, 12, 12) and not pays(64, 256, 77, 77, 8, 8)


def test_few_heads_have_small_tiles():
    tiling, num_splits = chosen(64, 1000, 1000, (8, 8))
    assert num_splits == 1 and tiling.num_tiles(1000, 8) == 128  # 48 of 192 rows


def test_heads_share_a_tile_where_their_queries_fit():
    for seqlen_q, group_size, want in ((17, 4, 4), (33, 4, 2), (65, 4, 1), (16, 8, 8), (17, 3, 1)):
        heads = 8 * group_size, 8
        tiling, _ = chosen(128, seqlen_q, 65536, heads)
        assert tiling.heads == want
        assert tiling.heads == 1 or seqlen_q <= tiling.head_rows
        alone, _ = chosen(128, seqlen_q, 65536, heads, (False, FULL, True))
        assert alone.heads == 1  # ALiBi: a slope per head


def test_bad_arguments_are_refused():
    x = np.zeros((1, 4, 1, 64), np.float16)
    with pytest.raises(TypeError, match=r"flash_attn_split is made of PTX.*flash_attn_v2"):
        split.flash_attn_split(x, x, x)
    with pytest.raises(ValueError, match="num_splits must be at least 0, got -1"):
        split.flash_attn_split(x, x, x, num_splits=-1)
    with pytest.raises(ValueError, match="out_dtype must be None or \"float32\", got 'float16'"):
        split.flash_attn_split(x, x, x, out_dtype="float16")
    table = np.zeros((1, 3), np.int32)
    with pytest.raises(ValueError, match="page_size that is a multiple of 8, got 4"):
        split.flash_attn_split(x, x, x, block_table=table)
    with pytest.raises(ValueError, match="mask must be None with a block_table, got <function"):
        split.flash_attn_split(x, x, x, block_table=table, mask=lambda *of: True)
