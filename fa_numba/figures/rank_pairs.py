"""The pairs (query, key) that each rank computes in each step of a ring."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from fa_numba.figures.style import COLOURS, GREY, INK, LIGHT, PAPER, Drawing, on_paper


@on_paper
def rank_pairs(layouts, world_size):
    """A row for each layout, a panel for each step: queries down, keys across.

    Parameters
    ----------
    layouts : dict of str to (array, array)
        By name: the rank of each token, of shape (seqlen,), and the step in which each pair of
        query and key was computed, of shape (seqlen, seqlen), −1 where it was not.
    world_size : int
        At most 5: a colour for each rank.
    """
    colours = np.array([to_rgb(colour) for colour in COLOURS[:world_size]])
    paper, light = (np.array(to_rgb(colour)) for colour in (PAPER, LIGHT))
    figure = Drawing(2.15 * world_size + 0.5, 2.42 * len(layouts) + 0.7)
    axes = figure.subplots(len(layouts), world_size, squeeze=False)
    lines = []
    for row, (name, (rank_of, step_of)) in zip(axes, layouts.items(), strict=True):
        for step, ax in enumerate(row):
            image = np.tile(paper, (*step_of.shape, 1))
            image[step_of >= 0] = light
            now, before = step_of == step, (step_of >= 0) & (step_of < step)
            of_query = np.broadcast_to(rank_of[:, None], step_of.shape)
            image[now] = colours[of_query[now]]
            image[before] = 0.25 * colours[of_query[before]] + 0.75 * paper
            ax.imshow(image, interpolation="nearest")
            pairs = [int((now & (of_query == rank)).sum()) for rank in range(world_size)]
            said = " ".join(map(str, pairs))
            lines.append(f"{name}, step {step}: pairs of ranks 0 to {world_size - 1}: {said}")
            ax.set_xlabel(f"pairs: {'  '.join(map(str, pairs))}", fontsize=9, color=INK)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set(color=GREY, linewidth=0.6)
            if ax in axes[0]:
                ax.set_title(f"step {step}", fontsize=10, color=INK)
        row[0].set_ylabel(name, fontsize=10, color=INK)
    handles = [Patch(facecolor=c, label=f"rank {r}") for r, c in enumerate(COLOURS[:world_size])]
    handles += [
        Patch(facecolor=(0.25 * colours[0] + 0.75 * paper), label="earlier step"),
        Patch(facecolor=LIGHT, edgecolor=GREY, linewidth=0.5, label="later step"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    figure.text = "\n".join(lines)
    return figure
