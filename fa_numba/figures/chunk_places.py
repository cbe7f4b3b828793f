"""Rows of 128 bytes in shared memory: the positions of their 16-byte chunks, and bank conflicts."""

import numpy as np

from fa_numba.figures.parts import CENTRED, box, counted
from fa_numba.figures.style import GREEN, GREY, INK, LIGHT, PAPER, RED, Drawing, on_paper

CHUNK, ROW_BYTES, BANKS = 16, 128, 32


@on_paper
def chunk_places(layouts, chunk):
    """One panel for each layout: the tile as memory has it, its chunks with their numbers.

    Parameters
    ----------
    layouts : dict of str to array of shape (rows, 8)
        By title: the byte at which chunk [row, chunk] begins.
    chunk : int
        Eight lanes read this chunk of eight rows at once, as ldmatrix does; it is coloured.
    """
    rows = max(len(places) for places in layouts.values())
    figure = Drawing(3.5 * len(layouts) + 0.4, 0.33 * rows + 1.35)
    panels = figure.subplots(1, len(layouts), squeeze=False, sharey=True)[0]
    for ax, (title, places) in zip(panels, layouts.items(), strict=True):
        read = places[:8, chunk]
        words = np.add.outer(read // 4, np.arange(CHUNK // 4))
        wavefronts = int(np.bincount(words.ravel() % BANKS).max())
        banks = len(np.unique(words % BANKS))
        colour = GREEN if wavefronts == 1 else RED
        for (row, number), byte in np.ndenumerate(places):
            y, x = divmod(int(byte), ROW_BYTES)
            x /= CHUNK
            is_read = number == chunk and row < 8
            box(ax, x - 0.5, y - 0.5, 1, 1, colour if is_read else LIGHT if row % 2 else PAPER,
                edgecolor=GREY, linewidth=0.5)  # fmt: skip
            ax.text(x, y, f"{row}.{number}", **CENTRED, fontsize=7.5,
                    color=PAPER if is_read else INK, weight="bold" if is_read else "normal"
                    )  # fmt: skip
        said = f"chunk {chunk} of 8 rows: {banks} banks, {counted(wavefronts, 'wavefront')}"
        figure.say(f"{title}: {said}")
        ax.set(xlim=(-0.6, 7.6), ylim=(rows - 0.4, -0.6))
        ax.set_xticks(range(8), [f"{4 * i}–{4 * i + 3}" for i in range(8)])
        ax.set_yticks(range(rows), [str(ROW_BYTES * i) for i in range(rows)])
        ax.tick_params(labelsize=7, length=0)
        ax.set(xlabel="banks", title=f"{title}\n{said}")
        ax.spines[:].set_visible(False)
    panels[0].set_ylabel("byte")
    return figure
