"""The elements that a thread block of a tiled matrix product reads, by iteration."""

import numpy as np

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import GREY, LIGHT, PAPER, Drawing, colour_of, on_paper, tint


@on_paper
def tiled_product(iteration_a, iteration_b, mine):
    """b above, a to the left, c in the corner: each element of c is where a row meets a column.

    Parameters
    ----------
    iteration_a, iteration_b : integer arrays of shape (M, K) and (K, N)
        The iteration in which the thread block loaded the element; −1 if it did not.
    mine : boolean array of shape (M, N)
        The elements of c that the thread block computes.
    """
    (M, K), (_, N) = iteration_a.shape, iteration_b.shape
    gap = 3
    side = 0.105
    figure = Drawing(side * (K + gap + N) + 1.2, side * (K + gap + M) + 0.5)
    ax = figure.subplots()
    _draw(ax, "a", iteration_a, 0, K + gap)
    _draw(ax, "b", iteration_b, K + gap, 0)
    _draw(ax, "c", np.where(mine, 0, -1), K + gap, K + gap, colour=GREY)
    words = "the number is the iteration,\nthe same for both tiles"
    ax.text(K / 2, K / 2, words, **CENTRED, fontsize=10, color=GREY)
    ax.set(xlim=(-3, K + gap + N + 0.5), ylim=(K + gap + M + 0.5, -3), aspect="equal")
    ax.axis("off")
    iterations = int(max(iteration_a.max(), iteration_b.max())) + 1
    figure.say(f"one thread block, {iterations} iterations, {mine.sum()} elements of c")
    for t in range(iterations):
        figure.say(
            f"iteration {t}: {(iteration_a == t).sum()} of a, {(iteration_b == t).sum()} of b"
        )
    return figure


def _draw(ax, name, iteration, x, y, colour=None):
    rows, cols = iteration.shape
    box(ax, x, y, cols, rows, PAPER, edgecolor=GREY)
    for n in range(1, cols):
        ax.plot([x + n, x + n], [y, y + rows], color=LIGHT, linewidth=0.4)
    for m in range(1, rows):
        ax.plot([x, x + cols], [y + m, y + m], color=LIGHT, linewidth=0.4)
    ax.text(x + cols / 2, y - 1.2, f"{name}, {rows} × {cols}", ha="center", fontsize=9.5)
    for t in range(int(iteration.max()) + 1):
        where = np.argwhere(iteration == t)
        shade = colour or colour_of(t)
        face = tint(shade, 0.45)
        for m, n in where:
            box(ax, x + n, y + m, 1, 1, face, edgecolor=PAPER, linewidth=0.3)
        m, n = where.mean(axis=0) + 0.5
        ax.text(x + n, y + m, "its tile" if colour else str(t), **CENTRED,
                fontsize=10, weight="bold")  # fmt: skip
