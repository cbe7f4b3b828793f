"""One query row through the tiles: whose values are in out, and with which weight."""

import numpy as np

from fa_numba.figures.style import COLOURS, GREY, INK, Drawing, on_paper, plain

TILE_COLOURS = (*COLOURS, GREY)


@on_paper
def rescaling(histories, m):
    """Stacked weights after each tile, one panel for each way to keep them; below, the maximum.

    Give v a column per tile that is 1 for the keys of that tile and 0 elsewhere: then `out` itself
    is the weight that each tile's keys have in it.

    Parameters
    ----------
    histories : dict of str to array of shape (num_tiles, num_tiles)
        By title: row t is the kernel's value after tile t, one column per tile of keys.
    m : array of shape (num_tiles,)
        The row's running maximum after each tile.
    """
    num_tiles = len(m)
    text = "\n".join(
        f"{title}\n" + "\n".join(
            f"  after tile {t}: " + " ".join(f"{w:8.4f}" for w in row[: t + 1])
            + f"   sum {row.sum():.4f}, m {m[t]:.2f}"
            for t, row in enumerate(history)
        )
        for title, history in histories.items()
    )  # fmt: skip
    figure = Drawing(4.3 * len(histories), 4.1, text=text)
    panels = figure.subplots(2, len(histories), squeeze=False, height_ratios=(3, 1), sharex=True)
    tiles = np.arange(num_tiles)
    for (top, bottom), (title, history) in zip(panels.T, histories.items(), strict=True):
        base = np.zeros(num_tiles)
        for j in range(num_tiles):
            colour = TILE_COLOURS[j % len(TILE_COLOURS)]
            top.bar(tiles, history[:, j], bottom=base, width=0.72, color=colour,
                    label=f"keys of tile {j}")  # fmt: skip
            base += history[:, j]
        plain(top, grid="y").set_title(title, fontsize=10.5)
        top.set_ylim(0, 1.08 * history.sum(axis=1).max())
        bottom.step(tiles, m, where="mid", color=INK, linewidth=1.6)
        plain(bottom, grid="y").set_xlabel("after tile")
        bottom.set_xticks(tiles)
        bottom.margins(y=0.25)
    panels[0, 0].set_ylabel("weight")
    panels[1, 0].set_ylabel("m")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8.5,
                  ncols=min(num_tiles, 3 * len(histories)))  # fmt: skip
    return figure
