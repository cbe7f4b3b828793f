"""Where in the 32 banks of shared memory the threads of a warp meet."""

import numpy as np
from matplotlib.colors import to_rgb

from fa_numba.figures.parts import CENTRED, box, counted
from fa_numba.figures.style import BLUE, GREEN, LIGHT, PAPER, RED, Drawing, on_paper

BANKS = 32
MOST_ROWS = 48


@on_paper
def banks(requests):
    """One panel for each request: shared memory as 32 columns, and the words that a warp reads.

    Parameters
    ----------
    requests : dict of str to (words, row_length)
        By title: the word (4 bytes) that each of the 32 threads reads, counted from the start of
        the tile, a negative number for a thread that reads none; and the words in a row of the
        tile, None if it has no rows.
    """
    rows = {title: _rows(words) for title, (words, _) in requests.items()}
    height = max(map(len, rows.values()))
    figure = Drawing(4.6 * len(requests), 0.125 * height + 1.3)
    panels = figure.subplots(1, len(requests), squeeze=False, sharey=True)[0]
    for ax, (title, (words, row_length)) in zip(panels, requests.items(), strict=True):
        words = np.asarray(words, np.intp)  # in a browser of 32 bits, as bincount wants them
        distinct = np.unique(words[words >= 0])
        wavefronts = int(np.bincount(distinct % BANKS).max())
        num_banks = len(np.unique(distinct % BANKS))
        said = f"{counted(num_banks, 'bank')}, {counted(wavefronts, 'wavefront')}"
        figure.say(f"{title}: {said}")
        _draw(ax, words, row_length, rows[title], height, RED if wavefronts > 1 else GREEN)
        ax.set_title(f"{title}\n{said}")
    panels[0].set_ylabel("word // 32")
    return figure


def _rows(words):
    """The rows of 32 words to draw: from the tile's first on, or, if far apart, those read."""
    read = np.unique(np.asarray(words)[np.asarray(words) >= 0] // BANKS)
    return list(range(read[-1] + 1)) if read[-1] < MOST_ROWS else read.tolist()


def _draw(ax, words, row_length, rows, height, colour):
    picture = np.ones((height, BANKS, 3))
    place = np.arange(BANKS) + BANKS * np.array(rows)[:, None]
    striped = place // (row_length or BANKS) % 2 == 1  # every other row of the tile
    picture[: len(rows)][striped] = to_rgb(LIGHT)
    ax.imshow(picture, interpolation="nearest", aspect="equal")
    words = words.tolist()
    for word in sorted({word for word in words if word >= 0}):
        row, bank = rows.index(word // BANKS), word % BANKS
        threads = [thread for thread, its in enumerate(words) if its == word]
        box(ax, bank - 0.5, row - 0.5, 1, 1, colour)
        ax.text(bank, row + 0.05, str(threads[0]), fontsize=5, color=PAPER, **CENTRED)
    ax.set_xticks([0, 8, 16, 24, 31])
    ticks = sorted({0, len(rows) - 1})
    ax.set_yticks(ticks, [str(rows[tick]) for tick in ticks])
    ax.tick_params(labelsize=8, length=2)
    ax.set_xlabel("bank = word % 32")
    ax.spines[:].set_color(BLUE)
