"""PagePool: by example, and against a model without pages."""

import functools
import pickle
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fa_numba import PagePool
from fa_numba.kv_cache import OutOfPagesError, beams, samples


class Cache:
    """A list of slots that applies the writes of a pool, as copy_pages and reshape_and_cache do.

    A slot holds the number of its token and all tokens before it: these decide the token's keys.
    """

    def __init__(self, pool):
        self.pool, self.slots = pool, [None] * (pool.num_pages * pool.page_size)

    def carry_out(self, writes, prefixes):
        """`prefixes`: for each new token, as from `prefixes_of`."""
        size = self.pool.page_size
        src, dst, slot_mapping = (x.tolist() for x in writes)
        assert len(set(dst)) == len(dst) == len(src) and not set(dst) & set(src)
        for x, y in zip(src, dst, strict=True):
            self.slots[y * size : (y + 1) * size] = self.slots[x * size : (x + 1) * size]
        written = [slot for slot in slot_mapping if slot >= 0]
        assert len(set(written)) == len(written), "a slot with two writers"
        for slot, prefix in zip(slot_mapping, prefixes, strict=True):
            if slot == -1:
                continue
            assert self.pool.references(slot // size) == 1, "a write to a page that is shared"
            self.slots[slot] = prefix

    def read(self, seq):
        """The slots that an attention kernel would read for a sequence."""
        size, pages = self.pool.page_size, self.pool.block_table([seq])[0]
        return [
            self.slots[pages[t // size] * size + t % size] for t in range(self.pool.length(seq))
        ]


def prefixes_of(tokens, start=0, numbers={}):  # noqa: B006  all calls have one
    """A number for each token from `start` on, which it has with the tokens before it alone."""
    prefixes = [0]
    for token in tokens:
        prefixes.append(numbers.setdefault((prefixes[-1], token), len(numbers) + 1))
    return prefixes[1 + start :]


class Against:
    """A pool, a cache, and the model: a dict of the tokens of each sequence."""

    def __init__(self, num_pages, page_size, share_prefixes):
        self.pool = PagePool(num_pages, page_size, share_prefixes=share_prefixes)
        self.cache, self.model, self.steps = Cache(self.pool), {}, 0

    def count(self, length):
        return -(-length // self.pool.page_size)

    def held(self):
        return {page for seq in self.model for page in self.pool.pages(seq)}

    def attempt(self, call, fewest, most):
        """Call; it may run out if it needs `most` new pages, and must if it needs `fewest`."""
        free = self.pool.num_free
        before = pickle.dumps(vars(self.pool))  # also the order of free pages
        try:
            result = call()
        except OutOfPagesError:
            assert most > free, "ran out, and had enough pages"
            assert vars(self.pool) == pickle.loads(before), "ran out, and changed something"
            return None
        assert fewest <= free, "did not run out, and had too few pages"
        return result

    def allocate(self, tokens):
        most, size = self.count(len(tokens)), self.pool.page_size
        beginnings = {tuple(t[: i * size]) for t in self.model.values() for i in range(1, 9)}
        common = 0
        while tuple(tokens[: (common + 1) * size]) in beginnings and (common + 1) * size <= len(
            tokens
        ):
            common += 1
        fewest = most - common if self.pool.share_prefixes else most
        needed = self.pool.pages_needed(tokens)
        assert fewest <= needed <= most
        got = self.attempt(lambda: self.pool.allocate(tokens), needed, needed)
        if got is not None:
            seq, writes = got
            assert seq not in self.model
            self.model[seq] = list(tokens)
            assert len(writes.src) == 0
            self.cache.carry_out(writes, prefixes_of(tokens))

    def append(self, new, guesses=None):
        """Needs are exact here: nothing is shared by content but whole prompts.

        `guesses`: of some sequences, the number of slots behind their tokens, and those that become
        tokens, the first ones.
        """
        needed, writers, guesses = 0, Counter(), guesses or {}
        for seq, tokens in new.items():
            length, slots = len(self.model[seq]), len(tokens) + guesses.get(seq, (0,))[0]
            needed += self.count(length + slots) - self.count(length)
            if slots and length % self.pool.page_size:
                writers[self.pool.pages(seq)[-1]] += 1
        owners = Counter(page for seq in self.model for page in self.pool.pages(seq))
        copies = sum(n if n < owners[page] else n - 1 for page, n in writers.items())
        before = {seq: self.pool.pages(seq) for seq in new}
        slots = {seq: n for seq, (n, _) in guesses.items()}
        call = functools.partial(self.pool.append, new, slots)
        writes = self.attempt(call, needed + copies, needed + copies)
        if writes is None:
            return
        assert len(writes.src) == copies, "copied more, or less, than shared part-filled last pages"
        prefixes = []
        for seq, tokens in new.items():
            start = len(self.model[seq])
            self.model[seq] += tokens
            prefixes += prefixes_of(self.model[seq], start)
            slots, kept = guesses.get(seq, (0, []))
            guessed = [*kept, *["another branch"] * (slots - len(kept))]
            prefixes += prefixes_of(self.model[seq] + guessed, len(self.model[seq]))
            whole = start // self.pool.page_size
            assert self.pool.pages(seq)[:whole] == before[seq][:whole], "a full page was replaced"
        self.cache.carry_out(writes, prefixes)
        for seq, (_, kept) in guesses.items():
            self.pool.settle(seq, kept)
            self.model[seq] += kept

    def fork(self, seq):
        free = self.pool.num_free
        child = self.pool.fork(seq)
        assert child not in self.model and self.pool.num_free == free
        self.model[child] = list(self.model[seq])

    def free(self, seq):
        self.pool.free(seq)
        del self.model[seq]
        with pytest.raises(ValueError, match="not freed"):
            self.pool.free(seq)  # no double free

    def check(self):
        pool = self.pool
        self.steps += 1
        assert pool.sequences == list(self.model)
        owners = Counter()
        for seq, tokens in self.model.items():
            assert pool.tokens(seq) == tokens
            assert self.cache.read(seq) == prefixes_of(tokens), "keys that are not its own"
            pages = pool.pages(seq)
            assert len(pages) == len(set(pages)) == self.count(len(tokens))
            owners.update(pages)
        assert [pool.references(page) for page in range(pool.num_pages)] == [
            owners[page] for page in range(pool.num_pages)
        ]
        assert pool.num_free == pool.num_pages - len(owners), "a page is lost"
        assert not owners.keys() & pool._free.keys()


token = st.integers(0, 1)  # two tokens: prompts often begin alike


class Machine(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(1, 9), page_size=st.integers(1, 4), share=st.booleans())
    def start(self, num_pages, page_size, share):
        self.both = Against(num_pages, page_size, share)

    @rule(tokens=st.lists(token, max_size=9))
    def allocate(self, tokens):
        self.both.allocate(tokens)

    @precondition(lambda self: self.both.model)
    @rule(data=st.data(), lengths=st.lists(st.sampled_from([1, 1, 1, 0, 2, 5]), max_size=5))
    def append(self, data, lengths):
        seqs = data.draw(st.permutations(list(self.both.model)))
        new = {seq: [n % 2] * n for seq, n in zip(seqs, lengths, strict=False)}
        self.both.append(new)

    @precondition(lambda self: self.both.model)
    @rule(data=st.data())
    def fork(self, data):
        self.both.fork(data.draw(st.sampled_from(list(self.both.model))))

    @precondition(lambda self: self.both.model)
    @rule(data=st.data())
    def free(self, data):
        self.both.free(data.draw(st.sampled_from(list(self.both.model))))

    @invariant()
    def check(self):
        if hasattr(self, "both"):
            self.both.check()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.parametrize(
    "num_pages, page_size, share",
    [(1, 1, False), (5, 1, True), (6, 2, False), (12, 3, True), (40, 4, False), (9, 16, True)],
)
def test_three_thousand_random_steps(num_pages, page_size, share):
    """6 cases of 500 steps; the machine above adds those that hypothesis finds worth trying."""
    rng = random.Random(num_pages * page_size)
    both = Against(num_pages, page_size, share)
    while both.steps < 500:
        seqs = list(both.model)
        action = rng.choices(["allocate", "append", "fork", "free"], [3, 10, 2, 2])[0]
        if action == "allocate" or not seqs:
            both.allocate([rng.randrange(2) for _ in range(rng.randrange(3 * page_size))])
        elif action == "append":
            chosen = rng.sample(seqs, rng.randrange(len(seqs) + 1))
            lengths = rng.choices([1, 1, 1, 0, 2, page_size + 1], k=len(chosen))
            new = zip(chosen, lengths, strict=True)
            new = {seq: [rng.randrange(2) for _ in range(n)] for seq, n in new}
            guesses = {}
            for seq in rng.sample(chosen, rng.randrange(len(chosen) + 1)):
                slots = rng.randrange(2 * page_size + 2)
                guesses[seq] = slots, rng.choices([0, 1], k=rng.randrange(slots + 1))
            both.append(new, guesses)
        elif action == "fork":
            both.fork(rng.choice(seqs))
        else:
            both.free(rng.choice(seqs))
        both.check()
    for seq in list(both.model):
        both.free(seq)
    assert both.pool.num_free == num_pages


def test_the_block_table_and_lengths_are_as_the_kernels_take_them():
    pool = PagePool(8, 4)
    a, _ = pool.allocate(range(9))
    b, _ = pool.allocate([])
    c, writes = pool.allocate([7, 8])
    assert writes.slot_mapping.tolist() == [12, 13]
    table, lengths = pool.block_table([a, b, c]), pool.seq_lens([a, b, c])
    assert table.dtype == lengths.dtype == writes.slot_mapping.dtype == np.int32
    assert table.tolist() == [[0, 1, 2], [-1, -1, -1], [3, -1, -1]]
    assert lengths.tolist() == [9, 0, 2]
    assert pool.block_table([]).shape == (0, 0)
    assert pool.seq_lens([]).dtype == np.int32


def test_full_pages_with_the_same_prefix_are_shared():
    pool = PagePool(8, 2)
    a, _ = pool.allocate([1, 2, 3, 4, 5])
    b, writes = pool.allocate([1, 2, 3, 9, 9])
    assert writes.slot_mapping.tolist() == [-1, -1, 6, 7, 8]
    assert pool.pages(a) == [0, 1, 2] and pool.pages(b) == [0, 3, 4]
    c, writes = pool.allocate([3, 4])  # the tokens of page 1, but not those before it
    assert pool.pages(c) == [5] and (writes.slot_mapping >= 0).all()


def test_a_page_that_fills_up_while_decoding_is_found():
    pool = PagePool(8, 2)
    a, _ = pool.allocate([1])
    pool.append({a: [2]})
    pool.append({a: [3, 4, 5]})
    b, writes = pool.allocate([1, 2, 3, 4])
    assert pool.pages(b) == pool.pages(a)[:2] and (writes.slot_mapping == -1).all()


def test_freed_pages_are_found_until_they_are_taken():
    pool = PagePool(3, 2)
    a, _ = pool.allocate([1, 2, 3, 4])
    pages = pool.pages(a)
    pool.free(a)
    assert pool.num_free == 3
    b, writes = pool.allocate([1, 2, 3, 4])
    assert pool.pages(b) == pages and (writes.slot_mapping == -1).all()
    pool.free(b)
    pool.allocate([5, 6, 7])  # takes the page that was never used, and then the end of a
    c, writes = pool.allocate([1, 2])
    assert pool.pages(c) == pages[:1] and (writes.slot_mapping == -1).all()


def test_a_page_that_was_taken_is_not_found():
    pool = PagePool(2, 2)
    a, _ = pool.allocate([1, 2, 3, 4])
    pool.free(a)
    b, _ = pool.allocate([9, 9, 9])
    pool.free(b)
    _, writes = pool.allocate([1, 2])
    assert (writes.slot_mapping >= 0).all()


def test_guesses_are_found_once_they_are_tokens_and_no_sooner():
    pool = PagePool(6, 2)
    a, _ = pool.allocate([1])
    _, _, slots = pool.append({a: [2]}, {a: 5})
    assert slots.tolist() == [1, 2, 3, 4, 5, 6] and pool.num_free == 2
    assert pool.shared_tokens([1, 2, 3, 4]) == 2, "only the tokens"
    pool.settle(a, [3, 4, 5])
    assert pool.tokens(a) == [1, 2, 3, 4, 5] and pool.pages(a) == [0, 1, 2] and pool.num_free == 3
    assert pool.shared_tokens([1, 2, 3, 4, 5, 6]) == 4
    with pytest.raises(ValueError, match="tokens must be at most 1, the slots for guesses, got 2"):
        pool.settle(a, [6, 7])
    with pytest.raises(ValueError, match="guesses must be a dict .* of sequences in tokens"):
        pool.append({a: [6]}, {a + 1: 2})


def test_of_two_equal_pages_one_is_found():
    pool = PagePool(3, 2)
    a, _ = pool.allocate([1])
    b, _ = pool.allocate([1])
    pool.append({a: [2], b: [2, 3]})  # equal now, but each in its own page already
    ab, c = pool.pages(a) + pool.pages(b)[:1], pool.pages(b)[1]
    pool.free(b)
    d, _ = pool.allocate([9, 9, 9, 9])  # takes both pages of b
    assert set(pool.pages(d)) == {ab[1], c}
    e, writes = pool.allocate([1, 2])
    assert pool.pages(e) == ab[:1] and writes.slot_mapping.tolist() == [-1, -1]


def test_a_page_whose_beginning_is_gone_is_not_found():
    pool = PagePool(5, 2)
    a, _ = pool.allocate([1])
    b, _ = pool.allocate([1])
    pool.append({a: [2], b: [2]})  # that of a is found for [1, 2]
    pool.append({b: [3, 4]})
    pool.free(a)
    pool.allocate([9, 9, 9, 9, 9])  # takes all that is free
    pool.append({b: []})
    assert pool.num_free == 0
    assert pool.pages_needed([1, 2, 3, 4]) == 2
    with pytest.raises(OutOfPagesError, match="2 more pages"):
        pool.allocate([1, 2, 3, 4])


def test_sharing_can_be_turned_off():
    pool = PagePool(4, 2, share_prefixes=False)
    a, _ = pool.allocate([1, 2])
    b, _ = pool.allocate([1, 2])
    assert pool.pages(a) != pool.pages(b)


def test_copy_on_write_only_where_the_last_page_is_shared_and_part_filled():
    pool = PagePool(8, 2)
    a, _ = pool.allocate([1, 2])
    b = pool.fork(a)
    assert len(pool.append({a: [3], b: [3]}).src) == 0  # the last page was full
    c = pool.fork(b)
    assert len(pool.append({b: []}).src) == 0  # nothing is written
    writes = pool.append({b: [4], c: [5]})
    assert len(writes.src) == 1  # the second has the page for itself
    assert all(x.flags.c_contiguous and x.dtype == np.int32 for x in writes)
    assert len(pool.append({b: [6], c: [6]}).src) == 0


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_a_token_in_a_page_of_its_own_is_as_any_other(share_prefixes):
    one, other = (PagePool(9, 3, share_prefixes=share_prefixes) for _ in range(2))
    for pool in (one, other):
        seqs = [pool.allocate([i] * (3 * i + 1))[0] for i in range(3)]
    for token in (7, 8):  # the second one fills the pages
        slots = one.append({seq: [token] for seq in seqs}).slot_mapping
        assert (slots % 3 == token - 6).all()
        other.append_in_page((seq, token) for seq in seqs)
        assert vars(one) == vars(other)


def test_running_out_says_how_many_pages_are_missing():
    pool = PagePool(3, 2)
    a, _ = pool.allocate([1, 2, 3])
    with pytest.raises(OutOfPagesError, match="2 more pages are needed, and 1 of 3 are free"):
        pool.allocate([7, 7, 7])
    b = pool.fork(a)
    with pytest.raises(OutOfPagesError, match="3 more pages are needed, and 1 of 3"):
        pool.append({a: [4, 5], b: [4, 5]})
    assert pool.tokens(a) == pool.tokens(b) == [1, 2, 3]


def test_a_shared_free_page_is_not_counted_twice():
    pool = PagePool(2, 2)
    a, _ = pool.allocate([1, 2])
    pool.free(a)
    with pytest.raises(OutOfPagesError, match="3 more pages are needed, and 2 of 2 are free"):
        pool.allocate([1, 2, 3, 4, 5])
    assert pool.num_free == 2


def test_parallel_samples_share_the_prompt():
    pool = PagePool(20, 4)
    prompt, _ = pool.allocate(range(10))
    seqs = samples(pool, prompt, 3)
    assert len(set(seqs)) == 3 and pool.num_free == 17
    writes = pool.append({seq: [i] for i, seq in enumerate(seqs)})
    assert len(writes.src) == 2 and pool.num_free == 15  # 5 pages, and not 9


def test_beam_search_keeps_shared_pages():
    rng = random.Random(0)
    pool = PagePool(60, 2)
    both = Against(60, 2, True)
    both.pool, both.cache = pool, Cache(pool)
    both.allocate([0, 1, 0])
    seqs = samples(pool, *both.model, 4)
    both.model = {seq: [0, 1, 0] for seq in seqs}
    for _ in range(60):
        parents = [rng.randrange(4) for _ in range(4)]
        tokens = [both.model[seqs[parent]] for parent in parents]
        seqs = beams(pool, seqs, parents)
        both.model = {seq: list(t) for seq, t in zip(seqs, tokens, strict=True)}
        both.check()
        if max(map(len, both.model.values())) < 25:
            both.append({seq: [rng.randrange(2)] for seq in seqs})
            both.check()
    for seq in seqs:
        pool.free(seq)
    assert pool.num_free == 60


def test_the_pages_that_were_used_least_recently_are_taken_first_leaves_before_their_prefix():
    pool = PagePool(num_pages=6, page_size=2)
    a, b = [1, 1, 1, 2, 1, 3], [2, 1, 2, 2, 2, 3]
    for prompt in (a, b, a):  # a is used again: b is now the oldest
        pool.free(pool.allocate(prompt)[0])
    held = []
    for _ in range(4):
        held.append(pool.allocate([9 + len(held)] * 2)[0])
        if len(held) == 2:
            assert (pool.shared_tokens(a), pool.shared_tokens(b)) == (6, 2)
    assert (pool.shared_tokens(a), pool.shared_tokens(b)) == (4, 0)
