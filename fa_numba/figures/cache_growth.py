"""The KV cache of one sequence against its length, for several ways of keeping it."""

from fa_numba.figures.parts import growth
from fa_numba.figures.style import GREY, Drawing, on_paper, plain


@on_paper
def cache_growth(lengths, curves, levels, *, title=""):
    """One line per kind of cache, and levels to compare with.

    Parameters
    ----------
    lengths : list of int
        Tokens.
    curves : dict of str to list of int
        Bytes of the cache at each length.
    levels : dict of str to int
        Bytes; a dashed line each, such as the memory of a GPU.
    title : str, optional
    """
    figure = Drawing(8, 4.4, text=f"{title}:" if title else "")
    for name, values in curves.items():
        figure.say(f"{name}: {values[0] / 1e9:.3g} GB at {lengths[0]:,} tokens, "
                   f"{values[-1] / 1e9:.3g} GB at {lengths[-1]:,}")  # fmt: skip
    ax = plain(figure.subplots(), grid="y")
    for name, level in levels.items():
        figure.say(f"{name}: {level / 1e9:.3g} GB")
        ax.axhline(level / 1e9, color=GREY, linewidth=1.2, linestyle="--")
        ax.annotate(name, (lengths[0], level / 1e9), (0, -4), textcoords="offset points", va="top")
    ax.set_title(title, loc="left", fontsize=11)
    gigabytes = {name: [value / 1e9 for value in values] for name, values in curves.items()}
    growth(ax, lengths, gigabytes, "tokens in the sequence", "GB of keys and values")
    return figure
