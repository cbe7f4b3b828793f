"""flash_attn_wide on a real GPU: `pytest -m gpu`; `-k small` is small enough for the sanitizer."""

import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

from test_tensor_core_masks_gpu import assert_right, make_inputs, make_packed, on_gpu  # noqa: E402

from fa_numba import flash_attn, flash_attn_varlen, flash_attn_varlen_grad, which  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_stored import flash_attn_bwd_stored  # noqa: E402
from fa_numba.tensor_core.flash_attn_wide import flash_attn_wide  # noqa: E402

# seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype
SHAPES = {
    "small": (1, 1, 1, 1, 512, "float16"),
    "small-bfloat16": (130, 70, 2, 1, 512, "bfloat16"),
    "small-head_dim_264": (65, 200, 2, 2, 264, "float16"),
    "head_dim_320": (333, 500, 4, 2, 320, "bfloat16"),
    "head_dim_384": (64, 1500, 2, 1, 384, "float16"),
    "copied": (500, 300, 2, 1, 392, "float16"),  # rows for TMA
    "long": (1100, 2000, 8, 4, 512, "float16"),
}
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_size": (200, 30)},
    "causal window": {"causal": True, "window_size": (150, -1)},
    "softcap": {"causal": True, "softcap": 20.0},
}


@pytest.mark.few(lambda shape, mask: [*pairs(shape, mask == "causal"), mask])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_out_and_lse(rng, shape, mask, poisoned):
    qkv, options = make_inputs(rng, shape, **MASKS[mask])
    arguments = list(map(on_gpu, qkv))
    got = flash_attn_wide(*arguments, **options)
    assert_right(got, qkv, options)
    for _ in range(5):  # the same bits in every run
        again = flash_attn_wide(*arguments, **options)
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


def test_small_flash_attn_takes_it(rng):
    qkv, options = make_inputs(rng, SHAPES["small-bfloat16"], causal=True)
    arguments = list(map(on_gpu, qkv))
    assert "flash_attn_wide" in str(which(flash_attn, *arguments, **options))
    for _ in range(2):  # the second one is a replay
        assert_right(flash_attn(*arguments, **options), qkv, options)


# seqlens_q, seqlens_k, num_heads, num_kv_heads, head_dim, dtype
PACKED = {
    "small": ([60, 0, 70, 3], [90, 20, 0, 65], 2, 1, 512, "float16"),
    "long": ([700, 1, 1300, 129], [700, 1, 1500, 200], 4, 2, 512, "bfloat16"),
    "head_dim_320": ([333, 64], [500, 128], 2, 2, 320, "float16"),
    "copied": ([700, 1, 333], [700, 1, 500], 4, 2, 264, "float16"),  # rows for TMA
}


@pytest.mark.few(lambda case, mask: [case, mask])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", PACKED.values(), ids=PACKED)
def test_packed(rng, case, mask, poisoned):
    """As each sequence alone, also beside one of NaN, to the bit."""
    (q, k, v, *starts), options = make_packed(rng, case, **MASKS[mask])
    starts_q, starts_k = starts
    arguments = list(map(on_gpu, (q, k, v, *starts)))
    assert which("flash_attn_varlen", *arguments).kernel == "flash_attn_wide_varlen"
    out, lse = flash_attn_varlen(*arguments, **options)
    for b in range(len(case[0])):
        of_q, of_k = (slice(x[b], x[b + 1]) for x in (starts_q, starts_k))
        alone = [x[None, part] for x, part in ((q, of_q), (k, of_k), (v, of_k))]
        if starts_q[b] < starts_q[b + 1]:
            assert_right((out[None, of_q], lse[None, :, of_q]), alone, options)
        poisoned_others = [x.copy() for x in (q, k, v)]
        for x, part in zip(poisoned_others, (of_q, of_k, of_k), strict=True):
            x[: part.start] = x[part.stop :] = np.nan
        again = flash_attn_varlen(*map(on_gpu, (*poisoned_others, *starts)), **options)
        assert (again[0][of_q].view(np.uint16) == out[of_q].view(np.uint16)).all()
        assert (again[1][:, of_q] == lse[:, of_q]).all()


@pytest.mark.parametrize("case", [PACKED["small"], PACKED["long"]], ids=["small", "long"])
def test_gradients_of_packed(rng, case):
    """As of each sequence alone, to the bit."""
    (q, k, v, *starts), options = make_packed(rng, case, causal=True)
    inputs = list(map(on_gpu, (q, k, v, *starts)))
    out, lse = flash_attn_varlen(*inputs, **options)
    dout = on_gpu(rng.standard_normal(q.shape).astype(q.dtype))
    given = dout, *inputs[:3], out, lse, *inputs[3:]
    assert which("flash_attn_varlen_grad", *given).kernel == "flash_attn_bwd_stored_varlen"
    got = flash_attn_varlen_grad(*given, **options)
    for b in range(len(case[0])):
        of_q, of_k = (slice(x[b], x[b + 1]) for x in starts)
        places = of_q, of_k, of_k
        if of_q.start == of_q.stop or of_k.start == of_k.stop:
            assert not any(x[place].any() for x, place in zip(got, places, strict=True))
            continue
        of_sequence = [
            x[None, place] for x, place in zip((dout, *inputs[:3]), (of_q, *places), strict=True)
        ]
        of_sequence += out[None, of_q], lse[None, :, of_q].copy()
        want = flash_attn_bwd_stored(*of_sequence, **options)
        for x, y, place in zip(got, want, places, strict=True):
            assert (x[place].view(np.uint16) == y[0].view(np.uint16)).all()
