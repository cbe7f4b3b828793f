"""Tiles of masks: which are hidden, which need the mask pair by pair, which are whole."""

import dataclasses
import math

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from fa_numba.figures.parts import box
from fa_numba.figures.style import BLUE, GREY, LIGHT, ORANGE, PAPER, Drawing, on_paper

NAMES = "hidden", "mixed", "whole"  # of the classes 0, 1, 2
FILLS = LIGHT, ORANGE, BLUE
PAIRS = ListedColormap(["#f7fafc", "#90cdf4"])
FRAMES = (
    {"edgecolor": GREY, "linewidth": 0.8, "zorder": 2, "hatch": "///"},
    {"edgecolor": ORANGE, "linewidth": 1.8, "zorder": 4},
    {"edgecolor": BLUE, "linewidth": 1.8, "zorder": 3},
)
WIDTH = 9.0  # inches, of several masks


@on_paper
def mask_tiles(masks, *, head_dim=None, columns=4, b=0, h=0):
    """The tiles of a mask, or of several side by side.

    Parameters
    ----------
    masks : fa_numba.masks.Tiles, or dict of str to Tiles
        With `pairs`, each pair of a query and a key is drawn, too.
    head_dim : int, default=None
        With it, the bytes that FlashAttention-2 moves in 16 bits, too, by the formula.
    columns : int, default=4
        Masks in a row of the figure.
    b, h : int, default=0
        The sequence and the head to draw, where the mask depends on it.

    Returns
    -------
    Drawing
    """
    if not isinstance(masks, dict):
        classes, pairs = (_of_head(x, b, h) for x in (masks.classes, masks.pairs))
        return _one(masks, classes, pairs, _costs(masks, head_dim))
    columns = min(columns, len(masks))
    rows = math.ceil(len(masks) / columns)
    text = "\n\n".join(
        f"{name}: {tiles}{_bytes(tiles, head_dim)}\n{_as_text(_of_head(tiles.classes, b, h))}"
        for name, tiles in masks.items()
    )
    figure = Drawing(WIDTH, rows * (WIDTH / columns + 0.5) + 0.4, text=text)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for ax, (name, tiles) in zip(axes, masks.items(), strict=False):
        classes, pairs = (_of_head(x, b, h) for x in (tiles.classes, tiles.pairs))
        _draw(ax, tiles, classes, pairs)
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"{name}\n{_costs(tiles, head_dim)}", fontsize=9)
    for ax in list(axes):
        ax.set_axis_off()
    figure.legend(handles=_handles(all(x.pairs is not None for x in masks.values())),
                  loc="outside lower center", ncols=4, fontsize=8.5)  # fmt: skip
    return figure


def _of_head(x, b, h):
    """The part of one head; an axis of one element serves all."""
    return None if x is None else x[min(b, x.shape[0] - 1), min(h, x.shape[1] - 1)]


def _costs(tiles, head_dim):
    return f"{tiles.flops_share:.0%} of the FLOPs{_bytes(tiles, head_dim)}"


def _bytes(tiles, head_dim):
    """Bytes with the mask, and without one."""
    if head_dim is None:
        return ""
    without = dataclasses.replace(tiles, classes=np.full_like(tiles.classes, 2))
    return f", {tiles.hbm_bytes(head_dim) / 1e6:.3g} of {without.hbm_bytes(head_dim) / 1e6:.3g} MB"


def _one(tiles, classes, pairs, costs):
    wide, high = tiles.seqlen_k, tiles.seqlen_q
    inch = min(0.24, 6.0 / wide)  # of a key
    text = f"{tiles}{costs.partition('FLOPs')[2]}\n{_as_text(classes)}"
    figure = Drawing(inch * wide + 3.0, inch * high + 0.9, text=text)
    ax = figure.subplots()
    _draw(ax, tiles, classes, pairs)
    ax.set(xticks=_ticks(wide, tiles.block_n), yticks=_ticks(high, tiles.block_m))
    ax.tick_params(length=0, labelsize=8)
    ax.set(xlabel="key n", ylabel="query")
    ax.set_title(f"{high} queries, {wide} keys: {costs}", fontsize=10.5, loc="left")
    counts = [int((classes == i).sum()) for i in range(3)]
    ax.legend(handles=_handles(pairs is not None, counts), loc="upper left",
              bbox_to_anchor=(1.01, 1), fontsize=8.5)  # fmt: skip
    return figure


def _ticks(length, block):
    """Where tiles begin, ten of them at most."""
    return range(0, length, block * math.ceil(length / block / 10))


def _handles(has_pairs, counts=None):
    named = [f"{name} tile" + (f": {counts[i]}" if counts else "") for i, name in enumerate(NAMES)]
    if not has_pairs:
        return [Patch(facecolor=FILLS[i], label=named[i]) for i in (2, 1, 0)]
    seen = Patch(facecolor=PAIRS(1), label="the query sees the key")
    return [seen, *(Patch(facecolor="none", **FRAMES[i], label=named[i]) for i in (2, 1, 0))]


def _draw(ax, tiles, classes, pairs):
    wide, high = tiles.seqlen_k, tiles.seqlen_q
    margin = 0.01 * max(wide, high)
    if pairs is not None:
        lines = {"edgecolors": PAPER, "linewidth": 0.6} if max(wide, high) <= 32 else {}
        ax.pcolormesh(np.arange(wide + 1), np.arange(high + 1), pairs, cmap=PAIRS, vmin=0, vmax=1,
                      **lines)  # fmt: skip
    for (i, j), name in np.ndenumerate(classes):
        x, y = j * tiles.block_n, i * tiles.block_m
        width, height = min(tiles.block_n, wide - x), min(tiles.block_m, high - y)
        inset = 0.1 if pairs is not None else 0.04 * tiles.block_n
        style = {"facecolor": "none", **FRAMES[name]}
        if pairs is None:
            style = {"facecolor": FILLS[name], "linewidth": 0}
        box(ax, x + inset, y + inset, width - 2 * inset, height - 2 * inset, **style)
    ax.set(xlim=(-margin, wide + margin), ylim=(high + margin, -margin), aspect="equal")
    ax.spines[:].set_visible(False)
    ax.set_facecolor(LIGHT if pairs is not None else PAPER)


def _as_text(classes):
    return "\n".join(" ".join("·◩■"[x] for x in row) for row in classes)
