"""Grader of ex19d: pages of earlier prompts, against a model that knows what each page holds."""

import random

import pytest

from fa_numba.workbook.graders.causes import Wrong


class Server:
    """Prompts come and go; `holds` is the truth: the tokens that the keys of a page depend on."""

    def __init__(self, exercise, page_size):
        self.exercise, self.page_size = exercise, page_size
        self.known, self.holds = {}, {}

    def enter(self, tokens):
        """Compute a prompt; its full pages are remembered."""
        tokens = tuple(tokens)
        for i in range(len(tokens) // self.page_size):
            page = len(self.holds)
            self.holds[page] = tokens[: (i + 1) * self.page_size]
            self.known[self.exercise.key(list(tokens), i, self.page_size)] = page

    def forget(self, prefix):
        """Another sequence took the page that ends with this prefix."""
        i = len(prefix) // self.page_size - 1
        self.known.pop(self.exercise.key(list(prefix), i, self.page_size), None)

    def check(self, tokens):
        before, known = list(tokens), dict(self.known)
        got = self.exercise.find(known, before, self.page_size)
        assert before == list(tokens), "find changed the prompt"
        if known != self.known:
            raise Wrong(
                f"find has changed known: it had {len(self.known)} pages, and has {len(known)}",
                causes=["known is an input: a later prompt wants the same pages."],
            )
        assert isinstance(got, list), f"find must return a list of pages, got {got!r}"
        what = f"pages of {self.page_size}, prompt {list(tokens)}"
        full = len(tokens) // self.page_size
        assert len(got) <= full, f"{what}: {full} full pages, but {len(got)} were taken: {got}"
        for i, page in enumerate(got):
            want = tuple(tokens[: (i + 1) * self.page_size])
            held = self.holds.get(page)
            if held == want:
                continue
            last = want[-self.page_size :]
            cause = ""
            if held and held[-self.page_size :] == last:
                cause = "The page's own tokens are equal, those before it are not."
            elif held and held == tuple(tokens[: len(held)]):
                cause = "A page is missing before it: this one is for later positions."
            raise Wrong(
                f"{what}: page {page} is taken for the tokens {i * self.page_size} to "
                f"{(i + 1) * self.page_size - 1}; its keys are those of {held}, not of {want}",
                causes=[cause],
                where=f"page {i} of the prompt",
            )
        alive = set(self.known.values())
        best = 0
        for i in range(full):
            prefix = tuple(tokens[: (i + 1) * self.page_size])
            if not any(self.holds[page] == prefix for page in alive):
                break
            best += 1
        if len(got) < best:
            raise Wrong(
                f"{what}: {best} of its pages are known, {len(got)} were taken",
                causes=["Pages that could be taken are computed again."],
                where=f"page {len(got)} of the prompt",
            )


def test_the_same_prompt(exercise):
    """the same prompt again takes all of its full pages"""
    server = Server(exercise, 2)
    server.enter([1, 2, 3, 4, 5])
    server.check([1, 2, 3, 4, 5])
    server.check([1, 2, 3, 4, 5, 6, 7])


def test_a_common_beginning(exercise):
    """a prompt that begins alike takes the pages in common"""
    server = Server(exercise, 3)
    server.enter([7, 7, 7, 1, 2, 3, 4, 5, 6])
    server.check([7, 7, 7, 1, 2, 3, 9, 9, 9])
    server.check([7, 7, 7, 1, 2])


def test_another_beginning(exercise):
    """equal tokens after another beginning are other keys"""
    server = Server(exercise, 2)
    server.enter([1, 2, 3, 4])
    server.check([5, 6, 3, 4])
    server.check([3, 4])


def test_a_repeated_page(exercise):
    """tokens that repeat are other keys in each repetition"""
    server = Server(exercise, 2)
    server.enter([1, 2, 1, 2, 1, 2])
    server.check([1, 2])
    server.check([1, 2, 1, 2, 1, 2, 1, 2])


def test_a_forgotten_page(exercise):
    """behind a forgotten page nothing can be taken"""
    server = Server(exercise, 2)
    server.enter([1, 2, 3, 4, 5, 6])
    server.forget([1, 2, 3, 4])
    server.check([1, 2, 3, 4, 5, 6])


def test_many_pages(exercise):
    """44 pages of 7 tokens, and 10 of 70, of two prompts that differ in the first token"""
    for page_size, length in ((7, 310), (70, 730)):
        server = Server(exercise, page_size)
        for first in (0, 9999):
            server.enter([first, *range(1, length)])
        server.check([0, *range(1, length)])


def test_nothing_known(exercise):
    """an empty server, an empty prompt, a prompt shorter than a page"""
    server = Server(exercise, 4)
    server.check([1, 2, 3, 4])
    server.check([])
    server.enter([1, 2, 3])
    server.check([1, 2, 3])


def test_the_published_ones_stay(exercise):
    """published_key and published_find are as they were"""
    assert exercise.published_key([1, 2, 3, 4], 1, 2) == (3, 4), "leave published_key as it is"
    found = exercise.published_find({(3, 4): 8}, [1, 2, 3, 4], 2)
    assert found == [8], f"leave published_find as it is: it found {found}"


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_random_prompts(exercise, page_size):
    """eighty random prompts of few different tokens, pages forgotten at random"""
    rng = random.Random(page_size)
    server, prompts = Server(exercise, page_size), []
    for _ in range(80):
        start = rng.choice(prompts)[: rng.randrange(12)] if prompts else []
        tokens = start + [rng.randrange(2) for _ in range(rng.randrange(8))]
        server.check(tokens)
        server.enter(tokens)
        prompts.append(tokens)
        old = rng.choice(prompts)
        if len(old) >= page_size:
            server.forget(old[: rng.randrange(1, len(old) // page_size + 1) * page_size])
