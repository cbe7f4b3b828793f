"""FlashAttention in frames: each tile of scores at its time, and the tiles on the chip."""

import numpy as np

from fa_numba.figures.parts import box, counted, legend_below
from fa_numba.figures.style import GREY, LIGHT, Drawing, colour_of, on_paper, tint


def recorded_walk(accesses, num_m_tiles, num_n_tiles, *, block_m, block_n, head_dim):
    """The iteration and the thread block that visit each tile, from a kernel's record.

    A visit is a store of scores to s_tile. Its tiles are those of the last loads of q and k.

    Parameters
    ----------
    accesses : list of Access
        Record of one head by `simt.record`; the kernel must use our names of arrays.
    num_m_tiles, num_n_tiles, block_m, block_n, head_dim : int

    Returns
    -------
    iteration, owner : integer arrays of shape (num_m_tiles, num_n_tiles)
        −1 for a tile that no thread block visits.
    """
    iteration, owner = np.full((2, num_m_tiles, num_n_tiles), -1)
    tile = {"q": {}, "k": {}}  # array -> thread block -> its tile
    rows = {"q": block_m, "k": block_n}
    iterations = {}
    for access in accesses:
        for column in np.flatnonzero(access.active.any(axis=0)):
            block = int(access.blocks[column])
            if access.array in rows and access.action == "load":
                lane = access.active[:, column].argmax()
                row = access.element[lane, column] // head_dim
                tile[access.array][block] = row // rows[access.array]
            elif access.array == "s_tile" and access.action == "store":
                here = tile["q"][block], tile["k"][block]
                iteration[here], owner[here] = iterations.get(block, 0), block
                iterations[block] = iterations.get(block, 0) + 1
    return iteration, owner


@on_paper
def tile_frames(walks, iterations):
    """A row of frames for each kernel, a column for each iteration.

    Parameters
    ----------
    walks : dict of str to (iteration, owner)
        By title, as from `recorded_walk`.
    iterations : list of int
        The iterations to show.
    """
    num_m_tiles, num_n_tiles = np.shape(next(iter(walks.values()))[0])
    side = 1.62
    figure = Drawing(side * len(iterations) + 0.9,
                     (side * num_m_tiles / num_n_tiles + 0.42) * len(walks) + 0.75)  # fmt: skip
    panels = figure.subplots(len(walks), len(iterations), squeeze=False)
    for row, (title, (iteration, owner)) in zip(panels, walks.items(), strict=True):
        blocks = counted(len(np.unique(owner[owner >= 0])), "thread block")
        figure.say(f"{title}: {1 + iteration.max()} iterations of {blocks}")
        row[0].set_ylabel(f"{title}\n← Q tiles")
        for ax, now in zip(row, iterations, strict=True):
            done = int(((iteration >= 0) & (iteration < now)).sum())
            current = [f"({m}, {n})" for m, n in np.argwhere(iteration == now)]
            doing = f"computes {' '.join(current)}" if current else "finished"
            figure.say(f"  iteration {now}: {done} tiles done, {doing}")
            draw_frame(ax, iteration, owner, now)
            state = f"iteration {now}" if current else f"iteration {now}: finished"
            ax.set_title(state, fontsize=9)
        row[0].set_xlabel("K, V tiles →")
    kinds = {"now; its Q and K, V tiles are on the chip": GREY, "done": tint(GREY, 0.3)}
    kinds["to come"] = {"facecolor": "none", "edgecolor": GREY}
    legend_below(figure, kinds, title="a colour for each thread block")
    return figure


def draw_frame(ax, iteration, owner, now):
    """One frame: the tiles that are done, computed now, and to come; along the edges the loaded."""
    num_m_tiles, num_n_tiles = iteration.shape
    for (m, n), t in np.ndenumerate(iteration):
        colour = colour_of(owner[m, n])
        face = LIGHT if t < 0 else colour if t == now else tint(colour, 0.3) if t < now else "none"
        box(ax, n, m, 0.92, 0.92, face, linewidth=0.9, edgecolor=LIGHT if t < 0 else colour)
    for m in range(num_m_tiles):  # the loaded tiles, along the edges
        here = np.flatnonzero(iteration[m] == now)
        colour = colour_of(owner[m, here[0]]) if len(here) else LIGHT
        box(ax, -0.55, m, 0.35, 0.92, colour)
    for n in range(num_n_tiles):
        here = np.flatnonzero(iteration[:, n] == now)
        for i, m in enumerate(here):
            wide = 0.92 / len(here)
            box(ax, n + i * wide, -0.55, wide, 0.35, colour_of(owner[m, n]))
        if not len(here):
            box(ax, n, -0.55, 0.92, 0.35, LIGHT)
    ax.set(xlim=(-0.65, num_n_tiles), ylim=(num_m_tiles, -0.65), aspect="equal")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
