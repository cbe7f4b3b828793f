"""The KV cache of one sequence against its length, for several ways of keeping it."""

from fa_numba.figures.style import COLOURS, GREY, INK, Drawing, label_ends, on_paper, plain


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
    words = [f"{title}:"] if title else []
    for name, values in curves.items():
        words.append(f"{name}: {values[0] / 1e9:.3g} GB at {lengths[0]:,} tokens, "
                     f"{values[-1] / 1e9:.3g} GB at {lengths[-1]:,}")  # fmt: skip
    words += [f"{name}: {level / 1e9:.3g} GB" for name, level in levels.items()]
    figure = Drawing(8, 4.4, text="\n".join(words))
    ax = plain(figure.subplots(), grid="y")
    ends = []
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        gigabytes = [value / 1e9 for value in values]
        ax.plot(lengths, gigabytes, "o-", color=colour, markersize=4, linewidth=1.8, clip_on=False)
        ends.append((name, gigabytes[-1], colour))
    for name, level in levels.items():
        ax.axhline(level / 1e9, color=GREY, linewidth=1.2, linestyle="--")
        ax.annotate(name, (lengths[0], level / 1e9), (0, -4), textcoords="offset points",
                    va="top", fontsize=9, color=INK)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xlim(right=lengths[-1])
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{n // 1024}K" if n >= 1024 else str(n) for n in lengths])
    ax.set_xlabel("tokens in the sequence", fontsize=9)
    ax.set_ylabel("GB of keys and values", fontsize=9)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    label_ends(ax, lengths[-1], ends)
    return figure
