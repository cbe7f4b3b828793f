"""float16 and bfloat16 in every function, on the CPU engine, every access checked.

`dtype_cases` says what each result is held to; the cases of a GPU are in test_gpu.
"""

from functools import partial

import numpy as np
import pytest
from cases import MASKS, assert_close, make_qkv, pages
from dtype_cases import ATTENTION, OTHERS, same

import fa_numba
from fa_numba import reference
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import ContiguousCache

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
pytestmark = pytest.mark.usefixtures("checked")

each_dtype = pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["float16", "bfloat16"])
# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
SHAPES = {
    "gqa": (2, 11, 13, 4, 2, 8),
    "tile_plus_one_head_dim_59": (1, 17, 33, 1, 1, 59),
    "rows_that_see_no_key": (2, 21, 10, 2, 1, 16),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
SOME_MASKS = {"full": {}} | {name: MASKS[name] for name in ("causal_window", "all")}


@pytest.mark.parametrize("mask", SOME_MASKS.values(), ids=SOME_MASKS)
@each_shape
@each_dtype
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.few(lambda name, dtype, shape, mask: [(name, dtype, mask), (name, shape)])
def test_attention(rng, name, dtype, shape, mask):
    ATTENTION[name](rng, dtype, same, shape, mask)


@each_shape
@each_dtype
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.few(lambda name, dtype, shape: [(name, dtype), (name, shape), (dtype, shape)])
def test_others(rng, name, dtype, shape):
    if name == "linear_attn_taylor2":
        shape = (*shape[:5], 8)  # features grow with the square of head_dim
    OTHERS[name](rng, dtype, same, shape)


def ones(*shape):
    return np.ones(shape, np.float32)


HEADS, ROWS, PACKED, CACHE = ones(1, 3, 2, 8), ones(1, 2, 3), ones(3, 2, 8), ones(4, 3, 2, 8)
QKV = {"q": HEADS, "k": HEADS, "v": HEADS}
BWD = {"dout": HEADS, **QKV, "out": HEADS, "lse": ROWS}
STARTS = {"cu_seqlens_q": np.array([0, 3], np.int32), "cu_seqlens_k": np.array([0, 3], np.int32)}
TOKENS = {"q": PACKED, "k": PACKED, "v": PACKED}
CACHES = {"k_cache": CACHE, "v_cache": CACHE}
ONE = np.ones(1, np.int32)
TABLES = {"block_table": ONE[:, None], "seq_lens": ONE}
# function, arguments, those that must be of one dtype
CALLS = [
    (fa_numba.naive_attn, QKV, "q k v"),
    (fa_numba.lazy_softmax_attn, QKV, "q k v"),
    (fa_numba.flash_attn_v1, QKV, "q k v"),
    (fa_numba.flash_attn_v2, QKV, "q k v"),
    (fa_numba.linear_attn, QKV, "q k v"),
    (fa_numba.flash_attn_bwd, BWD, "dout q k v out"),
    (flash_attn_varlen, TOKENS | STARTS, "q k v"),
    (
        fa_numba.flash_attn_varlen_bwd,
        {"dout": PACKED, **TOKENS, "out": PACKED, "lse": ones(2, 3), **STARTS},
        "dout q k v out",
    ),
    (flash_decode, {"q": CACHE, **CACHES, "seq_lens": ONE.repeat(4)}, "q k_cache v_cache"),
    (paged_attn_decode, {"q": HEADS, **CACHES, **TABLES}, "q k_cache v_cache"),
    (
        partial(fa_numba.mla_decode, softmax_scale=1.0, latent_dim=1),
        {"q": HEADS, "latent_cache": HEADS[:, 0], "seq_lens": ONE},
        "q latent_cache",
    ),
    (fa_numba.paged_kv_lookup, CACHES | TABLES, "k_cache v_cache"),
    (
        fa_numba.merge_states,
        {"out_a": HEADS, "lse_a": ROWS, "out_b": HEADS, "lse_b": ROWS},
        "out_a out_b",
    ),
    (
        fa_numba.reshape_and_cache,
        {"k": PACKED, "v": PACKED, **CACHES, "slot_mapping": pages(0, 1, 2)},
        "k v k_cache v_cache",
    ),
    (fa_numba.copy_pages, CACHES | {"src": pages(0), "dst": pages(1)}, "k_cache v_cache"),
    (
        fa_numba.swap_pages,
        {name: CACHE for name in ("k_src", "v_src", "k_dst", "v_dst")}
        | {"src": pages(0), "dst": pages(1)},
        "k_src v_src k_dst v_dst",
    ),
]


@pytest.mark.parametrize(
    "function, arguments, name",
    [(f, arguments, name) for f, arguments, names in CALLS for name in names.split()],
    ids=lambda x: x if isinstance(x, str) else getattr(x, "__name__", ""),
)
def test_dtypes_do_not_mix(function, arguments, name):
    function(**{key: x.copy() for key, x in arguments.items()})
    other = arguments | {name: arguments[name].astype(bfloat16)}
    with pytest.raises(TypeError, match=rf"must be of one dtype, got .*\b{name}: bfloat16"):
        function(**other)


def test_what_is_float32_in_every_call_stays_so():
    half = {name: x.astype(np.float16) for name, x in QKV.items()}
    slopes = np.ones(2, np.float16)
    with pytest.raises(TypeError, match="alibi_slopes must be float32, got float16"):
        fa_numba.flash_attn_v2(**half, alibi_slopes=slopes)
    with pytest.raises(TypeError, match="lse must be float32, got float16"):
        fa_numba.flash_attn_bwd(**{name: x.astype(np.float16) for name, x in BWD.items()})
    state = ones(1, 2, 8, 9).astype(np.float16)
    with pytest.raises(TypeError, match="state must be float32, got float16"):
        fa_numba.linear_attn(**half, state=state)


def test_a_cache_has_the_dtype_of_like():
    cache = ContiguousCache(1, 4, 2, 8, like=np.ones(1, bfloat16))
    assert cache.k_cache.dtype == cache.v_cache.dtype == bfloat16
    with pytest.raises(TypeError, match="k, v, k_cache must be of one dtype, got k: float32"):
        cache.append(HEADS, HEADS)
    with pytest.raises(TypeError, match="like must be float32, float16 or bfloat16, got int64"):
        ContiguousCache(1, 4, 2, 8, like=np.ones(1, int))


@each_dtype
def test_many_tiles_round_out_once(rng, dtype):
    """flash_attn_v1 has out in HBM between its tiles: in 16 bits it would lose digits 40 times."""
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 1, 16, 320, 1, 1, 16))
    out, _, _ = fa_numba.flash_attn_v1(q, k, v, block_m=8, block_n=8)
    want, plain = (reference.attention(q, k, v, dtype=t)[0] for t in (float, dtype))
    assert_close(out, want, plain)


@each_dtype
def test_scores_beyond_float16_do_not_overflow(rng, dtype):
    """Scores are sums of 64 products of up to 10,000: float16 ends at 65504."""
    q, k, v = (
        rng.uniform(-1, 1, (1, 20, 1, 64)).astype(dtype) * dtype(scale) for scale in (100, 100, 1)
    )
    for name in ("naive_attn", "flash_attn_v1", "flash_attn_v2"):
        out, *_ = getattr(fa_numba, name)(q, k, v, softmax_scale=1.0)
        want, plain = (
            reference.attention(q, k, v, softmax_scale=1.0, dtype=t)[0] for t in (float, dtype)
        )
        assert_close(out, want, plain)


def test_a_result_too_large_for_float16_is_infinite():
    """As in NumPy and on a GPU; and without a warning."""
    q, k = np.full((1, 40, 1, 8), 30000, np.float16), np.ones((1, 4, 1, 8), np.float16)
    out, lse = fa_numba.flash_attn_v2(q, k, k, softmax_scale=0.0)
    _, _, dv = fa_numba.flash_attn_bwd(q, q, k, k, out, lse, softmax_scale=0.0)
    assert np.isposinf(dv).all()  # 40 · 30000 / 4
