"""flash_decode_wide on the CPU engine, by single numbers; wide loads and mma as machine code."""

import inspect
import re
import sys

import expression_cases
import numpy as np
import pytest
from cases import (
    LENGTHS,
    assert_defined,
    check_decode,
    check_forward,
    each_mask,
    each_option,
    each_shape,
    each_value,
    make_paged_cache,
    make_qkv,
    mask_options,
    on_full_caches,
    random,
    strided,
    thorough,
)
from few_cases import pairs
from machine_code_cases import in_registers, needs_compiler

from fa_numba import reference, simt
from fa_numba.analysis import Problem, traffic
from fa_numba.analysis.machine_code import (
    TARGETS,
    compile_for,
    compile_kernel,
)
from fa_numba.checks import Mask
from fa_numba.checks.expressions import NO_SINKS
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.on_cuda_cores.decode_problem import make_combine_wide, pages_of
from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide, make_flash_decode_wide
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME, arguments_of
from fa_numba.tensor_core import flash_decode_gather as gather
from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma, make_flash_decode_mma
from fa_numba.tiling.decode_tiling import decode_tiling
from fa_numba.tiling.num_splits import choose_even_splits, choose_num_splits, choose_quickest_splits

pytestmark = pytest.mark.usefixtures("checked")


@each_mask
@each_shape
@pytest.mark.few(lambda shape, causal: [shape, (causal, shape.seqlen_q > shape.seqlen_k)])
def test_shapes(rng, shape, causal):
    check_forward(
        on_full_caches(flash_decode_wide), *make_qkv(rng, *shape.sizes), causal=causal, num_splits=3
    )


@each_mask
@each_value
@pytest.mark.parametrize("num_splits", [1, 5])
@pytest.mark.few(lambda values, num_splits, causal: pairs(values, num_splits, causal))
def test_values(rng, values, num_splits, causal):
    check_forward(
        on_full_caches(flash_decode_wide), *values(rng), causal=causal, num_splits=num_splits
    )


@pytest.mark.parametrize("num_splits", [0, 1, 2, 3, 64])
def test_the_number_of_splits_does_not_change_the_answer(rng, num_splits):
    q, k, v = make_qkv(rng, 3, 3, 140, 4, 2, 64)
    check_decode(flash_decode_wide, q, k, v, [140, 0, 70], causal=True, num_splits=num_splits)


@pytest.mark.parametrize("seqlen_q", [1, 2, 5])
@pytest.mark.parametrize("num_heads, num_kv_heads", [(3, 3), (4, 2), (6, 2), (9, 1)])
def test_heads(rng, num_heads, num_kv_heads, seqlen_q):
    q, k, v = make_qkv(rng, 2, seqlen_q, 21, num_heads, num_kv_heads, 8)
    check_decode(flash_decode_wide, q, k, v, [21, 13], causal=True, num_splits=2)


@pytest.mark.parametrize("num_heads, head_dim", [(2, 512), (6, 512), (10, 264), (4, 320)])
def test_above_256_columns(rng, num_heads, head_dim):
    q, k, v = make_qkv(rng, 2, 1, 21, num_heads, 2, head_dim)
    check_decode(flash_decode_wide, q, k, v, [21, 13], causal=True, num_splits=2)


@each_option
@pytest.mark.parametrize("seqlen_q", [1, 5])
@pytest.mark.few(lambda seqlen_q, mask: [seqlen_q, mask])
def test_masks(rng, seqlen_q, mask):
    q, k, v = make_qkv(rng, len(LENGTHS), seqlen_q, 40, 4, 2, 6)
    check_decode(flash_decode_wide, q, k, v, LENGTHS, **mask_options(mask, 4), num_splits=2)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    q, k, v = make_qkv(rng, 1, 1, 9, 1, 1, 8)
    check_forward(on_full_caches(flash_decode_wide), q, k, v, softmax_scale=softmax_scale)


@pytest.mark.parametrize("page_size", [1, 3, 16, 41])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_pages(rng, page_size, num_splits):
    """Shuffled, with NaN in every slot that no sequence owns, −1 past the last page of each."""
    lengths = [0, 1, 16, 37, 90]
    q = random(rng, len(lengths), 2, 4, 24)
    *caches, block_table, seq_lens = make_paged_cache(rng, lengths, page_size, 2, 24)
    options = {"causal": True, "num_splits": num_splits}
    out, lse = flash_decode_wide(q, *caches, seq_lens, block_table=block_table, **options)
    problem = (q, *caches, block_table, seq_lens)
    assert_defined((out, lse), reference.paged_attention, *problem, causal=True)


def test_strided_views_are_read_in_place(rng):
    q, k, v = (strided(x) for x in make_qkv(rng, 2, 3, 19, 2, 1, 8))
    check_forward(on_full_caches(flash_decode_wide), q, k, v, causal=True, num_splits=3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_read_as_they_are(rng, dtype):
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 2, 1, 50, 4, 2, 32))
    seq_lens = np.array([50, 21], np.int32)
    out, lse = flash_decode_wide(q, k, v, seq_lens, num_splits=2)
    exact = reference.cached_attention(*(x.astype(np.float32) for x in (q, k, v)), seq_lens)
    assert out.dtype == q.dtype
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert np.abs(out.astype(np.float64) - exact[0]).max() <= rounding * np.abs(exact[0]).max()
    np.testing.assert_allclose(lse, exact[1], rtol=1e-5)


@pytest.mark.parametrize("num_heads, num_kv_heads", [(4, 4), (4, 1)])
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("page_size", [0, 5])
@pytest.mark.few(
    lambda num_kv_heads, num_splits, page_size: pairs(num_kv_heads, num_splits, page_size)
)
def test_hbm_traffic(rng, num_heads, num_kv_heads, num_splits, page_size):
    """The cache is read once, and one more tile of K: a warp loads one iteration ahead."""
    lengths, sizes = [300, 0, 41], (2, num_heads, num_kv_heads, 24)
    q = random(rng, 3, *sizes[:2], 24)
    if page_size:
        k, v, table, seq_lens = make_paged_cache(rng, lengths, page_size, num_kv_heads, 24)
    else:
        k, v = random(rng, 3, 300, num_kv_heads, 24), random(rng, 3, 300, num_kv_heads, 24)
        table, seq_lens = None, np.array(lengths, np.int32)
    loads, stores = {}, {}
    with simt.tracing() as traces:
        flash_decode_wide(q, k, v, seq_lens, block_table=table, num_splits=num_splits)
    for trace in traces:
        for name, counts in trace.arrays.items():
            loads[name] = loads.get(name, 0) + counts.loads
            stores[name] = stores.get(name, 0) + counts.stores
    problem = Problem(3, 2, 300, num_heads, num_kv_heads, 24)
    moved = traffic.flash_decode_wide(problem, lengths, num_splits=num_splits, paged=page_size > 0)
    for formula, counted in ((moved.loads, loads), (moved.stores, stores)):
        assert {x: n for x, n in formula.items() if n} == {x: n for x, n in counted.items() if n}


@pytest.mark.parametrize("num_splits, warps", [(1, 1), (3, 1), (9, 4), (70, 8)])
def test_combine_is_that_of_flash_decode(rng, num_splits, warps):
    out_partial, lse_partial = (
        random(rng, num_splits, 2, 3, 2, 40),
        random(rng, num_splits, 2, 2, 3),
    )
    lse_partial[rng.random(lse_partial.shape) < 0.3] = -np.inf
    lse_partial[:, 1, 1, 2] = -np.inf
    out, lse = np.empty((2, 3, 2, 40), np.float32), np.empty((2, 2, 3), np.float32)
    kernel = make_combine_wide(40, warps)
    simt.run(kernel, (3, 2, 2), (32 * warps,), out_partial, lse_partial, out, lse, NO_SINKS)
    with np.errstate(divide="ignore", invalid="ignore"):
        want_lse = np.logaddexp.reduce(lse_partial.astype(np.float64), axis=0)
        weights = np.nan_to_num(np.exp(lse_partial - want_lse))
    want = np.einsum("sbhm,sbmhd->bmhd", weights, out_partial.astype(np.float64))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-6)


def test_splits_do_not_begin_a_wave_for_a_few():
    assert choose_num_splits(32, 1024, 132) == 17  # 544 thread blocks where there is room for 528
    assert choose_quickest_splits(32, 1024, 132, 4) == 12  # 384: no SM has more than three
    assert choose_quickest_splits(528, 1024, 132, 4) == 1
    assert choose_quickest_splits(1, 0, 132, 4) == choose_quickest_splits(0, 7, 132, 4) == 1
    assert choose_quickest_splits(8, 1024, 132, 2) == 32  # 256: two on each SM
    assert choose_quickest_splits(1, 2, 132, 4) == 1  # to combine would take longer


@pytest.mark.parametrize(
    "work, num_n_tiles, splits",
    [(32, 512, 4), (8, 512, 16), (512, 64, 1), (128, 64, 1), (2048, 16, 1), (1, 3, 1), (0, 0, 1)],
)
def test_even_splits_give_each_sm_as_much(work, num_n_tiles, splits):
    assert choose_even_splits(work, num_n_tiles, 132) == splits


on_tensor_cores = pytest.mark.parametrize("decode", [flash_decode_mma, flash_decode_gather])


@on_tensor_cores
def test_mma_is_not_for_the_cpu_engine(rng, decode):
    q, k, v = (x.astype(np.float16) for x in make_qkv(rng, 1, 1, 8, 1, 1, 8))
    with pytest.raises(TypeError, match=f"{decode.__name__} is made of PTX"):
        decode(q, k, v, np.full(1, 8, np.int32))


@on_tensor_cores
@pytest.mark.parametrize(
    "wrong, error, message",
    [
        ({"q": [1.0]}, TypeError, "q must be .* got list"),
        ({"k_cache": np.zeros((1, 8, 1, 16), "f2")}, ValueError, "must have the .* of"),
        ({"seq_lens": np.full(1, 9, np.int32)}, ValueError, "seq_lens.* 9"),
        ({"block_table": np.full((1, 1), 3, np.int32)}, ValueError, r"block_table\[0, 0\].* got 3"),
        ({"window_size": 3}, TypeError, "window_size must be a tuple"),
        ({"num_splits": -1}, ValueError, "num_splits must be at least 0, got -1"),
    ],
)
def test_what_mma_refuses(decode, wrong, error, message):
    x = np.zeros((1, 8, 1, 8), np.float16)
    good = {"q": x[:, :1], "k_cache": x, "v_cache": x, "seq_lens": np.full(1, 8, np.int32)}
    with pytest.raises(error, match=message):
        decode(**good | wrong)


def arguments(head_dim, dtype, paged, scales=None):
    x = np.zeros((1, 4, 1, head_dim), dtype)
    out_partial, lse_partial = np.zeros((1, *x.shape), np.float32), np.zeros((1, 1, 1, 4), "f4")
    table = np.zeros((1, 1), np.int32) if paged else np.int32(0)
    scalars = np.float32(1), np.float32(0), *pages_of(1), *arguments_of(Mask())
    if scales is None:
        return x, x, x, table, np.zeros(1, np.int32), out_partial, lse_partial, *scalars, ()
    kv, scale = x, np.float32(0)
    if scales:
        kv = np.zeros(x.shape, np.uint8)
        scale = np.zeros((1,) if scales == "head" else (1, 4, 1), np.float32)
    more = *scalars, scale, scale, ()
    return x, kv, kv, table, np.zeros(1, np.int32), out_partial, lse_partial, *more


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8])
@pytest.mark.parametrize("head_dim", [1, 8, 17, 59, 64, 96, 128, 200, 256, 264, 512])
def test_the_kernel_has_the_tiles_of_its_tiling(head_dim, num_rows):
    tiling = decode_tiling(num_rows, head_dim)
    options = {"COLS": tiling.cols, "KEYS": tiling.keys, "BLOCKS_PER_SM": tiling.blocks_per_sm}
    kernel = make_flash_decode_wide(head_dim, tiling.rows, "", 0, False, **options)
    constants = inspect.getclosurevars(kernel.py_func).nonlocals
    assert constants["BLOCK_N"] == tiling.block_n and constants["LANES"] == tiling.lanes
    assert head_dim <= tiling.lanes * tiling.cols < 2 * max(head_dim, tiling.cols)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, rows, dtype",
    [
        *(thorough(128, 4, "float32"), thorough(256, 8, "bfloat16"), thorough(59, 2, "float32")),
        *((512, 4, "bfloat16"), thorough(512, 1, "float32"), thorough(264, 2, "float16")),
    ],
)
def test_wide_loads_stay_in_registers(head_dim, rows, dtype):
    vector_dtype = dtype if head_dim % 8 == 0 else ""
    tiling = decode_tiling(rows, head_dim)
    options = {"COLS": tiling.cols, "KEYS": tiling.keys, "BLOCKS_PER_SM": tiling.blocks_per_sm}
    kernel = make_flash_decode_wide(head_dim, tiling.rows, vector_dtype, 16, True, **options)
    code = compile_kernel(kernel, arguments(head_dim, dtype, True), cc=TARGETS[0])
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    assert code.shared_bytes <= 48 * 1024
    assert (code.counts["LDG.128"] > 0) == bool(vector_dtype)


@needs_compiler
@pytest.mark.parametrize("kernel", ["flash_decode_wide", "combine_wide"])
def test_within_the_stated_budget(kernel):
    if kernel == "combine_wide":
        kernel, x = make_combine_wide(128, 8), np.zeros((8, 1, 4, 1, 128), np.float32)
        lse = np.zeros((8, 1, 1, 4), np.float32)
        args = x, lse, x[0], lse[0], NO_SINKS
    else:
        tiling = decode_tiling(4, 128)
        options = {"COLS": tiling.cols, "KEYS": tiling.keys, "BLOCKS_PER_SM": tiling.blocks_per_sm}
        kernel = make_flash_decode_wide(128, 4, "float32", 0, True, **options)
        args = arguments(128, "float32", False)
    stated = re.search(r"budget +(\d+) registers, (\d+) bytes", kernel.py_func.__doc__)
    registers, shared_bytes = map(int, stated.groups())
    for code in compile_for(kernel, args, TARGETS[::2]):
        assert code.registers <= registers and code.shared_bytes <= shared_bytes
        assert code.spill_bytes == code.local_bytes == 0


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, page_size", [thorough(96, 16), thorough(128, 0), (128, AT_RUN_TIME)]
)
def test_mma_stays_in_registers(head_dim, page_size):
    kernel = make_flash_decode_mma(head_dim, "float16", page_size, True)
    code = in_registers(kernel, arguments(head_dim, "float16", page_size > 0), registers=168)
    assert code.shared_bytes <= 16640
    assert code.counts["LDG.128"] >= 24 * head_dim // 128
    assert not any(label.startswith(("LDS.U16", "LDG.16")) for label in code.counts)


@needs_compiler
@pytest.mark.parametrize("head_dim, rows, page_size, scales, registers", [
    thorough(72, 2, 16, "", 148 if sys.version_info >= (3, 14) else 144),  # of other bytecode
    thorough(128, 1, 1, "", 168), thorough(128, 8, 16, "", 168),
    thorough(256, 8, AT_RUN_TIME, "", 255),
    thorough(80, 2, 0, "token", 128), (128, 4, AT_RUN_TIME, "head", 168),
    thorough(128, 8, AT_RUN_TIME, "token", 168), thorough(256, 8, AT_RUN_TIME, "token", 255),
    thorough(128, 4, 0, "lean head", 144), thorough(128, 8, AT_RUN_TIME, "lean token", 168),
])  # fmt: skip
def test_gather_stays_in_registers_and_fits(head_dim, rows, page_size, scales, registers):
    ring = gather.ring_of(head_dim, scales != "", rows)
    *lean, scales = scales.rsplit(" ", 1)
    options = {"SCALES": scales, "LEAN": bool(lean)}
    kernel = gather.make_flash_decode_gather(
        head_dim, "float16", rows, page_size, *ring, False, **options
    )
    args = arguments(head_dim, "float16", page_size > 0, scales)
    code = in_registers(kernel, args, registers=registers)
    assert code.shared_bytes + gather.shared_bytes(head_dim, *ring, scales != "") <= 227 * 1024
    assert code.counts["LDGSTS.128"] >= 4
    if scales:  # a lane's part of K and V, two numbers an instruction, and P packed
        assert code.counts["F2FP"] == head_dim // 2 + 2


@needs_compiler
@pytest.mark.parametrize("head_dim, rows, registers", [
    (128, 4, 184), thorough(128, 8, 168), thorough(256, 8, 255), thorough(72, 2, 168),
])  # fmt: skip
def test_gather_with_parts_of_other_keys_stays_in_registers(head_dim, rows, registers):
    ring = gather.ring_of(head_dim, False, rows)
    constants = head_dim, "float16", rows, AT_RUN_TIME, *ring, False
    kernel = gather.make_flash_decode_gather(*constants, MORE_PARTS=True)
    *args, _ = arguments(head_dim, "float16", True, "")
    in_registers(kernel, (*args, tuple(args[5:7])), registers=registers)


@pytest.mark.parametrize("case", [
    ((70, 33), (4, 2), 64, 5, "token", (2, 3), 1),
    thorough(((100, 0, 37), (4, 1), 128, None, "head", (2, 3), 2)),
    thorough(((50, 7), (2, 1), 72, 16, "", (2, 2), 2)),
], ids=str)  # fmt: skip
def test_gather_on_a_model(case, run_on_model):
    sizes = "lengths heads head_dim page_size scales ring num_splits".split()
    case = dict(zip(sizes, case, strict=True)) | {"decoder": "gather"}
    run_on_model("decoding_on_model.py", case)


@needs_compiler
@pytest.mark.parametrize("name", ["T5", *map(thorough, ("a score and a mask", "documents"))])
@pytest.mark.parametrize("kernel", ["gather", thorough("mma")])
def test_masks_and_scores_on_tensor_cores_stay_in_registers(kernel, name):
    given = expression_cases.given_of(name)
    constants, options = (128, "float16"), {"EXPRESSIONS": given.expressions}
    if kernel == "mma":
        options["BLOCKS_PER_SM"] = 2
        made = make_flash_decode_mma(*constants, AT_RUN_TIME, False, **options)
    else:
        ring = gather.ring_of(128, False)
        made = gather.make_flash_decode_gather(*constants, 8, AT_RUN_TIME, *ring, False, **options)
    *args, _ = arguments(128, "float16", True, "" if kernel == "gather" else None)
    code = compile_kernel(made, (*args, given.arguments), cc=(9, 0, "a"))
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0


def test_a_page_is_found_without_a_division(rng):
    sizes = {*range(2, 300), *rng.integers(2, 2**31, 300).tolist(), 2**30, 2**31 - 1}
    for size in sizes:
        size, multiplier, shift = map(int, pages_of(size))
        multiples = size * rng.integers(0, 2**31 // size, 20, endpoint=True)
        for n in {0, size - 1, 2**31 - 1, *multiples.tolist(), *(multiples - 1).tolist()}:
            if 0 <= n < 2**31:
                assert (n * multiplier >> 32) >> shift == n // size, (n, size)


def test_flash_decode_agrees(rng):
    q, k, v = make_qkv(rng, 2, 2, 40, 4, 2, 16)
    seq_lens = np.array([40, 23], np.int32)
    for x, y in zip(
        flash_decode_wide(q, k, v, seq_lens, causal=True),
        flash_decode(q, k, v, seq_lens, causal=True),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
