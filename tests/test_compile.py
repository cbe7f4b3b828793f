"""Every kernel compiles for sm_75, sm_80 and sm_90a where there is no GPU, within its budget.

No float64 instruction, no spilled register, no array in local memory; at the constants that a
kernel's docstring names, no more registers and shared memory than it states.
"""

import functools
import math
import re

import numpy as np
import pytest
from cases import kernel_function, thorough

import fa_numba
from fa_numba import simt
from fa_numba.analysis.machine_code import (
    TARGETS,
    compile_for,
    compile_kernel,
    compiler_available,
    signature_of,
)
from fa_numba.kernels.feature_map import feature_map
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.linear_attn import make_chunk_outputs, make_chunk_states
from fa_numba.kernels.linear_attn_recurrent import make_recurrent, recurrent_threads
from fa_numba.kernels.softmax_topk import make_softmax_topk
from fa_numba.on_cuda_cores.flash_attn_bwd_registers import make_flash_attn_bwd_registers
from fa_numba.on_cuda_cores.flash_attn_registers import make_flash_attn_registers
from fa_numba.on_cuda_cores.score_args_bwd import score_args_bwd
from fa_numba.on_cuda_cores.softmax_registers import make_softmax_packed
from fa_numba.on_cuda_cores.softmax_topk_warps import make_merge_splits, make_softmax_topk_warps
from fa_numba.runtime import arrays
from fa_numba.tiling import register_tiling
from fa_numba.tiling.linear_attn import FEATURE_MAPS
from fa_numba.workbook import ladder

pytestmark = pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")

STATIC_SHARED_BYTES = 48 * 1024  # the limit of static shared memory, on every GPU
CACHE = ("reshape_and_cache", "copy_pages", "swap_pages")  # change their arguments in place
SOFTMAXES = ("naive_softmax", "safe_softmax", "online_softmax")
DECODE = ("flash_decode", "paged_attn_decode")
V2 = ("flash_attn_v2", "flash_attn_varlen")
LADDER = ("flash_attn_v2_unsigned", "flash_attn_v2_4x4", "flash_attn_registers")
FORWARD = ("naive_attn", "flash_attn_v1", "block_sparse", *V2, *LADDER, *DECODE)
BETWEEN = [rung for rung in ladder.RUNGS if rung.name != rung.function]  # options make them
IN_ORDER = "flash_attn_bwd_registers in order"  # deterministic
BACKWARD = ("flash_attn_bwd", "flash_attn_bwd_registers", IN_ORDER, "flash_attn_varlen_bwd")
ATTENTION = (*FORWARD, "lazy_softmax_attn", *BACKWARD)
# Compiled for longer, and not as often: their tiles follow from head_dim and GPU, see below.
REGISTER_TILES = ("flash_attn_registers", "flash_attn_bwd_registers", IN_ORDER)
LESSONS = [name for name in ATTENTION if name not in REGISTER_TILES]
SLOWEST = ("flash_attn_bwd_registers", IN_ORDER)  # seconds for each target; in bfloat16 for sm_75
EACH_END = TARGETS[::2]  # the oldest and the newest; the one between them is thorough
MAIN = ("flash_attn_v2", "flash_attn_bwd")
IN_PACKETS = ("softmax_registers", "softmax_topk_warps")
OTHERS = ("linear_attn", "merge_states", "paged_kv_lookup", "softmax_topk")
OTHERS += (*CACHE, *SOFTMAXES, *IN_PACKETS)


def run(
    name, head_dim=64, causal=False, strided=False, dtype="float32", head_dim_v=None, **options
):
    """Call a function of the package on small arrays."""

    def random(*shape):
        shape = (*shape[:-1], 2 * shape[-1]) if strided else shape
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)
        return x[..., : x.shape[-1] // 2] if strided else x

    if name == "block_sparse":
        q, k, v = (random(1, 3, 1, head_dim) for _ in range(3))
        return fa_numba.flash_attn_v1(q, k, v, causal=causal, block_mask=np.ones((1, 1), bool))
    function = kernel_function(name.removesuffix(" in order"))
    if name in SOFTMAXES:
        return function(random(2, 5))
    if name == "softmax_topk":
        return function(random(2, 5), 5)
    if name in IN_PACKETS:  # a warp, more; whole packets and not; longest and split rows
        for num_cols in (8, 32_768, 32_767, 40_000, 40_001):
            function(random(1, num_cols), *([5] if name == "softmax_topk_warps" else []))
        return None
    if name == "paged_kv_lookup":
        cache = random(2, 4, 1, head_dim)
        return function(cache, cache, np.zeros((1, 1), np.int32), np.full(1, 3, np.int32))
    if name in CACHE:
        k_cache, v_cache, k_dst, v_dst = (random(2, 4, 1, head_dim) for _ in range(4))
        zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        if name == "swap_pages":
            return function(k_cache, v_cache, k_dst, v_dst, zero, one)
        if name == "copy_pages":
            return function(k_cache, v_cache, zero, one)
        k, v = (random(1, 1, head_dim) for _ in range(2))
        return function(k, v, k_cache, v_cache, one)
    q, k, v = (random(1, 3, 1, dim) for dim in (head_dim, head_dim, head_dim_v or head_dim))
    if "varlen" in name:
        starts = np.array([0, 3], np.int32)
        options["causal"] = causal
        out, lse = flash_attn_varlen(q[0], k[0], v[0], starts, starts, **options)
        if name == "flash_attn_varlen":
            return out, lse
        return function(out, q[0], k[0], v[0], out, lse, starts, starts, **options)
    if name == "linear_attn":
        for name in FEATURE_MAPS[1:]:
            feature_map(q, name, random(1, head_dim, 6) if name == "hedgehog" else None)
        function(q, k, v)
        function(q, k, v, causal=True)
        return function(q[:, :1], k[:, :1], v[:, :1], causal=True)  # recurrent
    if name == "paged_attn_decode":
        block_table = np.zeros((1, 1), np.int32)
        return function(q, k, v, block_table, np.full(1, 3, np.int32), causal=causal, **options)
    if name in ("flash_decode", "flash_decode_wide"):
        return function(q, k, v, np.full(1, 3, np.int32), causal=causal, **options)
    if name == "merge_states":
        lse = np.zeros((1, 1, 3), np.float32)
        return function(q, lse, k, lse)
    if name in SLOWEST:
        out, lse = fa_numba.flash_attn_v2(q, k, v, causal=causal)
        with simt.options(device="H100"):  # its thread blocks may have the largest tiles
            options["deterministic"] = name == IN_ORDER
            return function(q, q, k, v, out, lse, causal=causal, **options)
    if name == "flash_attn_bwd":
        out, lse = fa_numba.flash_attn_v2(q, k, v, causal=causal)
        return function(out, q, k, v, out, lse, causal=causal, **options)
    return function(q, k, v, causal=causal, **options)


def launches_of(function, *args, **options):
    """(kernel, arguments) of all that a function would launch."""
    seen = []

    def record(kernel, grid, block, *args, **_):
        seen.append((kernel, args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "launch", record)
        function(*args, **options)
    return seen


@functools.cache
def launches(name, **options):
    """The same of a function of the package, by name, once for each type."""
    seen = launches_of(run, name, **options)
    assert seen, f"{name} launched nothing through arrays.launch"
    if name in BACKWARD:
        seen = [s for s in seen if s[0].py_func.__name__ not in (f"{v2}_kernel" for v2 in V2)]
    return list({(kernel, signature_of(args)): (kernel, args) for kernel, args in seen}.values())


@functools.cache
def compiled(kernel, signature, targets):
    """Backward passes share kernels, as do the functions of pages: each is compiled once."""
    return compile_for(kernel, signature, targets)


def check(code):
    assert code.float64_instructions == 0
    assert code.spill_bytes == 0
    assert code.local_bytes == 0
    assert code.shared_bytes <= STATIC_SHARED_BYTES


def check_budget(kernel, args, targets=TARGETS):
    """For all targets at once: Numba's part of the work, most of it, is then done once."""
    stated = re.search(r"budget +(\d+) registers, (\d+) bytes shared", kernel.py_func.__doc__)
    assert stated, f"{kernel.py_func.__name__} states no budget"
    registers, shared = map(int, stated.groups())
    codes = compiled(kernel, signature_of(args), tuple(targets))
    for code in codes:
        check(code)
        assert code.registers <= registers
        assert code.shared_bytes <= shared
    return codes


# With a causal mask a kernel has all that it has without one.
@pytest.mark.parametrize(
    "name, causal, targets",
    [(name, True, EACH_END) for name in MAIN]
    + [(name, True, TARGETS[2:]) for name in ATTENTION if name not in (*MAIN, *SLOWEST)]
    + [thorough(name, True, TARGETS[:1]) for name in ATTENTION if name not in (*MAIN, *SLOWEST)]
    + [thorough(name, False, TARGETS) for name in LESSONS]
    + [thorough(name, False, EACH_END) for name in OTHERS]  # in bfloat16: see below
    + [thorough(name, name not in OTHERS, TARGETS[1:2]) for name in (*OTHERS, *ATTENTION)]
    + [(SLOWEST[0], True, TARGETS[2:]), thorough(IN_ORDER, True, TARGETS[2:])]
    + [thorough(name, True, TARGETS[:1]) for name in SLOWEST],
)
def test_within_the_stated_budget(name, causal, targets):
    for kernel, args in launches(name, causal=causal):
        check_budget(kernel, args, targets)


@pytest.mark.parametrize(
    "rung, targets",
    [(rung, TARGETS[2:]) for rung in BETWEEN] + [thorough(rung, TARGETS) for rung in BETWEEN],
    ids=str,
)
def test_the_rungs_between_stay_within_the_stated_budget(rung, targets):
    for kernel, args in launches(rung.function, causal=True, **rung.options(64)):
        check_budget(kernel, args, targets)
    if len(targets) > 1:
        with simt.options(device="H100"):  # its thread blocks may have the larger tiles
            wide = launches(rung.function, head_dim=128, causal=True, **rung.options(128))
        for kernel, args in wide:
            for code in compiled(kernel, signature_of(args), targets):
                check(code)


@pytest.mark.parametrize("name", [MAIN[0], *map(thorough, ("flash_attn_v1", MAIN[1]))])
def test_dropout_stays_within_the_stated_budget(name):
    for kernel, args in launches(name, causal=True, dropout_p=0.1):
        check_budget(kernel, args, EACH_END)


WRITTEN = [name for name in ATTENTION if name not in ("flash_attn_v1", "block_sparse")]
WRITTEN = [name for name in WRITTEN if name not in (*LADDER[:2], *MAIN)]


# Hopper's alone: Numba's part takes longest, and is the same for all.
@pytest.mark.parametrize("name", [*MAIN, "flash_decode_wide", *map(thorough, WRITTEN)])
def test_a_mask_a_score_and_sinks_stay_within_the_stated_budget(name):
    w, bias, sinks = np.ones(1, np.int32), np.zeros((1, 9), np.float32), np.zeros(1, np.float32)
    options = {
        "mask": lambda b, h, m, n, w: n <= m and m - n < w[h],
        "mask_args": (w,),
        "score": lambda s, b, h, m, n, bias: math.tanh(s / 8) * 8 + bias[h, min(abs(m - n), 8)],
        "score_args": (bias,),
        "sinks": sinks,
    }
    head_dim = 128 if name == "flash_decode_wide" else 64  # that of the docstring's budget
    seen = launches_of(run, name, head_dim=head_dim, **options)
    for kernel, args in {id(kernel): (kernel, args) for kernel, args in seen}.values():
        if name not in BACKWARD or "flash_attn_v" not in kernel.py_func.__name__:
            check_budget(kernel, args, TARGETS[2:])


@pytest.mark.parametrize(
    "packed, dtype, targets", [(False, "float32", TARGETS[2:]), thorough(True, "bfloat16", TARGETS)]
)
def test_gradients_of_score_args_stay_within_the_stated_budget(packed, dtype, targets):
    q, lse, starts = np.zeros((1, 3, 1, 64), dtype), np.zeros((1, 1, 3), np.float32), ()
    inputs = q, q, q, q, q, lse
    if packed:
        inputs, starts = [x[0] for x in inputs], (np.array([0, 3], np.int32),) * 2
    options = {
        "mask": lambda b, h, m, n: n <= m,
        "score": lambda s, b, h, m, n, bias: s + bias[h, min(abs(m - n), 8)],
        "score_args": (np.zeros((1, 9), np.float32),),
    }
    with simt.options(device="H100"):  # its thread blocks may have the largest tiles
        kernel, args = launches_of(score_args_bwd, *inputs, *starts, **options)[-1]
    check_budget(kernel, args, targets)


# The type that Numba is worse at for every target; the other one where it matters most.
@pytest.mark.parametrize(
    "name, dtype, targets",
    [(name, "bfloat16", TARGETS[2:]) for name in MAIN]
    + [thorough(name, "bfloat16", TARGETS[:2]) for name in MAIN]
    + [thorough(name, "float16", TARGETS) for name in MAIN]
    + [(name, "bfloat16", TARGETS[:1]) for name in OTHERS]
    + [thorough(name, "bfloat16", TARGETS[2:]) for name in OTHERS]
    + [thorough(name, "bfloat16", TARGETS[:1]) for name in ATTENTION if name not in MAIN],
)
def test_16_bits_stay_within_the_same_budget(name, dtype, targets):
    for kernel, args in launches(name, dtype=dtype):
        for code in check_budget(kernel, args, targets):
            assert "call" not in code.ptx  # as Numba computes in 16 bits


@pytest.mark.parametrize("dtype, paged", [("bfloat16", True), thorough("float32", False)])
def test_latent_decoding_stays_within_the_stated_budget(dtype, paged):
    """DeepSeek's rows of 576 numbers and 16 heads; then the ⊕ of partial rows of 512."""
    q, cache = np.zeros((1, 1, 16, 576), dtype), np.zeros((1, 64, 576), dtype)
    options = {"block_table": np.zeros((1, 1), np.int32)} if paged else {}
    options |= {"softmax_scale": 0.1, "causal": True}
    first, second = launches_of(fa_numba.mla_decode, q, cache, np.ones(1, np.int32), **options)
    for code in check_budget(*first):
        assert code.registers * 512 <= 65_536  # of an SM: 16 warps fit
    check(compile_kernel(*second))


@pytest.mark.parametrize("cc", [(8, 0), thorough((8, 9))], ids=str)
@pytest.mark.parametrize("name", DECODE)
def test_e4m3_is_read_by_integers(name, cc):
    """As no GPU before sm_89 has an instruction that converts it."""
    q, cache = np.zeros((1, 1, 4, 64), np.float16), np.zeros((1, 16, 2, 64), np.uint8)
    tables = [np.zeros((1, 1), np.int32)] * (name == "paged_attn_decode") + [np.ones(1, np.int32)]
    scales = dict.fromkeys(("k_scale", "v_scale"), np.ones((1, 16, 2), np.float32))
    (kernel, args), *_ = launches_of(kernel_function(name), q, cache, cache, *tables, **scales)
    code = compile_kernel(kernel, args, cc=cc)
    check(code)
    assert "cvt.rn.f16x2" not in code.ptx


@pytest.mark.parametrize("k", [*map(thorough, (1, 2, 16)), 32])
def test_any_k_stays_in_registers(k):
    x, values = np.zeros((1, 40), np.float32), np.zeros((1, k), np.float32)
    check(compile_kernel(make_softmax_topk(128, k), (x, values, values.astype(np.int32))))


@pytest.mark.parametrize("k", [thorough(1), 32])
def test_any_k_of_a_warp_stays_in_registers(k):
    x, lists = np.zeros((1, 4000), np.float32), np.zeros((1, 3, k), np.float32)
    values, columns = lists[:, 0], np.zeros((1, k), np.int32)
    parts = lists, lists.astype(np.int32), x, x
    kernel = make_softmax_topk_warps(4, 1, 4, k, True, 4)
    check(compile_kernel(kernel, (x, values, columns, *parts)))
    check(compile_kernel(make_merge_splits(4, k), (*parts, values, columns)))


@pytest.mark.parametrize(
    "num_cols, dtype", [(1000, "float32"), thorough(32_768, "bfloat16"), (40_000, "float16")]
)
def test_a_packet_is_one_load_and_one_store(num_cols, dtype):
    x = np.zeros((1, num_cols), dtype)
    for kernel, args in launches_of(fa_numba.softmax_registers, x):
        code = compile_kernel(kernel, args, cc=(9, 0, "a"))
        moves = {label for label in code.counts if label.startswith(("LDG", "STG"))}
        assert moves == {"LDG.128", "STG.128"}


@pytest.mark.parametrize("dtype", [thorough("float16"), "bfloat16"])
@pytest.mark.parametrize(
    "num_cols, cut, aligned",
    [thorough(65_536, False, True), (65_535, True, True), (50_257, True, False)],
)
def test_packed_rows_stay_in_registers(num_cols, cut, aligned, dtype):
    x, packets = np.zeros((2, num_cols), dtype), -(-num_cols // 8192)
    code = compile_kernel(make_softmax_packed(packets, dtype, cut, aligned), (x, x), cc=(9, 0, "a"))
    check(code)
    assert code.registers <= 64 and code.counts["STG.128"] == packets
    assert code.counts["LDG.128"] == (packets if aligned else 0)


@pytest.mark.parametrize(
    "function", [fa_numba.softmax_registers, thorough(fa_numba.softmax_topk_warps)]
)
@pytest.mark.parametrize(
    "num_rows, num_cols, dtype",
    [
        (2, 70_001, "bfloat16"),
        (2, 1001, "f4"),
        thorough(2, 32_767, "bfloat16"),
        thorough(8000, 2001, "float16"),
    ],
)
def test_rows_that_begin_at_any_address_are_moved_in_packets(function, num_rows, num_cols, dtype):
    x = np.zeros((num_rows, num_cols), dtype)
    topk = [5] if function is fa_numba.softmax_topk_warps else []
    kernel, args = launches_of(lambda x: function(x, *topk), x)[0]
    code = compile_kernel(kernel, args, cc=(9, 0, "a"))
    check(code)
    assert code.registers <= 64 and code.counts["LDG.128"] >= 4
    if not topk:
        element = 8 * x.dtype.itemsize
        twice = 2 if num_cols > 65_536 else 1  # both passes
        assert code.counts[f"LDG.{element}"] == twice and code.counts[f"STG.{element}"] == 1
        assert code.counts["LDG.128"] == twice * code.counts["STG.128"]


@pytest.mark.parametrize("head_dim, chunk", [thorough(1, 16), (59, 7), thorough(256, 1), (256, 16)])
def test_any_chunk_of_linear_attention_stays_in_registers(head_dim, chunk):
    x = np.zeros((1, 1, 1, head_dim), np.float32)
    check(compile_kernel(make_chunk_states(head_dim, chunk, True), (x, x, x, x, x)))
    check(compile_kernel(make_chunk_outputs(head_dim, chunk, True), (x, x, x, x, x)))


@pytest.mark.parametrize("group_size", [2, 64])
def test_any_group_of_linear_attention_can_start(group_size):
    x = np.zeros((1, 1, 1, 256), np.float32)
    code = compile_kernel(make_recurrent(256, group_size), (x, x, x, x, x, x))
    check(code)
    assert code.registers * recurrent_threads(256) <= 65536  # of an SM


# 64: above; to 128 the tiles are those of 64.
@pytest.mark.parametrize(
    "name, head_dim",
    [(name, 256) for name in MAIN]
    + [thorough(name, 256) for name in LESSONS if name not in MAIN]
    + [thorough(name, 1) for name in LESSONS],
)
def test_any_head_dim_stays_in_registers(name, head_dim):
    head_dim = min(head_dim, 128) if name == "flash_attn_v2_4x4" else head_dim
    for kernel, args in launches(name, head_dim=head_dim, causal=True):
        check(compile_kernel(kernel, args))


@pytest.mark.parametrize(
    "name, head_dims",
    [(name, (192, 128)) for name in MAIN]
    + [thorough(MAIN[0], (512, 512)), thorough(MAIN[1], (64, 256))]
    + [thorough(name, (192, 128)) for name in ("naive_attn", V2[1], BACKWARD[3], "flash_decode")],
)
def test_v_of_another_head_dim_stays_in_registers(name, head_dims):
    head_dim, head_dim_v = head_dims
    for kernel, args in launches(name, head_dim=head_dim, head_dim_v=head_dim_v, causal=True):
        check(compile_kernel(kernel, args))


@pytest.mark.parametrize(
    "name", [MAIN[0], CACHE[0], *map(thorough, (MAIN[1], *CACHE[1:], *V2[1:], *LADDER, *DECODE))]
)
def test_strided_arrays_cost_no_spill(name):
    for kernel, args in launches(name, strided=True):
        check(compile_kernel(kernel, args, cc=(9, 0, "a")))


@pytest.mark.parametrize("head_dim", [thorough(96), 256])
def test_register_tiles_of_the_backward_fit(head_dim):
    q, lse = np.zeros((1, 3, 1, head_dim), np.float32), np.zeros((1, 1, 3), np.float32)
    tile_size = register_tiling.backward_tile_size(head_dim, 227 * 1024)  # of an H200
    kernel = make_flash_attn_bwd_registers(head_dim, tile_size, True)
    args = (q, q, q, q, lse, lse, q, q, q, np.float32(1), np.float32(0), np.int8(0), ())
    check(compile_kernel(kernel, args, cc=(9, 0, "a")))


@pytest.mark.parametrize("head_dim", [*map(thorough, (64, 96, 128)), 256])
def test_the_largest_register_tiles_fit(head_dim):
    q, lse = np.zeros((1, 3, 1, head_dim), np.float32), np.zeros((1, 1, 3), np.float32)
    block_m, block_n = register_tiling.forward_block_sizes(head_dim, 227 * 1024)  # of an H200
    kernel = make_flash_attn_registers(head_dim, block_m, block_n, True)
    args = (q, q, q, q, lse, np.float32(1), np.float32(0), np.float32(0), np.int8(0), ())
    code = compile_kernel(kernel, args, cc=(9, 0, "a"))
    check(code)
    loads = {label for label in code.counts if label.startswith("LDS")}
    assert loads == {"LDS.128"}  # four neighbours are one load, everywhere
