"""Where in the 32 banks of shared memory the threads of a warp meet."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from fa_numba.figures.style import BLUE, GREEN, INK, LIGHT, PAPER, RED, Drawing

BANKS = 32


def banks(requests):
    """One panel for each request: shared memory as 32 columns, and the words that a warp reads.

    Parameters
    ----------
    requests : dict of str to (words, row_length)
        By title: the word (4 bytes) that each of the 32 threads reads, counted from the start of
        the tile, and the words in a row of the tile.

    Returns
    -------
    Drawing
    """
    lines = []
    height = 1 + max(int(np.max(words)) // BANKS for words, _ in requests.values())
    figure = Drawing(4.6 * len(requests), 0.125 * height + 1.3)
    panels = figure.subplots(1, len(requests), squeeze=False, sharey=True)[0]
    for ax, (title, (words, row_length)) in zip(panels, requests.items(), strict=True):
        words = np.asarray(words)
        distinct = np.unique(words)
        wavefronts = int(np.bincount(distinct % BANKS).max())
        said = f"{_count(len(np.unique(words % BANKS)), 'bank')}, {_count(wavefronts, 'wavefront')}"
        lines.append(f"{title}: {said}")
        _draw(ax, words, row_length, height, RED if wavefronts > 1 else GREEN)
        ax.set_title(f"{title}\n{said}", fontsize=10, color=INK)
    panels[0].set_ylabel("word // 32", fontsize=9, color=INK)
    figure.text = "\n".join(lines)
    return figure


def _count(number, thing):
    return f"{number} {thing}{'s' if number > 1 else ''}"


def _draw(ax, words, row_length, height, colour):
    picture = np.ones((height, BANKS, 3))
    place = np.arange(height * BANKS).reshape(height, BANKS)
    picture[place // row_length % 2 == 1] = to_rgb(LIGHT)  # every other row of the tile
    ax.imshow(picture, interpolation="nearest", aspect="equal")
    for thread, word in enumerate(words):
        row, bank = divmod(int(word), BANKS)
        ax.add_patch(Rectangle((bank - 0.5, row - 0.5), 1, 1, facecolor=colour))
        ax.text(bank, row + 0.05, str(thread), fontsize=5, color=PAPER, ha="center", va="center")
    ax.set_xticks([0, 8, 16, 24, 31])
    ax.set_yticks([0, height - 1])
    ax.tick_params(colors=INK, labelsize=8, length=2)
    ax.set_xlabel("bank = word % 32", fontsize=9, color=INK)
    ax.spines[:].set_color(BLUE)
