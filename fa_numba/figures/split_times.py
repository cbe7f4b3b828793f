"""How long a decoding step takes with 1, 2, 3, ... splits: a saw."""

import numpy as np

from fa_numba.figures.style import COLOURS, Drawing, on_paper, plain


@on_paper
def split_times(times, chosen=None, *, title=""):
    """A curve for each name, such as a GPU.

    Parameters
    ----------
    times : dict of str to sequence of float
        By name: the time with 1, 2, 3, ... splits.
    chosen : dict of str to int, optional
        By name: the number of splits that a rule chooses; drawn as a ring. The least time is a dot.
    title : str, optional
    """
    chosen = chosen or {}
    figure = Drawing(8.2, 3.7, text=title)
    ax = plain(figure.subplots(), grid="y")
    for (name, curve), colour in zip(times.items(), COLOURS, strict=False):
        curve = np.asarray(curve)
        splits = np.arange(1, len(curve) + 1)
        best = int(np.argmin(curve))  # the first of equals
        said = f"{name}: {curve[0]:g} without splits, {curve[best]:g} with {best + 1}"
        ax.plot(splits, curve, color=colour, linewidth=1.3, drawstyle="steps-mid")
        if name in chosen:
            there = chosen[name]
            said += f"; the rule: {curve[there - 1]:g} with {there}"
            ax.plot(there, curve[there - 1], "o", markersize=10, markerfacecolor="none",
                    markeredgecolor=colour, markeredgewidth=1.6)  # fmt: skip
        ax.plot(best + 1, curve[best], "o", color=colour, markersize=6, label=said)
        figure.say(said)
    ax.set(xscale="log", yscale="log", xlim=(0.95, None))
    longest = max(len(curve) for curve in times.values())
    ticks = [2**i for i in range(longest.bit_length())]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    highest = max(max(curve) for curve in times.values())
    lowest = min(min(curve) for curve in times.values())
    ticks = [2**i for i in range(40) if lowest / 2 < 2**i < highest * 2]
    ax.set_yticks(ticks, [f"{n:,}" for n in ticks])
    ax.set(xlabel="num_splits", ylabel="time, in tiles")
    ax.set_title(title, loc="left", fontsize=10.5)
    figure.legend(loc="outside lower center")
    return figure
