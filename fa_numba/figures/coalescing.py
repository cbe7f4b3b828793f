"""Which sectors of memory one request of a warp fetches, and how much of them it uses."""

import numpy as np
from matplotlib.colors import to_rgb

from fa_numba.figures.parts import legend_below
from fa_numba.figures.style import BLUE, GREY, LIGHT, ORANGE, PAPER, Drawing, on_paper, tint

SECTOR = 8  # floats in 32 bytes


@on_paper
def coalescing(requests):
    """One panel for each request: the matrix in memory order, sector by sector.

    Parameters
    ----------
    requests : dict of str to array
        By title: for each float of a matrix the thread of the warp that asked for it, as a kernel
        wrote it down, −1 where none did. The rows are a multiple of 8 floats long.
    """
    shape = np.shape(next(iter(requests.values())))
    figure = Drawing(0.115 * shape[1] * len(requests) + 0.7 * len(requests), 0.115 * shape[0] + 1.5)
    panels = figure.subplots(1, len(requests), squeeze=False)[0]
    for ax, (title, thread) in zip(panels, requests.items(), strict=True):
        asked = np.asarray(thread) >= 0
        fetched = asked.reshape(len(asked), -1, SECTOR).any(axis=2)
        words = (
            f"{asked.sum()} floats, {fetched.sum()} sectors: "
            f"{4 * asked.sum()} of {32 * fetched.sum()} bytes used"
        )
        figure.say(f"{title}: {words}")
        _draw(ax, asked, np.repeat(fetched, SECTOR, axis=1))
        ax.set_title(f"{title}\n{words}", fontsize=9.5)
    kinds = {"asked for by the warp": BLUE, "fetched with it": tint(ORANGE, 0.45)}
    legend_below(figure, kinds | {"left in HBM": {"facecolor": PAPER, "edgecolor": GREY}})
    return figure


def _draw(ax, asked, fetched):
    picture = np.ones((*asked.shape, 3))
    picture[fetched] = tint(ORANGE, 0.45)
    picture[asked] = to_rgb(BLUE)
    ax.imshow(picture, interpolation="nearest")
    rows, cols = asked.shape
    ax.hlines(np.arange(rows + 1) - 0.5, -0.5, cols - 0.5, color=LIGHT, linewidth=0.5)
    ax.vlines(np.arange(0, cols + 1, SECTOR) - 0.5, -0.5, rows - 0.5, color=GREY, linewidth=0.8)
    ax.set_xticks(np.arange(0, cols, SECTOR))
    ax.set_yticks([0, rows - 1])
    ax.tick_params(labelsize=8, length=0)
    ax.set_xlabel("column")
    ax.set_ylabel("row", labelpad=-6)
    ax.spines[:].set_color(GREY)
