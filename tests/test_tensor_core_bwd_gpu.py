"""The backward on tensor cores, its instructions first, on a real GPU: `pytest -m gpu`.

These tests have not run yet; the kernels have, on cases like these.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

import functools

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # Numba warns of small grids; libraries of each other
]
if not cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

import tensor_core_bwd_kernels as kernels  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.tensor_core import layouts  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_wgmma import flash_attn_bwd_wgmma  # noqa: E402

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HOPPER = cuda.get_current_device().compute_capability[0] == 9
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
each_function = pytest.mark.parametrize(
    "backward",
    [
        pytest.param(flash_attn_bwd_wgmma, marks=needs_hopper, id="wgmma"),
        pytest.param(flash_attn_bwd_mma, id="mma"),
    ],
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_way = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "deterministic"])

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal
SMALL = [
    (1, 1, 1, 1, 1, 64, False),
    (1, 64, 128, 1, 1, 128, False),
    (2, 200, 333, 4, 2, 64, False),
    (2, 200, 333, 4, 1, 128, True),
    (1, 333, 200, 2, 2, 64, True),  # rows that see no key
    (1, 500, 10, 2, 1, 128, True),  # tiles of rows that see no key
    (1, 1, 1000, 2, 1, 128, True),
    (1, 257, 130, 2, 1, 8, False),
    (1, 257, 130, 2, 1, 40, True),
    (1, 200, 300, 4, 2, 96, True),
]
LARGE = [
    (2, 1000, 1000, 3, 3, 128, True),
    (2, 1000, 1000, 3, 3, 64, True),
    (1, 2048, 2048, 2, 1, 128, False),
    (1, 2048, 2048, 2, 1, 64, False),
]


def named(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    size = "small" if case in SMALL else "large"
    heads = f"h{num_heads}_{num_kv_heads}"
    return f"{size}-b{batch}-{seqlen_q}x{seqlen_k}-{heads}-d{head_dim}{'-causal' * causal}"


def as_tile(x):
    """The bytes of a 16-bit matrix as a tile in shared memory has them."""
    rows, cols = x.shape
    tile = np.zeros(rows * -(-cols // 64) * layouts.ROW_BYTES // 2, np.uint16)
    row, col = np.mgrid[:rows, :cols]
    tile[layouts.tile_offset(row, col, rows) // 2] = x.view(np.uint16)
    return tile.view(np.uint8)


def run(kernel, threads, *args, shared_bytes=0):
    """Launch one thread block; NumPy arrays come back changed."""
    on_gpu = [cupy.asarray(x) for x in args]
    kernel[1, threads, cuda.default_stream(), shared_bytes](*on_gpu)
    for x, changed in zip(args, on_gpu, strict=True):
        x[...] = changed.get()


def integers(rng, shape, dtype):
    """Small ones: their products and sums are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


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
def test_wgmma_of_columns(rng, dtype, k):
    a, b = (integers(rng, (k, 64), DTYPES[dtype]) for _ in range(2))
    d = np.zeros(128 * 32, np.float32)
    kernel = kernels.make_wgmma_columns(64, k, dtype)
    run(kernel, 128, as_tile(a), as_tile(b), d, shared_bytes=48 * 1024)
    want = a.astype(np.float32).T @ b.astype(np.float32)
    np.testing.assert_array_equal(d, want[layouts.wgmma_d(64)].ravel())


@needs_hopper
@each_dtype
def test_vectors(rng, dtype):
    x = integers(rng, 256, DTYPES[dtype])
    total = rng.integers(0, 9, 256).astype(np.float32)
    want = total + 2 * x.astype(np.float32)
    run(kernels.make_vectors(dtype), 64, x.view(np.uint8), total)
    np.testing.assert_array_equal(total, want)


@functools.cache
def make_case(case, dtype):
    """Arguments on the GPU, the definition's gradients in float64, and those of plain code."""
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    rng = np.random.default_rng(sum(case))
    kind = DTYPES[dtype]
    q, dout = (rng.standard_normal((batch, seqlen_q, num_heads, head_dim)) for _ in range(2))
    k, v = (rng.standard_normal((batch, seqlen_k, num_kv_heads, head_dim)) for _ in range(2))
    dout, q, k, v = (x.astype(kind) for x in (dout, q, k, v))
    out, lse = reference.attention(q, k, v, causal=causal, dtype=kind)
    want = reference.attention_bwd(dout, q, k, v, causal=causal)
    plain = reference.attention_bwd(dout, q, k, v, causal=causal, dtype=kind)
    args = [cupy.asarray(x) for x in (dout, q, k, v, out, lse.astype(np.float32))]
    return args, want, plain


def assert_right(got, want, plain):
    for name, x, y, z in zip(("dq", "dk", "dv"), got, want, plain, strict=True):
        error = np.abs(x.get().astype(np.float64) - y)
        allowed = 3 * np.abs(z.astype(np.float64) - y).max(initial=0) + 1e-6
        where = np.unravel_index(np.argmax(error), error.shape) if error.size else ()
        assert error.max(initial=0) <= allowed, f"{name}: {error.max()} > {allowed} at {where}"


@each_function
@each_way
@each_dtype
@pytest.mark.parametrize("case", SMALL + LARGE, ids=named)
def test_backward(backward, case, dtype, deterministic):
    args, want, plain = make_case(case, dtype)
    options = {"causal": case[-1], "deterministic": deterministic}
    got = backward(*args, **options)
    assert_right(got, want, plain)
    again = backward(*args, **options)
    for x, y in list(zip(got, again, strict=True))[0 if deterministic else 1 :]:
        assert (x.view(np.uint8) == y.view(np.uint8)).all()


@each_function
@each_way
def test_strided_arrays_small(backward, deterministic):
    rng = np.random.default_rng(0)
    x = cupy.asarray(rng.standard_normal((2, 5, 4, 150, 64)).astype(np.float16))
    strided = [x[:, i].transpose(0, 2, 1, 3) for i in range(5)]  # heads before seqlen
    lse = cupy.asarray(rng.standard_normal((2, 4, 150)).astype(np.float32) + 9)
    packed = [cupy.ascontiguousarray(x) for x in strided]
    got = backward(*strided, lse, deterministic=True)
    want = backward(*packed, lse, deterministic=deterministic)
    for x, y in list(zip(got, want, strict=True))[0 if deterministic else 1 :]:
        assert (x == y).all()


@each_function
@each_way
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(0, 20), (20, 0)])
def test_nothing_to_see_small(backward, seqlen_q, seqlen_k, deterministic):
    q, k = (cupy.ones((1, n, 2, 64), np.float16) for n in (seqlen_q, seqlen_k))
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
