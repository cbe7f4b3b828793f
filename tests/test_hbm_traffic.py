"""analysis.traffic: the formulas against the engine's meter, element for element."""

import doctest

import numpy as np
import pytest
from cases import (
    in_8_bits,
    kernel_function,
    make_cache_write,
    make_latent_case,
    make_paged_cache,
    make_qkv,
    random,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fa_numba
from fa_numba import simt
from fa_numba.analysis import Problem, traffic
from fa_numba.analysis.traffic import walks
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import page_scores, update_page_bounds
from fa_numba.kv_cache.top_pages import top_pages
from fa_numba.on_cuda_cores.softmax_registers import make_softmax_packed
from fa_numba.tiling.linear_attn import FEATURE_MAPS

SOFTMAXES = ("naive_softmax", "safe_softmax", "online_softmax", "softmax_registers")
TOPK = ("softmax_topk", "softmax_topk_warps")
FORWARD = ("naive_attn", "flash_attn_v1", "flash_attn_v2")

few = settings(max_examples=8)
small = st.integers(1, 12)
problems = st.builds(
    lambda batch, seqlen_q, seqlen_k, group_size, num_kv_heads, head_dim: (
        batch,
        seqlen_q,
        seqlen_k,
        group_size * num_kv_heads,
        num_kv_heads,
        head_dim,
    ),
    st.integers(0, 2),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 2),
    st.integers(1, 2),
    small,
)
options = st.fixed_dictionaries(
    {"causal": st.booleans()}, optional={"block_m": st.integers(1, 9), "block_n": st.integers(1, 9)}
)
sides = st.integers(-1, 25)
masks = st.fixed_dictionaries({}, optional={"window_size": st.tuples(sides, sides)})


def alibi(problem):
    return np.ones(problem[3], np.float32)


def metered(function, *args, **options):
    """Loads and stores of every kernel that a function launches, by parameter; and bytes."""
    with simt.tracing() as traces:
        function(*args, **options)
    loads, stores, moved = {}, {}, 0
    for trace in traces:
        for name, counts in trace.arrays.items():
            loads[name] = loads.get(name, 0) + counts.loads
            stores[name] = stores.get(name, 0) + counts.stores
            moved += counts.load_bytes + counts.store_bytes
    return loads, stores, moved


def check(formula, meter, dtype_bytes=4):
    *meter, moved = meter
    for predicted, counted in zip((formula.loads, formula.stores), meter, strict=True):
        assert nonzero(predicted) == nonzero(counted)
    assert formula.elements() == sum(sum(counted.values()) for counted in meter)
    assert formula.bytes(dtype_bytes) == moved


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("name", SOFTMAXES)
@few
@given(st.integers(0, 5), st.integers(0, 300))
def test_softmax(name, num_rows, num_cols):
    x = np.zeros((num_rows, num_cols), np.float32)
    check(getattr(traffic, name)(*x.shape), metered(getattr(fa_numba, name), x))


def test_softmax_of_a_row_that_registers_do_not_hold():
    x = np.zeros((1, 32 * 1024 + 1), np.float32)
    check(traffic.softmax_registers(*x.shape), metered(fa_numba.softmax_registers, x))


@pytest.mark.parametrize("num_cols", [40_000, 50_257])
def test_softmax_of_a_packed_row(num_cols):
    x = np.zeros((2, num_cols), np.float16)
    y = np.empty_like(x)
    kernel = make_softmax_packed(-(-num_cols // 8192), "", num_cols % 8 > 0, True)
    formula = traffic.softmax_registers(*x.shape, packs=True)
    check(formula, metered(kernel[2, 1024], x, y), x.itemsize)
    assert traffic.softmax_registers(1, 65_537, packs=True).loads == {"x": 2 * 65_537}


@pytest.mark.parametrize("name", TOPK)
@few
@given(st.integers(0, 5), st.integers(1, 300), st.integers(1, 32))
def test_softmax_topk(name, num_rows, num_cols, k):
    k, x = min(k, num_cols), np.zeros((num_rows, num_cols), np.float32)
    check(getattr(traffic, name)(*x.shape, k), metered(kernel_function(name), x, k))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax_topk_of_split_rows(dtype):
    x = np.zeros((2, 20_000), dtype)
    formula = traffic.softmax_topk_warps(*x.shape, 5)
    assert formula.loads["x_split"] > 0
    check(formula, metered(fa_numba.softmax_topk_warps, x, 5), x.itemsize)


@pytest.mark.parametrize("name", FORWARD)
@few
@given(problems, options, masks, st.booleans())
def test_forward(name, problem, options, mask, with_alibi):
    q, k, v = make_qkv(np.random.default_rng(0), *problem)
    formula = getattr(traffic, name)(Problem(*problem, **options, **mask, alibi=with_alibi))
    if with_alibi:
        mask = mask | {"alibi_slopes": alibi(problem)}
    check(formula, metered(getattr(fa_numba, name), q, k, v, **options, **mask))


@few
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=9),
    problems,
    options,
    masks,
    st.booleans(),
)
def test_flash_attn_varlen(lengths, problem, options, mask, with_alibi):
    cu_seqlens = [np.cumsum([0, *(pair[i] for pair in lengths)], dtype=np.int32) for i in (0, 1)]
    heads, rng = problem[3:], np.random.default_rng(0)
    q, k, v = (x[0] for x in make_qkv(rng, 1, *(cu[-1] for cu in cu_seqlens), *heads))
    lse = random(rng, q.shape[1], q.shape[0])
    options = options | mask
    packed = Problem(1, len(q), len(k), *heads, **options, alibi=with_alibi)
    formula, formula_bwd = (
        function(packed, *cu_seqlens)
        for function in (traffic.flash_attn_varlen, traffic.flash_attn_varlen_bwd)
    )
    if with_alibi:
        options = options | {"alibi_slopes": alibi(problem)}
    check(formula, metered(flash_attn_varlen, q, k, v, *cu_seqlens, **options))
    arguments = (q, q, k, v, q, lse, *cu_seqlens)
    check(formula_bwd, metered(fa_numba.flash_attn_varlen_bwd, *arguments, **options))


@few
@given(problems, st.booleans(), st.integers(1, 30), st.none() | st.integers(1, 30))
def test_lazy_softmax_attn(problem, causal, query_chunk_size, key_chunk_size):
    q, k, v = make_qkv(np.random.default_rng(0), *problem)
    options = {"query_chunk_size": query_chunk_size, "key_chunk_size": key_chunk_size}
    formula = traffic.lazy_softmax_attn(Problem(*problem, causal=causal), **options)
    check(formula, metered(fa_numba.lazy_softmax_attn, q, k, v, causal=causal, **options))


@few
@given(
    problems,
    st.sampled_from(FEATURE_MAPS),
    st.sampled_from(["full", None, "recurrent", "chunked"]),
    st.integers(1, 16),
)
def test_linear_attn(problem, feature_map, form, chunk_size):
    options = {"feature_map": feature_map, "chunk_size": chunk_size}
    causal = form != "full"
    if causal:
        problem = (*problem[:2], problem[1], *problem[3:])  # with a mask, seqlen_k is seqlen_q
        options["form"] = form
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, *problem)
    weights, num_features = None, None
    if feature_map == "hedgehog":
        weights, num_features = [random(rng, *x.shape[2:], 3) for x in (q, k)], 3
    sizes = Problem(*problem, causal=causal)
    formula = traffic.linear_attn(sizes, num_features=num_features, **options)
    options |= {"causal": causal, "weights": weights}
    check(formula, metered(fa_numba.linear_attn, q, k, v, **options))


@few
@given(problems, options, masks, st.integers(0, 2**32), st.floats(0, 1))
def test_block_sparse(problem, options, mask, seed, share):
    rng = np.random.default_rng(seed)
    options = {"block_m": 4, "block_n": 8} | options | mask
    num_tiles = (-(-problem[i] // options[size]) for i, size in ((1, "block_m"), (2, "block_n")))
    block_mask = rng.random(tuple(num_tiles)) < share
    q, k, v = make_qkv(rng, *problem)
    formula = traffic.flash_attn_v1(Problem(*problem, **options), block_mask=block_mask)
    check(formula, metered(fa_numba.flash_attn_v1, q, k, v, **options, block_mask=block_mask))


@few
@given(problems, options, masks, st.booleans())
def test_backward(problem, options, mask, with_alibi):
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, *problem)
    lse = random(rng, *(q.shape[i] for i in (0, 2, 1)))
    formula = traffic.flash_attn_bwd(Problem(*problem, **options, **mask, alibi=with_alibi))
    if with_alibi:
        mask = mask | {"alibi_slopes": alibi(problem)}
    check(formula, metered(fa_numba.flash_attn_bwd, q, q, k, v, q, lse, **options, **mask))


@few
@given(
    problems,
    options,
    masks,
    st.booleans(),
    st.integers(0, 6),
    st.lists(st.integers(0, 20), min_size=2, max_size=2),
)
def test_flash_decode(problem, options, mask, with_alibi, num_splits, lengths):
    batch, _, max_len, *_ = problem
    seq_lens = np.minimum(lengths[:batch], max_len).astype(np.int32)
    q, k, v = make_qkv(np.random.default_rng(0), *problem)
    options, splits = options | mask, {"num_splits": num_splits}
    sizes = Problem(*problem, **options, alibi=with_alibi)
    formula = traffic.flash_decode(sizes, seq_lens, **splits)
    if with_alibi:
        options["alibi_slopes"] = alibi(problem)
    check(formula, metered(flash_decode, q, k, v, seq_lens, **options, **splits))


@few
@given(
    problems,
    options,
    masks,
    st.booleans(),
    st.integers(0, 6),
    st.lists(st.integers(0, 20), min_size=2, max_size=2),
    st.integers(1, 21),
    st.sampled_from(["", "head", "token"]),
)
def test_paged_attn_decode(
    problem, options, mask, with_alibi, num_splits, lengths, page_size, scales
):
    batch, seqlen_q, _, num_heads, num_kv_heads, head_dim = problem
    rng = np.random.default_rng(0)
    q = random(rng, batch, seqlen_q, num_heads, head_dim)
    cache = [*make_paged_cache(rng, lengths[:batch], page_size, num_kv_heads, head_dim)]
    options, splits = options | mask, {"num_splits": num_splits}
    max_len = cache[2].shape[1] * page_size
    sizes = (batch, seqlen_q, max_len, num_heads, num_kv_heads, head_dim)
    sizes = Problem(*sizes, **options, alibi=with_alibi)
    formula = traffic.paged_attn_decode(sizes, lengths[:batch], **splits, scales=scales != "")
    if scales:
        cache[:2], scaled = in_8_bits(*cache[:2], scales)
        options |= scaled
    if with_alibi:
        options["alibi_slopes"] = alibi(problem)
    check(formula, metered(paged_attn_decode, q, *cache, **options, **splits))


@few
@given(
    st.lists(st.integers(0, 40), max_size=2),
    st.integers(0, 3),
    st.integers(1, 9),
    st.tuples(small, st.integers(0, 40)),
    st.sampled_from([None, 1, 5, 64]),
    st.booleans(),
    st.integers(0, 4),
)
def test_mla_decode(lengths, seqlen_q, num_heads, columns, page_size, causal, num_splits):
    rng = np.random.default_rng(0)
    case = make_latent_case(rng, lengths, seqlen_q, num_heads, *columns, page_size)
    *arrays, block_table = case
    max_len = block_table.shape[1] * page_size if page_size else arrays[1].shape[1]
    sizes = Problem(len(lengths), seqlen_q, max_len, num_heads, 1, sum(columns), causal=causal)
    options = {"latent_dim": columns[0], "num_splits": num_splits}
    formula = traffic.mla_decode(sizes, lengths, paged=page_size is not None, **options)
    options |= {"softmax_scale": 1.0, "causal": causal, "block_table": block_table}
    check(formula, metered(fa_numba.mla_decode, *arrays, **options))


@few
@given(st.integers(0, 2), st.integers(0, 5), st.integers(1, 3), small)
def test_merge_states(batch, seqlen_q, num_heads, head_dim):
    rng = np.random.default_rng(0)
    state = (
        random(rng, batch, seqlen_q, num_heads, head_dim),
        random(rng, batch, num_heads, seqlen_q),
    )
    formula = traffic.merge_states(batch, seqlen_q, num_heads, head_dim)
    check(formula, metered(fa_numba.merge_states, *state, *state))


@few
@given(problems, st.booleans(), masks, st.sampled_from([(32, 16), (32, 32), (64, 16)]))
def test_flash_attn_registers(problem, causal, mask, tiles):
    options = {"causal": causal, **mask} | dict(zip(("block_m", "block_n"), tiles, strict=True))
    formula = traffic.flash_attn_registers(Problem(*problem, **options, alibi=True))
    q, k, v = make_qkv(np.random.default_rng(0), *problem)
    slopes = alibi(problem)
    check(formula, metered(fa_numba.flash_attn_registers, q, k, v, alibi_slopes=slopes, **options))


@few
@given(problems, st.booleans(), masks, st.sampled_from([16, 32]), st.booleans())
def test_flash_attn_bwd_registers(problem, causal, mask, tile_size, deterministic):
    mask, options = (
        {"causal": causal, **mask},
        {"tile_size": tile_size, "deterministic": deterministic},
    )
    formula = traffic.flash_attn_bwd_registers(Problem(*problem, **mask, alibi=True), **options)
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, *problem)
    lse = random(rng, *(q.shape[i] for i in (0, 2, 1)))
    arguments = (q, q, k, v, q, lse)
    options |= mask | {"alibi_slopes": alibi(problem)}
    check(formula, metered(fa_numba.flash_attn_bwd_registers, *arguments, **options))


@few
@given(st.lists(st.integers(0, 20), max_size=4), small, st.integers(1, 3), small, st.integers(0, 5))
def test_paged_kv_lookup(seq_lens, page_size, num_kv_heads, head_dim, extra):
    caches = make_paged_cache(np.random.default_rng(0), seq_lens, page_size, num_kv_heads, head_dim)
    max_len = min(max(seq_lens, default=0) + extra, caches[2].shape[1] * page_size)
    sizes = (page_size, num_kv_heads, head_dim)
    formula = traffic.paged_kv_lookup(seq_lens, *sizes, max_len=max_len)
    check(formula, metered(fa_numba.paged_kv_lookup, *caches, max_len=max_len))
    formula = traffic.paged_kv_lookup(seq_lens, *sizes)
    check(formula, metered(fa_numba.paged_kv_lookup, *caches))


@few
@given(
    st.lists(st.booleans(), max_size=6),
    small,
    st.integers(1, 10),
    small,
    st.sampled_from(["", "head", "token"]),
)
def test_reshape_and_cache(written, page_size, num_kv_heads, head_dim, scales):
    rng = np.random.default_rng(0)
    arguments = [*make_cache_write(rng, len(written), page_size, num_kv_heads, head_dim)]
    arguments[-1][~np.array(written, bool)] = -1
    formula = traffic.reshape_and_cache(arguments[-1], num_kv_heads, head_dim, scales=scales)
    options = {}
    if scales:
        arguments[2:4], options = in_8_bits(*arguments[2:4], scales)
    check(formula, metered(fa_numba.reshape_and_cache, *arguments, **options))


@few
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    small,
    st.integers(1, 3),
    st.integers(1, 2),
    small,
)
def test_bounds_and_scores_of_pages(lengths, page_size, group_size, num_kv_heads, head_dim):
    """The end of each sequence is written; tokens without a slot lie between the sequences."""
    rng = np.random.default_rng(sum(lengths))
    cache, _, table, lengths = make_paged_cache(rng, lengths, page_size, num_kv_heads, head_dim)
    slots = [np.full(1, -1)]
    for pages, length in zip(table, lengths, strict=True):
        t = np.arange(rng.integers(length + 1), length)
        slots += [pages[t // page_size] * page_size + t % page_size, np.full(1, -1)]
    slots = np.concatenate(slots).astype(np.int32)[rng.integers(2) :]
    bounds = np.zeros((2, len(cache), num_kv_heads, head_dim), np.float32)
    k, sizes = random(rng, len(slots), num_kv_heads, head_dim), (num_kv_heads, head_dim)
    formula = traffic.update_page_bounds(slots, page_size, *sizes)
    check(formula, metered(update_page_bounds, k, *bounds, slots, page_size))
    q = random(rng, len(lengths), 1, group_size * num_kv_heads, head_dim)
    formula = traffic.page_scores(lengths, page_size, table.shape[1], q.shape[2], *sizes)
    check(formula, metered(page_scores, q, *bounds, table, lengths, page_size))
    scores, number = random(rng, len(lengths), num_kv_heads, table.shape[1]), group_size + 1
    formula = traffic.top_pages(lengths, page_size, table.shape[1], num_kv_heads, number)
    check(formula, metered(top_pages, scores, table, lengths, page_size, number))


@few
@given(st.integers(0, 4), small, st.integers(1, 10), small)
def test_copy_and_swap_pages(num_copies, page_size, num_kv_heads, head_dim):
    k, v, k_dst, v_dst = np.zeros((4, 8, page_size, num_kv_heads, head_dim), np.float32)
    src, dst = np.random.default_rng(0).permutation(8).astype(np.int32).reshape(2, 4)
    numbers = src[:num_copies], dst[:num_copies]
    sizes = (num_copies, page_size, num_kv_heads, head_dim)
    check(traffic.copy_pages(*sizes), metered(fa_numba.copy_pages, k, v, *numbers))
    meter = metered(fa_numba.swap_pages, k, v, k_dst, v_dst, *numbers)
    check(traffic.swap_pages(*sizes), meter)


def test_bytes_of_16_bits(rng):
    """Half of them for q and what is like it; not for statistics, partial results and tables."""

    def half(*shape):
        return random(rng, *shape).astype(np.float16)

    problem = batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim = 2, 9, 20, 4, 2, 8
    q, k, v = (x.astype(np.float16) for x in make_qkv(rng, *problem))
    lse, lengths = random(rng, batch, num_heads, seqlen_q), np.array([20, 7], np.int32)
    *caches, block_table, _ = make_paged_cache(rng, lengths, 5, num_kv_heads, head_dim)
    caches = [x.astype(np.float16) for x in caches]
    token = (num_kv_heads, head_dim)
    slots, numbers = np.arange(3, dtype=np.int32), [np.array([i], np.int32) for i in (0, 2)]
    max_len = block_table.shape[1] * 5
    attention = (Problem(*problem),)
    paged = Problem(batch, seqlen_q, max_len, num_heads, *token)
    block_mask = np.ones((1, 3), bool)
    calls = {name: ((2, 70), (half(2, 70),)) for name in SOFTMAXES}
    calls |= {name: (attention, (q, k, v)) for name in (*FORWARD, "lazy_softmax_attn")}
    calls |= {
        **{name: ((2, 70, 5), (half(2, 70), 5)) for name in TOPK},
        "flash_attn_bwd": (attention, (q, q, k, v, q, lse)),
        "linear_attn": (attention, (q, k, v)),
        "flash_decode": ((*attention, lengths), (q, k, v, lengths)),
        "paged_attn_decode": ((paged, lengths), (q, *caches, block_table, lengths)),
        "paged_kv_lookup": ((lengths, 5, *token), (*caches, block_table, lengths)),
        "merge_states": ((batch, seqlen_q, num_heads, head_dim), (q, lse, q, lse)),
        "reshape_and_cache": ((slots, *token), (half(3, *token), half(3, *token), *caches, slots)),
        "copy_pages": ((1, 5, *token), (*caches, *numbers)),
    }
    for name, (sizes, arguments) in calls.items():
        meter = metered(kernel_function(name), *arguments)
        check(getattr(traffic, name)(*sizes), meter, dtype_bytes=2)
    meter = metered(
        fa_numba.mla_decode, q, half(batch, 20, 8), lengths, softmax_scale=1.0, latent_dim=5
    )
    latent = Problem(batch, seqlen_q, 20, num_heads, 1, 8)
    check(traffic.mla_decode(latent, lengths, latent_dim=5), meter, dtype_bytes=2)
    tiles = {"block_m": 16, "block_n": 8}
    meter = metered(fa_numba.flash_attn_v1, q, k, v, **tiles, block_mask=block_mask)
    formula = traffic.flash_attn_v1(Problem(*problem, **tiles), block_mask=block_mask)
    check(formula, meter, dtype_bytes=2)


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"seqlen_q": -1}, ValueError, "seqlen_q must be at least 0, got -1"),
        ({"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ({"block_m": 0}, ValueError, "block_m must be at least 1, got 0"),
        ({"batch": 1.5}, TypeError, "batch must be an int, got 1.5"),
        ({"num_heads": 3}, ValueError, "multiple of num_kv_heads, got 3 and 2"),
        ({"window_size": 8}, TypeError, r"window_size must be two ints \(left, right\), got 8"),
    ],
)
def test_a_problem_checks_its_sizes(values, error, message):
    sizes = ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim")
    with pytest.raises(error, match=message):
        Problem(**dict(zip(sizes, (1, 9, 20, 4, 2, 8), strict=True)) | values)


def test_an_option_that_a_function_lacks_is_refused():
    problem = Problem(1, 9, 20, 4, 2, 8, window_size=(3, 0))
    wanted = r"window_size must be \(-1, -1\) for linear_attn, .* got \(3, 0\)"
    with pytest.raises(ValueError, match=wanted):
        traffic.linear_attn(problem)
    with pytest.raises(ValueError, match="block_m must be given for flash_attn_registers"):
        traffic.flash_attn_registers(problem)


def test_sizes_that_contradict_each_other_are_refused():
    problem = Problem(2, 1, 20, 4, 2, 8)
    with pytest.raises(ValueError, match="one length for each of batch = 2 sequences, got 1"):
        traffic.flash_decode(problem, [20])
    with pytest.raises(ValueError, match="seqlen_q must be the tokens .* together, 9, got 1"):
        traffic.flash_attn_varlen(problem, [0, 4, 9], [0, 10, 20])
    with pytest.raises(ValueError, match="batch must be 1 for a packed batch, got 2"):
        traffic.flash_attn_varlen(problem, [0, 1], [0, 20])


@pytest.mark.parametrize("module", [traffic, walks])
def test_examples_of_docstrings(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


def test_known_figures():
    standard = traffic.standard_attention(4096, 128)
    flash = traffic.flash_attention(4096, 128, 128, 128)
    assert standard["s_writes"] == 2 * 4096**2
    assert standard["total"] == 8 * 4096**2 + 8 * 4096 * 128 == 138_412_032
    assert flash["k_reads"] == 2 * 4096 * 128 * 32
    assert flash["total"] == 69_206_016  # half of the standard pipeline, not a twentieth


@pytest.mark.parametrize("block_m, loads", [(8, 2304), (16, 1280), (32, 768)])
def test_flash_attn_v2_reads_k_and_v_once_per_tile_of_queries(block_m, loads):
    moved = traffic.flash_attn_v2(Problem(1, 32, 32, 1, 1, 8, block_m=block_m))
    assert sum(moved.loads.values()) == loads == 32 * 8 + 2 * 32 * 8 * (32 // block_m)
    assert moved.stores == {"out": 32 * 8, "lse": 32}


def test_block_sparse_attention_costs_its_share_of_live_tiles():
    problem = Problem(1, 4096, 4096, 1, 1, 64, block_m=16, block_n=16)
    dense = traffic.flash_attn_v1(problem)
    share = 1 / 8
    block_mask = np.random.default_rng(0).random((256, 256)) < share
    sparse = traffic.flash_attn_v1(problem, block_mask=block_mask)
    assert sparse.stores["out"] == block_mask.sum() * 16 * 64
    assert abs(sparse.stores["out"] / dense.stores["out"] - share) < 0.01


def test_flash_decode_reads_the_cache_once_for_all_heads_of_a_group():
    one, eight = (
        traffic.flash_decode(Problem(1, 1, 100_000, num_heads, 1, 64), [100_000])
        for num_heads in (1, 8)
    )
    assert one.loads["k_cache"] == eight.loads["k_cache"] == 100_000 * 64
    partial = sum(eight.stores.values()) + eight.loads["out_partial"] + eight.loads["lse_partial"]
    assert partial / eight.elements() < 0.04  # what splitting costs: 160 partial results a head


def test_a_window_bounds_what_a_decoding_step_reads():
    short, long = (
        traffic.flash_decode(Problem(1, 1, n, 8, 1, 64, window_size=(1023, 0)), [n])
        for n in (2048, 131072)
    )
    assert short == long and long.loads["k_cache"] == 1024 * 64


def test_packed_sequences_cost_nothing_for_the_padding_that_they_do_not_have():
    one = traffic.flash_attn_v2(Problem(1, 4096, 4096, 1, 1, 64))
    starts = [0, 4096, 4096, 4097]
    packed = traffic.flash_attn_varlen(Problem(1, 4097, 4097, 1, 1, 64), starts, starts)
    padded = traffic.flash_attn_v2(Problem(3, 4096, 4096, 1, 1, 64))
    assert one.elements() < packed.elements() < 1.01 * one.elements()
    assert padded.elements() == 3 * one.elements()


def test_a_window_costs_what_it_sees():
    whole, windowed, twice = (
        traffic.flash_attn_v2(Problem(1, n, n, 1, 1, 64, window_size=window)).loads["k"]
        for n, window in ((4096, (-1, -1)), (4096, (255, 0)), (8192, (255, 0)))
    )
    assert 0.06 < windowed / whole < 0.07  # 256 keys and the rest of two tiles, of 4096
    assert 1.99 < twice / windowed < 2.05  # the work grows with N, not with N²


def test_a_causal_mask_saves_nearly_half():
    full, causal = (
        traffic.flash_attn_v2(Problem(1, 4096, 4096, 1, 1, 64, causal=causal)).loads["k"]
        for causal in (False, True)
    )
    assert 0.5 < causal / full < 0.51
