"""Which thread handles which element: asked of the threads themselves."""

import numpy as np
from numba import cuda

from fa_numba import simt
from fa_numba.figures.style import COLOURS, INK, figure

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


def draw(shape=(6, 16), block=(8, 2)):
    """A matrix with each element coloured by thread block and labelled with its thread."""
    block_of, thread_of = owners(shape, block)
    fig, ax = figure(min(0.55 * shape[1] + 1, 11), 0.45 * shape[0] + 1.2)
    for (row, col), owner in np.ndenumerate(block_of):
        colour = COLOURS[owner % len(COLOURS)]
        warp = thread_of[row, col] // WARP
        square = {"facecolor": colour, "edgecolor": "white", "alpha": 0.85 - 0.35 * (warp % 2)}
        ax.add_patch(_rectangle(col, row, **square))
        ax.text(col + 0.5, row + 0.5, str(thread_of[row, col]), ha="center", va="center",
                fontsize=8, color=INK)  # fmt: skip
    for col in range(0, shape[1], block[0]):
        for row in range(0, shape[0], block[1]):
            size = min(block[0], shape[1] - col), min(block[1], shape[0] - row)
            ax.add_patch(_rectangle(col, row, *size, facecolor="none", edgecolor=INK, linewidth=2))
    ax.set(xlim=(-0.1, shape[1] + 0.1), ylim=(shape[0] + 0.1, -0.1), aspect="equal")
    ax.set(xlabel="column: blockIdx.x, threadIdx.x", ylabel="row: blockIdx.y, threadIdx.y")
    ax.set(xticks=range(0, shape[1] + 1, block[0]), yticks=range(0, shape[0] + 1, block[1]))
    ax.set_title(
        f"{shape[0]} × {shape[1]} elements, thread blocks of {block[0]} × {block[1]} threads",
        size=10,
    )
    return fig


def _rectangle(x, y, width=1, height=1, **style):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, **style)


def describe(shape=(6, 16), block=(8, 2)):
    """The same as text: `block:thread` per element."""
    block_of, thread_of = owners(shape, block)
    rows = zip(block_of, thread_of, strict=True)
    return "\n".join(" ".join(f"{b}:{t:<3}" for b, t in zip(*row, strict=True)) for row in rows)
