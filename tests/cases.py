"""What the kernel tests share: shapes chosen for their dangers, inputs, and the rule of comparison.

Everything here takes and returns arrays of any library, so that the same cases run on the CPU
engine and on a GPU.
"""

import importlib
import importlib.util
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import fa_numba
from fa_numba import reference
from fa_numba.kernels import e4m3
from fa_numba.runtime import arrays


def kernel_function(name):
    """The kernel's function of this name, even if a job has it too; else the public function."""
    for room in ("kernels", "on_cuda_cores"):
        path = f"fa_numba.{room}.{name}"
        if importlib.util.find_spec(path):
            return getattr(importlib.import_module(path), name)
    return getattr(fa_numba, name)


class Shape(NamedTuple):
    """One attention problem; `danger` says what it is there to break."""

    danger: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def sizes(self):
        return self[1:]


# With the tiles of TILES below: whole tiles, tile ± 1, tails on one side only.
SHAPES = [
    Shape("one_query_one_key_one_dim", 1, 1, 1, 1, 1, 1),
    Shape("whole_tiles", 1, 16, 16, 1, 1, 8),
    Shape("tile_plus_one_minus_one", 1, 9, 15, 1, 1, 8),
    Shape("tail_in_keys_only", 2, 16, 19, 2, 2, 4),
    Shape("tail_in_queries_only", 1, 13, 16, 2, 2, 4),
    Shape("one_query_many_keys", 1, 1, 37, 2, 1, 16),
    Shape("more_queries_than_keys", 2, 21, 10, 1, 1, 8),  # causal: rows that see no key
    Shape("many_queries_one_key", 1, 33, 1, 1, 1, 8),
    Shape("more_keys_than_queries", 1, 10, 29, 1, 1, 8),
    Shape("gqa", 2, 11, 13, 4, 2, 8),
    Shape("mqa", 1, 17, 9, 3, 1, 8),
    Shape("head_dim_59", 1, 9, 10, 1, 1, 59),
    Shape("head_dim_111", 1, 5, 9, 1, 1, 111),
    Shape("head_dim_256", 1, 9, 9, 1, 1, 256),
    Shape("no_keys", 1, 5, 0, 2, 1, 8),
    Shape("no_queries", 1, 0, 5, 2, 1, 8),
    Shape("no_batch", 0, 5, 5, 2, 1, 8),
]
# (block_m, block_n): small, so that small shapes have tails
TILES = [(8, 8), (4, 8), (8, 4), (1, 5)]


# What may be asked of the scores, alone and together, but for causal alone. Windows that are
# smaller than a tile of 8, as large, and larger; on one side and on both.
MASKS = {
    "itself_alone": {"window_size": (0, 0)},
    "window": {"window_size": (3, 2)},
    "window_of_a_tile": {"window_size": (7, 8)},
    "wide_window": {"window_size": (11, 1)},
    "left_window": {"window_size": (2, -1)},
    "right_window": {"window_size": (-1, 5)},
    "causal_window": {"causal": True, "window_size": (4, -1)},
    "softcap": {"softcap": 0.7},
    "alibi": {"alibi": True},
    "softcap_alibi": {"softcap": 20.0, "alibi": True},
    "alibi_window": {"window_size": (9, 0), "alibi": True},
    "all": {"causal": True, "window_size": (9, 3), "softcap": 1.5, "alibi": True},
}
each_option = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def mask_options(mask, num_heads):
    """The keyword arguments of a mask above: with alibi, another slope for each head."""
    mask = dict(mask)
    if mask.pop("alibi", False):
        mask["alibi_slopes"] = np.float32(0.5) ** np.arange(1, num_heads + 1, dtype=np.float32)
    return mask


each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.danger)
each_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def random(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def make_qkv(rng, batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, head_dim_v=None):
    """Normally distributed q, k, v."""
    q = random(rng, batch, seqlen_q, num_heads, head_dim)
    dims = head_dim, head_dim_v or head_dim
    k, v = (random(rng, batch, seqlen_k, num_kv_heads, dim) for dim in dims)
    return q, k, v


# (head_dim of q and k, that of v): a model's, odd ones, and the largest that a job takes.
TWO_HEAD_DIMS = [(192, 128), (5, 40), (64, 17), (1, 256)]
WIDE_HEAD_DIMS = [(512, 512), (320, 256), (3, 512)]
each_two_head_dims = pytest.mark.parametrize("head_dims", TWO_HEAD_DIMS, ids=str)
each_wide_head_dims = pytest.mark.parametrize("head_dims", TWO_HEAD_DIMS + WIDE_HEAD_DIMS, ids=str)


def large_scores(rng):
    """Scores of about ±1e4: exp overflows unless the row's maximum is taken away first."""
    q, k, v = make_qkv(rng, 1, 12, 20, 1, 1, 4)
    return 70 * q, 70 * k, v


def ascending_scores(rng):
    """Every key scores higher than all before it: each tile rescales what came before."""
    q, k, v = make_qkv(rng, 1, 12, 40, 1, 1, 4)
    q[...] = 1
    k[...] = np.arange(40, dtype=np.float32)[None, :, None, None]
    return q, k, v


def descending_scores(rng):
    """The first key wins: what the later tiles add is tiny."""
    q, k, v = ascending_scores(rng)
    return q, k[:, ::-1].copy(), v


def equal_scores(rng):
    """Every key weighs the same: out is the mean of v, lse is log(seqlen_k) exactly once."""
    q, k, v = make_qkv(rng, 1, 12, 20, 1, 1, 4)
    return np.zeros_like(q), k, v


VALUES = [large_scores, ascending_scores, descending_scores, equal_scores]
each_value = pytest.mark.parametrize("values", VALUES, ids=lambda values: values.__name__)


def strided(x):
    """The same values in a view with gaps: only the last axis is contiguous."""
    gaps = np.full((x.shape[0], 2 * x.shape[1], x.shape[2] + 1, x.shape[3] + 3), np.nan, x.dtype)
    view = gaps[:, ::2, 1:, 1:-2]
    view[...] = x
    return view


def to_host(x):
    """NumPy array of an array of any library."""
    return x if isinstance(x, np.ndarray) else arrays.to_numpy(x)


def assert_same(got, want):
    """The same shape, dtype and bits; where there is a NaN too, which NumPy misses in bfloat16."""
    got = to_host(got)
    assert got.dtype == want.dtype, f"{got.dtype}, not {want.dtype}"
    bits = f"u{want.itemsize}"
    np.testing.assert_array_equal(got.view(bits), want.view(bits), strict=True)


def assert_close(got, want, plain, *, factor=2, floor=1e-6, name="result"):
    """Hold `got` to `factor` times the error of a plain computation in its dtype.

    Parameters
    ----------
    got : array of any library
    want : float64 array
        The definition. Where it is infinite, `got` must be the same infinity.
    plain : array of the dtype that `got` must have
        The definition computed with that dtype: what `reference` says of it.
    floor : float
        Allowed on top: where terms cancel to 0, the plain computation may have no error at all.

    Notes
    -----
    The last rounding to a 16-bit dtype may cost any kernel half a unit in the last place. If no
    large result of the plain computation was rounded that far, by luck, its error plus this half
    unit is allowed in place of `factor` times its error.
    """
    got = to_host(got)
    assert got.shape == want.shape, f"{name} has shape {got.shape}, not {want.shape}"
    assert got.dtype == plain.dtype, f"{name} is {got.dtype}, not {plain.dtype}"
    dtype = got.dtype
    got, plain = got.astype(np.float64), plain.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], name)
    plain_error = np.abs(plain[finite] - want[finite]).max(initial=0)
    tolerance = np.maximum(factor * plain_error, plain_error + _half_unit(want, dtype)) + floor
    error = np.zeros(want.shape)
    error[finite] = np.abs(got[finite] - want[finite])
    wrong = np.argwhere(~(error <= tolerance))  # so written that NaN is wrong
    assert not len(wrong), (
        f"{name} is off in {len(wrong)} places, first at {tuple(map(int, wrong[0]))}: "
        f"{got[tuple(wrong[0])]} for {want[tuple(wrong[0])]}, "
        f"allowed error {tolerance[tuple(wrong[0])]:.3g}"
    )


def _half_unit(x, dtype):
    """Half a unit in the last place of x in a 16-bit dtype; 0 in a longer one."""
    if dtype.itemsize > 2:
        return np.zeros(x.shape)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(x)))
    return np.where(np.isfinite(exponent), np.exp2(exponent - ml_dtypes.finfo(dtype).nmant - 1), 0)


WHAT = {"causal", "window_size", "softcap", "alibi_slopes", "softmax_scale", "dropout_p", "seed"}


def split_options(options):
    """Those that say what is computed, and those that say how, such as the sizes of tiles."""
    what = {name: options[name] for name in WHAT & options.keys()}
    return what, {name: options[name] for name in options.keys() - WHAT}


def check_forward(attention, q, k, v, **options):
    """Hold `attention`, which returns out and lse, to the definition."""
    options, tiles = split_options(options)
    out, lse = attention(q, k, v, **options, **tiles)
    q, k, v = (to_host(x) for x in (q, k, v))
    assert_defined((out, lse), reference.attention, q, k, v, floor=floor_of(options), **options)


def assert_defined(got, definition, *arrays, floor=1e-6, **options):
    """Hold results to a definition of `reference`, gradients to three times a plain error."""
    want = definition(*arrays, **options)
    plain = definition(*arrays, **options, dtype=arrays[0].dtype.type)
    names, factor = ("out", "lse"), 2
    if definition.__name__.endswith("_bwd"):
        names, factor = ("dq", "dk", "dv"), 3
    for name, *x in zip(names, got, want, plain, strict=True):
        with_floor = floor if name != "lse" else 1e-6
        assert_close(*x, factor=factor, floor=with_floor, name=name)


def assert_equal(got, want):
    """The same shapes, dtypes and values of two lists of arrays; a NaN equals a NaN."""
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def floor_of(options):
    """The `floor` of `assert_close`.

    Dropout multiplies what it keeps, and its error. A large scale multiplies the error of the
    scores, and gradients by itself.
    """
    largest = max(1, abs(options.get("softmax_scale") or 0))
    return 1e-6 * largest**2 / (1 - options.get("dropout_p", 0))


ROW_SHAPES = [(1, 1), (3, 7), (2, 127), (2, 128), (2, 129), (5, 300), (0, 4), (4, 0)]
each_row_shape = pytest.mark.parametrize("shape", ROW_SHAPES)


def check_softmax(softmax, x):
    """Hold a row softmax to the definition."""
    y, x = softmax(x), to_host(x)
    assert_close(y, reference.softmax(x), reference.softmax(x, dtype=x.dtype.type), name="y")


def plain_attention(q, k, v, **options):
    """The definition in q's dtype: in a test of a backward kernel faster than a forward kernel."""
    return reference.attention(q, k, v, **options, dtype=q.dtype.type)


def check_backward(forward, backward, dout, q, k, v, **options):
    """Hold `backward`, fed with what `forward` returns, to the definition."""
    options, tiles = split_options(options)
    out, lse = forward(q, k, v, **options)
    got = backward(dout, q, k, v, out, lse, **options, **tiles)
    dout, q, k, v = (to_host(x) for x in (dout, q, k, v))
    given, floor = (dout, q, k, v), floor_of(options)
    assert_defined(got, reference.attention_bwd, *given, floor=floor, **options)


def check_by_differences(dout, q, k, v, **options):
    """Hold the definition's gradients to differences of the loss; all arrays are float64."""
    got = reference.attention_bwd(dout, q, k, v, **options)

    def loss():
        return (dout * reference.attention(q, k, v, **options)[0]).sum()

    h = 1e-5
    for x, dx in zip((q, k, v), got, strict=True):
        numeric = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            value = x[i]
            x[i] = value + h
            above = loss()
            x[i] = value - h
            numeric[i] = (above - loss()) / (2 * h)
            x[i] = value
        np.testing.assert_allclose(dx, numeric, rtol=1e-7, atol=1e-9)


# Of sequences in a cache, with tiles of 8: none, one key, tile ± 1, many tiles.
LENGTHS = [0, 1, 7, 8, 9, 37]


def on_full_caches(decode):
    """Attention to all of k and v, so that decoding meets the cases of the other kernels."""

    def attention(q, k, v, **options):
        return decode(q, k, v, np.full(len(q), k.shape[1], np.int32), **options)

    return attention


def check_decode(decode, q, k_cache, v_cache, seq_lens, **options):
    """Compare with the definition; slots past the end become NaN, and inputs must not change."""
    seq_lens = np.array(seq_lens, np.int32)
    for b, seq_len in enumerate(seq_lens):
        k_cache[b, seq_len:] = v_cache[b, seq_len:] = np.nan
    arrays = (q, k_cache, v_cache, seq_lens)
    before = [x.copy() for x in arrays]
    out, lse = decode(*arrays, **options)
    options, _ = split_options(options)
    assert_defined((out, lse), reference.cached_attention, *arrays, **options)
    assert_equal(arrays, before)
    return out, lse


def make_paged_cache(rng, seq_lens, page_size, num_kv_heads, head_dim, head_dim_v=None):
    """Caches whose pages are shuffled, with NaN in every slot that no sequence owns.

    Returns
    -------
    k_cache, v_cache, block_table, seq_lens
    """
    seq_lens = np.array(seq_lens, np.int32)
    pages_used = -(-seq_lens // page_size)
    num_pages = int(pages_used.sum()) + 3
    dims = head_dim, head_dim_v or head_dim
    shapes = ((num_pages, page_size, num_kv_heads, dim) for dim in dims)
    k_cache, v_cache = (np.full(shape, np.nan, np.float32) for shape in shapes)
    block_table = np.full((len(seq_lens), pages_used.max(initial=0) + 1), -1, np.int32)
    free = iter(rng.permutation(num_pages))  # never 0, 1, 2, ...
    for b, seq_len in enumerate(seq_lens):
        for t in range(seq_len):
            if t % page_size == 0:
                block_table[b, t // page_size] = next(free)
            slot = block_table[b, t // page_size], t % page_size
            for cache, dim in zip((k_cache, v_cache), dims, strict=True):
                cache[slot] = random(rng, num_kv_heads, dim)
    return k_cache, v_cache, block_table, seq_lens


def make_latent_case(rng, seq_lens, seqlen_q, num_heads, latent_dim, rope_dim, page_size=None):
    """q, latent_cache, seq_lens and block_table of `mla_decode`; NaN where no sequence has a token.

    Without a page_size the cache is contiguous, and there is no block table.
    """
    row_dim = latent_dim + rope_dim
    q = random(rng, len(seq_lens), seqlen_q, num_heads, row_dim)
    if page_size:
        cache, _, block_table, seq_lens = make_paged_cache(rng, seq_lens, page_size, 1, row_dim)
        return q, cache[:, :, 0], seq_lens, block_table
    cache = random(rng, len(seq_lens), max(seq_lens, default=0) + 3, row_dim)
    for b, seq_len in enumerate(seq_lens):
        cache[b, seq_len:] = np.nan
    return q, cache, np.array(seq_lens, np.int32), None


def check_latent_decode(
    q,
    cache,
    seq_lens,
    block_table,
    convert=lambda x: x,
    decode=fa_numba.mla_decode,
    factor=2,
    **options,
):
    """Compare `mla_decode` with `attention` to the rows; its inputs must not change."""
    host = [x for x in (q, cache, seq_lens, block_table) if x is not None]
    before = [x.copy() for x in host]
    given = [convert(x) for x in host]
    tables = {} if block_table is None else {"block_table": given[3]}
    out, lse = decode(*given[:3], **tables, **options)
    for x, y in zip(given, before, strict=True):
        assert_same(x, y)
    k = cache[:, :, None]
    if block_table is not None:
        k, _ = reference.paged_kv_lookup(k, k, block_table, seq_lens)
    v, what = k[..., : options["latent_dim"]], split_options(options)[0]
    want, plain = (
        reference.cached_attention(q, k, v, seq_lens, **what, dtype=dtype)
        for dtype in (np.float64, q.dtype)
    )
    assert_close(out, want[0], plain[0], factor=factor, name="out")
    np.testing.assert_allclose(to_host(lse), want[1], rtol=1e-5, atol=1e-5)
    return out, lse


def in_8_bits(k_cache, v_cache, scales):
    """The caches as bytes of e4m3, and the options k_scale and v_scale; "head" or "token"."""
    if scales == "token":
        (k, k_scale), (v, v_scale) = map(e4m3.quantise, (k_cache, v_cache))
    else:  # what is larger than 448 of them becomes 448
        k_scale, v_scale = (np.float32(0.004) + np.arange(k_cache.shape[2], dtype="f4") / 1000,) * 2
        k, v = (e4m3.encode(x, k_scale[:, None]) for x in (k_cache, v_cache))
    return [k, v], {"k_scale": k_scale, "v_scale": v_scale}


def from_8_bits(cache, scale):
    """The numbers of a cache of bytes, in float64."""
    scale = np.broadcast_to(np.asarray(scale, np.float64), cache.shape[:3])
    return e4m3.decode(cache, scale[..., None])


def check_lookup(lookup, k_cache, v_cache, block_table, seq_lens, **options):
    """Hold a paged lookup to the definition, bit by bit."""
    got = lookup(k_cache, v_cache, block_table, seq_lens, **options)
    arrays = (to_host(x) for x in (k_cache, v_cache, block_table, seq_lens))
    for x, x_ref in zip(got, reference.paged_kv_lookup(*arrays, **options), strict=True):
        assert_same(x, x_ref)


def pages(*numbers):
    """Page numbers, as the kernels take them."""
    return np.array(numbers, np.int32)


def make_cache_write(rng, num_tokens, page_size, num_kv_heads, head_dim):
    """New tokens, caches of NaN with room for them, and a slot for each, shuffled.

    Returns
    -------
    k, v, k_cache, v_cache, slot_mapping
    """
    k, v = (random(rng, num_tokens, num_kv_heads, head_dim) for _ in range(2))
    shape = (-(-num_tokens // page_size) + 2, page_size, num_kv_heads, head_dim)
    k_cache, v_cache = (np.full(shape, np.nan, np.float32) for _ in range(2))
    slots = rng.permutation(shape[0] * page_size)[:num_tokens]
    return k, v, k_cache, v_cache, slots.astype(np.int32)


def check_cache_write(write, k, v, k_cache, v_cache, slot_mapping):
    """Hold a write to the caches to the definition, bit by bit; nothing else may change."""
    host = [to_host(x).copy() for x in (k, v, k_cache, v_cache, slot_mapping)]
    want = reference.reshape_and_cache(*host)
    assert write(k, v, k_cache, v_cache, slot_mapping) is None
    expected = (*host[:2], *want, host[4])
    for x, x_ref in zip((k, v, k_cache, v_cache, slot_mapping), expected, strict=True):
        assert_same(x, x_ref)


def check_copies(copy, k_cache, v_cache, src, dst):
    """Hold copies of pages to the definition, bit by bit; no other page may change."""
    host = [to_host(x).copy() for x in (k_cache, v_cache, src, dst)]
    want = reference.swap_pages(*host[:2], *host)
    assert copy(k_cache, v_cache, src, dst) is None
    for x, x_ref in zip((k_cache, v_cache, src, dst), (*want, *host[2:]), strict=True):
        assert_same(x, x_ref)


def thorough(*values):
    """A case that `make test` leaves out: one more of a kind of which it runs others.

    ``pytest -m thorough`` runs these alone.
    """
    return pytest.param(*values, marks=pytest.mark.thorough)
