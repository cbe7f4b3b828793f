"""The order in which a kernel visits the tiles of the score matrix."""

import numpy as np

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import GREY, LIGHT, PAPER, Drawing, colour_of, on_paper, tint


@on_paper
def tile_walk(walks):
    """One panel for each kernel; the number in a tile is the iteration that visits it.

    Parameters
    ----------
    walks : dict of str to (iteration, owner)
        By title: two integer arrays of shape (num_m_tiles, num_n_tiles), as a kernel recorded
        them. Iterations count from 0 in each thread block, with −1 for a tile that none visits;
        the owner is the thread block.
    """
    text = "\n\n".join(f"{title}\n{_as_text(*walk)}" for title, walk in walks.items())
    num_m_tiles, num_n_tiles = np.shape(next(iter(walks.values()))[0])
    width = max(2.4, 0.62 * num_n_tiles + 0.6)
    figure = Drawing(width * len(walks) + 0.4, 0.62 * num_m_tiles + 1.0, text=text)
    panels = figure.subplots(1, len(walks), squeeze=False)[0]
    for ax, (title, (iteration, owner)) in zip(panels, walks.items(), strict=True):
        _draw(ax, np.asarray(iteration), np.asarray(owner))
        ax.set_title(title, fontsize=10.5)
        ax.set_xlabel("K, V tiles →")
    panels[0].set_ylabel("← Q tiles")
    return figure


def _draw(ax, iteration, owner):
    for (m_tile, n_tile), t in np.ndenumerate(iteration):
        colour = colour_of(owner[m_tile, n_tile]) if t >= 0 else GREY
        face = tint(colour, 0.22) if t >= 0 else PAPER
        box(ax, n_tile - 0.46, m_tile - 0.46, 0.92, 0.92, face,
            edgecolor=colour if t >= 0 else LIGHT, linewidth=1.1)  # fmt: skip
    for block in np.unique(owner[iteration >= 0]):
        mine = np.argwhere((owner == block) & (iteration >= 0))
        path = mine[np.argsort([iteration[tuple(tile)] for tile in mine])]
        colour = colour_of(block)
        ax.plot(path[:, 1], path[:, 0], color=colour, linewidth=1.2, alpha=0.55, zorder=2)
    for (m_tile, n_tile), t in np.ndenumerate(iteration):
        if t >= 0:
            ax.text(n_tile, m_tile, str(t), **CENTRED, fontsize=10,
                    zorder=3, bbox={"boxstyle": "circle,pad=0.18", "facecolor": PAPER,
                                    "edgecolor": "none"})  # fmt: skip
    ax.set(
        xlim=(-0.6, iteration.shape[1] - 0.4), ylim=(iteration.shape[0] - 0.4, -0.6), aspect="equal"
    )
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _as_text(iteration, owner):
    """A line for each row of tiles, each as iteration/thread block; a dot for no visit."""
    cells = [[f"{t}/{b}" if t >= 0 else "·" for t, b in zip(ts, bs, strict=True)]
             for ts, bs in zip(iteration, owner, strict=True)]  # fmt: skip
    width = max(len(cell) for row in cells for cell in row)
    rows = ["  ".join(cell.rjust(width) for cell in row) for row in cells]
    return "\n".join(["(iteration/thread block)", *rows])
