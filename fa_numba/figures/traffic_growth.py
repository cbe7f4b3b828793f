"""HBM traffic against sequence length, on logarithmic axes."""

from fa_numba.figures.parts import growth
from fa_numba.figures.style import Drawing, on_paper, plain


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
    ax.set_title(title, loc="left", fontsize=11)
    megabytes = {name: [value / 1e6 for value in values] for name, values in curves.items()}
    growth(ax, lengths, megabytes, "sequence length N", ylabel)
    return figure
