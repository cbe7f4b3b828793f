"""kernels.masks: windows, softcap and ALiBi, in every kernel and any combination.

Most runs are on the CPU engine, every access checked.
"""

import inspect
import re

import numpy as np
import pytest
from cases import (
    MASKS,
    TILES,
    assert_close,
    check_backward,
    check_forward,
    each_option,
    large_scores,
    make_qkv,
    mask_options,
    plain_attention,
    random,
    thorough,
)
from few_cases import pairs
from test_flash_attn_v1 import flash_attn_v1

import fa_numba
from fa_numba import (
    flash_attn_bwd,
    flash_attn_v2,
    flash_attn_varlen_bwd,
    naive_attn,
    reference,
    simt,
)
from fa_numba.analysis.machine_code import TARGETS, compile_for, compile_kernel, compiler_available
from fa_numba.kernels import masks
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.runtime import arrays

pytestmark = pytest.mark.usefixtures("checked")
FORWARD = [naive_attn, flash_attn_v1, flash_attn_v2]
each_kernel = pytest.mark.parametrize("kernel", FORWARD, ids=lambda f: f.__name__)

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
SHAPES = {
    "gqa_tails": (2, 21, 27, 4, 2, 6),
    "more_queries_than_keys": (1, 29, 10, 2, 1, 4),  # with a window many rows see no key
    "far_more_keys": (1, 9, 45, 2, 2, 4),  # a window leaves whole tiles in front
    "one_query": (1, 1, 33, 3, 1, 5),
    "one_key": (1, 19, 1, 1, 1, 4),
    "no_keys": (1, 5, 0, 2, 1, 4),
    "no_queries": (1, 0, 5, 2, 1, 4),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def sign(n):
    """-1, 0 or 1."""
    return (n > 0) - (n < 0)


def forward(kernel, q, k, v, mask, **options):
    check_forward(kernel, q, k, v, **mask_options(mask, q.shape[2]), **options)


def backward(rng, q, k, v, mask, by=plain_attention, **options):
    dout = random(rng, *q.shape)
    mask = mask_options(mask, q.shape[2])
    check_backward(by, flash_attn_bwd, dout, q, k, v, **mask, **options)


@each_option
@each_shape
@each_kernel
@pytest.mark.few(lambda kernel, shape, mask: pairs(kernel, shape, mask))
def test_forward(rng, kernel, shape, mask):
    forward(kernel, *make_qkv(rng, *shape), mask, block_m=8, block_n=8)


@each_option
@each_shape
@pytest.mark.few(lambda shape, mask: [shape, (mask, sign(shape[1] - shape[2]))])
def test_backward(rng, shape, mask):
    backward(rng, *make_qkv(rng, *shape), mask, block_m=8, block_n=8)


@pytest.mark.parametrize("mask", [MASKS["window"], MASKS["all"]], ids=["window", "all"])
@pytest.mark.parametrize("block_m, block_n", [*TILES, (16, 4)])
def test_tile_size_does_not_change_the_answer(rng, block_m, block_n, mask):
    q, k, v = make_qkv(rng, 1, 26, 31, 2, 1, 6)
    for kernel in FORWARD:
        forward(kernel, q, k, v, mask, block_m=block_m, block_n=block_n)
    backward(rng, q, k, v, mask, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("softcap", [1e-3, 1.0, 50.0, 1e4, 1e30])
def test_softcap_of_large_scores(rng, softcap):
    q, k, v = large_scores(rng)
    scores = q[0, :, 0] @ k[0, :, 0].T / 2
    assert np.abs(scores).max() > 1e4
    for kernel in FORWARD:
        forward(kernel, q, k, v, {"softcap": softcap, "causal": True}, block_m=8, block_n=8)
    options = {"by": flash_attn_v2, "block_m": 8, "block_n": 8}  # an lse of 1e4 has its rounding
    backward(rng, q, k, v, {"softcap": softcap, "causal": True}, **options)


def test_softcap_bounds_the_scores_and_its_slope_is_there(rng):
    q, k, v = large_scores(rng)
    out, lse = flash_attn_v2(q, k, v, softcap=2.0)
    assert (np.abs(lse - np.log(20)) <= 2).all()
    dq, dk, dv = flash_attn_bwd(v[:, :12], q, k, v, out, lse, softcap=2.0)
    assert np.abs(dq).max() < 1e-2 < np.abs(dv).max()  # tanh is flat so far out


def test_steep_slopes_leave_the_key_at_the_querys_place(rng):
    q, k, v = make_qkv(rng, 1, 9, 13, 2, 2, 4)
    slopes = np.array([1e4, 0], np.float32)
    for kernel in FORWARD:
        out, _ = kernel(q, k, v, alibi_slopes=slopes, block_m=4, block_n=4)
        np.testing.assert_array_equal(out[:, :, 0], v[:, 4:, 0])
        plain, _ = kernel(q, k, v, block_m=4, block_n=4)
        np.testing.assert_allclose(out[:, :, 1], plain[:, :, 1], rtol=1e-6)


@pytest.mark.parametrize("slope", [-0.25, 3.0])
def test_slopes_of_any_sign(rng, slope):
    q, k, v = make_qkv(rng, 1, 9, 13, 1, 1, 4)
    mask = {"alibi_slopes": np.array([slope], np.float32)}
    for kernel in FORWARD:
        forward(kernel, q, k, v, mask, block_m=4, block_n=4)
    backward(rng, q, k, v, mask, block_m=4, block_n=4)


def test_slopes_may_be_a_strided_view_and_are_left_alone(rng):
    q, k, v = make_qkv(rng, 1, 9, 13, 3, 1, 4)
    slopes = np.linspace(0, 1, 6, dtype=np.float32)[::-2]
    slopes.flags.writeable = False
    forward(flash_attn_v2, q, k, v, {"alibi_slopes": slopes})
    backward(rng, q, k, v, {"alibi_slopes": slopes})


SAME = [
    ({"causal": True}, {"window_size": (-1, 0)}),
    ({"causal": True}, {"causal": True, "window_size": [-1, 7]}),
    ({}, {"window_size": (40, 40)}),
    ({}, {"window_size": (2**70, 2**70)}),
    ({}, {"softcap": 0, "window_size": (np.int32(-1), -1)}),
    ({"window_size": (3, 0)}, {"causal": True, "window_size": (3, 5)}),
]


@pytest.mark.parametrize("one, other", SAME, ids=str)
def test_the_same_asked_for_in_two_ways(rng, one, other):
    q, k, v = make_qkv(rng, 1, 17, 25, 2, 1, 4)
    for kernel in FORWARD:
        for x, y in zip(kernel(q, k, v, **one), kernel(q, k, v, **other), strict=True):
            np.testing.assert_array_equal(x, y)
    out, lse = flash_attn_v2(q, k, v, **one)
    gradients = (flash_attn_bwd(out, q, k, v, out, lse, **mask) for mask in (one, other))
    for x, y in zip(*gradients, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_that_a_window_leaves_without_keys(rng):
    """Queries 0 to 8 are before the first key and see only keys at a distance up to 2."""
    q, k, v = make_qkv(rng, 1, 20, 11, 1, 1, 4)
    mask = {"window_size": (1, 2)}
    for kernel in FORWARD:
        out, lse = kernel(q, k, v, **mask, block_m=4, block_n=4)
        assert (out[:, :7] == 0).all() and (lse[..., :7] == -np.inf).all()
        assert np.isfinite(lse[..., 7:]).all()
    dq, dk, dv = flash_attn_bwd(q, q, k, v, out, lse, **mask, block_m=4, block_n=4)
    assert (dq[:, :7] == 0).all()
    want = reference.attention_bwd(q[:, 7:], q[:, 7:], k, v, **mask)
    plain = reference.attention_bwd(q[:, 7:], q[:, 7:], k, v, **mask, dtype=np.float32)
    for x, x_ref, x_f32 in zip((dk, dv), want[1:], plain[1:], strict=True):
        assert_close(x, x_ref, x_f32, factor=3)


def test_keys_that_no_query_sees_have_no_gradient(rng):
    q, k, v = make_qkv(rng, 1, 5, 30, 1, 1, 4)
    out, lse = flash_attn_v2(q, k, v, window_size=(3, 0))
    _, dk, dv = flash_attn_bwd(q, q, k, v, out, lse, window_size=(3, 0), block_m=4, block_n=4)
    for x in (dk, dv):
        assert (x[:, :22] == 0).all() and (x[:, 22:] != 0).all()


# --- tiles that no query sees -----------------------------------------------------------------


def loads(function, *args, **options):
    with simt.tracing() as traces:
        function(*args, **options)
    return [{name: counts.loads for name, counts in t.arrays.items()} for t in traces]


def test_tiles_at_both_ends_of_a_window_are_skipped(rng):
    """With tiles of 8 and a window of ±8 a tile of queries sees its own tile and one each side."""
    q, k, v = make_qkv(rng, 1, 64, 64, 1, 1, 4)
    mask = {"window_size": (8, 8), "block_m": 8, "block_n": 8}
    seen = 8 * 4 * (6 * 3 + 2 * 2)  # elements of these tiles; two at the ends have one neighbour
    (v2,) = loads(flash_attn_v2, q, k, v, **mask)
    assert v2["k"] == v2["v"] == seen
    (v1,) = loads(flash_attn_v1, q, k, v, **mask)
    assert v1["q"] == v1["out"] == seen
    lse = random(rng, 1, 1, 64)
    _, dkdv, dq = loads(flash_attn_bwd, q, q, k, v, q, lse, **mask)
    assert dkdv["q"] == dkdv["dout"] == dq["k"] == dq["v"] == seen
    scores, *_ = loads(naive_attn, q, k, v, **mask)
    assert scores["k"] == 64 * 64 // 8 * 4  # nothing is skipped


@pytest.mark.parametrize("mask", [{}, {"alibi_slopes": np.ones(1, np.float32), "softcap": 3.0}])
def test_nan_in_tiles_that_no_query_sees_is_not_read(rng, mask):
    q, k, v = make_qkv(rng, 1, 8, 64, 1, 1, 4)
    mask = mask | {"window_size": (16, 0), "block_m": 8, "block_n": 8}
    k[:, :40] = v[:, :40] = np.nan  # query 0 is at key 56
    for kernel in (flash_attn_v1, flash_attn_v2):
        out, lse = kernel(q, k, v, **mask)
        assert np.isfinite(out).all() and np.isfinite(lse).all()
    dq, dk, dv = flash_attn_bwd(q, q, k, v, out, lse, **mask)
    assert np.isfinite(dq).all() and np.isfinite(dk[:, 40:]).all() and np.isfinite(dv[:, 40:]).all()


@each_kernel
def test_nan_in_one_head_stays_there(rng, kernel):
    q, k, v = make_qkv(rng, 2, 9, 9, 2, 2, 8)
    mask = mask_options(MASKS["all"], 2)
    want, lse_want = kernel(q, k, v, **mask, block_m=8, block_n=8)
    k[0, 3, 1] = v[0, 3, 1] = np.nan
    out, lse = kernel(q, k, v, **mask, block_m=8, block_n=8)
    assert np.isnan(out[0, 3:, 1]).all()
    for x, y in ((out[1], want[1]), (out[0, :, 0], want[0, :, 0]), (lse[1], lse_want[1])):
        np.testing.assert_array_equal(x, y)


def test_nan_among_the_slopes_stays_in_its_head(rng):
    q, k, v = make_qkv(rng, 1, 9, 9, 2, 1, 4)
    slopes = np.array([np.nan, 0.5], np.float32)
    out, lse = flash_attn_v2(q, k, v, alibi_slopes=slopes)
    assert np.isnan(out[:, :, 0]).all() and np.isfinite(out[:, :, 1]).all()


# --- the device functions ---------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (0, 0), (2, 1), (-1, 3), (4, -1)])
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(5, 5), (3, 9), (9, 3)])
def test_bounds_are_those_of_the_mask(seqlen_q, seqlen_k, window, causal):
    q, k = (np.zeros((1, n, 1, 1)) for n in (seqlen_q, seqlen_k))
    options = {"causal": causal, "window_size": window}
    scores, _ = reference._scores(*(x.transpose(0, 2, 1, 3) for x in (q, k)), options)
    mask = scores[0, 0] == 0
    keys = [f.py_func for f in masks.make_bounds(causal, window)]
    queries = [f.py_func for f in masks.make_bounds_of_keys(causal, window)]
    for seen, (first, end, sees), seqlen in ((mask, keys, seqlen_k), (mask.T, queries, seqlen_q)):
        for i, row in enumerate(seen):
            position = i + seqlen - len(seen)
            want = np.flatnonzero(row).tolist()
            assert list(range(first(position), end(position, seqlen))) == want
            assert [j for j in range(seqlen + 3) if sees(position, j, seqlen)] == want


def test_without_options_a_score_is_unchanged():
    score, score_bwd = masks.make_score(0.0, False), masks.make_score_bwd(0.0)
    x = object()
    assert score.py_func(x, None, None) is x and score_bwd.py_func(x, None) is x


WRITTEN_OUT = {
    "sees(position, n, seqlen_k)": "n < seqlen_k and (n <= position if CAUSAL else True)",
    "score(s * softmax_scale, position - n, slope)": "s * softmax_scale",
}
WRITTEN_OUT_V2 = WRITTEN_OUT | {
    "first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N": "0",
    "end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)": (
        "min(seqlen_k, m_start + BLOCK_M + seqlen_k - seqlen_q) if CAUSAL else seqlen_k"
    ),
}
WRITTEN_OUT_DECODE = WRITTEN_OUT | {
    "first_key(first_m + seqlen_k - seqlen_q) // BLOCK_N": "0",
    "end_key(last_m + seqlen_k - seqlen_q, n_end)": (
        "min(n_end, last_m + seqlen_k - seqlen_q + 1) if CAUSAL else n_end"
    ),
}


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize("causal", [thorough(False), True])
@pytest.mark.parametrize(
    "function, written_out",
    [
        (flash_attn_v2, WRITTEN_OUT_V2),
        thorough(flash_decode, WRITTEN_OUT_DECODE),
        thorough(paged_attn_decode, WRITTEN_OUT_DECODE),
    ],
)
def test_options_that_are_off_cost_nothing(tmp_path, function, written_out, causal):
    """The kernel compiles as if its source had only a causal mask, written out."""
    ((kernel, args),) = launched(function, {})
    module = inspect.getmodule(kernel.py_func)
    source = inspect.getsource(module)
    for call, plain in written_out.items():
        assert source.count(call) == 1
        source = source.replace(call, plain)
    path = tmp_path / "written_out.py"
    path.write_text(source)
    namespace = {"__file__": str(path), "__name__": "written_out"}
    exec(compile(source, str(path), "exec"), namespace)
    more = {"PAGE_SIZE": 4} if function is paged_attn_decode else {}
    make = "make_" + kernel.py_func.__name__.removesuffix("_kernel")
    codes = [
        compile_kernel(make(64, 8, 16, causal, **more), args, cc=(8, 0))
        for make in (getattr(module, make), namespace[make])
    ]
    assert codes[0].registers == codes[1].registers
    assert codes[0].ptx.count("\n\t") == codes[1].ptx.count("\n\t")


def launched(function, mask):
    """(kernel, arguments) of each launch of a function on small arrays."""
    q, k, v = (np.ones((1, 3, 2, 64), np.float32) for _ in range(3))
    lse, starts = np.ones((1, 2, 3), np.float32), np.array([0, 3], np.int32)
    mask = mask_options(mask, 2)
    args = {
        "flash_attn_bwd": (q, q, k, v, q, lse),
        "flash_attn_varlen": (q[0], k[0], v[0], starts, starts),
        "flash_attn_varlen_bwd": (q[0], q[0], k[0], v[0], q[0], lse[0], starts, starts),
        "flash_decode": (q, k, v, np.full(1, 3, np.int32)),
        "paged_attn_decode": (q, k, v, np.zeros((1, 1), np.int32), np.full(1, 3, np.int32)),
    }.get(function.__name__, (q, k, v))
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            arrays, "launch", lambda kernel, grid, block, *args: seen.append((kernel, args))
        )
        function(*args, **mask)
    return [(kernel, args) for kernel, args in seen if kernel.py_func.__name__ in MASKED]


KERNELS = "scores flash_attn_v1 flash_attn_v2 flash_attn_varlen dkdv dq flash_decode"
MASKED = {f"{name}_kernel" for name in KERNELS.split()}


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize(
    "function, mask, targets",
    # test_compile has every kernel with a causal mask; here is one of each kind.
    [(f, "all", TARGETS[1:2]) for f in (flash_attn_v2, flash_attn_bwd)]
    + [
        thorough(f, "all", TARGETS[1:2])
        for f in (naive_attn, fa_numba.flash_attn_v1, paged_attn_decode)
    ]
    + [thorough(flash_attn_v2, "window", TARGETS[:1])]
    + [thorough(flash_attn_bwd, "softcap_alibi", TARGETS[2:])]
    + [thorough(f, "all", TARGETS) for f in (flash_decode, flash_attn_varlen_bwd)]
    + [thorough(f, "all", TARGETS[::2]) for f in (paged_attn_decode, flash_attn_varlen)],
)
def test_compiles_within_the_budget(function, mask, targets):
    for kernel, args in launched(function, MASKS[mask]):
        registers = re.search(r"budget +(\d+) registers", kernel.py_func.__doc__)[1]
        for code in compile_for(kernel, args, targets):
            assert code.registers <= int(registers)
            assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
