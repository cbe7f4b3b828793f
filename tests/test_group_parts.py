"""Groups of query heads in parts: how many, and the sum of their gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_compile import check_budget

from fa_numba.tensor_core import group_parts


def parts_of(batch, seqlen, num_heads, num_kv_heads, *, causal=True, window_size=(-1, -1)):
    q, k = (SimpleNamespace(shape=(batch, seqlen, h, 128)) for h in (num_heads, num_kv_heads))
    mask = SimpleNamespace(causal=causal, window_size=window_size)
    return group_parts.fastest(q, k, mask, num_sms=132)


@pytest.mark.parametrize(
    "problem, parts",
    [
        ((1, 2048, 64, 8), 2),  # 64 pairs of tiles
        ((1, 512, 64, 8), 8),
        ((1, 2048, 8, 8), 1),  # no group
        ((1, 300, 12, 4), 1),  # groups of three
        ((1, 300, 24, 4), 2),  # groups of six
        ((8, 4096, 64, 8), 1),  # every SM has work
        ((1, 16384, 64, 8), 1),
        ((1, 0, 64, 8), 1),
    ],
)
def test_parts_are_as_many_as_give_every_sm_work(problem, parts):
    assert parts_of(*problem) == parts


def test_half_of_the_thread_blocks_under_a_causal_mask_and_one_part_with_a_window():
    assert parts_of(1, 2048, 64, 8, causal=False) == 1
    assert parts_of(1, 512, 64, 8, window_size=(100, 0)) == 1


@pytest.mark.parametrize("head_dim, parts", [(8, 2), (128, 4), (72, 8)])
def test_the_parts_are_added(rng, checked, head_dim, parts):
    gradients = [np.full((2, 13, 3, head_dim), np.nan, np.float16) for _ in range(2)]
    of_parts = [group_parts.empty(x, parts) for x in gradients]
    for x in of_parts:
        assert x.shape == (2, 13, 3 * parts, head_dim) and x.dtype == np.float32
        x[...] = rng.standard_normal(x.shape)
    group_parts.add(of_parts, gradients)
    for x, got in zip(of_parts, gradients, strict=True):
        want = x.astype(np.float64).reshape(2, 13, 3, parts, head_dim).sum(3)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)


def test_the_sum_is_within_its_budget():
    x, y = np.zeros((100, 4, 128), np.float32), np.zeros((100, 128), np.float16)
    check_budget(group_parts.add_parts_kernel, (x, y))
