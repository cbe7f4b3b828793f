"""Which thread handles which element: asked of the threads themselves."""

import numpy as np
from numba import cuda

from fa_numba import simt
from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import INK, PAPER, Drawing, colour_of, on_paper

WARP = 32


@cuda.jit
def _sign(block_of, thread_of):
    """Every thread writes who it is into its element."""
    col, row = cuda.grid(2)
    if row < block_of.shape[0] and col < block_of.shape[1]:
        block_of[row, col] = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
        thread_of[row, col] = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x


def owners(shape, block):
    """(block_of, thread_of): the number of the thread block and of the thread in it, per element.

    Parameters
    ----------
    shape : (rows, columns)
    block : (threads along x, threads along y)
    """
    grid = (-(-shape[1] // block[0]), -(-shape[0] // block[1]))
    block_of, thread_of = np.full((2, *shape), -1, np.int32)
    simt.run(_sign, grid, tuple(block), block_of, thread_of, checked=False)
    return block_of, thread_of


@on_paper
def thread_grid(shape=(8, 32), block=(16, 4)):
    """A matrix, coloured by thread block, shaded by warp, labelled with the thread's number."""
    block_of, thread_of = owners(shape, block)
    rows = zip(block_of, thread_of, strict=True)
    cells = ([f"{b}:{t:<3}" for b, t in zip(*row, strict=True)] for row in rows)
    lines = [" ".join(row).rstrip() for row in cells]
    text = "\n".join(["thread block:thread, of each element", *lines])
    figure = Drawing(min(0.34 * shape[1] + 1, 11), 0.31 * shape[0] + 1.1, text=text)
    ax = figure.subplots()
    for (row, col), owner in np.ndenumerate(block_of):
        thread = thread_of[row, col]
        shade = 0.45 - 0.25 * (thread // WARP % 2)
        face = colour_of(owner)
        box(ax, col, row, 1, 1, face, edgecolor=PAPER, alpha=shade)
        ax.text(col + 0.5, row + 0.5, thread, **CENTRED, fontsize=8)
    for col in range(0, shape[1], block[0]):
        for row in range(0, shape[0], block[1]):
            size = min(block[0], shape[1] - col), min(block[1], shape[0] - row)
            box(ax, col, row, *size, edgecolor=INK, linewidth=1.8)
    ax.set(xlim=(-0.1, shape[1] + 0.1), ylim=(shape[0] + 0.1, -0.1))
    ax.set(xlabel="column: blockIdx.x, threadIdx.x", ylabel="row: blockIdx.y, threadIdx.y")
    ax.set(xticks=range(0, shape[1] + 1, block[0]), yticks=range(0, shape[0] + 1, block[1]))
    ax.spines[:].set_visible(False)
    ax.set_title(f"Thread blocks of {block[0]} × {block[1]} threads; one shade is one warp")
    return figure
