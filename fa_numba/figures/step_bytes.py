"""Bytes that a rank sends in each step of several programs: counted, and by formula."""

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fa_numba.figures.parts import CENTRED
from fa_numba.figures.style import BLUE, ORANGE, PAPER, RED, Drawing, on_paper, plain


@on_paper
def step_bytes(programs):
    """A bar for each program, cut into its steps, and a mark at the end that a formula predicts.

    Parameters
    ----------
    programs : dict of str to (array, array)
        By name: the bytes of each step, counted, and the bytes of each step by formula.
    """
    figure = Drawing(8.6, 0.52 * len(programs) + 1.3)
    ax = plain(figure.subplots(), grid="x")
    most = max(max(np.sum(counted), np.sum(formula)) for counted, formula in programs.values())
    for y, (name, (counted, formula)) in enumerate(programs.items()):
        start = 0
        for step, size in enumerate(counted):
            ax.barh(y, size, left=start, height=0.6, color=BLUE if step % 2 == 0 else ORANGE,
                    edgecolor=PAPER, linewidth=0.8)  # fmt: skip
            if size > 0.05 * most:
                ax.text(start + size / 2, y, str(step), **CENTRED, color=PAPER)
            start += size
        total = int(np.sum(formula))
        ax.plot([total, total], [y - 0.42, y + 0.42], color=RED, linewidth=2)
        ax.text(max(start, total) + 0.012 * most, y, f"{int(start):,} bytes", va="center")
        steps = " ".join(f"{int(size):,}" for size in counted)
        figure.say(f"{name}: {int(start):,} bytes by count, {total:,} by formula; steps: {steps}")
    ax.set_yticks(range(len(programs)), list(programs))
    ax.set(ylim=(len(programs) - 0.4, -0.6), xlim=(0, 1.2 * most))
    ax.set_xlabel("bytes that one rank sends")
    handles = [
        Patch(facecolor=BLUE, label="even steps, counted"),
        Patch(facecolor=ORANGE, label="odd steps, counted"),
        Line2D([], [], color=RED, linewidth=2, label="the sum by formula"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
