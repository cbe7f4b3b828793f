"""The use of a server's KV memory, as shares of the whole."""

from fa_numba.figures.parts import CENTRED
from fa_numba.figures.style import BLUE, GREEN, GREY, ORANGE, PAPER, RED, Drawing, on_paper, plain

COLOURS = (GREEN, BLUE, ORANGE, RED, GREY)


@on_paper
def memory_shares(shares, *, notes=None, title=""):
    """One stacked bar for each way of giving out memory.

    Parameters
    ----------
    shares : dict of str to dict of str to float
        By name: the shares, in the order of drawing. Each sums to 1; all have the same
        keys.
    notes : dict of str to str, optional
        A word behind the bar of that name.
    title : str, optional
    """
    names, kinds = list(shares), list(next(iter(shares.values())))
    figure = Drawing(8.4, 0.52 * len(names) + 1.25)
    ax = plain(figure.subplots())
    for y, (name, parts) in enumerate(shares.items()):
        figure.say(f"{name}: " + ", ".join(f"{kind} {part:.0%}" for kind, part in parts.items()))
        left = 0.0
        for kind, colour in zip(kinds, COLOURS, strict=False):
            share = parts[kind]
            ax.barh(y, share, left=left, height=0.62, color=colour, edgecolor=PAPER,
                    label=kind if y == 0 else None)  # fmt: skip
            if share > 0.045:
                ax.text(left + share / 2, y, f"{share:.0%}", **CENTRED, color=PAPER)
            left += share
        ax.annotate((notes or {}).get(name, ""), (1, y), (6, 0), textcoords="offset points",
                    va="center")  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=10)
    ax.set(xlim=(0, 1), xticks=[])
    ax.invert_yaxis()
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=len(kinds))
    return figure
