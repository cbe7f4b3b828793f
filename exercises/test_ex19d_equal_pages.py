"""Grader of ex19d: pages of earlier prompts, against a model that knows what each page holds."""

import random

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

UNWRITTEN = 77


def launch(kernel, prompts, page_size):
    """The hashes of each prompt's full pages, and the trace."""
    longest = max(1, *map(len, prompts))
    tokens = np.full((len(prompts), longest), 12345, np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    hashes = np.full((len(prompts), longest // page_size + 1), UNWRITTEN, np.uint64)
    given = {"tokens": tokens, "lengths": lengths, "hashes": hashes, "page_size": page_size}
    got, trace = launched(kernel, -(-len(prompts) // 64), 64, ("hashes",), **given)
    found = []
    for prompt, row in zip(prompts, got["hashes"].tolist(), strict=True):
        full = len(prompt) // page_size
        what = f"prompt of {len(prompt)} tokens, pages of {page_size}"
        assert UNWRITTEN not in row[:full], f"{what}: a full page has got no hash"
        assert set(row[full:]) == {UNWRITTEN}, (
            f"{what}: {full} full pages, but more hashes were written"
        )
        found.append(row[:full])
    return found, trace


class Server:
    """Prompts come and go; `holds` is the truth: the tokens that the keys of a page depend on."""

    def __init__(self, exercise, page_size):
        self.exercise, self.page_size = exercise, page_size
        self.known, self.holds, self.hashed = {}, {}, {}

    def hashes(self, tokens):
        """Of the full pages of a prompt, by the answer's kernel."""
        if tuple(tokens) not in self.hashed:
            self.hash_all([tokens])
        return self.hashed[tuple(tokens)]

    def hash_all(self, prompts):
        """Hash many prompts in one launch."""
        for prompt, found in zip(
            prompts, launch(self.exercise.kernel, prompts, self.page_size)[0], strict=True
        ):
            self.hashed[tuple(prompt)] = found

    def enter(self, tokens):
        """Compute a prompt; its full pages are remembered."""
        tokens = tuple(tokens)
        for i in range(len(tokens) // self.page_size):
            page = len(self.holds)
            self.holds[page] = tokens[: (i + 1) * self.page_size]
            self.known[self.hashes(tokens)[i]] = page

    def forget(self, prefix):
        """Another sequence took the page that ends with this prefix."""
        self.known.pop(self.hashes(prefix)[-1], None)

    def check(self, tokens):
        hashes, known = list(self.hashes(tokens)), dict(self.known)
        got = self.exercise.find(known, hashes)
        assert hashes == self.hashes(tokens), "find changed the list of hashes"
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
    """38 pages of 7 tokens, and 10 of 70; prompts that differ in the first or the 70th token"""
    for page_size, length in ((7, 270), (70, 730)):
        server = Server(exercise, page_size)
        prompts = [list(range(length)) for _ in range(3)]
        prompts[1][0] = prompts[2][69] = 9999
        server.hash_all(prompts)
        for tokens in prompts[1:]:
            server.enter(tokens)
        server.check(prompts[0])


def test_nothing_known(exercise):
    """an empty server, an empty prompt, a prompt shorter than a page"""
    server = Server(exercise, 4)
    server.check([1, 2, 3, 4])
    server.check([])
    server.enter([1, 2, 3])
    server.check([1, 2, 3])


def test_many_prompts(exercise):
    """300 prompts at once: a thread each, five thread blocks"""
    prompts = [[b % 7, b // 7, b] for b in range(300)]
    found, _ = launch(exercise.kernel, prompts, 1)
    firsts = {first for first, _, _ in found}
    assert len(firsts) == 7, f"7 different first tokens, but {len(firsts)} hashes of first pages"
    lasts = {last for _, _, last in found}
    assert len(lasts) == 300, f"300 different prompts, but {len(lasts)} hashes of last pages"


def test_order_counts(exercise):
    """the same tokens in another order have another hash"""
    prompts = [[1, 2, 3, 4], [2, 1, 3, 4], [1, 2, 4, 3], [3, 4, 1, 2]]
    found, _ = launch(exercise.kernel, prompts, 2)
    assert len({last for _, last in found}) == 4, "four different prompts need four hashes"


def test_traffic(exercise):
    """each token of a full page is loaded once, nothing behind a prompt"""
    prompts = [list(range(n)) for n in (9, 4, 0, 12)]
    _, trace = launch(exercise.kernel, prompts, 4)
    expect_at_most(
        trace,
        tokens_loads=(8 + 4 + 12, "once for each token of a full page"),
        hashes_stores=(6, "once for each full page"),
        hashes_loads=(0, "the hash goes on in a register"),
    )
    expect_chip_memory(trace, allowed="a hash is one register")


def test_broken_ones_as_given(exercise):
    """broken_kernel and broken_find are as they were given"""
    ((a, b), (c, d)), _ = launch(exercise.broken_kernel, [[1, 2, 3, 4], [3, 4, 3, 4]], 2)
    assert b == c == d != a, "broken_kernel is to stay: write kernel"
    found = exercise.broken_find({5: 8}, [4, 5])
    assert found == [8], f"broken_find is to stay: it found {found}"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    one = np.ones(1, np.int32)
    gpu_ready(exercise.kernel, (one[None], one, np.ones((1, 1), np.uint64), 1))


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_random_prompts(exercise, page_size):
    """eighty random prompts of few different tokens, pages forgotten at random"""
    rng = random.Random(page_size)
    server, prompts = Server(exercise, page_size), []
    coming = []
    for _ in range(80):
        start = rng.choice(coming)[: rng.randrange(12)] if coming else []
        coming.append(start + [rng.randrange(2) for _ in range(rng.randrange(8))])
    server.hash_all([tokens[:n] for tokens in coming for n in range(len(tokens) + 1)])
    for tokens in coming:
        server.check(tokens)
        server.enter(tokens)
        prompts.append(tokens)
        old = rng.choice(prompts)
        if len(old) >= page_size:
            server.forget(old[: rng.randrange(1, len(old) // page_size + 1) * page_size])
