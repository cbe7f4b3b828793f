"""Attention weights of several kinds side by side: spiky or even?"""

import numpy as np
from matplotlib.colors import PowerNorm

from fa_numba.figures.style import Drawing, on_paper


@on_paper
def weight_maps(maps):
    """A panel for each kind of attention, the darker the heavier, with the mean entropy of a row.

    Parameters
    ----------
    maps : dict of str to array of shape (seqlen, seqlen)
        Weights, each row a distribution; 0 where masked.
    """
    num_cols = len(maps) if len(maps) <= 4 else 3
    num_rows = -(-len(maps) // num_cols)
    figure = Drawing(2.4 * num_cols + 1, 2.9 * num_rows)
    figure.set_layout_engine("compressed")  # the panels are square
    panels = figure.subplots(num_rows, num_cols, squeeze=False, sharex=True, sharey=True).ravel()
    for ax, (name, p) in zip(panels, maps.items(), strict=False):
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1).mean()
        heaviest = p.max(axis=1).mean()
        figure.say(f"{name}: entropy {entropy:.2f}, heaviest weight of a row {heaviest:.2f}")
        image = ax.imshow(p, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1))
        ax.set_title(f"{name}\nentropy {entropy:.2f}", fontsize=9.5)
        ax.tick_params(labelsize=8)
    for ax in panels[len(maps) :]:
        ax.set_axis_off()
    panels[0].set_ylabel("queries")
    panels[len(maps) - 1].set_xlabel("keys")
    figure.colorbar(image, ax=panels.tolist(), shrink=0.8, label="weight")
    return figure
