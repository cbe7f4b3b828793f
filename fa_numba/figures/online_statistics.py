"""The running maximum and sum of online softmax along one row."""

import numpy as np

from fa_numba.figures.style import BLUE, GREEN, GREY, ORANGE, RED, Drawing, on_paper, plain


@on_paper
def online_statistics(scores, m, l, alpha):
    """Scores with their running maximum, and the running sum, which shrinks at each new maximum.

    Parameters
    ----------
    scores, m, l, alpha : arrays of shape (num_cols,)
        The row, and a kernel's values after each score.
    """
    columns = np.arange(len(scores))
    rescaled = np.flatnonzero(alpha < 1)
    text = "\n".join(
        f"column {n:3}: score {scores[n]:7.3f}  m {m[n]:7.3f}  l {l[n]:8.4f}"
        + (f"  alpha {alpha[n]:.3f}: the old sum shrinks" if n in rescaled else "")
        for n in columns
    )
    figure = Drawing(8, 4.6, text=text)
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot(columns, scores, "o", color=GREY, markersize=4, label="score")
    top.step(columns, m, where="post", color=BLUE, linewidth=1.8, label="m, largest so far")
    top.plot(rescaled, m[rescaled], "o", color=RED, markersize=6, label="new maximum")
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
    top.legend(**above, ncols=3)
    plain(top, grid="y").set_ylabel("score")

    held = np.concatenate([[0], l[:-1] * alpha[1:] if len(l) > 1 else []])
    bottom.bar(columns, held, color=GREEN, width=0.8, label="old sum × alpha")
    bottom.bar(columns, l - held, bottom=held, color=ORANGE, width=0.8, label="exp(s − m)")
    before = np.concatenate([[0], l[:-1]])
    for n in rescaled[rescaled > 0]:
        arrow = {"arrowstyle": "-|>", "color": RED, "linewidth": 1.2}
        bottom.annotate("", (n, held[n]), (n, before[n]), arrowprops=arrow)
    bottom.legend(**above, ncols=2)
    plain(bottom, grid="y").set(ylabel="l", xlabel="column")
    return figure
