"""Grader of ex18a: slots of tokens, and the kernel that writes new tokens into them."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

NAMES = "k", "v", "sequence", "position", "block_table", "k_cache", "v_cache"
UNOWNED = "A page of -1 is no page: as an index it means the last page of the pool."


def make_table(counts, seed=0):
    """A block table with so many pages for each sequence, shuffled, and the size of the pool."""
    free = iter(np.random.default_rng(seed).permutation(sum(counts) + 3))
    block_table = np.full((len(counts), max(counts) + 2), -1, np.int32)
    for b, count in enumerate(counts):
        block_table[b, :count] = [next(free) for _ in range(count)]
    return block_table, sum(counts) + 3


def slots(exercise, block_table, b, t, page_size):
    """slot_of of many tokens at once, a thread each."""
    slot_of = exercise.slot_of

    @cuda.jit
    def ask(block_table, b, t, slot, page_size):
        i = cuda.grid(1)
        if i < slot.shape[0]:
            slot[i] = slot_of(block_table, b[i], t[i], page_size)

    slot = np.full(len(t), -9, np.int64)
    b, t = np.asarray(b, np.int64), np.asarray(t, np.int64)
    simt.run(ask, -(-len(t) // 64), 64, block_table, b, t, slot, page_size)
    return slot


def expect_slots(exercise, block_table, b, t, page_size):
    got = slots(exercise, block_table, b, t, page_size)
    b, t = np.asarray(b, np.int64), np.asarray(t, np.int64)
    page = block_table[b, t // page_size].astype(np.int64)
    want = np.where(page < 0, -1, page * page_size + t % page_size)
    if (got == want).all():
        return
    i = int(np.argmax(got != want))
    other, offset = page * page_size + t // page_size, t % page_size
    column = np.minimum(offset, block_table.shape[1] - 1)
    causes = {
        UNOWNED: page * page_size + t % page_size,
        "The offset is t % page_size.": np.where(page < 0, -1, other),
        "Page i of a sequence is named by the table, whose rows hold pages in no order.": t,
        "The slot is more than an int32 holds.": want.astype(np.int32),
        "Each sequence has a row of the table of its own: block_table[b].": np.where(
            (own := block_table[0, t // page_size].astype(np.int64)) < 0,
            -1,
            own * page_size + offset,
        ),
        "The page is in column t // page_size of the table, not t % page_size.": np.where(
            (own := block_table[b, column].astype(np.int64)) < 0, -1, own * page_size + offset
        ),
        "The slots of a page begin at page * page_size.": np.where(page < 0, -1, page + offset),
    }
    raise Wrong(
        f"page_size {page_size}: token {t[i]} of sequence {b[i]} must be in slot {want[i]}, got "
        f"{got[i]}; the row of the table is {block_table[b[i]].tolist()[:8]}",
        causes=[said for said, wrong in causes.items() if (got == wrong).all()],
        where=f"slot of token {t[i]}",
    )


@pytest.mark.parametrize("page_size", [1, 2, 5, 16, 300])
def test_every_slot(exercise, page_size):
    """slot_of: every token, pages shuffled"""
    block_table, _ = make_table([3, 1, 2])
    for b, pages in enumerate((3, 1, 2)):
        t = np.arange(pages * page_size)
        expect_slots(exercise, block_table, np.full(len(t), b), t, page_size)


def test_no_page(exercise):
    """slot_of: -1 where the token's page is -1"""
    block_table, _ = make_table([1, 2])
    expect_slots(exercise, block_table, [0, 0, 0, 1], [3, 4, 7, 8], 4)


def test_page_zero(exercise):
    """slot_of: page 0 is a page like any other"""
    expect_slots(exercise, np.array([[3, 0]], np.int32), [0, 0], [5, 3], 4)


def test_large_slots(exercise):
    """slot_of: exact above 2^31"""
    block_table = np.array([[2**30, 7, 2**31 - 1]], np.int32)
    expect_slots(exercise, block_table, [0, 0], [15, 33], 16)
    expect_slots(exercise, block_table, [0], [2**31 + 5], 2**30)


def step(counts, page_size, new, heads=2, head_dim=4, seed=0):
    """Arguments of the kernel; `new` are pairs of sequence and position."""
    rng = np.random.default_rng(seed)
    block_table, num_pages = make_table(counts, seed)
    k, v = rng.standard_normal((2, len(new), heads, head_dim), np.float32)
    sequence, position = np.array(new, np.int32).reshape(-1, 2).T.copy()
    k_cache, v_cache = (
        rng.standard_normal((num_pages, page_size, heads, head_dim), np.float32) for _ in range(2)
    )
    return k, v, sequence, position, block_table, k_cache, v_cache


def _instead(given, name, place=lambda i, b, t: (b, t), *, new=None, first_slot=0, moved=...):
    """The cache if new token i of sequence b, token t of it, is written as (b, t) of `place`.

    Of `new`, by default the given tokens, only the numbers `moved`, from `first_slot` on.
    """
    k, v, sequence, position, block_table, k_cache, v_cache = given
    own, cache = (k, k_cache.copy()) if name == "k_cache" else (v, v_cache.copy())
    new, page_size = own if new is None else new, cache.shape[1]
    for i, at in enumerate(zip(sequence.tolist(), position.tolist(), strict=True)):
        b, t = place(i, *at)
        if at[0] >= 0 and b is not None and t // page_size < block_table.shape[1]:
            page = block_table[b, t // page_size]
            if page >= 0 and page * page_size + t % page_size >= first_slot:
                cache[page, t % page_size].flat[moved] = new[i].flat[moved]
    return cache


def check(exercise, given, threads=64):
    k, v, sequence, position, block_table, k_cache, v_cache = given
    arguments = dict(zip(NAMES, given, strict=True))
    got, trace = launched(exercise.kernel, len(k), threads, ("k_cache", "v_cache"), **arguments)
    page_size = k_cache.shape[1]
    want = {"k_cache": k_cache.copy(), "v_cache": v_cache.copy()}
    last = {name: cache.copy() for name, cache in want.items()}  # -1 taken for an index
    for i, (b, t) in enumerate(zip(sequence, position, strict=True)):
        page = block_table[b, t // page_size]
        for name, new in (("k_cache", k), ("v_cache", v)):
            last[name][page, t % page_size] = new[i]
            if b >= 0 and page >= 0:
                want[name][page, t % page_size] = new[i]
    for name, cache in want.items():
        wrong = np.argwhere(got[name] != cache)
        if not len(wrong):
            continue
        at = tuple(int(x) for x in wrong[0])
        before = {"k_cache": k_cache, "v_cache": v_cache}[name]
        known = {
            UNOWNED: last[name],
            "The slot is that of token i of the sequence, not of token position[i].": _instead(
                given, name, lambda i, b, t: (b, i)
            ),
            "The new tokens of a sequence are taken for its tokens 0, 1, ...": _instead(
                given, name, lambda i, b, t: (b, int((sequence[:i] == b).sum()))
            ),
            "Sequence 0 is one: padding is -1.": _instead(
                given, name, lambda i, b, t: (b or None, t)
            ),
            "Slot 0 is a slot like any other: only -1 is none.": _instead(
                given, name, first_slot=1
            ),
            "Values go to v_cache, and keys to k_cache.": _instead(
                given, name, new=v if name == "k_cache" else k
            ),
            "Each thread block has a new token of its own.": _instead(
                given, name, new=np.broadcast_to((k if name == "k_cache" else v)[:1], k.shape)
            ),
            "Only head 0 is written: a token has num_kv_heads * head_dim numbers.": _instead(
                given, name, moved=slice(k.shape[2])
            ),
            "A thread moves one number alone: its next is blockDim.x further.": _instead(
                given, name, moved=slice(threads)
            ),
            "The step of a thread is blockDim.x, not 32.": _instead(
                given, name, moved=np.flatnonzero(np.arange(k[0].size) % 32 < threads)
            ),
        }
        causes = [said for said, cache in known.items() if np.array_equal(got[name], cache)]
        if np.array_equal(got[name], before):
            causes.append(f"{name} is as it was.")
        kept = (
            "is a slot that no new token has, and was changed"
            if cache[at] == before[at]
            else (f"must be {cache[at]:.5g}, got {got[name][at]:.5g}")
        )
        raise Wrong(
            f"{name}{list(at)} (page, offset, head, d) {kept}",
            causes=causes,
            where=name,
            wrong=got[name] != cache,
            axes=("page", "slot", "head", "column"),
        )
    return trace


def test_one_token_each(exercise):
    """decoding: one new token for each sequence"""
    check(exercise, step([2, 1, 3], 4, [(0, 6), (1, 3), (2, 8)]))


def test_prompts(exercise):
    """prompts: all tokens of a sequence, over page borders"""
    check(exercise, step([4, 2], 3, [(0, t) for t in range(11)] + [(1, t) for t in range(5)]))


def test_padding(exercise):
    """padding, a sequence of -1, writes nothing; nor does a token without a page"""
    check(exercise, step([2, 1], 4, [(0, 5), (-1, 0), (1, 2), (-1, 3), (0, 9), (1, 6)]))


def test_first_slot(exercise):
    """slot 0 of page 0 is a slot like any other"""
    given = step([3], 4, [(0, 0), (0, 5)])
    given[4][0, :2] = 0, 1
    check(exercise, given)


@pytest.mark.parametrize("threads", [1, 32, 96, 128])
def test_threads(exercise, threads):
    """the number of threads does not matter"""
    check(exercise, step([2], 4, [(0, 3), (0, 4)], 3, 13), threads)


@pytest.mark.parametrize("head_dim", [1, 70, 128, 260])
def test_head_dim(exercise, head_dim):
    """head_dim 1, 70, 128 and 260"""
    check(exercise, step([2], 4, [(0, 3), (0, 4)], 2, head_dim))


def test_many(exercise):
    """300 sequences, pages, slots, heads and new tokens"""
    check(exercise, step([1] * 300, 2, [(b, b % 2) for b in range(300)], 1, 2))
    check(exercise, step([2], 300, [(0, 299), (0, 300), (0, 17)], 1, 2))
    check(exercise, step([300], 1, [(0, 299), (0, 270)], 1, 2))
    check(exercise, step([1], 4, [(0, 2)], 300, 1))


def test_traffic(exercise):
    """keys and values are loaded once and stored once, by neighbouring threads"""
    trace = check(exercise, step([3], 4, [(0, t) for t in range(2, 9)] + [(-1, 0)], 8, 8), 32)
    moved = (7 * 64, "once for each number of a token that has a slot")
    expect_at_most(
        trace, k_loads=moved, v_loads=moved, k_cache_stores=moved, v_cache_stores=moved,
        k_cache_loads=(0, "the cache is only written"),
        v_cache_loads=(0, "the cache is only written"),
    )  # fmt: skip
    names = "k", "v", "k_cache", "v_cache"
    expect_neighbours(trace, names, "Thread x moves the numbers x, x + blockDim.x, ...")
    expect_chip_memory(trace, allowed="a number is moved through a register")
    assert not trace.barriers, "nobody reads what another thread wrote: no barrier"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    gpu_ready(exercise.kernel, step([1], 4, [(0, 2)]))
