"""The backward pass on tensor cores, its instructions first, on a real GPU: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

import functools
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, as_tile, cupy_on_a_gpu, integers, run
from numba import cuda

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

import tensor_core_bwd_kernels as kernels  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.ptx import layouts  # noqa: E402
from fa_numba.tensor_core import flash_attn_bwd_persistent as persistent  # noqa: E402
from fa_numba.tensor_core.dq_parts import BY_ARRIVAL  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_padded import flash_attn_bwd_padded  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide  # noqa: E402

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HOPPER = cuda.get_current_device().compute_capability[0] == 9
flash_attn_bwd_persistent = persistent.flash_attn_bwd_persistent
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


def persistent_by_arrival(*args, **options):
    """As flash_attn_bwd_persistent where there are many heads and few keys."""
    with patch.object(persistent, "fastest_order", lambda *_: BY_ARRIVAL):
        return flash_attn_bwd_persistent.__wrapped__(*args, **options)


GROUPS = [
    (1, 500, 500, 16, 2, 128, True),
    (2, 129, 300, 8, 1, 64, False),
    (2, 300, 129, 8, 1, 72, True),  # rows that see no key
    (1, 500, 500, 16, 2, (192, 128), True),
]

FUNCTIONS = flash_attn_bwd_persistent, persistent_by_arrival, flash_attn_bwd_mma


def case_of(backward, *more):
    marks = () if backward is flash_attn_bwd_mma else needs_hopper
    return pytest.param(backward, *more, marks=marks, id=backward.__name__)


each_function = pytest.mark.parametrize("backward", [*map(case_of, FUNCTIONS)])
each_head_dim = pytest.mark.parametrize(
    "backward, head_dim",
    [*(case_of(function, 64) for function in FUNCTIONS), case_of(flash_attn_bwd_wide, 192)],
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_way = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "deterministic"])

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim or that of Q and that of V, causal
SMALL = [
    (1, 1, 1, 1, 1, 64, False),
    (1, 64, 128, 1, 1, 128, False),
    (2, 200, 333, 4, 2, 64, False),
    (2, 200, 333, 4, 1, 128, True),
    (1, 333, 200, 2, 2, 64, True),  # rows that see no key
    (1, 500, 10, 2, 1, 128, True),  # tiles of rows that see no key
    (1, 1, 1000, 2, 1, 128, True),
    (1, 257, 130, 2, 1, 8, False),
    (1, 200, 300, 4, 2, 96, True),
]
SMALL_V = [
    (2, 200, 333, 4, 2, (192, 128), True),
    (1, 333, 200, 2, 1, (192, 128), False),
    (1, 500, 10, 2, 1, (136, 72), True),  # tiles of rows that see no key
    (1, 200, 300, 4, 4, (128, 64), False),
    (1, 140, 200, 2, 1, (72, 64), True),
    (1, 257, 130, 2, 1, (64, 56), False),
]
LARGE = [
    (1, 300, 300, 270, 135, 128, True),  # more heads than SMs
    (2, 1000, 1000, 3, 3, 128, True),
    (2, 1000, 1000, 3, 3, 64, True),
    (1, 2048, 2048, 2, 1, 128, False),
    (1, 2048, 2048, 2, 1, 64, False),
]


def named(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    size = "small" if case in SMALL else "large"
    heads, head_dims = f"h{num_heads}_{num_kv_heads}", "_".join(map(str, np.ravel(head_dim)))
    return f"{size}-b{batch}-{seqlen_q}x{seqlen_k}-{heads}-d{head_dims}{'-causal' * causal}"


@needs_hopper
@each_dtype
@pytest.mark.parametrize("n, k", [(64, 128), (128, 64)])
@pytest.mark.parametrize("half", [0, 1])
def test_wgmma_of_rows_of_a_larger_tile(rng, dtype, n, k, half):
    a, b = (integers(rng, shape, DTYPES[dtype]) for shape in ((128, k), (n, k)))
    d = np.zeros(128 * n // 2, np.float32)
    tile = as_tile(a)
    kernel = kernels.make_wgmma_rows(n, k, 128, half, dtype)
    run(kernel, 128, tile, as_tile(b), d, shared_bytes=48 * 1024)
    want = a[64 * half : 64 * half + 64].astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(d, want[layouts.wgmma_d(n)].ravel())


@needs_hopper
@each_dtype
@pytest.mark.parametrize("k", [64, 128])
@pytest.mark.parametrize("adds", [False, True])
def test_wgmma_of_columns(rng, dtype, k, adds):
    a, b = (integers(rng, (k, 64), DTYPES[dtype]) for _ in range(2))
    d = np.full(128 * 32, 3, np.float32)
    kernel = kernels.make_wgmma_columns(64, k, dtype, adds)
    run(kernel, 128, as_tile(a), as_tile(b), d, shared_bytes=48 * 1024)
    want = a.astype(np.float32).T @ b.astype(np.float32) + 3 * adds
    np.testing.assert_array_equal(d, want[layouts.wgmma_d(64)].ravel())


@needs_hopper
@each_dtype
def test_vectors(rng, dtype):
    x = integers(rng, 256, DTYPES[dtype])
    total = rng.integers(0, 9, 256).astype(np.float32)
    want = total + 2 * x.astype(np.float32)
    run(kernels.make_vectors(dtype), 64, x.view(np.uint8), total)
    np.testing.assert_array_equal(total, want)


def test_counters_small():
    counters, ticket_of, seen = (np.zeros(n, np.uint32) for n in (2, 1000, 1000))
    run(kernels.counters_kernel, 1, counters, ticket_of, seen, blocks=1000)
    assert sorted(seen) == list(range(1000)) and (seen == ticket_of).all()
    assert (counters == 1000).all()


DISTINCT_HEADS = 7  # of K and V


def make_case(case, dtype):
    """Arguments on the GPU, the definition's gradients in float64, and those of plain code."""
    return make_masked_case(case, dtype, ())


@functools.cache
def make_masked_case(case, dtype, mask):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    head_dim, head_dim_v = np.broadcast_to(head_dim, 2)
    options = {"causal": causal, **dict(mask)}
    if "alibi_slopes" in options:
        options["alibi_slopes"] = slopes_of(num_heads)
    rng = np.random.default_rng(sum(case[:5]) + head_dim + causal)
    kind = DTYPES[dtype]
    # Of many heads the definition would take minutes: they are copies of a few.
    kv_heads = min(num_kv_heads, DISTINCT_HEADS)
    heads = kv_heads * (num_heads // num_kv_heads)
    dims = head_dim, head_dim_v
    q, dout = (rng.standard_normal((batch, seqlen_q, heads, d)) for d in dims)
    k, v = (rng.standard_normal((batch, seqlen_k, kv_heads, d)) for d in dims)
    dout, q, k, v = (x.astype(kind) for x in (dout, q, k, v))
    if "softcap" in options:
        q *= kind(8)  # scores that a cap changes
    out, lse = reference.attention(q, k, v, **options, dtype=kind)
    want = reference.attention_bwd(dout, q, k, v, **options)
    plain = reference.attention_bwd(dout, q, k, v, **options, dtype=kind)

    def all_heads(x, number, axis=2):
        return x.take(np.arange(number) % x.shape[axis], axis)

    numbers = num_heads, num_kv_heads, num_kv_heads
    want, plain = ([*map(all_heads, grads, numbers)] for grads in (want, plain))
    dout, q, out = (all_heads(x, num_heads) for x in (dout, q, out))
    k, v = (all_heads(x, num_kv_heads) for x in (k, v))
    lse = all_heads(lse.astype(np.float32), num_heads, axis=1)
    return [cupy.asarray(x) for x in (dout, q, k, v, out, lse)], want, plain


def assert_right(got, want, plain):
    for name, x, y, z in zip(("dq", "dk", "dv"), got, want, plain, strict=True):
        error = np.abs(x.get().astype(np.float64) - y)
        allowed = 3 * np.abs(z.astype(np.float64) - y).max(initial=0) + 1e-6
        where = np.unravel_index(np.argmax(error), error.shape) if error.size else ()
        assert error.max(initial=0) <= allowed, f"{name}: {error.max()} > {allowed} at {where}"


def check_twice(backward, case, dtype, deterministic):
    """The second time has the same bits, but for dQ where the order of its sums is not fixed."""
    args, want, plain = make_case(case, dtype)
    options = {"causal": case[-1], "deterministic": deterministic}
    for x in args[1:4]:  # NaN in the memory that the gradients are likely to get
        cupy.full(x.nbytes, 0xFF, np.uint8)
    got = backward(*args, **options)
    assert_right(got, want, plain)
    again = backward(*args, **options)
    for x, y in list(zip(got, again, strict=True))[0 if deterministic else 1 :]:
        assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.few(
    lambda backward, case, dtype, deterministic: [
        *pairs(backward, case),
        *pairs(backward, dtype, deterministic),
        *pairs(deterministic, case[-2], case[-1]),
    ]
)
@each_function
@each_way
@pytest.mark.parametrize(
    "dtype, case",
    [*(("float16", case) for case in SMALL + LARGE), ("bfloat16", SMALL[3])],
    ids=lambda x: x if isinstance(x, str) else named(x),
)
def test_backward(backward, case, dtype, deterministic):
    check_twice(backward, case, dtype, deterministic)


ALL_MASKS = {"window_size": (90, 70), "softcap": 15.0, "alibi_slopes": True}
MASKED = [
    ({"window_size": (100, -1)}, "float16", (1, 300, 300, 2, 2, 64, True)),
    ({"window_size": (30, 20)}, "bfloat16", (1, 333, 200, 4, 2, 128, False)),
    ({"window_size": (-1, 0)}, "float16", (2, 200, 333, 2, 1, 64, False)),
    ({"softcap": 15.0}, "bfloat16", (2, 200, 333, 2, 1, 64, False)),
    ({"softcap": 15.0}, "float16", (1, 300, 300, 2, 1, 128, True)),
    ({"alibi_slopes": True}, "float16", (1, 300, 300, 2, 1, 128, True)),
    ({"alibi_slopes": True}, "float16", (1, 333, 200, 4, 2, 64, False)),
    (ALL_MASKS, "float16", (2, 200, 333, 4, 2, 128, False)),
    (ALL_MASKS, "float16", (1, 333, 200, 2, 2, 64, True)),
    ({"window_size": (30, 20)}, "bfloat16", (1, 333, 200, 4, 2, (192, 128), False)),
    (ALL_MASKS, "float16", (1, 200, 333, 2, 2, (192, 128), True)),
]


def name_of_mask(x):
    return x if isinstance(x, str) else "-".join(map(str, x))


def slopes_of(num_heads):
    return np.float32(2) ** -np.arange(1, num_heads + 1, dtype=np.float32)


def check_mask(backward, mask, dtype, case, **options):
    args, want, plain = make_masked_case(case, dtype, tuple(mask.items()))
    options |= {"causal": case[-1], **mask}
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = cupy.asarray(slopes_of(case[3]))
    assert_right(backward(*args, **options), want, plain)


@needs_hopper
@pytest.mark.few(lambda backward, mask, case: [case, *pairs(backward, case[-2], tuple(mask))])
@pytest.mark.parametrize("backward", [flash_attn_bwd_persistent, persistent_by_arrival])
@pytest.mark.parametrize("mask, dtype, case", MASKED, ids=name_of_mask)
def test_masks_of_persistent_small(mask, dtype, case, backward):
    check_mask(backward, mask, dtype, case)


@needs_hopper
@pytest.mark.few(lambda case, parts, dtype: [parts, case, *pairs(dtype, parts > 1)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_groups_in_parts(case, parts, dtype):
    args, want, plain = make_case(case, dtype)
    with patch.object(persistent.group_parts, "fastest", lambda *_: parts):
        function = flash_attn_bwd_persistent.__wrapped__
        assert_right(function(*args, causal=case[-1]), want, plain)
        in_float32 = function(*args, causal=case[-1], grad_dtype="float32")
    assert all(x.dtype == np.float32 for x in in_float32)
    assert_right(in_float32, want, plain)


@needs_hopper
@pytest.mark.few(
    lambda case, dtype, deterministic: [case, *pairs(deterministic, case[-2], case[-1]), dtype]
)
@each_way
@pytest.mark.parametrize(
    "dtype, case",
    [*(("float16", case) for case in SMALL_V), ("bfloat16", SMALL_V[0])],
    ids=lambda x: x if isinstance(x, str) else named(x).replace("large", "small"),
)
def test_another_head_dim_of_v(case, dtype, deterministic):
    check_twice(flash_attn_bwd_persistent, case, dtype, deterministic)


WIDE = [
    (1, 1, 1, 1, 1, 256, False),
    (1, 64, 128, 1, 1, 256, False),
    (2, 200, 333, 4, 2, 256, False),
    (2, 200, 333, 4, 1, 256, True),
    (1, 333, 200, 2, 2, 256, True),  # rows that see no key
    (1, 500, 10, 2, 1, 256, True),  # tiles of rows that see no key
    (1, 1, 1000, 2, 1, 256, True),
    (1, 257, 130, 2, 1, 136, False),
    (1, 200, 300, 4, 2, 192, True),
    (2, 200, 333, 4, 2, (256, 128), True),
    (1, 257, 130, 2, 1, (256, 136), True),
]
WIDE_LARGE = [
    (1, 300, 300, 270, 135, 256, True),  # more heads than SMs
    (2, 1000, 1000, 3, 3, 256, False),
]


@needs_hopper
@pytest.mark.few(
    lambda case, dtype, deterministic: [case, *pairs(deterministic, case[-2], case[-1]), dtype]
)
@each_way
@pytest.mark.parametrize(
    "dtype, case",
    [
        *(("float16", case) for case in WIDE + WIDE_LARGE),
        ("bfloat16", WIDE[3]),
        ("bfloat16", WIDE[9]),
    ],
    ids=lambda x: x if isinstance(x, str) else named(x).replace("large", "small" * (x in WIDE)),
)
def test_wide(case, dtype, deterministic):
    check_twice(flash_attn_bwd_wide, case, dtype, deterministic)


@needs_hopper
@each_way
@pytest.mark.parametrize(
    "mask, dtype, case",
    [
        ({"window_size": (30, 20)}, "bfloat16", (1, 333, 200, 4, 2, 256, False)),
        (ALL_MASKS, "float16", (2, 200, 333, 4, 2, 256, False)),
        (ALL_MASKS, "float16", (1, 333, 200, 2, 2, 192, True)),
        ({"window_size": (30, 20)}, "bfloat16", (1, 333, 200, 4, 2, (256, 128), False)),
    ],
    ids=name_of_mask,
)
def test_masks_of_wide_small(mask, dtype, case, deterministic):
    check_mask(flash_attn_bwd_wide, mask, dtype, case, deterministic=deterministic)


@needs_hopper
@pytest.mark.parametrize("head_dim", [128, 250, 264])
def test_bad_head_dim_of_wide_small(head_dim):
    x, lse = cupy.ones((1, 8, 2, head_dim), np.float16), cupy.ones((1, 2, 8), np.float32)
    with pytest.raises(ValueError, match="head_dim"):
        flash_attn_bwd_wide(x, x, x, x, x, lse)


@needs_hopper
@pytest.mark.parametrize(
    "wrong, error, message",
    [
        ({"window_size": (-2, 0)}, ValueError, "window_size"),
        ({"softcap": -1.0}, ValueError, "softcap must"),
        ({"alibi_slopes": [1.0, 1.0]}, TypeError, "alibi_slopes must be"),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale must"),
        ({"deterministic": 1}, TypeError, "deterministic must be"),
        ({"head_dim": 136}, ValueError, "head_dim"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads"),
    ],
)
def test_bad_input_of_persistent_small(wrong, error, message):
    head_dim, num_kv_heads = wrong.get("head_dim", 64), wrong.get("num_kv_heads", 2)
    wrong = {key: x for key, x in wrong.items() if key not in ("head_dim", "num_kv_heads")}
    q = cupy.ones((1, 8, 4, head_dim), np.float16)
    k = cupy.ones((1, 8, num_kv_heads, head_dim), np.float16)
    lse = cupy.ones((1, 4, 8), np.float32)
    with pytest.raises(error, match=message):
        flash_attn_bwd_persistent(q, q, k, k, q, lse, **wrong)


# head_dims that are no multiple of 8; 133 is copied to 136 columns, for flash_attn_bwd_wide
PADDED = [
    (2, 200, 333, 4, 2, 59, True),
    (1, 257, 130, 2, 1, 111, False),
    (1, 100, 100, 1, 1, 1, True),
    (1, 150, 90, 2, 2, 133, False),
]


@needs_hopper
@pytest.mark.few(lambda case, dtype, deterministic: [case, *pairs(dtype, deterministic)])
@each_dtype
@each_way
@pytest.mark.parametrize("case", PADDED, ids=str)
def test_padded_small(case, dtype, deterministic):
    args, want, plain = make_case(case, dtype)
    options = {"causal": case[-1], "deterministic": deterministic}
    for _ in range(2):  # the second is a replay
        assert_right(flash_attn_bwd_padded(*args, **options), want, plain)


@needs_hopper
def test_masks_of_padded_small():
    case, dropout = (1, 200, 150, 2, 1, 59, False), {"dropout_p": 0.25, "seed": 3}
    for mask in ({"window_size": (40, 30), "softcap": 15.0}, dropout):
        args, want, plain = make_masked_case(case, "float16", tuple(mask.items()))
        assert_right(flash_attn_bwd_padded(*args, **mask), want, plain)


@needs_hopper
def test_padded_takes_any_strides_small():
    x = cupy.asarray(np.random.default_rng(0).standard_normal((5, 2, 90, 3, 67)).astype(np.float16))
    inputs = x[..., 2:66]
    lse = cupy.asarray(np.random.default_rng(1).standard_normal((2, 3, 90)).astype(np.float32) + 9)
    got = flash_attn_bwd_padded(*inputs, lse, deterministic=True)
    packed = map(cupy.ascontiguousarray, inputs)
    want = flash_attn_bwd_persistent(*packed, lse, deterministic=True)
    for x, y in zip(got, want, strict=True):
        assert (x == y).all()


@needs_hopper
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("heads", [2, 270])
def test_same_bits_in_every_run_of_persistent(head_dim, heads):
    rng = np.random.default_rng(0)
    shape = (1, 400, heads, head_dim)
    dout, q, k, v = (cupy.asarray(rng.standard_normal(shape).astype(np.float16)) for _ in range(4))
    lse = cupy.asarray(rng.standard_normal((1, heads, 400)).astype(np.float32) + 9)
    options = {"causal": True, "deterministic": True}
    first = flash_attn_bwd_persistent(dout, q, k, v, q, lse, **options)
    for _ in range(20):
        again = flash_attn_bwd_persistent(dout, q, k, v, q, lse, **options)
        for x, y in zip(first, again, strict=True):
            assert (x.view(np.uint16) == y.view(np.uint16)).all()


@each_way
@each_head_dim
def test_strided_arrays_small(backward, head_dim, deterministic):
    rng = np.random.default_rng(0)
    x = cupy.asarray(rng.standard_normal((2, 5, 4, 150, head_dim)).astype(np.float16))
    strided = [x[:, i].transpose(0, 2, 1, 3) for i in range(5)]  # heads before seqlen
    lse = cupy.asarray(rng.standard_normal((2, 4, 150)).astype(np.float32) + 9)
    packed = [cupy.ascontiguousarray(x) for x in strided]
    got = backward(*strided, lse, deterministic=True)
    want = backward(*packed, lse, deterministic=deterministic)
    for x, y in list(zip(got, want, strict=True))[0 if deterministic else 1 :]:
        assert (x == y).all()


@each_way
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(0, 20), (20, 0)])
@each_head_dim
def test_nothing_to_see_small(backward, head_dim, seqlen_q, seqlen_k, deterministic):
    q, k = (cupy.ones((1, n, 2, head_dim), np.float16) for n in (seqlen_q, seqlen_k))
    lse = cupy.full((1, 2, seqlen_q), -np.inf, np.float32)
    for x in backward(q, q, k, k, q, lse, deterministic=deterministic):
        assert not x.any()


@each_function
def test_softmax_scale_small(backward):
    rng = np.random.default_rng(0)
    dout, q, k, v = (rng.standard_normal((1, 150, 1, 64)).astype(np.float16) for _ in range(4))
    for scale in (1e-3, 0.3):
        out, lse = reference.attention(q, k, v, softmax_scale=scale, dtype=np.float16)
        want, plain = (
            reference.attention_bwd(dout, q, k, v, softmax_scale=scale, dtype=dtype)
            for dtype in (np.float64, np.float16)
        )
        args = [cupy.asarray(x) for x in (dout, q, k, v, out, lse.astype(np.float32))]
        assert_right(backward(*args, softmax_scale=scale), want, plain)


@each_function
@each_dtype
def test_torch_tensors_small(backward, dtype):
    torch = pytest.importorskip("torch")
    args, want, _ = make_case(SMALL[3], dtype)
    kind = getattr(torch, dtype)
    tensors = [torch.tensor(x.astype(np.float32).get(), device="cuda").to(kind) for x in args[:5]]
    lse = torch.tensor(args[5].get(), device="cuda")
    for x, y in zip(backward(*tensors, lse, causal=True), want, strict=True):
        assert isinstance(x, torch.Tensor) and x.dtype == kind
        np.testing.assert_allclose(x.float().cpu().numpy(), y, atol=0.1, rtol=0.05)
