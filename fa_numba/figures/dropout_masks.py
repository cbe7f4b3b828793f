"""Which entries of P dropout keeps, as kernels with other tiles drew them."""

import numpy as np
from matplotlib.colors import ListedColormap

from fa_numba.figures.parts import legend_below
from fa_numba.figures.style import BLUE, LIGHT, ORANGE, Drawing, on_paper


@on_paper
def dropout_masks(drawn):
    """One panel for each kernel: its entries, and the tiles in which it drew them.

    Parameters
    ----------
    drawn : dict of str to (mask, block_m, block_n)
        By title: a bool array of shape (seqlen_q, seqlen_k), True where an entry is kept, and the
        sizes of the tiles.
    """
    first, *_ = next(iter(drawn.values()))
    lines = []
    for title, (mask, block_m, block_n) in drawn.items():
        same = "the same mask" if np.array_equal(mask, first) else "ANOTHER MASK"
        lines.append(
            f"{title}: tiles of {block_m} × {block_n}, {same}, {np.mean(~mask):.0%} dropped"
        )
    rows = ["".join("■" if kept else "·" for kept in row) for row in np.asarray(first)]
    seqlen_q, seqlen_k = np.shape(first)
    width, height = 2.7 * len(drawn) + 0.3, 2.7 * seqlen_q / seqlen_k + 1.05
    figure = Drawing(width, height, text="\n".join([*lines, "", *rows]))
    for ax, (title, (mask, block_m, block_n)) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
    ):
        ax.imshow(mask, cmap=ListedColormap([LIGHT, BLUE]), vmin=0, vmax=1)
        for y in range(0, seqlen_q + 1, block_m):
            ax.axhline(y - 0.5, color=ORANGE, linewidth=1.6)
        for x in range(0, seqlen_k + 1, block_n):
            ax.axvline(x - 0.5, color=ORANGE, linewidth=1.6)
        ax.set(xlim=(-0.8, seqlen_k - 0.2), ylim=(seqlen_q - 0.2, -0.8), xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set(title=f"{title}, tiles of {block_m} × {block_n}", xlabel="key n →")
    figure.axes[0].set_ylabel("← query m")
    tile = {"facecolor": "none", "edgecolor": ORANGE}
    legend_below(figure, {"kept": BLUE, "dropped": LIGHT, "tile": tile})
    return figure
