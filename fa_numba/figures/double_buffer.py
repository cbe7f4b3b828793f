"""Double buffering, step by step: one buffer is filled while the other is read."""

from matplotlib.patches import FancyArrowPatch, Rectangle

from fa_numba.figures.style import BLUE, INK, LIGHT, ORANGE, PAPER, Drawing, on_paper

WIDE, HIGH = 0.42, 0.4  # of a buffer
ROWS = {"global memory": 0.0, "shared memory": 1.0, "arithmetic": 2.0}  # and their heights


@on_paper
def double_buffer(num_tiles):
    """A column for each step; two buffers in each, which change their parts from step to step.

    Parameters
    ----------
    num_tiles : int
        Tile t goes through buffer t mod 2: in step t it is copied, in step t + 1 it is read.
    """
    num_steps = num_tiles + 1
    figure = Drawing(1.35 * num_steps + 1.3, 2.5)
    ax = figure.subplots()
    lines = []
    for step in range(num_steps):
        doing = {}  # by buffer: the action and the tile
        if step < num_tiles:
            doing[step % 2] = "copy", step
        if step > 0:
            doing[(step - 1) % 2] = "read", step - 1
        if step:
            ax.axvline(step - 0.5, color=LIGHT, linewidth=1)
        ax.text(step, -0.62, f"step {step}", ha="center", fontsize=9.5, weight="bold", color=INK)
        for buffer in (0, 1):
            x = step + (buffer - 0.5) * 1.1 * WIDE
            action, tile = doing.get(buffer, ("", None))
            colour = {"copy": BLUE, "read": ORANGE}.get(action, LIGHT)
            _box(ax, x, ROWS["shared memory"], colour, "" if tile is None else f"tile {tile}")
            if action == "copy":
                _box(ax, x, ROWS["global memory"], BLUE, f"tile {tile}")
                _arrow(ax, x, "global memory", "shared memory", BLUE)
            elif action == "read":
                _box(ax, x, ROWS["arithmetic"], ORANGE, f"tile {tile}")
                _arrow(ax, x, "shared memory", "arithmetic", ORANGE)
            ax.text(x, -0.38, f"buffer {buffer}", ha="center", va="center", fontsize=7.5,
                    color=INK)  # fmt: skip
        words = {"copy": "tile {} is copied to buffer {}", "read": "tile {} is read from buffer {}"}
        said = [words[action].format(tile, b) for b, (action, tile) in sorted(doing.items())]
        lines.append(f"step {step}: {'; '.join(said)}")
    for name, y in ROWS.items():
        ax.text(-0.62, y, name, ha="right", va="center", fontsize=9, color=INK)
    for y, name, colour in ((0.5, "copy", BLUE), (1.5, "read", ORANGE)):
        ax.text(-0.62, y, name, ha="right", va="center", fontsize=9, color=colour)
    ax.set(xlim=(-1.6, num_steps - 0.45), ylim=(ROWS["arithmetic"] + 0.3, -0.85))
    ax.axis("off")
    figure.text = "\n".join(lines)
    return figure


def _box(ax, x, y, colour, words):
    ax.add_patch(Rectangle((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, facecolor=colour,
                           edgecolor=PAPER))  # fmt: skip
    ax.text(x, y, words, ha="center", va="center", fontsize=8, color=PAPER)


def _arrow(ax, x, above, below, colour):
    """From a row of boxes to the next."""
    ax.add_patch(FancyArrowPatch((x, ROWS[above] + HIGH / 2), (x, ROWS[below] - HIGH / 2),
                                 arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=1.4,
                                 shrinkA=1, shrinkB=1))  # fmt: skip
