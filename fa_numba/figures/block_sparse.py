"""Masks of tiles, and the HBM traffic of each."""

import numpy as np
from matplotlib.patches import Rectangle

from fa_numba.figures.style import (
    BLUE,
    GREY,
    INK,
    LIGHT,
    ORANGE,
    PAPER,
    Drawing,
    on_paper,
    plain,
)


@on_paper
def block_sparse(masks, formula, meter):
    """The masks side by side, and under them bytes through HBM against the share of live tiles.

    Parameters
    ----------
    masks : dict of str to bool array of shape (num_m_tiles, num_n_tiles)
        By name, True where a tile is live; the first is dense.
    formula, meter : dict of str to int
        Bytes with that mask.
    """
    shares = {name: float(np.mean(mask)) for name, mask in masks.items()}
    lines = [
        f"{name}: {np.sum(mask)} of {np.size(mask)} tiles live, formula {formula[name]:,} bytes, "
        f"meter {meter[name]:,}"
        for name, mask in masks.items()
    ]
    drawn = [f"{name}\n{_as_text(np.asarray(mask))}" for name, mask in masks.items()]
    figure = Drawing(8.4, 4.6, text="\n\n".join(["\n".join(lines), *drawn]))
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.45))
    for ax, (name, mask) in zip(top.subplots(1, len(masks)), masks.items(), strict=True):
        _draw(ax, np.asarray(mask))
        ax.set_title(name, fontsize=10, color=INK)

    ax = plain(bottom.subplots(), grid="both")
    dense = formula[next(iter(masks))] / 1e3
    ax.plot([0, 1], [0, dense], color=GREY, linewidth=1, dashes=(4, 3),
            label="the dense cost times the share")  # fmt: skip
    x = list(shares.values())
    ax.plot(x, [formula[name] / 1e3 for name in masks], "o", color=BLUE, markersize=11,
            fillstyle="none", markeredgewidth=1.6, label="formula")  # fmt: skip
    ax.plot(x, [meter[name] / 1e3 for name in masks], "o", color=ORANGE, markersize=5,
            label="meter")  # fmt: skip
    for name, share in shares.items():
        ax.annotate(name, (share, meter[name] / 1e3), (-9, 6), textcoords="offset points",
                    ha="right", fontsize=9, color=INK)  # fmt: skip
    ax.set(xlim=(0, 1.04), ylim=(0, 1.12 * dense))
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.set_xlabel("live tiles", fontsize=9)
    ax.set_ylabel("kB through HBM", fontsize=9)
    ax.legend(loc="lower right", fontsize=9, framealpha=0.9)
    return figure


def _draw(ax, mask):
    for (m_tile, n_tile), live in np.ndenumerate(mask):
        ax.add_patch(Rectangle((n_tile + 0.06, m_tile + 0.06), 0.88, 0.88, linewidth=0,
                               facecolor=BLUE if live else LIGHT))  # fmt: skip
    ax.set(xlim=(0, mask.shape[1]), ylim=(mask.shape[0], 0), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_facecolor(PAPER)


def _as_text(mask):
    return "\n".join(" ".join("■" if live else "·" for live in row) for row in mask)
