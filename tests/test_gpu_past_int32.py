"""Arrays of more than 2³¹ elements on a GPU, where an index of 32 bits would wrap.

Only the last rows are compared: theirs are the largest indices.
"""

from pathlib import Path

import numpy as np
import pytest
from cases import kernel_function
from gpu_cases import ON_A_GPU
from numba import cuda

import fa_numba
from fa_numba import reference
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = ON_A_GPU

BATCH, SEQLEN, HEADS, HEAD_DIM = 65_535, 65, 4, 128  # the largest batch of a grid
LAST = slice(BATCH - 2, BATCH)
PAGE_SIZE = 16
NUM_PAGES = 2**31 // (PAGE_SIZE * HEADS * HEAD_DIM) + 10
assert BATCH * SEQLEN * HEADS * HEAD_DIM > 2**31 < (NUM_PAGES - 8) * PAGE_SIZE * HEADS * HEAD_DIM


@pytest.fixture(autouse=True)
def memory():
    """Some 9 GB an array, up to nine of them, in one process at a time; others need some too."""
    fcntl = pytest.importorskip("fcntl", reason="one process at a time needs a lock of Unix")
    pool = cupy.get_default_memory_pool()
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pool.free_all_blocks()
        free = cuda.current_context().get_memory_info().free
        if free < 100e9:
            pytest.skip(f"needs a GPU with 100 GB free, and this one has {free / 1e9:.0f} GB")
        yield
        pool.free_all_blocks()


def random(*shape):
    return cupy.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def three():
    x = random(BATCH, SEQLEN, HEADS, HEAD_DIM)
    return x, x[:, :, ::-1], x[:, ::-1]  # views cost no memory, and are as far to index


def last(*arrays):
    return [x[LAST].get() for x in arrays]


@pytest.mark.parametrize(
    "name", ["naive_attn", "lazy_softmax_attn", "flash_attn_v1", "flash_attn_v2"]
)
def test_forward(name):
    q, k, v = three()
    out, *_ = getattr(fa_numba, name)(q, k, v, causal=True)
    want, _ = reference.attention(*last(q, k, v), causal=True)
    np.testing.assert_allclose(out[LAST].get(), want, rtol=1e-4, atol=1e-5)


def test_backward():
    q, k, v = three()
    out, lse = fa_numba.flash_attn_v2(q, k, v)
    got = fa_numba.flash_attn_bwd(v, q, k, v, out, lse)
    want = reference.attention_bwd(*last(v, q, k, v))
    for x, x_ref in zip(got, want, strict=True):
        np.testing.assert_allclose(x[LAST].get(), x_ref, rtol=1e-3, atol=1e-4)


def test_varlen():
    packed = [cupy.ascontiguousarray(x).reshape(-1, HEADS, HEAD_DIM) for x in three()[:2]]
    q, k = packed
    cu_seqlens = cupy.arange(BATCH + 1, dtype=np.int32) * SEQLEN
    out, lse = flash_attn_varlen(q, k, k, cu_seqlens, cu_seqlens, causal=True)
    rows = slice(len(q) - SEQLEN, len(q))
    q_last, k_last = (x[None, rows].get() for x in (q, k))
    want, _ = reference.attention(q_last, k_last, k_last, causal=True)
    np.testing.assert_allclose(out[rows].get(), want[0], rtol=1e-4, atol=1e-5)
    arguments = (q, q, k, k, out, lse, cu_seqlens, cu_seqlens)
    got = fa_numba.flash_attn_varlen_bwd(*arguments, causal=True)
    want = reference.attention_bwd(q_last, q_last, k_last, k_last, causal=True)
    for x, x_ref in zip(got, want, strict=True):
        np.testing.assert_allclose(x[rows].get(), x_ref[0], rtol=1e-3, atol=1e-4)


def test_linear_attn():
    q, k, v = three()
    out, state = fa_numba.linear_attn(q, k, v)
    want, state_ref = reference.linear_attn(*last(q, k, v))
    np.testing.assert_allclose(out[LAST].get(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state[LAST].get(), state_ref, rtol=1e-4, atol=1e-4)


def test_softmax():
    x = random(2**16 + 10, 2**15)
    want = reference.softmax(x[-3:].get())
    for name in ("naive_softmax", "safe_softmax", "online_softmax", "softmax_registers"):
        got = getattr(fa_numba, name)(x)
        np.testing.assert_allclose(got[-3:].get(), want, rtol=1e-4, atol=1e-9)
        del got
    values_ref, columns_ref = reference.softmax_topk(x[-3:].get(), 5)
    for name in ("softmax_topk", "softmax_topk_warps"):
        values, columns = kernel_function(name)(x, 5)
        np.testing.assert_allclose(values[-3:].get(), values_ref, rtol=1e-4)
        np.testing.assert_array_equal(columns[-3:].get(), columns_ref)


def test_flash_decode():
    seqlen_k, window = NUM_PAGES * PAGE_SIZE, 700
    k, v = random(1, seqlen_k, HEADS, HEAD_DIM), random(1, seqlen_k, HEADS, HEAD_DIM)
    q = random(1, 3, HEADS, HEAD_DIM)
    seq_lens = cupy.array([seqlen_k], np.int32)
    options = {"causal": True, "window_size": (window, -1)}
    out, lse = flash_decode(q, k, v, seq_lens, **options)
    near = [x[:, -window - 10 :].get() for x in (k, v)]
    want, lse_ref = reference.attention(q.get(), *near, **options)
    np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)


def test_pages():
    caches = [cupy.full((NUM_PAGES, PAGE_SIZE, HEADS, HEAD_DIM), np.nan, np.float32) for _ in "kv"]
    num_tokens = 3 * PAGE_SIZE - 1
    q = random(1, 2, HEADS, HEAD_DIM)
    k, v = random(2, num_tokens, HEADS, HEAD_DIM)
    pages = NUM_PAGES - cupy.array([[1, 7, 4]], np.int32)
    slots = (pages[0, :, None] * PAGE_SIZE + cupy.arange(PAGE_SIZE)).ravel()[:num_tokens]
    fa_numba.reshape_and_cache(k, v, *caches, slots.astype(np.int32))
    moved = NUM_PAGES - cupy.array([[3, 8, 2]], np.int32)
    fa_numba.copy_pages(*caches, pages[0], moved[0])
    seq_lens = cupy.array([num_tokens], np.int32)
    want, _ = reference.attention(q.get(), k[None].get(), v[None].get())
    for block_table in (pages, moved):
        for x, x_ref in zip(
            fa_numba.paged_kv_lookup(*caches, block_table, seq_lens), (k, v), strict=True
        ):
            assert (x[0, :num_tokens] == x_ref).all()
        out, _ = paged_attn_decode(q, *caches, block_table, seq_lens)
        np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-5)
