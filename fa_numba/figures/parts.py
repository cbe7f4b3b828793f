"""Parts that several drawings have: legends, names at the ends of curves, pairs of bars."""

from matplotlib.patches import Patch, Rectangle

from fa_numba.figures.style import BLUE, COLOURS, GREY, LIGHT, ORANGE

NOTHING = {"facecolor": LIGHT, "edgecolor": GREY, "linewidth": 0.5}  # a patch: idle, padding
CENTRED = {"ha": "center", "va": "center"}  # of a text: its middle is at the point


def counted(number, thing):
    """``"1 lane"``, ``"2 lanes"``."""
    return f"{number} {thing}{'s' if number != 1 else ''}"


def box(ax, x, y, wide, high, facecolor="none", **options):
    """A rectangle from a corner on, with options of `Rectangle`."""
    ax.add_patch(Rectangle((x, y), wide, high, facecolor=facecolor, **options))


def legend_below(figure, kinds, **options):
    """A legend of patches below the panels.

    Parameters
    ----------
    figure : Figure
    kinds : dict of str to colour or dict
        By words: the colour, or the options of the patch.
    **options
        Of `Figure.legend`.
    """
    options = {"loc": "outside lower center", "ncols": min(len(kinds), 6), **options}
    options["handles"] = [
        Patch(**(kind if isinstance(kind, dict) else {"facecolor": kind}), label=words)
        for words, kind in kinds.items()
    ]
    figure.legend(**options)


def growth(ax, lengths, curves, xlabel, ylabel, *, bottom=None):
    """Curves over lengths in tokens on logarithmic axes, each with its name at its end."""
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for number, (values, colour) in enumerate(zip(curves.values(), COLOURS, strict=False)):
        dashes = (3, 3) if number % 2 else ()  # two curves on top of each other both show
        ax.plot(lengths, values, "o-", color=colour, markersize=4, linewidth=1.8, dashes=dashes,
                clip_on=False)  # fmt: skip
    ax.set_xticks(lengths, [f"{n // 1024}K" if n >= 1024 else str(n) for n in lengths])
    ax.set(xlim=(None, lengths[-1]), ylim=(bottom, None), xlabel=xlabel, ylabel=ylabel)
    ends = zip(curves, curves.values(), COLOURS, strict=False)
    label_ends(ax, lengths[-1], [(name, values[-1], colour) for name, values, colour in ends])


def paired_bars(ax, rows, kinds, notes):
    """Two bars for each row, a note behind the longer one; returns the unit of the axis.

    Parameters
    ----------
    ax : Axes
    rows : list of (str, int, int)
        Name, and two numbers of bytes.
    kinds : (str, str)
        Words for the legend.
    notes : list of str
    """
    most = max((max(row[1:]) for row in rows), default=1)
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
    scale, unit = next((s, u) for s, u in units if most >= s or s == 1)
    for column, (offset, colour) in enumerate(((-0.2, BLUE), (0.2, ORANGE)), 1):
        y = [i + offset for i in range(len(rows))]
        values = [row[column] / scale for row in rows]
        ax.barh(y, values, height=0.36, color=colour, label=kinds[column - 1])
    for i, ((_, *both), note) in enumerate(zip(rows, notes, strict=True)):
        ax.annotate(note, (max(both) / scale, i), (5, 0), textcoords="offset points", va="center",
                    fontsize=8.5)  # fmt: skip
    ax.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=10)
    ax.invert_yaxis()
    ax.margins(x=0.14)
    return unit


def label_ends(ax, x, ends, *, gap=13):
    """Write the name of each curve beside its last point, `gap` points apart at least.

    Parameters
    ----------
    ax : Axes
        Its scales and limits are final.
    x : float
        Where the curves end.
    ends : list of (str, float, colour)
        Name, last value and colour of each curve.
    """
    ax.figure.draw_without_rendering()  # the layout decides how far apart values are
    points = 72 / ax.figure.dpi
    lowest = float("-inf")
    for name, y, colour in sorted(ends, key=lambda end: end[1]):
        at = ax.transData.transform((x, y))[1] * points
        lowest = max(at, lowest + gap)
        ax.annotate(name, (x, y), (8, lowest - at), textcoords="offset points", va="center",
                    color=colour, fontsize=9, annotation_clip=False)  # fmt: skip
