"""A lesson trains with the learner's kernels as far as they have passed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fa_numba import flash_attn_bwd, flash_attn_v2, reference
from fa_numba.language_model import kernel_choice
from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_one
from fa_numba.workbook.own_attention import BACKWARD, FORWARD, own_attention
from fa_numba.workbook.report import Check, Graded

ROOT = Path(__file__).parents[1]


@pytest.fixture
def workbook(tmp_path):
    """A checkout whose exercises 06 and 07 are solved, and not graded yet."""
    for folder in ("exercises", "solutions"):
        (tmp_path / folder).mkdir()
    for file in kernel_choice.FILES.values():
        for folder in ("exercises", "solutions"):
            shutil.copy(ROOT / "solutions" / file, tmp_path / folder / file)
        grader = f"test_{file}"
        shutil.copy(ROOT / "exercises" / grader, tmp_path / "exercises" / grader)
    return tmp_path


def pass_all(root, names):
    graded = [Graded(find_one(name, root), [Check("one behaviour", "passed")]) for name in names]
    progress.record(graded)


def test_the_packages_until_they_pass(workbook, capsys):
    kernels = own_attention(workbook)
    assert kernels.attn is flash_attn_v2 and kernels.attn_grad is flash_attn_bwd
    assert "until ex07d passes" in capsys.readouterr().out


def test_a_pass_alone(workbook, capsys):
    pass_all(workbook, FORWARD)
    kernels = own_attention(workbook)
    assert kernels.attn is not flash_attn_v2 and kernels.attn_grad is flash_attn_bwd
    said = capsys.readouterr().out
    assert "attn: your ex07d" in said and "until ex08a, ex08b and ex08c pass" in said


def test_two_of_three_kernels_are_not_enough(workbook):
    pass_all(workbook, BACKWARD[:2])
    assert own_attention(workbook).attn_grad is flash_attn_bwd


def test_the_learners_compute_attention(workbook):
    pass_all(workbook, FORWARD + BACKWARD)
    kernels = own_attention(workbook)
    rng = np.random.default_rng(0)
    q, dout = rng.standard_normal((2, 1, 19, 2, 8), np.float32)
    k, v = rng.standard_normal((2, 1, 19, 1, 8), np.float32)
    out, lse = kernels.attn(q, k, v, causal=True)
    gradients = kernels.attn_grad(dout, q, k, v, out, lse, causal=True)
    wants = reference.attention_bwd(dout, q, k, v, causal=True)
    for got, want in zip(gradients, wants, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
