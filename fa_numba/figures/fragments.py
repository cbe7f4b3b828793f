"""Which lane of a warp holds which element of a small matrix, and in which register."""

import numpy as np

from fa_numba.figures.parts import CENTRED, box, legend_below
from fa_numba.figures.style import BLUE, GREY, INK, LIGHT, ORANGE, PAPER, Drawing, on_paper


@on_paper
def fragments(matrices, lanes):
    """One panel for each matrix; each element has the number of its lane.

    Parameters
    ----------
    matrices : dict of str to (row, col)
        By title, whose first letter names the registers: arrays of shape (32, registers) or, where
        a register holds two elements, (32, registers, 2): the element that a lane holds there.
    lanes : int, int
        Their elements are coloured, and say in which register they are.
    """
    sizes = {title: (row.max() + 1, col.max() + 1) for title, (row, col) in matrices.items()}
    widths = [cols for _, cols in sizes.values()]
    height = max(rows for rows, _ in sizes.values())
    figure = Drawing(0.27 * sum(widths) + 0.45 * len(widths) + 0.3, 0.25 * height + 0.9)
    panels = figure.subplots(1, len(matrices), width_ratios=widths, squeeze=False)[0]
    for ax, (title, (row, col)) in zip(panels, matrices.items(), strict=True):
        letter = title[0].lower()
        for place in np.ndindex(row.shape):
            lane, register = place[:2]
            x, y = col[place], row[place]
            colour = {lanes[0]: BLUE, lanes[1]: ORANGE}.get(lane)
            ground = colour or (LIGHT if lane // 4 % 2 else PAPER)
            box(ax, x - 0.5, y - 0.5, 1, 1, ground, edgecolor=GREY, linewidth=0.4)
            words = f"{letter}{register}" if colour else str(lane)
            size, weight, ink = (7.5, "bold", PAPER) if colour else (6.5, "normal", INK)
            ax.text(x, y, words, **CENTRED, fontsize=size, weight=weight, color=ink)
        for lane in lanes:
            held = ", ".join(
                f"{letter}{place[0]} [{row[lane][place]}, {col[lane][place]}]"
                for place in np.ndindex(row.shape[1:])
            )
            figure.say(f"{title}, lane {lane}: {held}")
        rows, cols = sizes[title]
        ax.set(xlim=(-0.6, cols - 0.4), ylim=(height - 0.4, -0.6), aspect="equal")
        ax.set_xticks([0, cols // 2, cols - 1])
        ax.set_yticks([0, rows // 2, rows - 1])
        ax.tick_params(labelsize=8, length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(title)
    kinds = {f"lane {lanes[0]}, by register": BLUE, f"lane {lanes[1]}": ORANGE}
    legend_below(figure, kinds | {"the others, by lane": {"facecolor": PAPER, "edgecolor": GREY}})
    return figure
