"""All kernels that tests run, of courses, textbooks and in public code's styles, as launches."""

import numpy as np
import simt_kernels
from classic_kernels import CLASSICS
from public_style import computing, hardware, language
from simt_kernels import Launch

STYLES = [*computing.ZOO, *hardware.ZOO, *language.ZOO]
# NumPy's results for some classics: the last argument must hold them.
ANSWERS = {
    "game_of_life": lambda cells, out: life(cells),
    "convolution": lambda x, w, out: np.convolve(x, w[::-1], "valid"),
    "matrix_vector": lambda a, x, out: a @ x, "matrix_product": lambda a, b, out: a @ b,
    "transpose": lambda x, out: x.T, "tree_sum": lambda x, out: x.reshape(-1, 128).sum(1),
    "prefix_sum": lambda x, out: np.cumsum(x.reshape(-1, 128), 1).ravel(),
    "bitonic_sort": lambda x: np.sort(x.reshape(-1, 128)).ravel(),
    "histogram": lambda x, out: np.bincount(x, minlength=64),
    "stencil": lambda x, out: np.convolve(x, np.ones(3, int), "same"),
    "quicksort": lambda x: np.sort(x), "insertion_sort": lambda x, turns: (np.sort(x), turns),
    "n_body": lambda bodies, out: pulls(bodies),
    "edit_distance": lambda a, b, out: np.array(list(map(edits, a, b))),
}  # fmt: skip


def life(cells):
    around = sum(np.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - cells
    return (around == 3) | (around == 2) & (cells == 1)


def pulls(bodies):
    apart = bodies[:, :3] - bodies[:, None, :3]
    inverse = 1 / np.sqrt((apart**2).sum(2) + 1e-3)
    return (apart * (bodies[:, 3] * inverse**3)[..., None]).sum(1)


def edits(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j - 1] + int(x != y), before[j] + 1, row[j - 1] + 1))
    return row[-1]


def small(c):
    """Return a classic kernel's small launch."""
    grid, block, *_ = c.launch(c.small)
    inputs = lambda rng: c.launch(c.small)[2:]  # noqa: E731
    known = {"answer": ANSWERS[c.name], "oracle": False} if c.name in ANSWERS else {}
    known |= {"rtol": 1e-5, "tolerance": 1e-4}
    return Launch(c.kernel, grid, block, inputs, label="_classic", **known)


EVERY = [*simt_kernels.ZOO, *STYLES, *map(small, CLASSICS)]
