"""Chunked linear attention: which pairs get a score, and which come through the state."""

import numpy as np
from matplotlib.colors import ListedColormap

from fa_numba.figures.parts import legend_below
from fa_numba.figures.style import BLUE, LIGHT, ORANGE, PAPER, Drawing, on_paper


@on_paper
def chunked_weights(sees, scored):
    """A cell for each query (row) and key (column).

    Parameters
    ----------
    sees : array of shape (seqlen_q, seqlen_k), bool
        Whether the query sees the key.
    scored : array of shape (seqlen_q, seqlen_k), bool
        Whether it does so by a score of their own.
    """
    kind = np.where(scored, 2, np.where(sees, 1, 0))
    num_scores, num_state = int(scored.sum()), int((kind == 1).sum())
    said = f"{num_scores:,} pairs have a score, {num_state:,} come through the state"
    figure = Drawing(5.4, 5.0, text=f"{said}, {int((kind == 0).sum()):,} are masked")
    ax = figure.subplots()
    ax.pcolormesh(kind, cmap=ListedColormap([LIGHT, BLUE, ORANGE]), edgecolors=PAPER, linewidth=0.6)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.tick_params(labelsize=8)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(said, loc="left")
    kinds = {"score": ORANGE, "through the state": BLUE, "masked": LIGHT}
    legend_below(figure, kinds, fontsize=8.5)
    return figure
