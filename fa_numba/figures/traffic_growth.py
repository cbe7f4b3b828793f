"""HBM traffic against sequence length, on logarithmic axes."""

from fa_numba.figures.parts import growth
from fa_numba.figures.style import Drawing, on_paper, plain


@on_paper
def traffic_growth(lengths, curves, *, title=""):
    """One line per algorithm.

    Parameters
    ----------
    lengths : list of int
    curves : dict of str to list of int
        Bytes at each length.
    title : str, optional
    """
    figure = Drawing(8, 4.2)
    for name, values in curves.items():
        pairs = zip(lengths, values, strict=True)
        figure.say(f"{name}: " + ", ".join(f"N={n}: {b / 1e6:,.3g} MB" for n, b in pairs))
    ax = plain(figure.subplots(), grid="both")
    ax.set_title(title, loc="left", fontsize=11)
    megabytes = {name: [value / 1e6 for value in values] for name, values in curves.items()}
    growth(ax, lengths, megabytes, "sequence length N", "MB through HBM")
    return figure
