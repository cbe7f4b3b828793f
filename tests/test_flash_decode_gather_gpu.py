"""flash_decode_gather on a real GPU: `pytest -m gpu`.

Cases and tolerances are flash_decode_mma's.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

import numpy as np
import pytest
from cases import MASKS, from_8_bits, in_8_bits, mask_options
from few_cases import pairs
from gpu_cases import cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)

from test_flash_decode_wide_gpu import (  # noqa: E402
    LARGE,
    SMALL,
    SPLITS,
    assert_right,
    make_case,
    named,
    paged,
    wanted,
)

import fa_numba  # noqa: E402
from fa_numba.kernels import e4m3  # noqa: E402
from fa_numba.kv_cache import reshape_and_cache  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

BFLOAT16 = [SMALL[2], SMALL[4], LARGE[1]]
CONTIGUOUS = [(case, "float16", True) for case in [*SMALL, *LARGE]]
CONTIGUOUS += [(case, "float16", False) for case in (SMALL[1], SMALL[5], *LARGE[:2])]
CONTIGUOUS += [(case, "bfloat16", False) for case in BFLOAT16]
PAGES = [(SMALL[1], 1), (SMALL[1], 16), (SMALL[2], 7), (SMALL[4], 24), (SMALL[5], 16)]
PAGES += [(SMALL[6], 256), (LARGE[1], 16), (LARGE[1], 1), (LARGE[2], 48)]
PAGES += [(SMALL[3], 2), (SMALL[1], 4), (LARGE[1], 8)]


BYTES = [(SMALL[0], 0), (SMALL[1], 16), (SMALL[3], 0), (SMALL[4], 7), (SMALL[5], 1)]
BYTES = [(case, page_size) for case, page_size in BYTES if case[-1] % 16 == 0]
BYTES += [(LARGE[1], 16), (LARGE[0], 0), (LARGE[2], 48)]


def on_gpu(*inputs):
    return [arrays.from_numpy(cupy.empty(0), x) for x in inputs]


def bits(got):
    return [arrays.to_numpy(x).tobytes() for x in got]


@pytest.mark.few(lambda case, dtype, causal: [case, *pairs(dtype, causal)])
@pytest.mark.parametrize(
    "case, dtype, causal",
    CONTIGUOUS,
    ids=[f"{named(c)}-{d}-{'causal' if causal else 'full'}" for c, d, causal in CONTIGUOUS],
)
def test_contiguous(case, dtype, causal):
    """Many splits are more parts than thread blocks: each goes through several."""
    inputs = make_case(case, dtype)
    arguments = on_gpu(*inputs)
    for num_splits in SPLITS if case in LARGE else SPLITS[:3]:
        got = flash_decode_gather(*arguments, causal=causal, num_splits=num_splits)
        assert_right(got, wanted(inputs, dtype, causal=causal))


@pytest.mark.few(lambda case, page_size: [case, page_size])
@pytest.mark.parametrize("case, page_size", PAGES, ids=[f"{named(c)}-{n}" for c, n in PAGES])
def test_paged(case, page_size):
    q, k, v, seq_lens = inputs = make_case(case, "float16")
    *caches, block_table = paged(k, v, seq_lens, page_size)
    q, k, v, *caches, table, lengths = on_gpu(q, k, v, *caches, block_table, seq_lens)
    for num_splits in (0, 1, 7):
        options = {"causal": True, "num_splits": num_splits}
        got = flash_decode_gather(q, *caches, lengths, block_table=table, **options)
        assert_right(got, wanted(inputs, "float16", causal=True))
        if num_splits > 0:  # the same tiles and splits as where the keys lie in a row
            assert bits(got) == bits(flash_decode_gather(q, k, v, lengths, **options))


@pytest.mark.few(lambda mask, num_splits: [mask, *pairs(num_splits, len(mask))])
@pytest.mark.parametrize("num_splits", [0, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_small(mask, num_splits):
    inputs = make_case(SMALL[2], "float16")
    mask = mask_options(mask, SMALL[2][3])
    options = dict(mask)
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = cupy.asarray(mask["alibi_slopes"])
    got = flash_decode_gather(*on_gpu(*inputs), **options, num_splits=num_splits)
    assert_right(got, wanted(inputs, "float16", **mask))


@pytest.mark.parametrize("num_splits", [0, 3])
def test_the_same_bits_over_20_runs(num_splits):
    arguments = on_gpu(*make_case(LARGE[1], "float16"))
    results = [flash_decode_gather(*arguments, num_splits=num_splits) for _ in range(20)]
    first, *others = map(bits, results)
    assert all(other == first for other in others)


def test_strided_caches_small():
    """A view of every other head, and of the first keys of longer sequences."""
    q, k, v, seq_lens = inputs = make_case(SMALL[3], "float16")
    q, k, v, lengths = on_gpu(q, k, v, seq_lens)
    views = []
    for x in (k, v):
        batch, max_len, heads, head_dim = x.shape
        room = cupy.full((batch, max_len + 5, 2 * heads, head_dim), cupy.nan, x.dtype)
        views.append(room[:, :max_len, ::2])
        views[-1][...] = x
    assert_right(flash_decode_gather(q, *views, lengths), wanted(inputs, "float16"))


def test_what_it_cannot_take_small():
    q, k, v, lengths = on_gpu(*make_case(SMALL[1], "float32"))
    with pytest.raises(TypeError, match="must be float16 or bfloat16 for flash_decode_gather"):
        flash_decode_gather(q, k, v, lengths)
    q, k, v, lengths = on_gpu(*make_case(SMALL[3], "float16"))
    room = cupy.empty((*k.shape[:3], k.shape[3] + 4), k.dtype)
    with pytest.raises(ValueError, match="must have strides that are multiples of 16 bytes"):
        flash_decode_gather(q, room[..., 4:], v, lengths)
    with pytest.raises(ValueError, match="num_splits"):
        flash_decode_gather(q, k, v, lengths, num_splits=-1)


def case_of_bytes(case, page_size, form):
    """Inputs of float64's definition; arguments and options of the kernel, on the GPU.

    Slots that no sequence owns are NaN, and their scales, too.
    """
    q, k, v, seq_lens = make_case(case, "float16")
    k, v = k.astype(np.float32), v.astype(np.float32)
    options = {}
    if page_size:
        *caches, table = paged(k, v, seq_lens, page_size)
        options["block_table"] = cupy.asarray(table)
    else:
        caches = [k, v]
    unused = np.isnan(caches[0])
    bytes, scales = in_8_bits(*caches, form)
    assert all((x[unused] == e4m3.NAN_BYTE).all() for x in bytes)
    if form == "token":
        for x in scales.values():
            x[unused[..., 0]] = np.nan
    exact = [from_8_bits(*in_8_bits_of(x, form, i)) for i, x in enumerate((k, v))]
    options |= {name: cupy.asarray(x) for name, x in scales.items()}
    q_gpu, *bytes, lengths = on_gpu(q, *bytes, seq_lens)
    inputs = q, *(x.astype(np.float32) for x in exact), seq_lens
    return inputs, (q_gpu, *bytes, lengths), options


def in_8_bits_of(x, form, i):
    """Bytes and scales of keys (i = 0) or values that lie in a row."""
    bytes, scales = in_8_bits(x, x, form)
    return bytes[i], [*scales.values()][i]


@pytest.mark.few(lambda case, page_size, form, causal: [case, *pairs(form, page_size, causal)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("form", ["head", "token"])
@pytest.mark.parametrize("case, page_size", BYTES, ids=[f"{named(c)}-{n}" for c, n in BYTES])
def test_caches_of_e4m3(case, page_size, form, causal):
    inputs, arguments, options = case_of_bytes(case, page_size, form)
    for num_splits in (0, 1, 7):
        options |= {"causal": causal, "num_splits": num_splits}
        got, again = (flash_decode_gather(*arguments, **options) for _ in range(2))
        assert_right(got, wanted(inputs, "float16", causal=causal))
        assert bits(got) == bits(again)


@pytest.mark.parametrize("form", ["head", "token"])
def test_masks_and_the_job_with_e4m3_small(form):
    case = SMALL[3]
    inputs, (q, *caches, lengths), options = case_of_bytes(case, 0, form)
    for mask in ({"window_size": (20, 3)}, {"softcap": 2.0, "causal": True}):
        got = flash_decode_gather(q, *caches, lengths, **options, **mask)
        assert_right(got, wanted(inputs, "float16", **mask))
    assert fa_numba.which(fa_numba.flash_decode, q, *caches, lengths, **options).kernel == (
        "flash_decode_gather"
    )
    assert bits(fa_numba.flash_decode(q, *caches, lengths, **options)) == bits(
        flash_decode_gather(q, *caches, lengths, **options)
    )


@pytest.mark.parametrize("form", ["head", "token"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernels_to_read_take_e4m3_small(form, dtype):
    """Of q that the fast kernels refuse by name."""
    inputs, (_, *caches, lengths), options = case_of_bytes(SMALL[3], 0, form)
    inputs = inputs[0].astype(dtype), *inputs[1:]
    (q,) = on_gpu(inputs[0])
    with pytest.raises(TypeError, match="q must be float16 for flash_decode_gather and caches of"):
        flash_decode_gather(q, *caches, lengths, **options)
    choice = fa_numba.which(fa_numba.flash_decode, q, *caches, lengths, **options)
    assert choice.kernel == "flash_decode"
    got = fa_numba.flash_decode(q, *caches, lengths, **options)
    assert_right(got, wanted(inputs, dtype))


@pytest.mark.parametrize("form", ["head", "token"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_are_written_as_on_the_host_small(form, dtype):
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((37, 3, 72)) * 10.0 ** rng.uniform(-4, 3, (37, 3, 1)) for _ in "kv")
    k, v = (x.astype(dtype) for x in (k, v))
    k[5] = 0
    slots = rng.permutation(40).astype(np.int32)[:37]
    caches = [cupy.zeros((5, 8, 3, 72), np.uint8) for _ in range(2)]
    scales = [np.float32([0.1, 1e-3, 3]) if form == "head" else np.zeros((5, 8, 3), "f4")] * 2
    scales = dict(zip(("k_scale", "v_scale"), map(cupy.asarray, scales), strict=True))
    scales = {name: x.copy() for name, x in scales.items()}
    reshape_and_cache(*on_gpu(k, v), *caches, cupy.asarray(slots), **scales)
    for x, cache, scale in zip((k, v), caches, scales.values(), strict=True):
        want, own = e4m3.quantise(x)
        if form == "head":
            want = e4m3.encode(x, scale.get()[:, None])
        else:
            np.testing.assert_array_equal(scale.get().reshape(40, 3)[slots], own)
        np.testing.assert_array_equal(cache.get().reshape(40, 3, 72)[slots], want)
