"""Thread blocks on the SMs of a GPU: who runs where and when, with splits and without."""

from matplotlib.ticker import MaxNLocator

from fa_numba.analysis.waves import schedule
from fa_numba.figures.parts import NOTHING, box, legend_below
from fa_numba.figures.style import LIGHT, PAPER, Drawing, colour_of, on_paper


@on_paper
def split_schedule(grids, num_slots):
    """One panel for each grid, a line for each slot, a bar for each thread block.

    Parameters
    ----------
    grids : dict of str to list of (str, float)
        By title: the thread blocks in the order of the grid. Each has the owner of its keys, and a
        duration.
    num_slots : int
        Thread blocks that run at a time.
    """
    owners = list(dict.fromkeys(owner for grid in grids.values() for owner, _ in grid))
    colour = {owner: colour_of(i) for i, owner in enumerate(owners)}
    figure = Drawing(8.4, (0.2 * num_slots + 0.55) * len(grids) + 0.9)
    panels = figure.subplots(len(grids), sharex=True, squeeze=False)[:, 0]
    for ax, (title, grid) in zip(panels, grids.items(), strict=True):
        durations = [duration for _, duration in grid]
        begun = schedule(durations, num_slots)
        end = max(start + d for (_, start), d in zip(begun, durations, strict=True))
        busy = sum(durations) / (num_slots * end)
        said = f"{title}: {len(grid)} thread blocks, done at {end:g}, {busy:.0%} busy"
        box(ax, 0, -0.5, end, num_slots, LIGHT)
        for (owner, duration), (slot, start) in zip(grid, begun, strict=True):
            box(ax, start, slot - 0.4, duration, 0.8, colour[owner], edgecolor=PAPER, linewidth=0.8)
        ax.set_title(said, loc="left")
        figure.say(said)
        ax.set(
            ylim=(num_slots - 0.4, -0.6),
            yticks=[0, num_slots - 1],
            yticklabels=["0", num_slots - 1],
        )
        ax.set_ylabel("SM", rotation=0, labelpad=8, va="center")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=8.5)
    panels[-1].autoscale_view(scaley=False)
    panels[-1].set_xlim(left=0)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("time, in tiles of keys")
    legend_below(figure, colour | {"idle": NOTHING})
    return figure
