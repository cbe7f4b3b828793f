"""A 64-bit word, bit by bit, cut into the fields that hardware reads."""

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import COLOURS, GREY, INK, LIGHT, PAPER, Drawing, on_paper

BITS = 64
HALF = 32


@on_paper
def bit_fields(words, fields):
    """Each word in two lines, the high half above, a colour for each field.

    Parameters
    ----------
    words : dict of str to int
        By title.
    fields : dict of str to (int, int, function of an int)
        By name: first and last bit, and the meaning of their number, as a string.
    """
    figure = Drawing(8.6, 1.28 * len(words) + 0.35)
    panels = figure.subplots(len(words), squeeze=False)[:, 0]
    for ax, (title, word) in zip(panels, words.items(), strict=True):
        colour_of, said = {}, []
        for (name, (first, last, meaning)), colour in zip(fields.items(), COLOURS, strict=False):
            colour_of |= dict.fromkeys(range(first, last + 1), colour)
            number = (word >> first) & ((1 << (last - first + 1)) - 1)
            said.append(f"{name} {meaning(number)}")
            x, y = HALF - 1 - (first + last) / 2 % HALF, (first < HALF) * 1.75
            ax.text(x, y - 0.72, said[-1], **CENTRED, fontsize=8, color=colour)
        for bit in range(BITS):
            x, y = HALF - 1 - bit % HALF, (bit < HALF) * 1.75
            used = bit in colour_of
            box(ax, x - 0.5, y - 0.38, 1, 0.76, colour_of.get(bit, LIGHT), edgecolor=PAPER,
                linewidth=0.8)  # fmt: skip
            ax.text(x, y, str(word >> bit & 1), **CENTRED, fontsize=8, color=PAPER if used else INK)
        for half in range(2):
            y = (1 - half) * 1.75
            ax.text(-0.8, y, str(HALF * half + HALF - 1), ha="right", va="center", fontsize=8,
                    color=GREY)  # fmt: skip
            ax.text(HALF - 0.2, y, str(HALF * half), ha="left", va="center", fontsize=8, color=GREY)
        ax.set(xlim=(-2, HALF + 1), ylim=(2.3, -1.1))
        ax.axis("off")
        ax.set_title(title, loc="left")
        figure.say(f"{title}: {word:#018x}; " + ", ".join(said))
    return figure
