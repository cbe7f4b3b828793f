"""Kernels with the user's mask, score and sinks, against the definition in float64."""

import expression_cases
import numpy as np
import pytest

import fa_numba
from fa_numba import reference


@pytest.mark.parametrize("name", expression_cases.CASES)
@pytest.mark.parametrize("sizes", [(37, 37), (13, 45)], ids=str)
def test_flash_attn_v2(name, sizes):
    seqlen_q, seqlen_k = sizes
    rng = np.random.default_rng()
    q = rng.standard_normal((2, seqlen_q, 4, 8), np.float32)
    k, v = rng.standard_normal((2, 2, seqlen_k, 2, 8), np.float32)
    ours, definition = expression_cases.options_of(name, 4, seqlen_k)
    out, lse = fa_numba.flash_attn_v2(q, k, v, **ours)
    want_out, want_lse = reference.attention(q, k, v, **definition)
    np.testing.assert_allclose(out, want_out, atol=2e-5)
    np.testing.assert_allclose(lse, want_lse, atol=2e-5)
