"""The README's example says what the README says that it says."""

import re
from pathlib import Path

import pytest
import refusals
from sources import run_text

import numba_cuda_simulator as simt

README = Path(__file__).parents[1] / "README.md"


def test_example():
    text = README.read_text(encoding="utf-8")
    source, said = (
        re.search(rf"```{kind}\n(.+?)```", text, re.S)[1] for kind in ("python", "text")
    )
    with pytest.raises(simt.errors.RaceError) as caught:
        run_text(source, {}, "example.py")
    assert f"RaceError: {caught.value}\n" == said


@pytest.mark.parametrize("what", refusals.REFUSED)
def test_refusals(what):
    error, text = refusals.refusal(what), README.read_text(encoding="utf-8")
    assert f"| {what} | {error.message}. {error.hint or ''}".rstrip() + " |\n" in text


def test_every_public_name_is_there():
    text = README.read_text(encoding="utf-8")
    names = set(simt.__all__) - {"has_gpu", "is_enabled"}
    assert not [name for name in names if f"simt.{name}" not in text]
    errors = [name for name in vars(simt.errors) if name.endswith("Error")]
    named = set(re.findall(r"`(\w+Error)`", text))
    assert named <= set(errors) and len(named) > 8
