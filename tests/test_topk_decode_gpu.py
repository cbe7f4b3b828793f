"""topk_decode and its bounds on a real GPU: `pytest -m gpu`."""

import numpy as np
import pytest
from cases import make_paged_cache
from numba import cuda

cupy = pytest.importorskip("cupy", reason="needs CuPy")
if not cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from fa_numba import reference, topk_decode  # noqa: E402
from fa_numba.kv_cache import page_scores, update_page_bounds  # noqa: E402

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
    bounds = [cupy.full((len(k), 2, 64), np.nan, np.float32) for _ in range(2)]
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
    on_host = page_scores(q, *host, table, lengths, page_size)
    np.testing.assert_allclose(scores, on_host, rtol=1e-5, atol=1e-4)
    on_host, _ = topk_decode(q, k, v, *host, table, lengths, 3)
    np.testing.assert_allclose(few.astype(np.float64), on_host.astype(np.float64), atol=tolerance)
