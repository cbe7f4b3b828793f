"""Which query heads share which head of keys and values."""

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import GREY, PAPER, Drawing, colour_of, on_paper

WIDE, HIGH = 0.74, 0.5  # size of a box
GAP = 1.15  # from the row of query heads down to that of K/V heads


@on_paper
def head_sharing(read):
    """A panel for each model: its query heads above, the K/V heads that they read below.

    Parameters
    ----------
    read : dict of str to sequence of int
        For each name the K/V head that every query head reads, as recorded or by formula.

    Raises
    ------
    ValueError
        read is empty.
    """
    if not read:
        raise ValueError("read must have a model, got none")
    most = max(len(heads) for heads in read.values())
    figure = Drawing(0.36 * most * len(read) + 1.3, 2.1)
    panels = figure.subplots(1, len(read), squeeze=False)[0]
    for ax, (name, heads) in zip(panels, read.items(), strict=True):
        heads = [int(head) for head in heads]
        for kv_head in sorted(set(heads)):
            group = [h for h, reads in enumerate(heads) if reads == kv_head]
            colour = colour_of(kv_head)
            middle = sum(group) / len(group)
            _box(ax, middle, GAP, colour, f"{kv_head}")
            for h in group:
                ax.plot([h, middle], [HIGH / 2, GAP - HIGH / 2], color=GREY, linewidth=1)
                _box(ax, h, 0, colour, f"{h}")
            last = f" to {group[-1]}" * (len(group) > 1)
            figure.say(f"{name}: K/V head {kv_head} is read by query heads {group[0]}{last}")
        ax.set(xlim=(-0.6, most - 0.4), ylim=(GAP + 0.4, -0.4), title=name)
        ax.axis("off")
    panels[0].text(-0.75, 0, "query heads", ha="right", va="center", fontsize=9.5)
    panels[0].text(-0.75, GAP, "K/V heads", ha="right", va="center", fontsize=9.5)
    return figure


def _box(ax, x, y, colour, text):
    box(ax, x - WIDE / 2, y - HIGH / 2, WIDE, HIGH, colour, edgecolor=PAPER)
    ax.text(x, y, text, **CENTRED, color=PAPER)
