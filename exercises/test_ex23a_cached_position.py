"""Grader of ex23a: the numbers of a step that reads the new tokens of a sequence."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

PAGES = np.array([7, 2, 9, 0, 4])


def check(exercise, length, num_cached, page_size, pages=PAGES):
    tokens = [3 + t % 5 for t in range(length)]
    got = exercise.mended(tokens, num_cached, pages, page_size)
    right = isinstance(got, tuple | list) and len(got) == 3
    assert right, f"mended must return (positions, slots, seq_len), got {got!r:.60}"
    t = np.arange(num_cached, length)
    wants = t, pages[t // page_size] * page_size + t % page_size
    here = f"tokens: {length}, cached: {num_cached}, pages of {page_size}"
    for name, found, want in zip(("positions", "slots"), got, wants, strict=False):
        found = np.asarray(found)
        if found.shape != want.shape or found.dtype.kind != "i":
            raise Wrong(
                f"{here}: {name} must be {len(want)} whole numbers, got {found.dtype} of shape "
                f"{found.shape}",
                causes=[
                    found.shape == (length,)
                    and num_cached > 0
                    and "All tokens have a position and a slot here: the new ones alone need them."
                ],
            )
        if (found == want).all():
            continue
        causes = []
        if name == "positions":
            starts = {
                length: "The new tokens begin at len(tokens), which counts them already.",
                length - 1: "The new tokens begin at the last one: right for one, not for several.",
                0: "The new tokens begin at 0 again.",
            }
            same = len(set((found - want).tolist())) == 1
            causes = [
                same and num_cached and starts.get(int(found[0])),
                same and "All positions are away by the same number: where do the new ones begin?",
            ]
        else:
            offset, page = pages[t % page_size % len(pages)], t // page_size
            causes = [
                (found == t).all() and "Token t is not in slot t: pages has its page.",
                (found == offset * page_size + page).all()
                and "t // page_size is the page, and t % page_size is the offset in it.",
                (found == t + pages[page] - page).all()
                and "A page has page_size slots: slot = page * page_size + offset.",
            ]
        raise Wrong(f"{here}: {name} must be {want.tolist()}, got {found.tolist()}", causes=causes)
    if got[2] != length:
        raise Wrong(
            f"{here}: seq_len must be {length}, got {got[2]!r}",
            causes=[
                got[2] == num_cached and "seq_len counts the new tokens, too.",
                got[2] == length - num_cached and "seq_len counts the cached tokens, too.",
                got[2] == length - 1 and "The last new token also sees its own key.",
            ],
        )


@pytest.mark.parametrize("length", [1, 4, 5, 11])
def test_whole_prompt(exercise, length):
    """a whole prompt: as published"""
    check(exercise, length, 0, 4)


@pytest.mark.parametrize("length", [2, 5, 8, 9, 20])
def test_one_token(exercise, length):
    """decoding: one new token"""
    check(exercise, length, length - 1, 4)


@pytest.mark.parametrize("cut", [(12, 5), (12, 8), (9, 1), (20, 17)], ids=str)
def test_chunk(exercise, cut):
    """a later chunk of a prompt: several new tokens after old ones"""
    check(exercise, *cut, 4)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_page_sizes(exercise, page_size):
    """other page sizes, down to one token"""
    for num_cached in range(5):
        check(exercise, 5, num_cached, page_size)


def test_many(exercise):
    """a chunk behind 290 tokens in 310 pages of one, and behind 200 in 5 pages of 70"""
    check(exercise, 303, 290, 1, np.random.default_rng(1).permutation(310))
    check(exercise, 303, 200, 70)


def test_cached_is_whole(exercise):
    """attention with rotary embedding, token by token, equals one pass over all tokens"""
    rng = np.random.default_rng(0)
    tokens, page_size, half = rng.integers(0, 9, 13).tolist(), 4, 4
    embedding = rng.standard_normal((3, 9, 2 * half))

    def turned(x, positions):
        angle = np.outer(positions, [1.0, 0.3, 0.1, 0.03])
        a, b = x[:, :half], x[:, half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.hstack([a * cos - b * sin, a * sin + b * cos])

    def attend(q, k, v):
        p = np.exp(q @ k.T)
        return p @ v / p.sum()

    q, k, v = embedding[:, tokens]
    every = np.arange(len(tokens))
    whole_q, whole_k = turned(q, every), turned(k, every)
    cache = np.full((2, 10 * page_size, 2 * half), np.nan)
    in_order = np.concatenate([np.arange(p * page_size, (p + 1) * page_size) for p in PAGES])
    for start, stop in [(0, 6), *((t, t + 1) for t in range(6, len(tokens)))]:
        positions, slots, seq_len = exercise.mended(tokens[:stop], start, PAGES, page_size)
        cache[0, slots], cache[1, slots] = turned(k[start:stop], positions), v[start:stop]
        keys, values = cache[:, in_order[:seq_len]]
        got = attend(turned(q[stop - 1 : stop], positions[-1:]), keys, values)
        want = attend(whole_q[stop - 1 : stop], whole_k[:stop], v[:stop])
        worst = np.abs(got - want).max()
        assert worst <= 1e-12, (
            f"token {stop - 1}: attention over the cache is off by {worst:.2g} from one pass over "
            "all tokens"
        )


def test_inputs_stay(exercise):
    """tokens and pages are not changed"""
    tokens, pages = list(range(9)), PAGES.copy()
    exercise.mended(tokens, 4, pages, 2)
    assert tokens == list(range(9)) and (pages == PAGES).all(), "tokens or pages has been written"
