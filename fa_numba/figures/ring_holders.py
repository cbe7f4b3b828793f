"""A ring, step by step: whose keys each rank has, and where they go next."""

from matplotlib.patches import FancyArrowPatch, Rectangle

from fa_numba.figures.style import COLOURS, GREY, INK, PAPER, Drawing, on_paper


@on_paper
def ring_holders(holders):
    """A row for each step, a column for each rank, and an arrow for each message.

    Parameters
    ----------
    holders : integer array of shape (num_steps, world_size)
        The owner of the keys that each rank has in each step, as recorded. At most 5 ranks, a
        colour each.
    """
    num_steps, world_size = holders.shape
    figure = Drawing(1.5 * world_size + 1.9, 0.86 * num_steps + 0.45)
    ax = figure.subplots()
    wide, high, lines = 0.62, 0.42, []
    for step in range(num_steps):
        for rank in range(world_size):
            owner = int(holders[step, rank])
            ax.add_patch(Rectangle((rank - wide / 2, step - high / 2), wide, high,
                                   facecolor=COLOURS[owner], edgecolor=PAPER))  # fmt: skip
            ax.text(rank, step, f"keys of {owner}", ha="center", va="center", fontsize=9,
                    color=PAPER)  # fmt: skip
            if step + 1 < num_steps:
                _arrow(ax, rank, rank + 1, step, high)
                if rank == world_size - 1:
                    _arrow(ax, -1, 0, step, high)
        ax.text(-1.02, step, f"step {step}", ha="right", va="center", fontsize=9, color=INK)
        owners = " ".join(str(int(owner)) for owner in holders[step])
        lines.append(f"step {step}: ranks 0 to {world_size - 1} have the keys of {owners}")
    for rank in range(world_size):
        ax.text(rank, -0.42, f"rank {rank}", ha="center", va="bottom", fontsize=9.5, color=INK,
                weight="bold")  # fmt: skip
    ax.set(xlim=(-1.7, world_size - 0.1), ylim=(num_steps - 0.6, -0.75))
    ax.axis("off")
    figure.text = "\n".join(lines)
    return figure


def _arrow(ax, source, destination, step, high):
    """The message from one rank to the next; its end at the edge is cut, as the ring is closed."""
    start, end = (source, step + high / 2), (destination, step + 1 - high / 2)
    if source < 0:  # it comes from the last rank
        start = (destination - 0.62, (start[1] + end[1]) / 2 - 0.05)
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=GREY,
                            linewidth=1.2, shrinkA=1, shrinkB=1)  # fmt: skip
    ax.add_patch(arrow)
