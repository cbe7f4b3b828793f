"""The graders of linear attention tell a usual mistake by what it comes out as."""

import numpy as np
import pytest

from fa_numba.workbook.graders.linear import check_linear_head, mistakes, random_linear_head

CHUNK = 5


def heads():
    yield random_linear_head(17, 6, 4)
    yield random_linear_head(17, 6, 4, before=True)


def run_that_answers(answers):
    def run(phi_q, phi_k, v, state, out):
        out[:], state[:] = answers["out"], answers["state"]

    return run


def test_the_right_answer_passes():
    for head in heads():
        check_linear_head(run_that_answers(head.plain.answers), head, chunk=CHUNK)


def test_every_mistake_is_told():
    told = set()
    for head in heads():
        for sentence, wrong in mistakes(head, CHUNK):
            answers = {name: x.astype(np.float32) for name, x in (head.answers | wrong).items()}
            if all(np.allclose(answers[name], head.answers[name]) for name in answers):
                continue  # of a state that there is not
            with pytest.raises(AssertionError) as error:
                check_linear_head(run_that_answers(answers), head, chunk=CHUNK)
            assert sentence in str(error.value)
            told.add(sentence)
    assert told == {sentence for sentence, _ in mistakes(head, CHUNK)}


def test_writing_outside_is_noticed():
    head = random_linear_head(5, 3, 4)

    def run(phi_q, phi_k, v, state, out):
        run_that_answers(head.plain.answers)(phi_q, phi_k, v, state, out)
        state.base[-1] = 0

    with pytest.raises(AssertionError, match="just before or after state"):
        check_linear_head(run, head)
