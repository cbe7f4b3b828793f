"""docs/other_languages.md: its lines are those of the kernels, its counts of the compilers."""

import json
import re

import pytest

from docs import make_other_languages as page
from docs.other_languages import compile as compilers
from fa_numba.analysis import cuda_tools

THREADS = {"Numba CUDA", "CUDA C++", "Mojo", "CuTe DSL"}  # languages that have barriers


def test_the_page_is_that_of_the_kernels():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text) == text, "run python docs/make_other_languages.py"


@pytest.mark.parametrize("name", page.LANGUAGES)
def test_every_step_has_its_line(name):
    found = page.lines_of(page.LANGUAGES[name][0])
    assert found.keys() == page.STEPS.keys()
    for step, lines in found.items():
        if name not in THREADS and step in ("ready", "free"):
            assert not lines
        else:
            assert len(lines) == 1 or step == "state", (step, lines)
            assert all(line and "#:" not in line for line in lines)


@pytest.mark.parametrize("package", ["numba-cuda", "cuda-bindings"])
def test_what_can_be_compiled_here_has_the_barriers_of_the_table(package):
    """Four in a tile; the other counts are those of one version of a compiler."""
    if not cuda_tools.disassembler_available():
        pytest.skip("nvdisasm is missing")
    if package == "cuda-bindings":
        pytest.importorskip("cuda.bindings.nvrtc")
    compiler = getattr(compilers, package.replace("-", "_"))
    counted = compilers.counts(compiler(), cuda_tools.nvdisasm().path)
    recorded = json.loads((page.KERNELS / "compiled.json").read_text(encoding="utf-8"))[package]
    assert counted["barriers"] == recorded["barriers"] == 4
    assert counted["FFMA"] > 64 and not counted["wgmma"]


def test_counts_are_of_instructions(monkeypatch):
    listing = "BAR.SYNC R0\nHGMMA.64x64x16.F32 R1\nHMMA.16816.F32 R2\nFFMA R1, R2\nFFMA R3, R4"
    monkeypatch.setattr(
        compilers.subprocess, "run", lambda *a, **k: type("Ran", (), {"stdout": listing})
    )
    found = compilers.counts(b"", "nvdisasm")
    assert {k: n for k, n in found.items() if n} == {
        "barriers": 1, "mma": 1, "wgmma": 1, "FFMA": 2
    }  # fmt: skip


def test_the_page_says_what_was_not_run():
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    assert re.search(r"\*\*The other five were not run\.\*\*", text)
