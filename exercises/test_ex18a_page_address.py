"""Grader of ex18a: where does token t live?"""

import numpy as np
import pytest

from fa_numba.workbook.graders.attention import expect_error
from fa_numba.workbook.graders.causes import Wrong

FULL_PAGES = "A full last page wastes nothing: there page_size - n % page_size is page_size, not 0."
OF_INT32 = "NumPy's int32 holds no number above 2^31 - 1: turn it into a Python int first."


def make_table(seq_lens, page_size, seed=0):
    """A block table with shuffled pages, and a plain list of every token's (page, offset)."""
    rng = np.random.default_rng(seed)
    pages_of = [len(range(0, n, page_size)) for n in seq_lens]
    free = rng.permutation(sum(pages_of) + 3).tolist()
    block_table = np.full((len(seq_lens), max(pages_of) + 2), -1, np.int32)
    address = []
    for b, n in enumerate(seq_lens):
        rows = []
        for t in range(n):
            if t % page_size == 0:
                page = free.pop()
                block_table[b, t // page_size] = page
                offset = 0
            rows.append((page, offset))
            offset += 1
        address.append(rows)
    return block_table, np.array(seq_lens, np.int32), address


@pytest.mark.parametrize(
    "seq_len, page_size, want",
    [(0, 16, 0), (1, 16, 1), (15, 16, 1), (16, 16, 1), (17, 16, 2), (33, 16, 3), (7, 1, 7)]
    + [(1000, 7, 143), (1001, 7, 143)],
)
def test_pages_needed(exercise, seq_len, page_size, want):
    """pages_needed rounds up"""
    got = exercise.pages_needed(seq_len, page_size)
    assert got == want, f"{seq_len} tokens in pages of {page_size} take {want} pages, got {got}"


@pytest.mark.parametrize("page_size", [1, 2, 5, 16])
def test_every_token(exercise, page_size):
    """page and offset of every token, pages shuffled"""
    longest = 300 if page_size == 1 else 23
    block_table, seq_lens, address = make_table([7, 16, 1, longest], page_size)
    for b, rows in enumerate(address):
        for t, want in enumerate(rows):
            got = exercise.page_address(block_table, seq_lens, b, t, page_size)
            assert tuple(got[:2]) == want, (
                f"page_size={page_size}, token {t} of sequence {b}: want (page, offset) {want}, "
                f"got {tuple(got[:2])}; the block table's row is {block_table[b].tolist()}"
            )


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_slot(exercise, page_size):
    """slot = page * page_size + offset, and no two tokens share one"""
    block_table, seq_lens, address = make_table([9, 20], page_size)
    seen = {}
    for b, rows in enumerate(address):
        for t, (page, offset) in enumerate(rows):
            slot = exercise.page_address(block_table, seq_lens, b, t, page_size)[2]
            assert slot == page * page_size + offset, (
                f"page {page}, offset {offset}: want slot {page * page_size + offset}, got {slot}"
            )
            assert slot not in seen, f"tokens {seen[slot]} and {(b, t)} got the same slot {slot}"
            seen[slot] = (b, t)


def test_part_filled_last_page(exercise):
    """the last token of a part-filled page has an address, the next one has none"""
    block_table, seq_lens, address = make_table([6], page_size=4)
    assert tuple(exercise.page_address(block_table, seq_lens, 0, 5, 4)[:2]) == address[0][5]
    why = "6 tokens are 0 to 5. Token 6 has a slot in the page, but no key has been written there"
    expect_error(IndexError, lambda: exercise.page_address(block_table, seq_lens, 0, 6, 4), why)


@pytest.mark.parametrize("t", [-1, -6, 6, 7, 8, 1000])
def test_no_such_token(exercise, t):
    """a token that the sequence does not have is an IndexError"""
    block_table, seq_lens, _ = make_table([6, 30], page_size=4)
    for pages in (block_table, np.full_like(block_table, -1)):  # -1 there changes nothing
        expect_error(
            IndexError,
            lambda pages=pages: exercise.page_address(pages, seq_lens, 0, t, 4),
            f"the sequence has tokens 0 to 5, asked for {t}",
        )


def test_empty_sequence(exercise):
    """an empty sequence has no token 0"""
    block_table, seq_lens, _ = make_table([0, 5], page_size=4)
    why = "seq_lens[0] is 0, so there is no token 0"
    expect_error(IndexError, lambda: exercise.page_address(block_table, seq_lens, 0, 0, 4), why)


def test_missing_page(exercise):
    """a token whose page is -1 is a ValueError"""
    block_table, seq_lens, _ = make_table([10], page_size=4)
    block_table[0, 1] = -1
    exercise.page_address(block_table, seq_lens, 0, 3, 4)  # page 0 is there
    why = (
        "token 4 lies in the second page, and the table says -1 there, which as an index would "
        "silently mean the last page of the pool"
    )
    expect_error(ValueError, lambda: exercise.page_address(block_table, seq_lens, 0, 4, 4), why)


def test_page_zero(exercise):
    """page 0 is a page like any other"""
    got = exercise.page_address(np.array([[3, 0]], np.int32), np.array([8], np.int32), 0, 5, 4)
    assert tuple(got) == (0, 1, 1), f"token 5 is in page 0, offset 1: want (0, 1, 1), got {got}"


def test_inputs_unchanged(exercise):
    """block_table and seq_lens stay as they are"""
    block_table, seq_lens, _ = make_table([9, 20], 4)
    before = block_table.copy(), seq_lens.copy()
    exercise.page_address(block_table, seq_lens, 1, 13, 4)
    exercise.wasted_slots(seq_lens, 4)
    assert (block_table == before[0]).all(), "block_table was changed"
    assert (seq_lens == before[1]).all(), "seq_lens was changed"


@pytest.mark.parametrize(
    "seq_lens, page_size, want",
    [([16, 32], 16, 0), ([1], 16, 15), ([17, 15], 16, 16), ([0, 0], 16, 0), ([], 16, 0)]
    + [([5, 6, 7], 1, 0), ([100], 256, 156), ([3, 10, 4], 7, 4 + 4 + 3)],
    ids=str,
)
def test_wasted_slots(exercise, seq_lens, page_size, want):
    """wasted_slots counts the empty ends of last pages, and nothing for empty sequences"""
    got = exercise.wasted_slots(np.array(seq_lens, np.int32), page_size)
    if got == want:
        return
    mistakes = {
        FULL_PAGES: sum(page_size - n % page_size for n in seq_lens),
        "n % page_size is what the last page holds; its other slots are empty.": sum(
            n % page_size for n in seq_lens
        ),
        "An empty sequence has no page.": want + page_size * seq_lens.count(0),
        "Each sequence has a last page of its own: round up each length, then add.": -sum(seq_lens)
        % page_size,
    }
    raise Wrong(
        f"lengths {seq_lens} in pages of {page_size}: want {want} empty slots, got {got}",
        causes=[cause for cause, result in mistakes.items() if got == result],
    )


def test_waste_is_bounded(exercise):
    """never more than page_size - 1 slots per sequence"""
    seq_lens = np.random.default_rng(0).integers(0, 3000, 300)
    for page_size in (1, 16, 300):
        got = exercise.wasted_slots(seq_lens, page_size)
        bound = len(seq_lens) * (page_size - 1)
        if not 0 <= got <= bound:
            full = sum(page_size - int(n) % page_size for n in seq_lens)
            raise Wrong(
                f"page_size={page_size}: want at most {bound}, got {got}",
                causes=[FULL_PAGES] if got == full else [],
            )
        assert (got + seq_lens.sum()) % page_size == 0, "full and empty slots fill whole pages"


def test_python_ints(exercise):
    """three Python ints come back, which no array of int32 can overflow"""
    block_table = np.array([[2**30]], np.int32)
    got = exercise.page_address(block_table, np.array([5], np.int32), 0, 4, 16)
    if tuple(got) != (2**30, 4, 2**34 + 4):
        raise Wrong(
            f"page 2^30 of 16 slots: want slot 2^34 + 4 = {2**34 + 4}, got {got}",
            causes=[OF_INT32],
        )
    if any(type(number) is not int for number in got):
        raise Wrong(
            f"want Python ints, got {[type(number).__name__ for number in got]}",
            causes=[OF_INT32],
        )


@pytest.mark.parametrize(
    "seq_len, page_size, want",
    [(2**40 + 1, 2**24, 2**16 + 1), (2**60 + 1, 1, 2**60 + 1)],
    ids=["2^40 + 1 tokens", "2^60 + 1 tokens"],
)
def test_more_than_a_float_holds(exercise, seq_len, page_size, want):
    """pages_needed is exact where a float is not"""
    got = exercise.pages_needed(seq_len, page_size)
    if got != want:
        raise Wrong(
            f"{seq_len} tokens in pages of {page_size} take {want} pages, got {got}",
            causes=["seq_len / page_size is a float, which is rounded: divide by //."],
        )


def test_long_sequences(exercise):
    """sequences of 2^31 - 1 tokens: exact, and at once"""
    most = 2**31 - 1
    seq_lens = np.full(3, most, np.int32)
    full, single = np.array([[5, 2**31 - 2]], np.int32), np.ones(3, np.int32)
    last = most - 1, 2**30 - 2, (most - 1) * 2**30 + 2**30 - 2
    for case, call, want in (
        (
            "wasted_slots of three sequences of 2^31 - 1 tokens, pages of 2^20",
            lambda: exercise.wasted_slots(seq_lens, 2**20),
            3,
        ),
        (
            "wasted_slots of three sequences of 1 token, pages of 2^31",
            lambda: exercise.wasted_slots(single, 2**31),
            3 * most,
        ),
        (
            "page_address of token 2^31 - 2, pages of 2^30",
            lambda: tuple(exercise.page_address(full, seq_lens, 0, most - 1, 2**30)),
            last,
        ),
    ):
        try:
            got = call()
        except OverflowError as error:
            got = f"OverflowError: {error}"
        if got != want:
            raise Wrong(f"{case}: want {want}, got {got}", causes=[OF_INT32])
