"""m, l and acc of one query as the tiles of keys pass by."""

import numpy as np

from fa_numba.figures.style import BLUE, GREEN, ORANGE, RED, Drawing, on_paper, plain


@on_paper
def tile_statistics(m, l, acc):
    """The running maximum, the running sum, and the output before it is divided by the sum.

    Parameters
    ----------
    m, l : arrays of shape (num_tiles,)
        After each tile, as a kernel held them.
    acc : array of shape (num_tiles, head_dim)
    """
    m, l, acc = np.asarray(m), np.asarray(l), np.asarray(acc)
    tiles = np.arange(len(m))
    alpha = np.exp(np.concatenate([[-np.inf], m[:-1]]) - m)
    text = "\n".join(
        f"after tile {t}: alpha {alpha[t]:.3f}, m {m[t]:7.3f}, l {l[t]:8.4f}, "
        f"|acc| {np.linalg.norm(acc[t]):8.4f}"
        for t in tiles
    )
    figure = Drawing(8, 5.6, text=text)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 2.6))
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1)}

    new = np.flatnonzero(alpha < 1)
    top.step(tiles, m, where="mid", color=BLUE, linewidth=1.8, label="m, largest score so far")
    top.plot(new, m[new], "o", color=RED, markersize=6, label="a tile with a new maximum")
    top.legend(**above, ncols=2)
    plain(top, grid="y").set_ylabel("m")
    top.margins(y=0.15)

    held = np.concatenate([[0], l[:-1] * alpha[1:]])
    middle.bar(tiles, held, color=GREEN, width=0.7, label="alpha × l, the sum so far, rescaled")
    middle.bar(tiles, l - held, bottom=held, color=ORANGE, width=0.7,
               label="rowsum(P), added by the tile")  # fmt: skip
    middle.legend(**above, ncols=2)
    plain(middle, grid="y").set_ylabel("l")
    middle.margins(y=0.1)

    most = np.abs(acc).max()
    image = bottom.imshow(acc.T, aspect="auto", cmap="RdBu", vmin=-most, vmax=most,
                          interpolation="nearest")  # fmt: skip
    bottom.set(ylabel="column of acc", xlabel="after tile")
    bottom.set_xticks(tiles)
    figure.colorbar(image, ax=bottom, label="acc", fraction=0.04, pad=0.02)
    return figure
