"""HBM traffic against sequence length, on logarithmic axes."""

from fa_numba.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    Drawing,
    label_ends,
    on_paper,
    plain,
)


@on_paper
def traffic_growth(lengths, curves, *, title="", ylabel="MB through HBM"):
    """One line per algorithm.

    Parameters
    ----------
    lengths : list of int
    curves : dict of str to list of int
        Bytes at each length.
    title, ylabel : str, optional
    """
    words = []
    for name, values in curves.items():
        pairs = zip(lengths, values, strict=True)
        words.append(f"{name}: " + ", ".join(f"N={n}: {b / 1e6:,.3g} MB" for n, b in pairs))
    figure = Drawing(8, 4.2, text="\n".join(words))
    ax = plain(figure.subplots(), grid="both")
    ends = []
    colours = (RED, BLUE, GREEN, ORANGE, PURPLE, GREY)
    for number, ((name, values), colour) in enumerate(zip(curves.items(), colours, strict=False)):
        dashes = (3, 3) if number % 2 else ()  # two curves on top of each other both show
        megabytes = [value / 1e6 for value in values]
        ax.plot(lengths, megabytes, "o-", color=colour, markersize=4, linewidth=1.8, dashes=dashes)
        ends.append((name, megabytes[-1], colour))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{n // 1024}K" if n >= 1024 else str(n) for n in lengths])
    ax.set_xlabel("sequence length N", fontsize=9)
    ax.set_ylabel(ylabel, fontsize=9)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    label_ends(ax, lengths[-1], ends)
    return figure
