"""A tree reduction in shared memory, level by level, with the values it really had."""

import numpy as np

from fa_numba.figures.parts import CENTRED
from fa_numba.figures.style import BLUE, GREY, INK, LIGHT, PAPER, Drawing, on_paper


@on_paper
def tree_reduction(levels):
    """The array after each level; arrows show the additions of each thread.

    Parameters
    ----------
    levels : array of shape (num_levels + 1, num_threads)
        levels[0] is the array before the first level, as a kernel has copied it out.
    """
    levels = np.asarray(levels)
    num_levels, width = levels.shape
    rows = [
        f"level {depth}: " + "  ".join(f"{value:5.3g}" for value in level)
        for depth, level in enumerate(levels)
    ]
    figure = Drawing(8, 0.95 * num_levels + 0.3, text="\n".join(rows))
    ax = figure.subplots()
    for depth, level in enumerate(levels):
        live = width >> depth
        for i, value in enumerate(level):
            face = BLUE if i < live else LIGHT
            ax.barh(-depth, 0.9, left=i - 0.45, height=0.42, color=face)
            ax.text(i, -depth, f"{value:.3g}", **CENTRED, color=PAPER if i < live else GREY)
        if depth + 1 == num_levels:
            break
        stride = live // 2
        for i in range(stride):
            for source in (i, i + stride):
                arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.9}
                ax.annotate("", (i, -depth - 0.79), (source, -depth - 0.21), arrowprops=arrow)
        note = f"{stride} thread{'s' * (stride > 1)} at work,\nthen a barrier"
        ax.text(width - 0.3, -depth - 0.5, note, va="center", fontsize=8.5, color=GREY)
    ax.set(xlim=(-0.8, width + 1.9), ylim=(-num_levels + 0.65, 0.45))
    ax.axis("off")
    return figure
