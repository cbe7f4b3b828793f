"""The error of quantised scores, by the size of the score."""

import numpy as np

from fa_numba.figures.parts import label_ends
from fa_numba.figures.style import COLOURS, GREY, Drawing, on_paper, plain

BINS = 32  # by size
FEWEST = 20  # scores in a bin that is drawn


@on_paper
def score_errors(scores, quantised):
    """A curve for each way to quantise: root mean square error of the scores of each size.

    Parameters
    ----------
    scores : array
        The exact scores.
    quantised : dict of str to array of the shape of scores
        By name: the same scores after rounding.
    """
    scores = np.asarray(scores, np.float64)
    size = np.abs(scores).ravel()
    edges = np.linspace(0, size.max(), BINS + 1)
    which = np.minimum(np.digitize(size, edges) - 1, BINS - 1)
    count = np.bincount(which, minlength=BINS)
    shown = np.arange(BINS)[: int(np.argmax(count < FEWEST)) or BINS]
    middle = (edges[:-1] + edges[1:])[shown] / 2
    figure = Drawing(7.6, 3.2)
    ax, rare = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    ends = []
    for (name, got), colour in zip(quantised.items(), COLOURS, strict=False):
        squared = (np.asarray(got, np.float64) - scores).ravel() ** 2
        error = np.sqrt(np.bincount(which, squared, BINS)[shown] / count[shown])
        ax.plot(middle, error, "o-", color=colour, markersize=4, linewidth=1.6)
        ends.append((name, error[-1], colour))
        figure.say(
            f"{name}: error {np.sqrt(squared.mean()):.3f} over all scores, {error[0]:.3f} for the "
            f"smallest, {error[-1]:.3f} for the largest"
        )
    rare.bar(middle, count[shown] / size.size, 0.8 * (edges[1] - edges[0]), color=GREY)
    rare.set(yscale="log", ylabel="share", xlabel="size of the score")
    ax.set_ylabel("RMSE of scores")
    ax.set_ylim(bottom=0)
    for panel in (ax, rare):
        plain(panel, grid="y")
    label_ends(ax, middle[-1], ends)
    return figure
