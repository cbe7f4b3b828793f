"""cascade_decode on a real GPU: `pytest -m gpu`."""

import numpy as np
import pytest
from cases import make_paged_cache
from gpu_cases import cupy_on_a_gpu

cupy = cupy_on_a_gpu()

from fa_numba import cascade_decode, reference  # noqa: E402
from fa_numba.dispatch import cascade  # noqa: E402
from fa_numba.kv_cache import cascade_plan  # noqa: E402
from fa_numba.tensor_core import shared_segment  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("in_order", [True, False], ids=["neighbours", "shuffled"])
@pytest.mark.parametrize("dtype, many", [("float16", 128), ("float32", 128), ("float32", 1)])
@pytest.mark.parametrize("seqlen_q", [1, 3])
@pytest.mark.parametrize("more", [0, 5])
def test_against_float64(in_order, dtype, many, seqlen_q, more, monkeypatch):
    """Eight sequences share 20 pages, four of them perhaps 5 more; as if `many` rows were many."""
    monkeypatch.setattr(cascade, "MANY_ROWS", many)
    rng = np.random.default_rng(0)
    lengths, page_size = [430, 417, 450, 433, 330, 329, 323, 400], 16
    k, v, table, lengths = make_paged_cache(rng, lengths, page_size, 2, 64)
    table[1:, :20], table[1:4, 20 : 20 + more] = table[0, :20], table[0, 20 : 20 + more]
    if in_order:
        first = table[0, :27]
        order = np.concatenate([first, np.setdiff1d(np.arange(len(k)), first)])
        k, v, place = k[order], v[order], np.argsort(order)
        table = np.where(table >= 0, place[table], -1).astype(np.int32)
    q = rng.standard_normal((8, seqlen_q, 8, 64)).astype(dtype)
    k, v = k.astype(dtype), v.astype(dtype)
    plan = cascade_plan(table, lengths, page_size, seqlen_q=seqlen_q)
    segments = [(8, 20), (4, 5)][: 2 if more else 1]
    assert [(len(s.rows), s.pages.size) for s in plan.segments] == segments
    arrays = [cupy.asarray(x) for x in (q, k, v)]
    got = cascade_decode(*arrays, plan.on_device_of(arrays[0]), causal=True)
    again = cascade_decode(*arrays, plan.on_device_of(arrays[0]), causal=True)
    exact = (np.nan_to_num(x).astype(np.float64) for x in (k, v))
    want, want_lse = reference.paged_attention(q, *exact, table, lengths, causal=True)
    tolerance = 2e-3 if dtype == "float16" else 2e-6
    np.testing.assert_allclose(got[0].get().astype(np.float64), want, atol=tolerance)
    np.testing.assert_allclose(got[1].get(), want_lse, atol=1e-4, rtol=1e-4)
    for x, y in zip(got, again, strict=True):
        assert x.get().tobytes() == y.get().tobytes()


@pytest.mark.parametrize("own", [(70, 1, 33, 128), (2000, 1500)], ids=["short", "long"])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_two_launches(own, softcap):
    """More parts of the shared keys than warps; with long suffixes these are split, too."""
    rng, page_size, shared = np.random.default_rng(0), 16, 200
    k, v, table, lengths = make_paged_cache(rng, [3200 + n for n in own], page_size, 2, 128)
    table[:, :shared] = table[0, :shared]
    rows = cupy.asarray(rng.standard_normal((len(own), 1, 12, 128)).astype(np.float16))
    q, k, v = rows[:, :, :8], k.astype(np.float16), v.astype(np.float16)  # q as from one product
    plan = cascade_plan(table, lengths, page_size).on_device_of(q)
    got = cascade_decode(q, *map(cupy.asarray, (k, v)), plan, softcap=softcap)
    exact = (np.nan_to_num(x).astype(np.float64) for x in (k, v))
    want, want_lse = reference.paged_attention(q.get(), *exact, table, lengths, softcap=softcap)
    np.testing.assert_allclose(got[0].get().astype(np.float64), want, atol=1e-3)
    np.testing.assert_allclose(got[1].get(), want_lse, atol=1e-4, rtol=1e-4)
    assert shared_segment.attend_together.replays
