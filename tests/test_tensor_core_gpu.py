"""Each instruction of fa_numba.tensor_core, then each kernel, on a real GPU: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer (`make sanitize`).
"""

import functools

import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, as_tile, cupy_on_a_gpu, integers, run
from numba import cuda

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

import tensor_core_kernels as kernels  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.ptx import layouts  # noqa: E402
from fa_numba.runtime import tensor_maps  # noqa: E402
from fa_numba.tensor_core import (  # noqa: E402
    flash_attn_mma,
    flash_attn_padded,
    flash_attn_persistent,
    flash_attn_wgmma,
    flash_attn_ws,
)

FUNCTIONS = {
    "mma": flash_attn_mma.flash_attn_mma,
    "wgmma": flash_attn_wgmma.flash_attn_wgmma,
    "wgmma in pairs": functools.partial(flash_attn_wgmma.flash_attn_wgmma, cluster=2),
    "ws": flash_attn_ws.flash_attn_ws,
    "persistent": flash_attn_persistent.flash_attn_persistent,
}
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HOPPER = cuda.get_current_device().compute_capability[0] == 9
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


def as_registers(x, where):
    """The elements of a 16-bit matrix as registers, two in each."""
    bits = x.view(np.uint16)[where[0], where[1]].astype(np.uint32)
    return bits[..., 0] | bits[..., 1] << 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_mma_small(rng, dtype):
    a, b = (integers(rng, shape, DTYPES[dtype]) for shape in ((16, 16), (16, 8)))
    d = rng.integers(-9, 9, (16, 8)).astype(np.float32)
    registers = d[layouts.mma_d()].ravel()
    a_registers = as_registers(a, layouts.mma_a()).ravel()
    b_registers = as_registers(b, layouts.mma_b()).ravel()
    run(kernels.make_mma(dtype), 32, a_registers, b_registers, registers)
    want = a.astype(np.float32) @ b.astype(np.float32) + d
    np.testing.assert_array_equal(registers, want[layouts.mma_d()].ravel())


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_small(rng, trans):
    x = rng.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    y = np.zeros(128, np.uint32)
    run(kernels.make_ldmatrix(trans), 32, x.view(np.uint32).ravel(), y)
    want = np.stack([as_registers(matrix, layouts.ldmatrix(trans=trans)) for matrix in x], axis=1)
    np.testing.assert_array_equal(y, want.ravel())


@needs_hopper
def test_stmatrix_small(rng):
    x = rng.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    registers = np.stack([as_registers(matrix, layouts.ldmatrix()) for matrix in x], axis=1)
    y = np.zeros(128, np.uint32)
    run(kernels.stmatrix_kernel, 32, registers.ravel(), y)
    np.testing.assert_array_equal(y, x.view(np.uint32).ravel())


def test_cp_async_small(rng):
    x, y = rng.integers(1, 1 << 32, 128).astype(np.uint32), np.zeros(128, np.uint32)
    num_bytes = np.arange(32, dtype=np.uint32) % 5 * 4
    run(kernels.cp_async_kernel, 32, x, num_bytes, y)
    inside = 4 * np.arange(4) < num_bytes[:, None]
    np.testing.assert_array_equal(y.reshape(32, 4), np.where(inside, x.reshape(32, 4), 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pack_small(rng, dtype):
    low, high = rng.standard_normal((2, 32)).astype(np.float32)
    y = np.zeros(32, np.uint32)
    run(kernels.make_pack(dtype), 32, low, high, y)
    want = np.stack([low, high], axis=1).astype(DTYPES[dtype]).view(np.uint32).ravel()
    np.testing.assert_array_equal(y, want)


def test_exp2_small():
    x = np.array([0, 1, -1, 0.5, -126, -1000, -2e30, 10.25], np.float32)
    y = np.empty_like(x)
    run(kernels.exp2_kernel, 8, x, y)
    np.testing.assert_allclose(y, np.exp2(x.astype(np.float64)), rtol=3e-7, atol=1e-37)


def test_max3_bits_small():
    x = np.array([[3, 1, 2], [-1, 0, -2], [-2e30, -1, 1e-9], [-3, -1, -2]], np.float32)
    y = np.empty(4, np.float32)
    run(kernels.max3_bits_kernel, 4, x.ravel(), y)
    np.testing.assert_array_equal(y, np.float32([3, 0, 1e-9, -3]))


@needs_hopper
def test_mbarrier_small():
    y = np.full(192, 9, np.uint32)
    run(kernels.mbarrier_kernel, 64, y)
    assert y[:4].tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(y[64:128], np.arange(64)[::-1])
    np.testing.assert_array_equal(y[128:], 100 + np.arange(64)[::-1])


@needs_hopper
def test_bounded_wait_ends_small():
    y = np.zeros(1, np.uint32)
    run(kernels.bounded_wait_kernel, 1, y)
    assert y[0] == 1


@needs_hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [128, 72])
@pytest.mark.parametrize("row", [0, 5, 30, 90, -3])
def test_tma_small(rng, dtype, head_dim, row):
    x = integers(rng, (2, 3, 40, head_dim), DTYPES[dtype])  # (batch, heads, seqlen, head_dim)
    on_gpu = cupy.asarray(x.view(np.uint16)).transpose(0, 2, 1, 3)
    shape, strides, address = on_gpu.shape, on_gpu.strides, on_gpu.data.ptr
    tensor_map = cupy.asarray(tensor_maps.encode_tensor_map(address, shape, strides, 16, dtype))
    y = np.full(2 * 16 * layouts.ROW_BYTES, 7, np.uint8)
    run(
        kernels.make_tma(16, 2),
        32,
        np.uint64(tensor_map.data.ptr),
        *np.array([row, 2, 1], np.int32),
        y,
        shared_bytes=8192,
    )
    want = np.zeros((16, 128), x.dtype)  # zero-padded outside of the box
    inside = [r for r in range(16) if 0 <= row + r < 40]
    want[inside, :head_dim] = x[1, 2, [row + r for r in inside]]
    np.testing.assert_array_equal(y, as_tile(want))


@needs_hopper
@pytest.mark.parametrize("row", [0, 30])
def test_multicast_small(rng, row):
    x = integers(rng, (1, 64, 1, 128), np.float16)
    on_gpu = cupy.asarray(x)
    encoded = tensor_maps.encode_tensor_map(on_gpu.data.ptr, x.shape, on_gpu.strides, 16, "float16")
    tensor_map = cupy.asarray(encoded)
    y = np.full(2 * (4 * 16 * layouts.ROW_BYTES + 1), 7, np.uint8)
    run(
        kernels.make_multicast(16, 2),
        32,
        np.uint64(tensor_map.data.ptr),
        *np.array([row, 0, 0], np.int32),
        y,
        blocks=2,
        shared_bytes=20480,
    )
    tiles = [as_tile(x[0, first : first + 16, 0]) for first in (row, row + 16)]
    for got in y.reshape(2, -1):
        np.testing.assert_array_equal(got, [*np.concatenate(tiles), 1])


@needs_hopper
@pytest.mark.parametrize("head_dim", [128, 72])
@pytest.mark.parametrize("row", [0, 30, 40])  # a store must not begin before the array
def test_tma_store_small(rng, head_dim, row):
    x = cupy.full((2, 40, 3, head_dim), 7, np.float16)
    box = integers(rng, (16, 64), np.float16)
    tensor_map = tensor_maps.encode_tensor_map(x.data.ptr, x.shape, x.strides, 16, "float16")
    tensor_map = cupy.asarray(tensor_map)
    where = np.array([row, 2, 1], np.int32)
    kernel, address = kernels.tma_store_kernel, np.uint64(tensor_map.data.ptr)
    run(kernel, 32, as_tile(box), address, *where, shared_bytes=4096)
    want = np.full(x.shape, 7, np.float16)
    inside = [r for r in range(16) if 0 <= row + r < 40]
    want[1, [row + r for r in inside], 2, 64:] = box[inside, : head_dim - 64]
    np.testing.assert_array_equal(x.get(), want)


@needs_hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, k", [(8, 16), (64, 64), (128, 80), (96, 128), (256, 64)])
def test_wgmma_small(rng, dtype, n, k):
    a, b = (integers(rng, shape, DTYPES[dtype]) for shape in ((64, k), (n, k)))
    d = np.zeros(128 * n // 2, np.float32)
    kernel = kernels.make_wgmma(n, k, dtype, False)
    run(kernel, 128, as_tile(a), as_tile(b), d, shared_bytes=48 * 1024)
    want = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(d, want[layouts.wgmma_d(n)].ravel())


@needs_hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n, k", [(8, 16), (64, 64), (80, 96), (128, 128), (256, 64)])
def test_wgmma_with_registers_small(rng, dtype, n, k):
    a, b = (integers(rng, shape, DTYPES[dtype]) for shape in ((64, k), (k, n)))
    d = rng.integers(-9, 9, (64, n)).astype(np.float32)
    registers = d[layouts.wgmma_d(n)].ravel()
    kernel = kernels.make_wgmma(n, k, dtype, True)
    a_registers = as_registers(a, layouts.wgmma_a(k)).ravel().view(np.uint8)
    run(kernel, 128, a_registers, as_tile(b), registers, shared_bytes=48 * 1024)
    want = a.astype(np.float32) @ b.astype(np.float32) + d
    np.testing.assert_array_equal(registers, want[layouts.wgmma_d(n)].ravel())


@needs_hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", ["more", "tiles"])
@pytest.mark.parametrize("n, k", [(64, 128), (128, 64)])
def test_added_wgmma_small(rng, dtype, adds, n, k):
    b_shape = (n, k) if adds == "more" else (k, n)
    a, b = (integers(rng, shape, DTYPES[dtype]) for shape in ((64, k), b_shape))
    d = rng.integers(-9, 9, (64, n)).astype(np.float32)
    registers = d[layouts.wgmma_d(n)].ravel()
    kernel = kernels.make_wgmma(n, k, dtype, False, ADDS=adds)
    run(kernel, 128, as_tile(a), as_tile(b), registers, shared_bytes=48 * 1024)
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = a @ (b.T if adds == "more" else b) + d
    np.testing.assert_array_equal(registers, want[layouts.wgmma_d(n)].ravel())


@needs_hopper
@pytest.mark.parametrize("n", [80, 112, 128])
@pytest.mark.parametrize("slope", [0.7, -3.3, 1e-5, 1e5])
def test_bias_small(n, slope):
    d = np.zeros((3, 64, n), np.float32)
    d[0] = 5
    registers = np.stack([x[layouts.wgmma_d(n)] for x in d]).ravel()
    run(kernels.make_bias(n), 128, np.float32([slope]), registers)
    added, subtracted = registers.reshape(3, 128, n // 2)[1:]
    bias = (np.float64(np.float32(slope)) * np.arange(n))[layouts.wgmma_d(n)[1]]
    np.testing.assert_allclose(added, 5 + bias, rtol=2.0**-22, atol=2.0**-20)
    np.testing.assert_allclose(subtracted, 5 - bias, rtol=2.0**-22, atol=2.0**-20)


@needs_hopper
def test_named_barrier_small():
    y = np.zeros(32, np.uint32)
    run(kernels.named_barrier_kernel, 96, y)
    np.testing.assert_array_equal(y, 7 * np.arange(32))


@needs_hopper
def test_setmaxnreg_small():
    y = np.zeros(256, np.uint32)
    run(kernels.setmaxnreg_kernel, 256, y)
    np.testing.assert_array_equal(y, np.repeat([1, 2], 128))


# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal
CASES = [
    (1, 1, 1, 1, 1, 64, False),
    (1, 128, 128, 1, 1, 64, False),
    (1, 128, 128, 1, 1, 128, False),
    (2, 200, 333, 4, 2, 64, False),
    (2, 200, 333, 4, 1, 128, True),
    (1, 333, 200, 2, 2, 64, True),  # rows that see no key
    (1, 500, 10, 2, 1, 128, True),  # thread blocks that see no key
    (1, 1, 1000, 2, 1, 128, True),
    (2, 1000, 1000, 3, 3, 128, True),
    (2, 1000, 1000, 3, 3, 64, True),
    (1, 257, 130, 2, 1, 8, False),
    (1, 257, 130, 2, 1, 40, True),
    (1, 257, 130, 2, 1, 72, False),
    (1, 257, 300, 2, 2, 96, True),
    (1, 300, 257, 2, 1, 112, False),
    (1, 200, 333, 2, 1, 256, True),
    (1, 333, 257, 1, 1, 192, False),
    (3, 260, 300, 24, 12, 256, True),  # more tiles of queries than thread blocks that stay
    (3, 260, 300, 24, 12, 128, False),
    (4, 400, 400, 40, 20, 64, True),
    (1, 4096, 4096, 2, 1, 128, True),
    (1, 4096, 4096, 2, 1, 64, False),
]


def named(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    heads = f"h{num_heads}_{num_kv_heads}"
    size = "small" if batch * num_heads * seqlen_q * seqlen_k < 1_000_000 else "large"
    return f"{size}-b{batch}-{seqlen_q}x{seqlen_k}-{heads}-d{head_dim}{'-causal' * causal}"


@functools.cache
def make_case(case, dtype):
    """Inputs, the definition's result in float64, and the largest error of plain code in dtype."""
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    rng = np.random.default_rng(sum(case))
    shapes = (seqlen_q, num_heads), (seqlen_k, num_kv_heads), (seqlen_k, num_kv_heads)
    q, k, v = (
        rng.standard_normal((batch, n, heads, head_dim)).astype(DTYPES[dtype])
        for n, heads in shapes
    )
    out, lse = reference.attention(q, k, v, causal=causal)
    plain, _ = plain_attention(q, k, v, causal)
    return (q, k, v), out, lse, np.abs(plain.astype(np.float64) - out).max(initial=0)


def plain_attention(q, k, v, causal):
    """P rounded to the dtype before P V, as a library without a fused kernel does it."""
    dtype = q.dtype
    out, lse = reference.attention(q, k, v, causal=causal, dtype=np.float32)
    group_size = q.shape[2] // k.shape[2]
    k32, v32 = (np.repeat(x.astype(np.float32), group_size, axis=2) for x in (k, v))
    s = np.einsum("bmhd,bnhd->bhmn", q.astype(np.float32), k32) / np.sqrt(q.shape[3])
    if causal:
        m, n = np.ogrid[: q.shape[1], : k.shape[1]]
        s = np.where(n > m + k.shape[1] - q.shape[1], -np.inf, s)
    p = np.exp(s - np.where(np.isfinite(lse), lse, 0)[..., None])
    p = p.astype(dtype).astype(np.float32)
    return np.einsum("bhmn,bnhd->bmhd", p, v32).astype(dtype), lse


def on_gpu(x):
    return cupy.asarray(x)


def assert_right(got, want):
    (out, lse), (_, out_ref, lse_ref, plain_error) = got, want
    error = np.abs(out.get().astype(np.float64) - out_ref).max(initial=0)
    assert error <= 2 * plain_error + 1e-6
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


@pytest.mark.few(
    lambda name, case, dtype: [
        *pairs(name, dtype, case[-2]),
        (name, case[-1]),
        (case, name == "persistent"),
    ]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward(name, case, dtype):
    if name != "mma" and not HOPPER:
        pytest.skip("needs a Hopper GPU")
    want = make_case(case, dtype)
    got = FUNCTIONS[name](*map(on_gpu, want[0]), causal=case[-1])
    assert_right(got, want)
    arguments = list(map(on_gpu, want[0]))
    for _ in range(20):  # the same bits in every run
        again = FUNCTIONS[name](*arguments, causal=case[-1])
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


@needs_hopper
@pytest.mark.few(lambda case, dtype: [case, dtype])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [(2, 200, 333, 4, 2, 59, True), (1, 257, 130, 2, 1, 111, False), (1, 100, 100, 1, 1, 1, True)],
    ids=named,
)
def test_padded(case, dtype):
    want = make_case(case, dtype)
    got = flash_attn_padded.flash_attn_padded(*map(on_gpu, want[0]), causal=case[-1])
    assert_right(got, want)


@needs_hopper
def test_padded_takes_any_strides():
    rng = np.random.default_rng(0)
    wide = cupy.asarray(rng.standard_normal((3, 2, 100, 4, 67)).astype(np.float16))
    q, k, v = wide[..., 2:66]
    packed = [cupy.ascontiguousarray(x) for x in (q, k, v)]
    got = flash_attn_padded.flash_attn_padded(q, k, v)
    for x, y in zip(got, flash_attn_persistent.flash_attn_persistent(*packed), strict=True):
        assert (x == y).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strided_arrays(name):
    if name != "mma" and not HOPPER:
        pytest.skip("needs a Hopper GPU")
    rng = np.random.default_rng(0)
    qkv = cupy.asarray(rng.standard_normal((2, 3, 4, 200, 64)).astype(np.float16))
    q, k, v = (qkv[:, i].transpose(0, 2, 1, 3) for i in range(3))  # heads before seqlen
    packed = [cupy.ascontiguousarray(x) for x in (q, k, v)]
    for x, y in zip(FUNCTIONS[name](q, k, v), FUNCTIONS[name](*packed), strict=True):
        assert (x == y).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_softmax_scale_and_large_scores(name):
    if name != "mma" and not HOPPER:
        pytest.skip("needs a Hopper GPU")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 150, 1, 64)).astype(np.float16) for _ in range(3))
    for scale in (1e-6, 0.3, 40.0):
        out_ref, lse_ref = reference.attention(q, k, v, softmax_scale=scale)
        out, lse = FUNCTIONS[name](*map(on_gpu, (q, k, v)), softmax_scale=scale)
        np.testing.assert_allclose(out.get(), out_ref, atol=2e-3)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_tensors(name, dtype):
    if name != "mma" and not HOPPER:
        pytest.skip("needs a Hopper GPU")
    torch = pytest.importorskip("torch")
    q, k, v = (
        torch.randn(2, 100, 4, 64, device="cuda").to(getattr(torch, dtype)) for _ in range(3)
    )
    out, _ = FUNCTIONS[name](q, k, v)
    assert isinstance(out, torch.Tensor) and out.dtype == q.dtype
    want, _ = reference.attention(*(x.float().cpu().numpy() for x in (q, k, v)))
    np.testing.assert_allclose(out.float().cpu().numpy(), want, atol=2e-2)
