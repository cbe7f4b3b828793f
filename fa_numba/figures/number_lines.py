"""The numbers of some formats along a line, each as a stroke."""

import numpy as np

from fa_numba.figures.style import COLOURS, GREY, Drawing, on_paper


@on_paper
def number_lines(formats, *, upto):
    """A line for each format, from 0 to `upto`, with a stroke at each of its numbers.

    Parameters
    ----------
    formats : dict of str to array
        By name: the numbers that the format holds, not negative.
    upto : float
        End of the line.
    """
    figure = Drawing(8.4, 0.55 * len(formats) + 0.75)
    ax = figure.subplots()
    for y, ((name, numbers), colour) in enumerate(zip(formats.items(), COLOURS, strict=False)):
        x = np.unique(np.asarray(numbers, np.float64))
        x = x[(x >= 0) & (x <= upto)]
        ax.plot([0, upto], [y, y], color=GREY, linewidth=0.6, zorder=0)
        ax.vlines(x, y - 0.3, y + 0.3, color=colour, linewidth=1.0)
        steps = np.diff(x)
        figure.say(
            f"{name}: {len(x)} numbers from 0 to {upto:g}, steps of {steps.min():g} to "
            f"{steps.max():g}"
        )
    ax.set(ylim=(len(formats) - 0.4, -0.6), yticks=range(len(formats)))
    ax.set_yticklabels(formats)
    ax.set_xlim(-0.01 * upto, 1.01 * upto)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure
