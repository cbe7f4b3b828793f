"""A rolling cache, step by step: the token in each slot, and the slot of the next one."""

from matplotlib.patches import Patch

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import BLUE, INK, LIGHT, ORANGE, PAPER, PURPLE, Drawing, on_paper, tint


@on_paper
def ring_cache(tokens, pointers, num_sinks):
    """A row for each step, a column for each slot of the cache.

    Parameters
    ----------
    tokens : integer array of shape (steps, num_slots)
        The token in each slot after each step; −1 for an empty slot.
    pointers : integer array of shape (steps,)
        The slot of the next token.
    num_sinks : int
        The first slots, which keep their tokens.
    """
    steps, num_slots = tokens.shape
    figure = Drawing(0.5 * num_slots + 4.4, 0.31 * steps + 0.85)
    ax = figure.subplots()
    for step in range(steps):
        newest, words = tokens[step].max(), []
        for slot in range(num_slots):
            token, next_one = int(tokens[step, slot]), slot == pointers[step]
            colour = PURPLE if slot < num_sinks else BLUE
            share = 0 if token < 0 else 0.85 if token == newest else 0.25
            box(ax, slot, step, 1, 1, tint(colour, share), edgecolor=LIGHT)
            if next_one:
                box(ax, slot + 0.06, step + 0.06, 0.88, 0.88, edgecolor=ORANGE, linewidth=2,
                    zorder=3)  # fmt: skip
            if token >= 0:
                ink = PAPER if share > 0.5 else INK
                ax.text(slot + 0.5, step + 0.5, str(token), **CENTRED, color=ink)
            word = "·" if token < 0 else str(token)
            words.append(f"[{word}]" if next_one else f" {word} ")
        row = "".join(f"{word:>5}" for word in words).rstrip()
        figure.say(f"after token {newest:>2}: {row}")
        ax.text(-0.2, step + 0.5, f"after token {newest}", ha="right", va="center")
    for slot in range(num_slots):
        name = f"sink {slot}" if slot < num_sinks else str(slot)
        ax.text(slot + 0.5, -0.15, name, ha="center", va="bottom", fontsize=8)
    handles = [Patch(facecolor=tint(PURPLE, 0.25), label="kept: a sink")] if num_sinks else []
    handles += [
        Patch(facecolor=tint(BLUE, 0.25), label="in the ring"),
        Patch(facecolor=tint(BLUE, 0.85), label="the newest"),
        Patch(facecolor="none", edgecolor=ORANGE, linewidth=2, label="the next goes here"),
    ]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1))
    ax.set(xlim=(-2.4, num_slots + 0.05), ylim=(steps + 0.05, -0.85))
    ax.axis("off")
    figure.say("[ ] is where the next token goes")
    return figure
