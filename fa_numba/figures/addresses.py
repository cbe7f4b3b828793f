"""Who reads which address: the lanes of a warp against the sectors that their request moves."""

import numpy as np

from fa_numba.figures.parts import box, counted, legend_below
from fa_numba.figures.style import BLUE, GREY, LIGHT, ORANGE, PAPER, Drawing, on_paper, tint

SECTOR = 32  # bytes
MOST_TICKS = 6


@on_paper
def addresses(requests):
    """One panel for each request: lanes downwards, the sectors that they touch side by side.

    Parameters
    ----------
    requests : dict of str to LineTraffic
        By title: lines of `Trace.lines` that use global memory. Drawn is the first request.
    """
    columns = min(2, len(requests))
    rows = -(-len(requests) // columns)
    figure = Drawing(4.6 * columns, 2.75 * rows + 0.45)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, (title, line) in zip(panels, requests.items(), strict=False):
        first = np.asarray(line.addresses)
        lanes = np.flatnonzero(first >= 0)
        byte = first[lanes, None] + np.arange(line.itemsize)
        sectors = np.unique(byte // SECTOR)
        used = len(np.unique(byte))
        words = (
            f"{counted(len(lanes), 'lane')}, {counted(len(sectors), 'sector')}: "
            f"{used} of {SECTOR * len(sectors)} bytes used"
        )
        figure.say(f"{title}: {words}")
        _draw(ax, lanes, first[lanes], line.itemsize, sectors)
        ax.set_title(f"{title}\n{words}", fontsize=9.5)
    for ax in panels[len(requests) :]:
        ax.axis("off")
    moved = tint(ORANGE, 0.45)
    kinds = {"bytes that the lane asks for": BLUE, "sectors moved for it": moved}
    legend_below(figure, kinds)
    return figure


def _draw(ax, lanes, first, itemsize, sectors):
    box(ax, 0, -0.5, len(sectors), 32, tint(ORANGE, 0.45))
    apart = np.flatnonzero(np.diff(sectors) > 1) + 1  # memory between them is not moved
    ax.vlines(np.arange(1, len(sectors)), -0.5, 31.5, color=LIGHT, linewidth=0.6)
    ax.vlines(apart, -0.5, 31.5, color=PAPER, linewidth=2.2)
    for lane, start in zip(lanes, first, strict=True):
        for sector in np.unique([start // SECTOR, (start + itemsize - 1) // SECTOR]):
            low, high = max(start, sector * SECTOR), min(start + itemsize, (sector + 1) * SECTOR)
            x = np.searchsorted(sectors, sector) + low % SECTOR / SECTOR
            size = (high - low) / SECTOR, 1
            box(ax, x, lane - 0.5, *size, BLUE, edgecolor=BLUE, linewidth=0.8, zorder=3)
    runs = np.concatenate([[0], apart])
    ticks = runs[:: -(-len(runs) // MOST_TICKS)]
    if len(runs) == 1:
        ticks = np.arange(0, len(sectors), -(-len(sectors) // MOST_TICKS))
    ax.set_xticks(ticks, [f"{sectors[t] * SECTOR:,}" for t in ticks])
    ax.set_yticks([0, 8, 16, 24, 31])
    ax.set(xlim=(0, len(sectors)), ylim=(31.5, -0.5))
    ax.set(xlabel="byte" + (", with gaps" if len(apart) else ""), ylabel="lane of the warp")
    ax.tick_params(labelsize=8, length=2)
    ax.spines[:].set_color(GREY)
