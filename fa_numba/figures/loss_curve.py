"""A loss against the steps of training, with levels to compare it with."""

import numpy as np
from matplotlib.ticker import LogFormatter

from fa_numba.figures.parts import label_ends
from fa_numba.figures.style import BLUE, GREY, INK, ORANGE, Drawing, on_paper, plain

WINDOW = 20  # steps of the running mean; fewer if there are fewer losses


class PlainNumbers(LogFormatter):
    """Labels of a logarithmic axis such as 0.2 and 3, not 2 × 10⁻¹ and 3 × 10⁰."""

    def __call__(self, x, pos=None):
        return super().__call__(x, pos) and f"{x:g}"


@on_paper
def loss_curve(losses, levels, *, points=None, label="loss", title=""):
    """Every step as a thin line, their running mean as a thick one.

    Parameters
    ----------
    losses : array of shape (steps,)
        Positive.
    levels : dict of str to float
        A dashed line each.
    points : dict of str to dict of int to float, optional
        Losses of another kind, by the number of steps before: a line through its points each.
    label, title : str, optional
    """
    losses, points, window = np.asarray(losses), points or {}, min(WINDOW, len(losses))
    mean = np.convolve(losses, np.ones(window) / window, mode="valid")
    steps = np.arange(window - 1, len(losses))
    words = [f"{label}: {mean[0]:.3g} at first, {mean[-1]:.3g} after {len(losses)} steps"]
    words += [f"{name}: {level:.3g}" for name, level in levels.items()]
    words += [f"{name}: {[*found.values()][-1]:.3g}" for name, found in points.items() if found]
    figure = Drawing(8, 3.6, text="\n".join(words))
    ax = plain(figure.subplots(), grid="y")
    ax.plot(losses, color=GREY, linewidth=0.6, alpha=0.7)
    ax.plot(steps, mean, color=BLUE, linewidth=2)
    for found in points.values():
        ax.plot([*found], [*found.values()], color=ORANGE, linewidth=2, marker="o", markersize=4)
    for level in levels.values():
        ax.axhline(level, color=GREY, linewidth=1.2, linestyle="--")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(PlainNumbers())
    ax.yaxis.set_minor_formatter(PlainNumbers())
    ax.set_xlim(0, len(losses))
    ax.set(xlabel="step", ylabel=label)
    ax.set_title(title, loc="left", fontsize=11)
    ends = [(name, level, INK) for name, level in levels.items()]
    ends += [(name, [*found.values()][-1], ORANGE) for name, found in points.items() if found]
    label_ends(ax, len(losses), [*ends, ("learned", mean[-1], BLUE)])
    return figure
