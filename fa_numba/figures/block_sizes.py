"""Which tile sizes fit: the feasible region of B_r x B_c for several budgets of SRAM."""

import numpy as np

from fa_numba.figures.style import COLOURS, GREY, PAPER, RED, Drawing, on_paper, plain
from fa_numba.tiling.block_sizes import calculate_block_sizes

HALO = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8, "alpha": 0.85}


@on_paper
def feasible_tiles(budgets, d, *, dtype_bytes=2, points=None):
    """Every pair under a curve fits into that budget; the dot is the pair of largest product.

    Parameters
    ----------
    budgets : dict of str to int
        Bytes of SRAM, by name.
    d : int
        head_dim
    dtype_bytes : int, default=2
    points : dict of str to (B_r, B_c), optional
        Other choices to mark, by name.
    """
    points = points or {}
    figure = Drawing(7.6, 4.9, text=f"d = {d}, {dtype_bytes} bytes per element")
    ax = plain(figure.subplots(), grid="both")
    best = {
        name: calculate_block_sizes(sram_bytes, d, dtype_bytes=dtype_bytes)
        for name, sram_bytes in budgets.items()
    }
    marked = [*best.values(), *points.values()]
    top = 1.8 * max(b_r for b_r, _ in marked)
    end = 2.2 * max(b_c for _, b_c in marked)
    b_c = np.linspace(1, end, 600)
    for (name, sram_bytes), colour in zip(budgets.items(), COLOURS, strict=False):
        elements = sram_bytes // dtype_bytes
        b_r = (elements - 2 * b_c * d) / (d + b_c)
        ax.plot(b_c, b_r, color=colour, linewidth=1.6, label=f"{name}: {sram_bytes // 1024} KiB")
        ax.fill_between(b_c, 0, b_r, where=b_r > 0, color=colour, alpha=0.08, linewidth=0)
        best_r, best_c = best[name]
        ax.plot(best_c, best_r, "o", color=colour, markersize=6)
        ax.annotate(f"{best_r} × {best_c}", (best_c, best_r), (7, 4), textcoords="offset points",
                    color=colour, bbox=HALO)  # fmt: skip
        figure.say(f"{name}, {sram_bytes // 1024} KiB: {best_r} x {best_c} = {best_r * best_c}")
    for name, (block_r, block_c) in points.items():
        ax.plot(block_c, block_r, "s", color=RED, markersize=5)
        ax.annotate(name, (block_c, block_r), (7, -3), textcoords="offset points",
                    color=RED, bbox=HALO)  # fmt: skip
        figure.say(f"{name}: {block_r} x {block_c} = {block_r * block_c}")
    ax.plot(b_c, 2 * b_c, color=GREY, linewidth=0.9, linestyle=":")
    ax.annotate("B_r = 2 B_c", (top / 2.12, top / 1.05), color=GREY, ha="right", bbox=HALO)
    ax.set(xlim=(0, end), ylim=(0, top))
    ax.set_xlabel("B_c, rows of K and V in a tile", fontsize=9.5)
    ax.set_ylabel("B_r, rows of Q in a tile", fontsize=9.5)
    ax.set_title(f"tiles that fit: d = {d}, {dtype_bytes} bytes per element", fontsize=10.5)
    ax.legend(title="below the curve fits")
    return figure
