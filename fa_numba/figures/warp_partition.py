"""Who computes which score of a tile: warps that own keys, warps that own queries."""

import numpy as np

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import GREY, Drawing, colour_of, on_paper


@on_paper
def warp_partition(owners):
    """A panel for each partition: the tile of scores by warp, and how many parts a row of out has.

    Parameters
    ----------
    owners : dict of str to array of shape (queries, keys)
        By title: the warp that computes each score, as a kernel recorded it.
    """
    owners = {title: np.asarray(owner) for title, owner in owners.items()}
    text = "\n\n".join(f"{title}\n{_as_text(owner)}" for title, owner in owners.items())
    rows, keys = max(owner.shape for owner in owners.values())
    figure = Drawing(0.24 * (keys + 12) + 0.4, (0.26 * rows + 1.5) * len(owners), text=text)
    panels = figure.subplots(len(owners), squeeze=False)[:, 0]  # below each other: a page is narrow
    for ax, (title, owner) in zip(panels, owners.items(), strict=True):
        _draw(ax, owner)
        ax.set_title(title, fontsize=10.5)
    return figure


def _warps_of_rows(owner):
    return [sorted({int(warp) for warp in row}) for row in owner]


def _as_text(owner):
    lines = [
        "  " + " ".join(str(warp) for warp in row) + f"   out: sum of {len(warps)} part"
        + "s" * (len(warps) > 1)
        for row, warps in zip(owner, _warps_of_rows(owner), strict=True)
    ]  # fmt: skip
    return "\n".join(lines)


def _draw(ax, owner):
    rows, keys = owner.shape
    for (m, n), warp in np.ndenumerate(owner):
        box(ax, n, m, 0.92, 0.92, colour_of(warp))
    for m, warps in enumerate(_warps_of_rows(owner)):
        gap = 0.5  # with a plus in it
        width = (6 + gap) / len(warps)
        for i, warp in enumerate(warps):
            place = keys + 2.5 + i * width
            box(ax, place, m, width - gap, 0.92, colour_of(warp))
            if i:
                ax.text(place - gap / 2, m + 0.46, "+", **CENTRED, fontsize=8)
    parts = max(map(len, _warps_of_rows(owner)))
    says = f"{parts} parts of each row,\nadded through shared memory" if parts > 1 else (
        "each row in one warp:\nnothing to add"
    )  # fmt: skip
    ax.text(keys / 2, -0.35, "S and P: queries ↓, keys →", ha="center")
    ax.text(keys + 5.5, -0.35, "out", ha="center")
    ax.text(keys + 5.5, rows + 0.25, says, ha="center", va="top")
    for warp in np.unique(owner):
        ax.text(0.1 + 3.6 * warp, rows + 0.35, f"■ warp {warp}", va="top", color=colour_of(warp))
    ax.annotate("", (keys + 2.2, rows / 2), (keys + 0.2, rows / 2),
                arrowprops={"arrowstyle": "->", "color": GREY})  # fmt: skip
    ax.set(xlim=(-0.3, keys + 9.2), ylim=(rows + 1.9, -1.2))
    ax.axis("off")
