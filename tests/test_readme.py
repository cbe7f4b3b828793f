"""README.md: its Python runs as printed, its links lead somewhere."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from benchmarks import readme

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


@cuda.jit
def doubled(x, y):
    tile = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    if i < x.shape[0]:
        tile[cuda.threadIdx.x] = x[i]
        y[i] = 2 * tile[cuda.threadIdx.x]


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
def test_python_runs(block):
    x = np.ones(100, np.float32)
    world = {"kernel": doubled, "grid": 4, "block": 32, "x": x, "y": x.copy()}
    exec(compile(block, "README.md", "exec"), world)


def test_tables_are_those_of_the_results():
    """After a change of either: `python -m benchmarks.plots` and `python -m benchmarks.readme`."""
    assert readme.rendered(TEXT) == TEXT


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert len(links) > 15
    assert not [link for link in links if not (ROOT / link).exists()]
