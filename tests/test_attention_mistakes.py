"""The graders tell a usual mistake by what it comes out as, and blame nobody who is right."""

import itertools

import numpy as np
import pytest

from fa_numba.workbook.graders.attention import expect_close, random_head
from fa_numba.workbook.graders.mistakes import backward_mistakes, delta_mistakes, forward_mistakes

TILES, SQUARE, TALL = (4, 8), (8, 8), (8, 4)  # only a square tile can be read transposed


def heads():
    yield random_head(13, 21, 8, softmax_scale=0.6)
    yield random_head(13, 21, 8, softmax_scale=0.6, causal=True)
    yield random_head(16, 16, 8, softmax_scale=0.6)
    yield random_head(21, 22, 8, softmax_scale=0.6, causal=True)


def answers(head):
    """All that a kernel may be asked for, from the scores at once."""
    m = head.scores.max(axis=1)
    l = np.exp(head.scores - m[:, None]).sum(axis=1)
    return {**head.forward, **head.backward, "m": m, "l": l}


def cases():
    for head, tiles in itertools.product(heads(), (TILES, SQUARE, TALL)):
        for name, want in answers(head).items():
            plain = answers(head.plain)[name]
            for mistakes in (lambda h=head, t=tiles: forward_mistakes(h, *t),
                             lambda h=head, t=tiles: backward_mistakes(h, *t)):  # fmt: skip
                yield name, want, plain, mistakes


def test_every_mistake_is_told_apart_from_the_right_answer():
    seen = set()
    for name, want, plain, mistakes in cases():
        for sentence, wrong in mistakes():
            if name not in wrong or np.allclose(wrong[name], want, rtol=1e-6, atol=1e-6):
                continue  # such as a maximum under another order of the tiles
            got = wrong[name].astype(np.float32)
            with pytest.raises(AssertionError, match="must be") as failure:
                expect_close(name, got, want, plain, tile=8, mistakes=mistakes())
            told = [s for s, answer in mistakes() if s in str(failure.value) and name in answer]
            assert told, f"{name}: {sentence} came out as: {failure.value}"
            seen.add(sentence)
    every = {
        sentence
        for head, tiles in itertools.product(heads(), (TILES, SQUARE, TALL))
        for of_pass in (forward_mistakes, backward_mistakes)
        for sentence, _ in of_pass(head, *tiles)
    }
    assert seen == every, "a mistake that changes nothing teaches nothing"


def test_a_right_answer_is_blamed_for_nothing():
    for name, want, plain, mistakes in cases():
        expect_close(name, want.astype(np.float32), want, plain, tile=8, mistakes=mistakes())


def test_an_unknown_mistake_gets_no_made_up_cause():
    head = next(heads())
    want = head.forward["out"]
    got = np.random.default_rng(9).standard_normal(want.shape)
    with pytest.raises(AssertionError) as failure:
        plain = head.plain.forward["out"]
        expect_close("out", got, want, plain, tile=8, mistakes=forward_mistakes(head, *TILES))
    assert not any(s in str(failure.value) for s, _ in forward_mistakes(head, *TILES))


def test_a_row_without_keys_raises_no_warning():
    head = random_head(21, 13, 8, causal=True)
    assert len(list(forward_mistakes(head, *TILES))) > 10
    assert len(list(backward_mistakes(head, *TILES))) > 5


def test_delta():
    dout, out = np.random.default_rng(0).standard_normal((2, 6, 70))
    want = np.sum(dout * out, axis=1)
    for sentence, wrong in delta_mistakes(dout, out):
        with pytest.raises(AssertionError) as failure:
            mistakes = delta_mistakes(dout, out)
            expect_close("delta", wrong["delta"], want, want, tile=4, mistakes=mistakes)
        assert sentence in str(failure.value)
