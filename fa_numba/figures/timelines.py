"""Operations of several units along time: rows of bars, one panel for each schedule."""

from matplotlib.ticker import MaxNLocator

from fa_numba.figures.parts import CENTRED, NOTHING, box, legend_below
from fa_numba.figures.style import COLOURS, LIGHT, PAPER, Drawing, on_paper


@on_paper
def timelines(panels, *, unit="time"):
    """One panel for each title, a row for each unit, a bar for each of its operations.

    Parameters
    ----------
    panels : dict of str to list of (str, str, str, float, float)
        By title, the operations: unit, words on the bar, kind (five at most, a colour each), start
        and end. A unit does one operation at a time.
    unit : str, default="time"
        Label below the axis.
    """
    kinds = list(dict.fromkeys(bar[2] for bars in panels.values() for bar in bars))
    colour = dict(zip(kinds, COLOURS, strict=False))
    all_units = [list(dict.fromkeys(bar[0] for bar in bars)) for bars in panels.values()]
    ratios = [len(units) for units in all_units]
    figure = Drawing(9, 0.36 * sum(ratios) + 0.42 * len(panels) + 0.75)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    for ax, (title, bars), units in zip(axes, panels.items(), all_units, strict=True):
        finish = max(bar[4] for bar in bars)
        busy = {p: sum(b[4] - b[3] for b in bars if b[0] == p) / finish for p in units}
        shares = ", ".join(f"{name} {share:.0%}" for name, share in busy.items())
        figure.say(f"{title}: done at {finish:g}; busy: {shares}")
        for name, words, kind, start, end in bars:
            y = units.index(name)
            box(ax, start, y - 0.42, end - start, 0.84, colour[kind], edgecolor=PAPER,
                linewidth=0.8)  # fmt: skip
            ax.text((start + end) / 2, y, words, **CENTRED, fontsize=7.5, color=PAPER)
        for y in range(len(units)):
            box(ax, 0, y - 0.42, finish, 0.84, LIGHT, zorder=0)
        ax.set(ylim=(len(units) - 0.5, -0.5), yticks=range(len(units)))
        ax.set_yticklabels([f"{p}  {busy[p]:.0%}" for p in units])
        ax.set_title(f"{title}: done at {finish:g}", loc="left")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=8.5)
    axes[-1].set_xlim(0, max(bar[4] for bars in panels.values() for bar in bars))
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel(unit)
    legend_below(figure, colour | {"idle": NOTHING})
    return figure
