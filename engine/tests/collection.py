"""All kernels that tests run, of courses, textbooks and in public code's styles, as launches."""

import importlib
from pathlib import Path

import numpy as np
import simt_kernels
from classic_kernels import CLASSICS
from simt_kernels import Launch

FAMILIES = sorted(p.stem for p in Path(__file__).parent.glob("public_style/*.py"))
MODULES = [importlib.import_module(f"public_style.{name}") for name in FAMILIES]
STYLES = [launch for module in MODULES for launch in module.ZOO]
# NumPy's results for some classics: the last argument must hold them.
ANSWERS = {
    "game_of_life": lambda cells, out: life(cells),
    "convolution": lambda x, w, out: np.convolve(x, w[::-1], "valid"),
    "matrix_vector": lambda a, x, out: a @ x,
    "matrix_product": lambda a, b, out: a @ b,
    "transpose": lambda x, out: x.T,
    "tree_sum": lambda x, out: x.reshape(-1, 128).sum(1),
    "prefix_sum": lambda x, out: np.cumsum(x.reshape(-1, 128), 1).ravel(),
    "bitonic_sort": lambda x: np.sort(x.reshape(-1, 128)).ravel(),
    "histogram": lambda x, out: np.bincount(x, minlength=64),
    "stencil": lambda x, out: np.convolve(x, np.ones(3, int), "same"),
    "quicksort": lambda x: np.sort(x),
}


def life(cells):
    around = sum(np.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - cells
    return (around == 3) | (around == 2) & (cells == 1)


def small(c):
    """Return a classic kernel's small launch."""
    grid, block, *_ = c.launch(c.small)
    inputs = lambda rng: c.launch(c.small)[2:]  # noqa: E731
    known = {"answer": ANSWERS[c.name], "oracle": False} if c.name in ANSWERS else {}
    return Launch(c.kernel, grid, block, inputs, rtol=1e-5, label="_classic", **known)


EVERY = [*simt_kernels.ZOO, *STYLES, *map(small, CLASSICS)]
