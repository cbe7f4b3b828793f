"""topk_decode and its bounds on a real GPU: `pytest -m gpu`."""

import numpy as np
import pytest
from cases import make_paged_cache
from gpu_cases import cupy_on_a_gpu

cupy = cupy_on_a_gpu()

from fa_numba import reference, topk_decode  # noqa: E402
from fa_numba.dispatch.topk_decode import _scores_in_numpy, _top_pages_in_numpy  # noqa: E402
from fa_numba.kv_cache import page_scores, update_page_bounds  # noqa: E402
from fa_numba.kv_cache.top_pages import top_pages  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_bounds_few_pages_and_all(dtype, page_size):
    rng, lengths = np.random.default_rng(0), [430, 1, 417, 0]
    k, v, table, lengths = make_paged_cache(rng, lengths, page_size, 2, 64)
    q = rng.standard_normal((4, 1, 8, 64)).astype(dtype)
    k, v = (np.nan_to_num(x).astype(dtype) for x in (k, v))
    slots = np.concatenate(
        [table[b, (t := np.arange(n)) // page_size] * page_size + t % page_size
         for b, n in enumerate(lengths)]
    ).astype(np.int32)  # fmt: skip
    bounds = [cupy.full((len(k), 2, 64), np.nan, dtype) for _ in range(2)]
    keys = cupy.asarray(k.reshape(-1, 2, 64)[slots])
    update_page_bounds(keys, *bounds, cupy.asarray(slots), page_size)
    caches, tables = map(cupy.asarray, (k, v)), [cupy.asarray(x) for x in (table, lengths)]
    arrays = cupy.asarray(q), *caches, *bounds, *tables
    got = topk_decode(*arrays, 1000)
    want, want_lse = reference.paged_attention(q, k, v, table, lengths)
    tolerance = 2e-3 if dtype == "float16" else 2e-6
    np.testing.assert_allclose(got[0].get().astype(np.float64), want, atol=tolerance)
    np.testing.assert_allclose(got[1].get(), want_lse, atol=1e-4, rtol=1e-4)
    few, again = (topk_decode(*arrays, 3)[0].get() for _ in range(2))
    assert few.tobytes() == again.tobytes() and np.isfinite(few).all()
    host = [x.get() for x in bounds]
    scores = page_scores(arrays[0], *bounds, *tables, page_size).get()
    on_host = _scores_in_numpy(q, *host, table, lengths, page_size)
    np.testing.assert_allclose(scores, on_host, rtol=1e-5, atol=1e-4)
    on_host, _ = topk_decode(q, k, v, *host, table, lengths, 3)
    np.testing.assert_allclose(few.astype(np.float64), on_host.astype(np.float64), atol=tolerance)


@pytest.mark.parametrize("head_dim, dtype", [(128, "float16"), (96, "float32"), (33, "float16")])
def test_scores_of_many_pages(head_dim, dtype):
    """Bounds at addresses that are and that are not multiples of 16 bytes."""
    rng, lengths = np.random.default_rng(1), np.array([16 * 1000, 3, 16 * 517 + 1], np.int32)
    q = rng.standard_normal((3, 1, 6, head_dim)).astype(dtype)
    numbers = rng.standard_normal((2, 3000, 2, head_dim)).astype(dtype)
    table = rng.permutation(3000).astype(np.int32).reshape(3, 1000)
    bounds = numbers.min(axis=0), numbers.max(axis=0)
    want = _scores_in_numpy(q, *bounds, table, lengths, 16)
    for shift in 0, 1:
        moved = [cupy.zeros(bounds[0].size + shift, dtype)[shift:] for _ in bounds]
        moved = [x.reshape(bounds[0].shape) for x in moved]
        for x, y in zip(moved, bounds, strict=True):
            x.set(y)
        got = page_scores(*map(cupy.asarray, (q, *moved, table, lengths)), 16).get()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("max_pages, number", [(70, 9), (70, 70), (5000, 16), (5000, 4999)])
@pytest.mark.parametrize("values", ["normal", "few"])
def test_chosen_pages_are_those_of_a_sort(values, max_pages, number):
    rng = np.random.default_rng(2)
    lengths = np.array([0, 1, 3 * max_pages - 7, 3 * max_pages], np.int32)
    scores = rng.standard_normal((4, 2, max_pages), np.float32)
    if values == "few":
        scores = rng.choice(np.float32([0.0, -0.0, 1, np.inf, -1, np.nan]), scores.shape)
    exists = 3 * np.arange(max_pages) < lengths[:, None, None]
    scores = np.where(exists, scores, np.float32(-np.inf))
    table = rng.permutation(4 * max_pages).astype(np.int32).reshape(4, -1)
    got = top_pages(*map(cupy.asarray, (scores, table, lengths)), 3, number)
    want = _top_pages_in_numpy(scores, table, lengths, 3, number)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.get(), y, strict=True)
