"""mla_decode_mma on a real GPU: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

import numpy as np
import pytest
from cases import check_latent_decode, make_latent_case
from few_cases import pairs
from numba import cuda

cupy = pytest.importorskip("cupy", reason="needs CuPy")
if not cuda.is_available() or cuda.get_current_device().compute_capability[0] < 8:
    pytest.skip("needs a GPU from Ampere on", allow_module_level=True)

import fa_numba  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.tensor_core import mla_decode_mma as mma  # noqa: E402
from fa_numba.tensor_core.mla_decode_mma import mla_decode_mma  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DIRECT = mla_decode_mma.__wrapped__  # `arrays.replayed` would replay the first plan
SCALE = 192**-0.5
# seq_lens, seqlen_q, num_heads, latent_dim, rope_dim, page_size
SMALL = [
    ((1,), 1, 1, 8, 0, None),
    ((0, 1, 31, 32, 33, 200), 1, 16, 512, 64, 64),
    ((70, 129), 3, 5, 512, 64, 1),
    ((300, 7), 1, 17, 40, 8, 7),
    ((2, 90), 5, 8, 100, 4, 16),  # causal: rows that see no key
    ((150,), 2, 20, 384, 0, None),
]
LARGE = [
    ((5001, 100, 0, 4096), 1, 16, 512, 64, 64),
    ((4100, 2000), 2, 16, 512, 64, 128),
    ((1501,), 1, 128, 512, 64, None),
]


def named(case):
    seq_lens, seqlen_q, num_heads, latent_dim, rope_dim, page_size = case
    size, lengths = "small" if case in SMALL else "large", "_".join(map(str, seq_lens))
    return f"{size}-q{seqlen_q}-k{lengths}-h{num_heads}-d{latent_dim}_{rope_dim}-p{page_size}"


def made(case, dtype):
    seq_lens, *sizes, page_size = case
    q, cache, *tables = make_latent_case(np.random.default_rng(0), seq_lens, *sizes, page_size)
    return q.astype(dtype), cache.astype(dtype), *tables


def on_gpu(case, dtype):
    """Arguments of `mla_decode_mma`, and options."""
    q, cache, seq_lens, table = made(case, dtype)
    options = {"softmax_scale": SCALE, "latent_dim": case[3]}
    if table is not None:
        options["block_table"] = cupy.asarray(table)
    return [cupy.asarray(x) for x in (q, cache, seq_lens)], options


@pytest.mark.few(lambda case, dtype, causal: [case, *pairs(dtype, causal)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", SMALL + LARGE, ids=named)
def test_against_float64(case, dtype, causal, poisoned):
    """Many splits are more parts than thread blocks; results begin as NaN."""
    for num_splits in (0, 1, 2, 300) if case in SMALL else (0, 300):  # NumPy's float16 is slow
        options = {"latent_dim": case[3], "causal": causal, "softmax_scale": SCALE}
        options["num_splits"] = num_splits
        check_latent_decode(*made(case, dtype), cupy.asarray, decode=DIRECT, **options)


@pytest.mark.parametrize("block_n, stages", [(32, 3), (32, 6), (16, 5)])
def test_other_tilings_small(block_n, stages, monkeypatch):
    """The ring of 99 KB, and others than the chosen one."""
    monkeypatch.setattr(mma, "choose_tiling", lambda *_: mma.Tiling(block_n, stages))
    options = {"latent_dim": 512, "softmax_scale": SCALE, "num_splits": 2}
    check_latent_decode(*made(SMALL[1], "float16"), cupy.asarray, decode=DIRECT, **options)


@pytest.mark.parametrize("num_splits", [0, 3])
def test_the_same_bits_over_20_runs(num_splits):
    arguments, options = on_gpu(LARGE[0], "bfloat16")
    first, *others = (
        [arrays.to_numpy(x).tobytes() for x in mla_decode_mma(*arguments, **options)]
        for _ in range(20)
    )
    assert all(other == first for other in others)


def test_pages_change_nothing_not_a_bit_small():
    (q, cache, lengths), options = on_gpu(SMALL[1], "float16")
    table = options.pop("block_table")
    rows = cache[cupy.maximum(table, 0)].reshape(len(table), -1, cache.shape[2])
    paged = mla_decode_mma(q, cache, lengths, block_table=table, num_splits=2, **options)
    plain = mla_decode_mma(q, rows, lengths, num_splits=2, **options)
    for x, y in zip(paged, plain, strict=True):
        assert (x == y).all()


def test_the_job_chooses_it_small():
    arguments, options = on_gpu(SMALL[1], "float16")
    assert fa_numba.which("mla_decode", *arguments, **options).kernel == "mla_decode_mma"
    for x, y in zip(
        fa_numba.mla_decode(*arguments, **options),
        mla_decode_mma(*arguments, **options),
        strict=True,
    ):
        assert (x == y).all()
    (q, cache, lengths), options = on_gpu(((9,), 1, 2, 8, 1, None), "float16")
    choice = fa_numba.which("mla_decode", q, cache, lengths, **options)
    assert choice.kernel == "mla_decode"
    assert "row_dim that is a multiple of 8" in choice.refused["mla_decode_mma"]


def test_views_small():
    """Every other row of more columns; a view that no copy of 16 bytes can begin at."""
    (q, cache, lengths), options = on_gpu(SMALL[3], "float16")
    room = cupy.full((2 * len(cache), cache.shape[1], cache.shape[2] + 8), cupy.nan, cache.dtype)
    view = room[::2, :, : cache.shape[2]]
    view[...] = cache
    for x, y in zip(
        mla_decode_mma(q, view, lengths, **options),
        mla_decode_mma(q, cache, lengths, **options),
        strict=True,
    ):
        assert (x == y).all()
    with pytest.raises(ValueError, match="latent_cache must begin at a multiple of 16 bytes"):
        mla_decode_mma(q, room[::2, :, 4 : 4 + cache.shape[2]], lengths, **options)
    with pytest.raises(TypeError, match="must be float16 or bfloat16 for mla_decode_mma"):
        mla_decode_mma(q.astype("f4"), cache.astype("f4"), lengths, **options)
