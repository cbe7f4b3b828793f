"""flash_decode_gather on a real GPU: `pytest -m gpu`.

Cases and tolerances are flash_decode_mma's.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

import pytest
from cases import MASKS, mask_options
from few_cases import pairs
from numba import cuda

cupy = pytest.importorskip("cupy", reason="needs CuPy")
if not cuda.is_available() or cuda.get_current_device().compute_capability[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from test_flash_decode_wide_gpu import (  # noqa: E402
    LARGE,
    SMALL,
    SPLITS,
    assert_right,
    make_case,
    named,
    paged,
)

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
        assert_right(got, inputs, dtype, causal=causal)


@pytest.mark.few(lambda case, page_size: [case, page_size])
@pytest.mark.parametrize("case, page_size", PAGES, ids=[f"{named(c)}-{n}" for c, n in PAGES])
def test_paged(case, page_size):
    q, k, v, seq_lens = inputs = make_case(case, "float16")
    *caches, block_table = paged(k, v, seq_lens, page_size)
    q, k, v, *caches, table, lengths = on_gpu(q, k, v, *caches, block_table, seq_lens)
    for num_splits in (0, 1, 7):
        options = {"causal": True, "num_splits": num_splits}
        got = flash_decode_gather(q, *caches, lengths, block_table=table, **options)
        assert_right(got, inputs, "float16", causal=True)
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
    assert_right(got, inputs, "float16", **mask)


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
    assert_right(flash_decode_gather(q, *views, lengths), inputs, "float16")


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
