"""Cascade: sequences that share pages, found by the plan, read once, merged."""

import numpy as np
import pytest
from cases import assert_close, from_8_bits, in_8_bits, random

from fa_numba import cascade_decode, reference, simt
from fa_numba.analysis import Problem, traffic
from fa_numba.dispatch import cascade
from fa_numba.kernels.paged_attn_decode import paged_attn_decode as to_read
from fa_numba.kv_cache import PagePool, cascade_plan, merge_pays

PREFIX, BRANCHES = list(range(100, 111)), ([1] * 9, [2] * 5)


def served(prompts, page_size, num_pages=64):
    """Block table and lengths of prompts in a pool, whose pages have been used before."""
    pool = PagePool(num_pages, page_size)
    for n in (3, 2):
        pool.free(pool.allocate([n] * page_size * n)[0])
    seqs = [pool.allocate(prompt)[0] for prompt in prompts]
    return pool.block_table(seqs), pool.seq_lens(seqs)


def tree(rng):
    """Prompts of a trie of two levels, one that has it all, one alone, and two that are equal."""
    ends = [rng.integers(0, 9, n).tolist() for n in (1, 4, 12, 2)]
    prompts = [PREFIX + BRANCHES[i % 2] + end for i, end in enumerate(ends)]
    return [*prompts, PREFIX, [7] * 13, prompts[0], PREFIX + BRANCHES[0]]


def check(got, q, caches, tables, **options):
    want = reference.paged_attention(q, *caches, *tables, **options)
    rounded = (x.astype(np.float32) for x in caches)
    plain = reference.paged_attention(q, *rounded, *tables, **options, dtype=np.float32)
    for name, x, y, z in zip(("out", "lse"), got, want, plain, strict=True):
        assert_close(x, y, z, name=name)


def case(rng, page_size, seqlen_q=1, heads=4, kv_heads=2, head_dim=8):
    tables = served(tree(rng), page_size)
    caches = [random(rng, 64, page_size, kv_heads, head_dim) for _ in range(2)]
    return random(rng, len(tables[1]), seqlen_q, heads, head_dim), caches, tables


@pytest.mark.parametrize("attend", [{}, {"attend": to_read}], ids=["job", "engine"])
@pytest.mark.parametrize("page_size, seqlen_q", [(1, 1), (2, 3), (4, 1), (32, 2)])
def test_against_float64(rng, page_size, seqlen_q, attend):
    q, caches, tables = case(rng, page_size, seqlen_q)
    plan = cascade_plan(*tables, page_size, seqlen_q=seqlen_q)
    got = cascade_decode(q, *caches, plan, causal=True, softcap=5.0, **attend)
    check(got, q, caches, tables, causal=True, softcap=5.0)
    assert bool(plan.segments) == (page_size < 32)


def test_heads_of_a_group_may_be_rows(rng, monkeypatch):
    """As on a GPU, where the kernels of whole sequences take many rows."""
    q, k, v = (random(rng, 1, n, h, 8) for n, h in ((5, 6), (40, 2), (40, 2)))
    monkeypatch.setattr(cascade, "flash_attn", reference.attention)
    out, lse = cascade._attend_as_rows(q, k, v, {"softcap": 5.0})
    want, want_lse = reference.attention(q, k, v, softcap=5.0)
    np.testing.assert_allclose(out, want, rtol=1e-12)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-12)


def test_two_launches_on_a_model(run_on_model):
    case = {"shared": 9, "lengths": [150, 220, 170], "seqlen_q": 2}
    sizes = {"heads": [4, 2], "head_dim": 64, "page_size": 16}
    run_on_model("shared_segment_on_model.py", case | sizes)


@pytest.mark.parametrize("form", ["head", "token"])
def test_pages_of_e4m3(rng, form):
    q, caches, tables = case(rng, 4)
    bytes, scales = in_8_bits(*caches, form)
    got = cascade_decode(q, *bytes, cascade_plan(*tables, 4), **scales)
    exact = [from_8_bits(x, scale) for x, scale in zip(bytes, scales.values(), strict=True)]
    check(got, q, exact, tables)


def test_one_segment_of_all_as_on_a_gpu(rng, monkeypatch):
    """Where TMA reads no pages, as of e4m3: two states of each row, and no arrays of states."""
    tables = served([PREFIX + [i] * (1 + 3 * i) for i in range(3)], 4)
    caches, scales = in_8_bits(*(random(rng, 64, 4, 2, 8) for _ in "kv"), "token")
    q, plan = random(rng, 3, 2, 4, 8), cascade_plan(*tables, 4, seqlen_q=2)
    assert [len(s.rows) for s in plan.segments] == [3]
    monkeypatch.setattr(cascade, "_is_one_for_all", lambda plan, q: True)
    monkeypatch.delattr(cascade, "_merged")
    got = cascade_decode(q, *caches, plan, causal=True, **scales, attend=to_read)
    exact = [from_8_bits(x, scale) for x, scale in zip(caches, scales.values(), strict=True)]
    check(got, q, exact, tables, causal=True)


@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_each_key_is_in_one_segment_or_suffix_and_shared_ones_in_one_alone(rng, page_size):
    table, lengths = served(tree(rng), page_size)
    plan = cascade_plan(table, lengths, page_size)
    for row, length in enumerate(lengths):
        mine = [s for s in plan.segments if row in s.rows]
        assert [s.depth for s in mine] == [*range(len(mine))]
        pages = [page for s in mine for page in s.pages[0]]
        pages += plan.block_table[row].tolist()
        used = -(-length // page_size)
        assert pages[:used] == table[row, :used].tolist()
        assert sum(len(s.pages[0]) * page_size for s in mine) + plan.seq_lens[row] == length
        assert plan.seq_lens[row] >= 1  # the query's own key
    of_segments = [page for s in plan.segments for page in s.pages[0]]
    assert len(of_segments) == len({*of_segments})


def test_the_segments_of_a_tree():
    table = np.array([[0, 1, 2, 3, 7, -1], [0, 1, 2, 3, 8, 9], [0, 1, 4, 5, -1, -1]], np.int32)
    lengths = np.array([18, 24, 15], np.int32)
    plan = cascade_plan(table, lengths, 4)
    found = [(s.rows.tolist(), s.depth, s.pages[0].tolist()) for s in plan.segments]
    assert found == [([0, 1, 2], 0, [0, 1]), ([0, 1], 1, [2, 3])]
    assert plan.block_table.tolist() == [[7, -1], [8, 9], [4, 5]]
    assert plan.seq_lens.tolist() == [2, 8, 7]
    # What does not pay is added to the segments below it.
    plan = cascade_plan(table, lengths, 4, pays=lambda sequences, keys: keys > 8)
    assert [(s.rows.tolist(), s.pages[0].tolist()) for s in plan.segments] == [
        ([0, 1], [0, 1, 2, 3])
    ]
    assert plan.block_table.tolist()[2] == [0, 1, 4, 5]


def test_where_it_pays():
    """Two sequences, 8 heads on 2 of K and V, float16: the state of a row is 129 numbers."""
    pays = merge_pays(8, 2, 128, 2)
    saved, merged = 2 * 2 * 128 * 2, 2 * 2 * 8 * 129 * 4
    least = merged // saved + 1
    assert pays(2, least) and not pays(2, least - 1)
    assert pays(32, 16) and not pays(32, 8) and not pays(1, 10**6)
    assert not merge_pays(8, 2, 128, 2, overhead=saved)(2, least)


@pytest.mark.parametrize("page_size", [2, 4])
def test_traffic_is_that_of_the_segments_and_suffixes(rng, page_size):
    q, caches, tables = case(rng, page_size)
    plan = cascade_plan(*tables, page_size)
    with simt.tracing() as traces:
        cascade_decode(q, *caches, plan, attend=to_read)
    loads, stores = {}, {}
    for trace in traces:
        for name, counts in trace.arrays.items():
            loads[name] = loads.get(name, 0) + counts.loads
            stores[name] = stores.get(name, 0) + counts.stores
    formula = traffic.cascade_decode(plan, 4, 2, 8)
    for predicted, counted in ((formula.loads, loads), (formula.stores, stores)):
        assert {k: n for k, n in predicted.items() if n} == {k: n for k, n in counted.items() if n}
    keys = plan.seq_lens.sum() + sum(len(s.pages[0]) * page_size for s in plan.segments)
    assert formula.loads["k_cache"] == formula.loads["v_cache"] <= keys * 2 * 8 * 4
    whole = Problem(len(q), 1, tables[0].shape[1] * page_size, 4, 2, 8)
    assert keys < tables[1].sum()
    assert traffic.paged_attn_decode(whole, tables[1]).loads["k_cache"] == tables[1].sum() * 16


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"block_table": [[1]]}, TypeError, "block_table must be a NumPy array: shared"),
        ({"seq_lens": np.ones(2, "i4")}, ValueError, "one length for each of the 1 rows .* got 2"),
        (
            {"seq_lens": np.full(1, 9, "i4")},
            ValueError,
            r"seq_lens\[0\] must be from 0 to .* got 9",
        ),
        ({"page_size": 0}, ValueError, "page_size must be at least 1, got 0"),
    ],
)
def test_tables_that_are_refused(change, error, message):
    given = {"block_table": np.zeros((1, 2), "i4"), "seq_lens": np.ones(1, "i4"), "page_size": 4}
    with pytest.raises(error, match=message):
        cascade_plan(**given | change)
