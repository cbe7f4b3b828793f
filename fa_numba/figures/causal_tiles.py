"""A causal mask and its tiles: which are skipped, which need the test."""

import numpy as np
from matplotlib.patches import Patch, Rectangle

from fa_numba.figures.style import BLUE, GREY, INK, LIGHT, ORANGE, PAPER, Drawing, on_paper

SEEN, HIDDEN = "#90cdf4", "#f7fafc"


@on_paper
def causal_tiles(seqlen_q, seqlen_k, block_m, block_n, num_live_n_tiles, needs_mask):
    """Each pair of query and key, and the tiles laid over them.

    Parameters
    ----------
    seqlen_q, seqlen_k, block_m, block_n : int
    num_live_n_tiles : function of m_tile
        How many n-tiles the m-tile visits.
    needs_mask : function of (m_tile, n_tile)
        Whether the visited tile must test its pairs one by one.

    Returns
    -------
    Drawing
    """
    num_m_tiles, num_n_tiles = -(-seqlen_q // block_m), -(-seqlen_k // block_n)
    m, n = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)
    state = np.array([
        ["skipped" if j >= num_live_n_tiles(i) else "masked" if needs_mask(i, j) else "whole"
         for j in range(num_n_tiles)]
        for i in range(num_m_tiles)
    ])  # fmt: skip
    return draw_tiles(n <= m + seqlen_k - seqlen_q, state, block_m, block_n)


def tiles_of_mask(sees, block_m, block_n):
    """The two functions that `causal_tiles` needs, found from the mask pair by pair.

    Parameters
    ----------
    sees : bool array of shape (seqlen_q, seqlen_k)
        Whether a query sees a key; a row's keys are the first few.
    block_m, block_n : int

    Returns
    -------
    num_live_n_tiles : function of m_tile
    needs_mask : function of (m_tile, n_tile)
    """
    num_n_tiles = -(-sees.shape[1] // block_n)

    def tile(i, j):
        return sees[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]

    def num_live_n_tiles(m_tile):
        return sum(bool(tile(m_tile, j).any()) for j in range(num_n_tiles))

    def needs_mask(m_tile, n_tile):
        pairs = tile(m_tile, n_tile)
        return not pairs.all() or pairs.shape[1] < block_n

    return num_live_n_tiles, needs_mask


def draw_tiles(sees, state, block_m, block_n):
    """The pairs of a mask, and over them its tiles: "whole", "masked" or "skipped".

    Parameters
    ----------
    sees : bool array of shape (seqlen_q, seqlen_k)
    state : array of shape (num_m_tiles, num_n_tiles), str
    block_m, block_n : int

    Returns
    -------
    Drawing
    """
    seqlen_q, seqlen_k = sees.shape
    count = {name: int((state == name).sum()) for name in ("whole", "masked", "skipped")}
    summary = ", ".join(f"{n} {name}" for name, n in count.items())
    text = f"{seqlen_q} queries, {seqlen_k} keys, {block_m}×{block_n} tiles: {summary}\n"
    text += "\n".join(" ".join({"w": "■", "m": "◩", "s": "·"}[s[0]] for s in row) for row in state)

    figure = Drawing(0.24 * seqlen_k + 3.0, 0.24 * seqlen_q + 0.9, text=text)
    ax = figure.subplots()
    for (row, column), seen in np.ndenumerate(sees):
        ax.add_patch(Rectangle((column, row), 1, 1, facecolor=SEEN if seen else HIDDEN,
                               edgecolor=PAPER, linewidth=0.6))  # fmt: skip
    for (i, j), name in np.ndenumerate(state):
        x, y = j * block_n, i * block_m
        wide, high = min(block_n, seqlen_k - x), min(block_m, seqlen_q - y)
        style = {
            "whole": {"edgecolor": BLUE, "linewidth": 1.8, "zorder": 3},
            "masked": {"edgecolor": ORANGE, "linewidth": 1.8, "zorder": 4},
            "skipped": {"edgecolor": GREY, "linewidth": 0.8, "zorder": 2, "hatch": "///"},
        }[name]
        inset = 0.1
        ax.add_patch(Rectangle((x + inset, y + inset), wide - 2 * inset, high - 2 * inset,
                               facecolor="none", **style))  # fmt: skip
    ax.set(xlim=(-0.2, seqlen_k + 0.2), ylim=(seqlen_q + 0.2, -0.2), aspect="equal")
    ax.set(xticks=range(0, seqlen_k, block_n), yticks=range(0, seqlen_q, block_m))
    ax.tick_params(length=0, labelsize=8, colors=INK)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("key n", fontsize=9, color=INK)
    ax.set_ylabel("query m", fontsize=9, color=INK)
    ax.set_title(f"{seqlen_q} queries, {seqlen_k} keys", fontsize=10.5, color=INK, loc="left")
    ax.legend(
        handles=[
            Patch(facecolor=SEEN, label="the query sees the key"),
            Patch(facecolor="none", edgecolor=BLUE, label=f"whole tile: {count['whole']}"),
            Patch(facecolor="none", edgecolor=ORANGE, label=f"needs the mask: {count['masked']}"),
            Patch(facecolor="none", edgecolor=GREY, hatch="///",
                  label=f"skipped: {count['skipped']}"),
        ],
        loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8.5, frameon=False,
    )  # fmt: skip
    ax.set_facecolor(LIGHT)
    return figure
