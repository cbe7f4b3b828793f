"""The instructions on 8-bit floats, the quantisation and the kernel, on a real GPU."""

import ml_dtypes
import numpy as np
import pytest
from gpu_cases import ON_A_GPU, cupy_on_a_gpu, run

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

import tensor_core_kernels as kernels  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.ptx import layouts, wgmma  # noqa: E402
from fa_numba.tensor_core import quantize_fp8  # noqa: E402
from fa_numba.tensor_core.flash_attn_fp8 import flash_attn_fp8  # noqa: E402

E4M3 = ml_dtypes.float8_e4m3fn
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def as_tile(x, width):
    """The bytes of a matrix as a tile in shared memory has them."""
    row, col = np.mgrid[: x.shape[0], : x.shape[1]]
    tile = np.empty(x.size, np.uint8)
    tile[wgmma.byte_offset(row, col, x.shape[0], width)] = x.astype(E4M3).view(np.uint8)
    return tile


def from_tiles(tiles, scales, num_rows, width):
    """Values of tiles (batch, heads, num_tiles, bytes), as (..., num_tiles, rows, cols)."""
    tiles = tiles.get()
    row, col = np.mgrid[:num_rows, : tiles.shape[3] // num_rows]
    x = tiles[..., wgmma.byte_offset(row, col, num_rows, width)].view(E4M3).astype(np.float64)
    return x * scales.get()[..., None, None]


def test_pack():
    x = np.concatenate([np.linspace(-500, 500, 64), np.geomspace(1e-4, 4, 64)]).astype(np.float32)
    y = np.zeros(32, np.uint32)
    run(kernels.pack_e4m3_kernel, 32, x, y)
    np.testing.assert_array_equal(y.view(np.uint8), x.clip(-448, 448).astype(E4M3).view(np.uint8))


def test_words(rng):
    x, y = rng.integers(0, 1 << 32, 128).astype(np.uint32), np.zeros(128, np.uint32)
    run(kernels.words_kernel, 32, x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "n, k, width", [(8, 32, 32), (64, 64, 64), (128, 128, 128), (192, 128, 64), (224, 64, 32)]
)
def test_wgmma(rng, n, k, width):
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, k), (n, k)))
    d = np.zeros(128 * n // 2, np.float32)
    kernel = kernels.make_wgmma(n, k, "e4m3", False, width)
    run(kernel, 128, as_tile(a, width), as_tile(b, width), d, shared_bytes=48 * 1024)
    np.testing.assert_array_equal(d, (a @ b.T)[layouts.wgmma_d(n)].ravel())


@pytest.mark.parametrize(
    "n, k, width", [(8, 32, 32), (64, 64, 64), (128, 128, 128), (128, 192, 64), (64, 224, 32)]
)
def test_wgmma_with_registers(rng, n, k, width):
    """A has the layout of a product's result, its columns in slots."""
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, k), (n, k)))
    d = np.zeros(128 * n // 2, np.float32)
    held = a[layouts.wgmma_d(k)].reshape(128, k // 32, 2, 2, 2, 2)  # thread, 32s, 16s, 8s, h, c
    held = held.transpose(0, 1, 2, 4, 3, 5).astype(E4M3).view(np.uint8).ravel()
    keys = np.arange(k) // 16 * 16 + [quantize_fp8.slot_key(n % 16) for n in range(k)]
    kernel = kernels.make_wgmma(n, k, "e4m3", True, width)
    run(kernel, 128, held, as_tile(b[:, keys], width), d, shared_bytes=48 * 1024)
    np.testing.assert_array_equal(d, (a @ b.T)[layouts.wgmma_d(n)].ravel())


def assert_rounded(got, want, scale):
    """Off by at most half a step of e4m3, where the last steps are 2⁻⁹ of the scale."""
    step = np.maximum(np.abs(want) / 16, scale * 2.0**-10)
    assert (np.abs(got - want) <= 1.001 * step).all()


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize(
    "head_dim, seqlen_q, seqlen_k, dtype",
    [(128, 200, 333, "float16"), (64, 128, 128, "float16"), (128, 300, 1, "bfloat16")],
)
def test_quantize(rng, head_dim, seqlen_q, seqlen_k, dtype, hadamard):
    """The tiles against NumPy's rounding; 4 query heads, 2 heads of K and V."""
    q_rows, block_n, multiple = 64, 128, 3
    q, k, v = (
        rng.standard_normal((2, n, heads, head_dim)).astype(DTYPES[dtype])
        for n, heads in ((seqlen_q, 4), (seqlen_k, 2), (seqlen_k, 2))
    )
    q[0, 1, 2], q[1, 2, 0, 5], k[1, 0, 1, 3], v[0, 0, 0] = 0, 100, 50, 0
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    options = {"hadamard": hadamard, "multiple": multiple}
    made = quantize_fp8.quantize(*on_gpu, q_rows, block_n, **options)
    slots = np.arange(block_n) // 16 * 16 + [quantize_fp8.slot_key(n % 16) for n in range(block_n)]
    largest = []
    for x, x8, rows in zip((q, k, v), made, (q_rows, block_n, block_n), strict=True):
        num_tiles = x8.tiles.shape[2]
        assert x8.shape == x.shape and x8.rows == rows
        assert num_tiles == (-(-seqlen_q // (3 * rows)) * 3 if x is q else -(-seqlen_k // rows))
        want = np.zeros((2, num_tiles * rows, *x.shape[2:]))
        want[:, : x.shape[1]] = x
        if x is not v:
            want = want @ quantize_fp8.rotation(head_dim, hadamard)
        want = want.reshape(2, num_tiles, rows, *x.shape[2:]).transpose(0, 3, 1, 2, 4)
        scale = x8.scales.get()[..., None, None]
        if x is v:
            want = want[..., slots, :].swapaxes(3, 4)
            num_rows = head_dim + quantize_fp8.SUM_ROWS
            got = from_tiles(x8.tiles, x8.scales, num_rows, quantize_fp8.width_of(rows))
            ones = got[..., head_dim:, :] / scale
            assert (ones[..., 0, :] == 1).all() and (ones[..., 1:, :] == 0).all()
            got = got[..., :head_dim, :]
        else:
            got = from_tiles(x8.tiles, x8.scales, rows, quantize_fp8.width_of(head_dim))
        scales = np.abs(want).max(axis=(3, 4)) / 448
        np.testing.assert_allclose(x8.scales.get(), scales, rtol=1e-5, atol=3e-9)
        assert_rounded(got, want, scale)
        norm = head_dim**0.5 if hadamard and x is not v else 1
        largest.append(float(np.abs(want).max()) * norm)
    again = quantize_fp8.quantize(*on_gpu, q_rows, block_n, least=largest, **options)
    for x8, one in zip(made, again, strict=True):
        np.testing.assert_allclose(one.scales.get(), float(x8.scales.max()), rtol=1e-5)


# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal
CASES = [
    (1, 1, 1, 1, 1, 128, False),
    (1, 128, 128, 1, 1, 128, False),
    (2, 200, 333, 4, 2, 128, False),
    (2, 200, 333, 4, 1, 128, True),
    (1, 333, 200, 2, 2, 128, True),  # rows that see no key
    (1, 500, 10, 2, 1, 128, True),  # thread blocks that see no key
    (1, 1, 1000, 2, 1, 64, True),
    (2, 1000, 1000, 3, 3, 128, True),
    (2, 1000, 1000, 3, 3, 64, False),
    (1, 2048, 2048, 2, 1, 128, True),
    (1, 2048, 2048, 2, 1, 64, False),
]
BFLOAT16 = [
    ("bfloat16", (2, 200, 333, 4, 2, 128, True)),
    ("bfloat16", (1, 500, 500, 2, 1, 64, False)),
]


def make_case(case, dtype):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    rng = np.random.default_rng(sum(case))
    shapes = (seqlen_q, num_heads), (seqlen_k, num_kv_heads), (seqlen_k, num_kv_heads)
    return [
        rng.standard_normal((batch, n, heads, head_dim)).astype(DTYPES[dtype])
        for n, heads in shapes
    ]


def plain(q, k, v, causal, block_n=128):
    """The same in NumPy: Q, K, V and P rounded to e4m3, tiles with a scale each, exact sums."""

    def rounded(x, rows):
        y = np.zeros((x.shape[0], -(-x.shape[1] // rows) * rows, *x.shape[2:]))
        y[:, : x.shape[1]] = x
        y = y.reshape(x.shape[0], -1, rows, *x.shape[2:])
        scale = np.maximum(np.abs(y).max(axis=(2, 4), keepdims=True), 2.0**-20) / 448
        y = (y / scale).astype(E4M3).astype(np.float64) * scale
        return y.reshape(x.shape[0], -1, *x.shape[2:])[:, : x.shape[1]]

    rotation = quantize_fp8.rotation(q.shape[3])
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    q, k, v = rounded(q @ rotation, 64), rounded(k @ rotation, block_n), rounded(v, block_n)
    out, lse = reference.attention(q, k, v, causal=causal)
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    s = np.einsum("bmhd,bnhd->bhmn", q, k) / np.sqrt(q.shape[3])
    if causal:
        m, n = np.ogrid[: q.shape[1], : k.shape[1]]
        s = np.where(n > m + k.shape[1] - q.shape[1], -np.inf, s)
    p = np.exp(s - np.where(np.isfinite(lse), lse, 0)[..., None])
    top = p.max(axis=-1, keepdims=True) / 256 + 1e-300
    p = (p / top).astype(E4M3).astype(np.float64) * top
    l = p.sum(axis=-1)
    lse[l > 0] += np.log(l[l > 0])
    p /= np.where(l > 0, l, 1)[..., None]
    return np.einsum("bhmn,bnhd->bmhd", p, v), lse


@pytest.mark.parametrize("dtype, case", [("float16", case) for case in CASES] + BFLOAT16, ids=str)
def test_forward(case, dtype, poisoned):
    """Not worse than twice a plain computation with the same roundings; the same bits each time."""
    q, k, v = make_case(case, dtype)
    causal = case[-1]
    want, lse_want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=causal)
    plain_out, plain_lse = plain(q, k, v, causal)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    out, lse = flash_attn_fp8(*on_gpu, causal=causal)
    got, seen = out.get().astype(np.float64), np.isfinite(lse_want)
    assert (np.isfinite(lse.get()) == seen).all()
    assert (got.transpose(0, 2, 1, 3)[~seen] == 0).all()
    error, plain_error = (np.sqrt(np.mean((x - want) ** 2)) for x in (got, plain_out))
    largest, plain_largest = (np.abs(x - want).max() for x in (got, plain_out))
    assert error <= 1.5 * plain_error + 1e-6
    assert largest <= 2 * plain_largest + 1e-6
    lse_error, plain_error = (
        np.abs(np.where(seen, x, 0) - np.where(seen, lse_want, 0)).max()
        for x in (lse.get(), plain_lse)
    )
    assert lse_error <= 2 * plain_error + 3e-3  # the tensor cores' sums of P have 14 bits
    for _ in range(20):
        again = flash_attn_fp8(*on_gpu, causal=causal)
        for x, y in zip((out, lse), again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize("seqlen", [1024, 8192])
def test_long_sums_keep_their_digits(seqlen):
    """V around 1: all that the tensor cores cut off is lost to one side."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, seqlen, 1, 128)).astype(np.float16) for _ in range(3))
    v += np.float16(1)
    out, _ = flash_attn_fp8(*(cupy.asarray(x) for x in (q, k, v)))
    want, _ = reference.attention(q[:, :256], k, v)
    assert abs((out.get()[:, :256] - want).mean()) <= 0.005


@pytest.mark.parametrize("seqlen_k, causal", [(500, False), (500, True), (1500, True)])
def test_tiles_of_very_different_size(seqlen_k, causal):
    """The weight of keys whose V is 0, or small, is not lost."""
    q, k, v = make_case((1, 300, seqlen_k, 1, 1, 128, causal), "float16")
    v[:, 128:256] = 0
    v[:, 384:1408] *= np.float16(1e-3)  # some rows see no later tile, but a neighbour does
    out, lse = flash_attn_fp8(*(cupy.asarray(x) for x in (q, k, v)), causal=causal)
    exact = (x.astype(np.float64) for x in (q, k, v))
    want, lse_want = reference.attention(*exact, causal=causal)
    error, size = (np.sqrt(np.mean(x**2)) for x in (out.get() - want, want))
    assert error <= 0.08 * size
    np.testing.assert_allclose(lse.get(), lse_want, atol=0.1)


def test_strided_arrays():
    rng = np.random.default_rng(0)
    qkv = cupy.asarray(rng.standard_normal((2, 3, 4, 200, 128)).astype(np.float16))
    q, k, v = (qkv[:, i].transpose(0, 2, 1, 3) for i in range(3))  # heads before seqlen
    packed = [cupy.ascontiguousarray(x) for x in (q, k, v)]
    for x, y in zip(flash_attn_fp8(q, k, v), flash_attn_fp8(*packed), strict=True):
        assert (x == y).all()


def test_scales_of_any_size():
    """Inputs a thousand times larger or smaller, and a softmax_scale that makes up for it."""
    q, k, v = make_case((1, 300, 300, 1, 1, 128, False), "float16")
    out, lse = flash_attn_fp8(*(cupy.asarray(x) for x in (q, k, v)))
    for factor in (1024, 1 / 1024):
        q2, k2, v2 = (cupy.asarray(x * np.float16(factor)) for x in (q, k, v))
        out2, lse2 = flash_attn_fp8(q2, k2, v2, softmax_scale=128**-0.5 / factor**2)
        np.testing.assert_allclose(out2.get() / factor, out.get(), atol=0.02)
        np.testing.assert_allclose(lse2.get(), lse.get(), atol=0.02)


def test_head_dims_that_it_does_not_take():
    x = cupy.zeros((1, 4, 1, 96), np.float16)
    with pytest.raises(ValueError, match="head_dim of 64 or 128 for flash_attn_fp8, got 96"):
        flash_attn_fp8(x, x, x)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, 100, 4, 128, device="cuda").half() for _ in range(3))
    out, _ = flash_attn_fp8(q, k, v)
    assert isinstance(out, torch.Tensor) and out.dtype == q.dtype
    want, _ = reference.attention(*(x.float().cpu().numpy() for x in (q, k, v)))
    np.testing.assert_allclose(out.float().cpu().numpy(), want, atol=0.15)
