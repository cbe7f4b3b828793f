"""The instructions on 8-bit floats, the quantisation and the kernel, on a real GPU."""

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
if not cuda.is_available() or cuda.get_current_device().compute_capability[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

import fp8_kernels as kernels  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.tensor_core import layouts, quantize_fp8  # noqa: E402
from fa_numba.tensor_core.flash_attn_fp8 import flash_attn_fp8  # noqa: E402

E4M3 = ml_dtypes.float8_e4m3fn
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run(kernel, threads, *args, shared_bytes=0):
    """Launch one thread block; NumPy arrays come back changed."""
    on_gpu = [cupy.asarray(x) for x in args]
    kernel[1, threads, cuda.default_stream(), shared_bytes](*on_gpu)
    for x, changed in zip(args, on_gpu, strict=True):
        x[...] = changed.get()


def chunks(x):
    """The bytes of a matrix as a tile has them: chunks of 16 columns, each with all rows."""
    rows, cols = x.shape
    return x.astype(E4M3).view(np.uint8).reshape(rows, cols // 16, 16).transpose(1, 0, 2).ravel()


def test_pack():
    x = np.concatenate([np.linspace(-500, 500, 64), np.geomspace(1e-4, 4, 64)]).astype(np.float32)
    y = np.zeros(32, np.uint32)
    run(kernels.pack_kernel, 32, x, y)
    np.testing.assert_array_equal(y.view(np.uint8), x.clip(-448, 448).astype(E4M3).view(np.uint8))


def test_words(rng):
    x, y = rng.integers(0, 1 << 32, 128).astype(np.uint32), np.zeros(128, np.uint32)
    run(kernels.words_kernel, 32, x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("n, k", [(8, 32), (64, 64), (128, 128), (192, 128), (224, 64)])
def test_wgmma(rng, n, k):
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, k), (n, k)))
    d = np.zeros(128 * n // 2, np.float32)
    run(kernels.make_wgmma(n, k, False), 128, chunks(a), chunks(b), d, shared_bytes=48 * 1024)
    np.testing.assert_array_equal(d, (a @ b.T)[layouts.wgmma_d(n)].ravel())


@pytest.mark.parametrize("n, k", [(8, 32), (64, 64), (128, 128), (128, 192), (64, 224)])
def test_wgmma_with_registers(rng, n, k):
    """A lies as a product's result does, its columns in slots."""
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, k), (n, k)))
    d = rng.integers(-9, 9, (64, n)).astype(np.float32)
    registers = d[layouts.wgmma_d(n)].ravel()
    held = a[layouts.wgmma_d(k)].reshape(128, k // 32, 2, 2, 2, 2)  # thread, 32s, 16s, 8s, h, c
    held = held.transpose(0, 1, 2, 4, 3, 5).astype(E4M3).view(np.uint8).ravel()
    keys = np.arange(k) // 16 * 16 + [quantize_fp8.slot_key(n % 16) for n in range(k)]
    kernel = kernels.make_wgmma(n, k, True)
    run(kernel, 128, held, chunks(b[:, keys]), registers, shared_bytes=48 * 1024)
    np.testing.assert_array_equal(registers, (a @ b.T + d)[layouts.wgmma_d(n)].ravel())


SIZES = [(128, 64, 200), (64, 128, 128), (128, 192, 300)]


def as_floats(tiles):
    return tiles.get().view(E4M3).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize(
    "head_dim, rows, seqlen", [(128, 64, 200), (64, 128, 128), (128, 192, 300)]
)
def test_quantize_rows(rng, head_dim, rows, seqlen, hadamard, dtype):
    x = rng.standard_normal((2, seqlen, 3, head_dim)).astype(DTYPES[dtype])
    x[0, 1, 2] = 0
    x[1, 2, 0, 5] = 100
    x8 = quantize_fp8.quantize_rows(cupy.asarray(x), rows, hadamard=hadamard, multiple=2)
    num_tiles = x8.tiles.shape[2]
    assert num_tiles == -(-seqlen // (2 * rows)) * 2
    y = as_floats(x8.tiles).reshape(2, 3, num_tiles, head_dim // 16, rows, 16)
    y = y.transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, num_tiles, rows, head_dim)
    y *= x8.scales.get()[..., None, None]
    want = np.zeros((2, num_tiles * rows, 3, head_dim))
    want[:, :seqlen] = x.astype(np.float64)
    if hadamard:
        want = want @ quantize_fp8.rotation(head_dim)
    want = want.transpose(0, 2, 1, 3).reshape(y.shape)
    largest = np.abs(want).max(axis=(3, 4))
    np.testing.assert_allclose(
        x8.scales.get(),
        np.maximum(largest, 0 if largest.all() else 1e-9) / 448,
        rtol=1e-5,
        atol=3e-9,
    )
    step = np.maximum(np.abs(want) / 16, x8.scales.get()[..., None, None] * 2.0**-10)
    assert (np.abs(y - want) <= 1.001 * step).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "head_dim, rows, seqlen", [(128, 64, 200), (64, 128, 128), (128, 192, 300)]
)
def test_quantize_columns(rng, head_dim, rows, seqlen, dtype):
    x = rng.standard_normal((2, seqlen, 3, head_dim)).astype(DTYPES[dtype])
    x8 = quantize_fp8.quantize_columns(cupy.asarray(x), rows)
    num_tiles = x8.tiles.shape[2]
    y = as_floats(x8.tiles).reshape(2, 3, num_tiles * rows // 16, head_dim, 16)
    want = np.zeros((2, num_tiles * rows, 3, head_dim))
    want[:, :seqlen] = x.astype(np.float64)
    want = want.reshape(2, -1, 16, 3, head_dim).transpose(0, 3, 1, 4, 2)
    want = want[..., [quantize_fp8.slot_key(slot) for slot in range(16)]]
    scale = np.repeat(x8.scales.get(), rows // 16, axis=2)[..., None, None]
    step = np.maximum(np.abs(want) / 16, scale * 2.0**-10)
    assert (np.abs(y * scale - want) <= 1.001 * step).all()


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
    (1, 4096, 4096, 2, 1, 128, True),
    (1, 4096, 4096, 2, 1, 64, False),
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
    """The same in NumPy: Q, K, V and P rounded to e4m3, tiles of rows with a scale each."""

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
    return np.einsum("bhmn,bnhd->bmhd", p, v), lse


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_forward(case, dtype):
    """Not worse than twice a plain computation with the same roundings; twice the same bits."""
    q, k, v = make_case(case, dtype)
    causal = case[-1]
    want, lse_want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=causal)
    plain_out, plain_lse = plain(q, k, v, causal)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    out, lse = flash_attn_fp8(*on_gpu, causal=causal)
    got = out.get().astype(np.float64)
    seen = np.isfinite(lse_want)
    assert (np.isfinite(lse.get()) == seen).all()
    assert (got.transpose(0, 2, 1, 3)[~seen] == 0).all()
    error, plain_error = (np.sqrt(np.mean((x - want) ** 2)) for x in (got, plain_out))
    largest, plain_largest = (np.abs(x - want).max() for x in (got, plain_out))
    assert error <= 1.5 * plain_error + 1e-6
    assert largest <= 2 * plain_largest + 1e-6
    lse_error = np.abs(np.where(seen, lse.get(), 0) - np.where(seen, lse_want, 0)).max()
    plain_error = np.abs(np.where(seen, plain_lse, 0) - np.where(seen, lse_want, 0)).max()
    assert lse_error <= 2 * plain_error + 1e-5
    for _ in range(3):
        again = flash_attn_fp8(*on_gpu, causal=causal)
        for x, y in zip((out, lse), again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()
