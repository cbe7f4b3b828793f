"""The attention weights of one query, when some of the tokens have left the cache."""

import numpy as np

from fa_numba.figures.style import BLUE, LIGHT, PURPLE, Drawing, on_paper, plain


@on_paper
def kept_weights(weights, num_sinks):
    """A row of bars for each cache, a bar for each token.

    Parameters
    ----------
    weights : dict of str to array of shape (tokens,)
        By cache: the weight of each token; NaN where the cache does not hold it.
    num_sinks : int
        The first tokens, in a colour of their own.
    """
    figure = Drawing(8, 1.25 * len(weights) + 0.5)
    axes = np.atleast_1d(figure.subplots(len(weights), 1, sharex=True, sharey=True))
    for ax, (name, row) in zip(axes, weights.items(), strict=True):
        tokens, held = np.arange(len(row)), ~np.isnan(row)
        sinks, others = np.nansum(row[:num_sinks]), np.nansum(row[num_sinks:])
        figure.say(f"{name}: {held.sum()} tokens, the first {num_sinks} have {sinks:.0%} of the "
                     f"weight, the others {others:.0%}")  # fmt: skip
        plain(ax)
        colours = np.where(tokens < num_sinks, PURPLE, BLUE)
        ax.bar(tokens[held], row[held], color=colours[held], width=0.8)
        for token in tokens[~held]:
            ax.axvspan(token - 0.5, token + 0.5, color=LIGHT, linewidth=0)
        title = f"{name}: {sinks:.0%} to the first {num_sinks}, {others:.0%} to the others"
        ax.set_title(title, loc="left", fontsize=9.5)
        ax.set_xlim(-0.5, len(row) - 0.5)
        ax.set_ylabel("weight")
    axes[-1].set_xlabel("token (grey: not in the cache)")
    return figure
