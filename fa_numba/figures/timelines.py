"""What happens where and when: rows of bars along time, one panel for each way of doing it."""

from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from fa_numba.figures.style import COLOURS, GREY, INK, LIGHT, PAPER, Drawing, on_paper


@on_paper
def timelines(panels, *, unit="time"):
    """One panel for each title, a row for each place, a bar for each thing that happens there.

    Parameters
    ----------
    panels : dict of str to list of (str, str, str, float, float)
        By title, what happens: its place, the words on its bar, its kind (of which there are five
        at most, a colour each), beginning and end. In a place one thing happens at a time.
    unit : str, default="time"
        Below the axis.

    Returns
    -------
    Drawing
    """
    kinds = list(dict.fromkeys(bar[2] for bars in panels.values() for bar in bars))
    colour = dict(zip(kinds, COLOURS, strict=False))
    all_places = [list(dict.fromkeys(bar[0] for bar in bars)) for bars in panels.values()]
    ratios = [len(places) for places in all_places]
    figure = Drawing(9, 0.36 * sum(ratios) + 0.42 * len(panels) + 0.75)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    lines = []
    for ax, (title, bars), places in zip(axes, panels.items(), all_places, strict=True):
        finish = max(bar[4] for bar in bars)
        busy = {p: sum(b[4] - b[3] for b in bars if b[0] == p) / finish for p in places}
        shares = ", ".join(f"{place} {share:.0%}" for place, share in busy.items())
        lines.append(f"{title}: done at {finish:g}; busy: {shares}")
        for place, words, kind, start, end in bars:
            y = places.index(place)
            ax.add_patch(Rectangle((start, y - 0.42), end - start, 0.84, facecolor=colour[kind],
                                   edgecolor=PAPER, linewidth=0.8))  # fmt: skip
            ax.text((start + end) / 2, y, words, ha="center", va="center", fontsize=7.5,
                    color=PAPER)  # fmt: skip
        for y in range(len(places)):
            ax.add_patch(Rectangle((0, y - 0.42), finish, 0.84, facecolor=LIGHT, zorder=0))
        ax.set(ylim=(len(places) - 0.5, -0.5), yticks=range(len(places)))
        ax.set_yticklabels([f"{p}  {busy[p]:.0%}" for p in places])
        ax.set_title(f"{title}: done at {finish:g}", loc="left", fontsize=10, color=INK)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=8.5, colors=INK)
    axes[-1].set_xlim(0, max(bar[4] for bars in panels.values() for bar in bars))
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel(unit, fontsize=9, color=INK)
    handles = [Patch(facecolor=colour[kind], label=kind) for kind in kinds]
    handles.append(Patch(facecolor=LIGHT, edgecolor=GREY, linewidth=0.5, label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    figure.text = "\n".join(lines)
    return figure
