"""flash_decode_wide, flash_decode_mma, flash_decode_columns on a real GPU: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer (`make sanitize`).
"""

import ml_dtypes
import numpy as np
import pytest
from cases import MASKS, make_qkv, mask_options
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

import fa_numba  # noqa: E402
from fa_numba import reference  # noqa: E402
from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.tensor_core import flash_decode_columns as columns  # noqa: E402
from fa_numba.tensor_core.flash_decode_columns import flash_decode_columns  # noqa: E402
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma  # noqa: E402

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim
SMALL = [
    ([1], 1, 1, 1, 1, 8),
    ([0, 1, 63, 64, 65], 70, 1, 4, 2, 64),
    ([200, 3], 200, 3, 4, 1, 72),
    ([90, 90, 17], 100, 1, 3, 3, 128),
    ([40, 0, 25], 40, 20, 2, 2, 256),
    ([130, 16], 130, 1, 9, 1, 96),
    ([2], 8, 5, 2, 1, 32),  # causal: rows that see no key
]
LARGE = [
    ([65_536], 65_536, 1, 8, 2, 128),
    ([8192, 100, 0, 5001], 8192, 1, 32, 8, 128),
    ([10_000, 16_384], 16_384, 17, 4, 2, 64),  # a chunk of a prompt
]
SPLITS = (0, 1, 7, 2, 300)  # 300: more warps merge them
KERNELS = {
    "wide-float32": (flash_decode_wide, "float32"),
    "wide-float16": (flash_decode_wide, "float16"),
    "wide-bfloat16": (flash_decode_wide, "bfloat16"),
    "mma-float16": (flash_decode_mma, "float16"),
    "mma-bfloat16": (flash_decode_mma, "bfloat16"),
}


def named(case):
    seq_lens, _, seqlen_q, num_heads, num_kv_heads, head_dim = case
    size = "small" if case in SMALL else "large"
    lengths = "_".join(map(str, seq_lens))
    return f"{size}-q{seqlen_q}-k{lengths}-h{num_heads}_{num_kv_heads}-d{head_dim}"


each_kernel = pytest.mark.parametrize("decode, dtype", KERNELS.values(), ids=KERNELS)
each_case = pytest.mark.parametrize("case", SMALL + LARGE, ids=named)


def make_case(case, dtype):
    """q, k, v with NaN past each sequence's end, and its lengths, on the host."""
    seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim = case
    rng = np.random.default_rng(sum(seq_lens))
    sizes = (len(seq_lens), seqlen_q, max_len, num_heads, num_kv_heads, head_dim)
    q, k, v = (x.astype(DTYPES[dtype]) for x in make_qkv(rng, *sizes))
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    return q, k, v, np.array(seq_lens, np.int32)


def paged(k, v, seq_lens, page_size):
    """In shuffled pages, NaN in every slot that no sequence owns, −1 past the last page."""
    rng = np.random.default_rng(page_size)
    pages = -(-seq_lens // page_size)
    shape = (int(pages.sum()) + 3, page_size, *k.shape[2:])
    caches = [np.full(shape, np.nan, k.dtype) for _ in range(2)]
    block_table = np.full((len(seq_lens), pages.max() + 1), -1, np.int32)
    free = rng.permutation(shape[0]).astype(np.int32)
    for b, seq_len in enumerate(seq_lens):
        mine, free = free[: pages[b]], free[pages[b] :]
        block_table[b, : pages[b]] = mine
        slots = (mine[:, None] * page_size + np.arange(page_size)).ravel()[:seq_len]
        for cache, x in zip(caches, (k, v), strict=True):
            cache.reshape(-1, *shape[2:])[slots] = x[b, :seq_len]
    return *caches, block_table


def wanted(inputs, dtype, **mask):
    """out and lse, and the error of a plain computation of out in the dtype."""
    q, k, v, seq_lens = inputs
    exact = (x.astype(np.float32) for x in (q, k, v))
    out, lse = reference.cached_attention(*exact, seq_lens, **mask)
    plain, _ = reference.cached_attention(*inputs, **mask, dtype=DTYPES[dtype])
    return out, lse, np.abs(plain.astype(np.float64) - out).max(initial=0.0)


def assert_right(got, want):
    """At most twice the error of a plain computation; lse within float32's."""
    out, lse = (arrays.to_numpy(x).astype(np.float64) for x in got)
    assert np.abs(out - want[0]).max(initial=0.0) <= 2 * want[2] + 1e-6
    np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-5)


@pytest.mark.few(
    lambda decode, dtype, case, causal: [
        case,
        *pairs(decode, case[-1]),
        *pairs((decode, dtype), causal, case in SMALL),
    ]
)
@each_case
@each_kernel
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_contiguous(decode, dtype, case, causal):
    inputs = make_case(case, dtype)
    want = wanted(inputs, dtype, causal=causal)
    on_gpu = [arrays.from_numpy(cupy.empty(0), x) for x in inputs]
    for num_splits in SPLITS if case in LARGE else SPLITS[:3]:
        got, again = (decode(*on_gpu, causal=causal, num_splits=num_splits) for _ in range(2))
        assert_right(got, want)
        for x, y in zip(got, again, strict=True):
            assert arrays.to_numpy(x).tobytes() == arrays.to_numpy(y).tobytes()


@pytest.mark.few(
    lambda decode, dtype, case, page_size: [
        case,
        *pairs((decode, dtype), page_size == 1),
        *pairs(decode, page_size),
    ]
)
@each_case
@each_kernel
@pytest.mark.parametrize("page_size", [1, 7, 16, 256])
def test_paged(decode, dtype, case, page_size):
    q, k, v, seq_lens = inputs = make_case(case, dtype)
    want = wanted(inputs, dtype, causal=True)
    *caches, block_table = paged(k, v, seq_lens, page_size)
    q, k, v, *caches, block_table, lengths = (
        arrays.from_numpy(cupy.empty(0), x) for x in (q, k, v, *caches, block_table, seq_lens)
    )
    for num_splits in (0, 1, 7):
        options = {"causal": True, "num_splits": num_splits}
        got = decode(q, *caches, lengths, block_table=block_table, **options)
        assert_right(got, want)
        if num_splits > 0:  # the same tiles and splits as where the keys lie in a row
            for x, y in zip(got, decode(q, k, v, lengths, **options), strict=True):
                assert arrays.to_numpy(x).tobytes() == arrays.to_numpy(y).tobytes()


@pytest.mark.parametrize(
    "case, dtype, kernel",
    [
        (([8192, 100], 8192, 1, 16, 4, 512), "bfloat16", "columns"),
        (([3000, 0, 33], 3001, 1, 16, 1, 320), "float16", "columns"),
        (([130, 5], 130, 3, 8, 1, 264), "float16", "columns"),
        (([8192, 100], 8192, 1, 4, 4, 512), "float16", "columns"),
        (([300, 1], 301, 3, 4, 2, 320), "float32", "wide"),
    ],
    ids=["4_rows", "16_rows", "24_rows", "1_row", "float32"],
)
def test_above_256_columns(case, dtype, kernel):
    """By the job, which finds the kernel; contiguous and in pages."""
    q, k, v, seq_lens = inputs = make_case(case, dtype)
    want = wanted(inputs, dtype, causal=True)
    *caches, table = paged(k, v, seq_lens, 16)
    q, k, v, *caches, table, lengths = (
        arrays.from_numpy(cupy.empty(0), x) for x in (q, k, v, *caches, table, seq_lens)
    )
    assert_right(fa_numba.flash_decode(q, k, v, lengths, causal=True), want)
    assert_right(fa_numba.paged_attn_decode(q, *caches, table, lengths, causal=True), want)
    assert fa_numba.which("flash_decode", q, k, v, lengths).kernel == f"flash_decode_{kernel}"
    if kernel == "columns":
        for page_size, num_splits in ((1, 1), (7, 3)):
            *caches, table = map(cupy.asarray, paged(*inputs[1:], page_size))
            options = {"causal": True, "num_splits": num_splits}
            got, again = (
                flash_decode_columns(q, *caches, lengths, block_table=table, **options)
                for _ in range(2)
            )
            assert_right(got, want)
            plain = flash_decode_columns(q, k, v, lengths, **options)
            for x, *others in zip(got, again, plain, strict=True):
                assert all((x.view(np.uint8) == y.view(np.uint8)).all() for y in others)


@pytest.mark.parametrize("name", ["left_window", "softcap_alibi", "all"])
def test_masks_above_256_columns_small(name):
    case = [200, 3, 90], 200, 3, 4, 1, 328
    inputs = make_case(case, "float16")
    mask = mask_options(MASKS[name], case[3])
    options = dict(mask)
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = cupy.asarray(mask["alibi_slopes"])
    on_gpu = [arrays.from_numpy(cupy.empty(0), x) for x in inputs]
    got = flash_decode_columns(*on_gpu, **options, num_splits=2)
    assert_right(got, wanted(inputs, "float16", **mask))


@pytest.mark.parametrize("tiling", [(16, 2), (16, 4), (32, 2)], ids=str)
def test_other_tilings_above_256_columns_small(tiling, monkeypatch):
    """The rings of smaller shared memory."""
    monkeypatch.setattr(columns, "choose_tiling", lambda *_: columns.Tiling(*tiling))
    inputs = make_case(([200, 3, 90], 200, 3, 4, 1, 512), "bfloat16")
    on_gpu = [arrays.from_numpy(cupy.empty(0), x) for x in inputs]
    got = flash_decode_columns.__wrapped__(*on_gpu, num_splits=2)
    assert_right(got, wanted(inputs, "bfloat16"))


@pytest.mark.few(
    lambda decode, dtype, case, mask, num_splits: [
        *pairs(decode, mask),
        *pairs((decode, dtype), num_splits),
        *pairs(dtype, case),
    ]
)
@pytest.mark.parametrize("num_splits", [0, 2])
@each_kernel
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("case", [SMALL[1], SMALL[2], SMALL[5]], ids=named)
def test_masks(decode, dtype, case, mask, num_splits):
    inputs = make_case(case, dtype)
    mask = mask_options(mask, case[3])
    on_gpu = [arrays.from_numpy(cupy.empty(0), x) for x in inputs]
    options = dict(mask)
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = cupy.asarray(mask["alibi_slopes"])
    got = decode(*on_gpu, **options, num_splits=num_splits)
    assert_right(got, wanted(inputs, dtype, **mask))


@pytest.mark.parametrize("offset", [1, 4])
def test_rows_that_do_not_lie_at_16_bytes_small(offset):
    """flash_decode_wide reads single numbers; flash_decode_mma names its requirement."""
    q, k, v, seq_lens = inputs = make_case(SMALL[3], "float16")
    lengths = cupy.asarray(seq_lens)
    on_gpu = []
    for x in (q, k, v):
        room = cupy.empty((*x.shape[:3], x.shape[3] + offset), x.dtype)
        room[..., offset:] = cupy.asarray(x)
        on_gpu.append(room[..., offset:])
    assert_right(flash_decode_wide(*on_gpu, lengths), wanted(inputs, "float16"))
    with pytest.raises(ValueError, match="must have strides that are multiples of 16 bytes"):
        flash_decode_mma(*on_gpu, lengths)


def test_mma_wants_16_bits_small():
    q, k, v, seq_lens = (cupy.asarray(x) for x in make_case(SMALL[1], "float32"))
    with pytest.raises(TypeError, match="q, k_cache, v_cache must be float16 or bfloat16"):
        flash_decode_mma(q, k, v, seq_lens)
