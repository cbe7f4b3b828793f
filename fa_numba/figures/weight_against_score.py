"""Does a larger q·k always mean a larger weight? One query's weights against its scores."""

import numpy as np

from fa_numba.figures.style import BLUE, GREY, Drawing, on_paper, plain

FLOOR = 1e-5  # smaller weights, 0 among them, are drawn here


@on_paper
def weight_against_score(scores, weights):
    """A panel for each kind of attention; softmax, on this scale, is a straight line.

    Parameters
    ----------
    scores : array of shape (keys,)
        q·k/√d of one query.
    weights : dict of str to array of shape (keys,)
    """
    order = np.argsort(scores)
    higher = scores[:, None] > scores + 1e-9  # of each pair of keys, the first
    figure = Drawing(8.6, 2.9)
    panels = np.atleast_1d(figure.subplots(1, len(weights), sharex=True, sharey=True))
    for ax, (name, row) in zip(panels, weights.items(), strict=True):
        in_order = (row[:, None] > row)[higher].mean()
        figure.say(f"{name}: of two keys the higher score has the larger weight {in_order:.0%} "
                     f"of the time; weights from {row.min():.2g} to {row.max():.2g}")  # fmt: skip
        plain(ax, grid="y")
        ax.plot(scores[order], np.maximum(row[order], FLOOR), color=GREY, linewidth=0.7)
        ax.plot(scores, np.maximum(row, FLOOR), "o", color=BLUE, markersize=3.5)
        ax.set_yscale("log")
        ax.set_title(f"{name}\n{in_order:.0%} of pairs in order", fontsize=9)
        ax.tick_params(labelsize=8)
    panels[0].set_ylabel("weight")
    panels[len(panels) // 2].set_xlabel("score q·k/√d")
    return figure
