"""A race: two threads, two lines, and the order that no barrier forbids."""

import inspect
import textwrap

from matplotlib.patches import FancyArrowPatch

from fa_numba.figures.parts import CENTRED
from fa_numba.figures.style import BLUE, GREY, LIGHT, ORANGE, PAPER, RED, Drawing, on_paper

DARK_ORANGE = "#9c4221"  # for letters on grey
GAP = 1.9  # between the two events, in lines
MOST_LINES = 24  # between the two; the middle of a longer range is left out
VERBS = {"RAW": ("writes", "reads"), "WAR": ("reads", "writes"), "WAW": ("writes", "writes")}


@on_paper
def race_diagram(race, kernel):
    """The lines of a kernel around a race, and the order of events in which it goes wrong.

    Parameters
    ----------
    race : Race
        One of `Trace.races`.
    kernel : function decorated with ``@cuda.jit``
        The kernel that was traced.
    """
    source, start = inspect.getsourcelines(getattr(kernel, "py_func", kernel))
    code = dict(enumerate((line.rstrip() for line in source), start))
    code |= {site.line: site.text for site in race.sites}  # they may be in a device function
    early, late = race.lines
    slow, fast = (_name(thread) for thread in race.threads)
    first, second = VERBS[race.kind]
    when = ", next iteration" if late < early else ""  # it runs later, in the loop's next iteration
    shown = _shown(code, early, late)
    events = [
        (1, f"line {late}{when}", f"{second} {race.array}", BLUE),  # the fast thread is there first
        (0, f"line {early}", f"{first} {race.array}", ORANGE),
    ]
    lines = textwrap.dedent("\n".join(code.get(n, "") for n in shown)).splitlines()
    text = (
        f"{race.kind} race on {race.array}. {fast} {second} it in line {late} while {slow} has yet "
        f"to come to line {early}, where it {first} it: no barrier orders the two."
    )
    width = max(len(line) for line in lines)
    figure = Drawing(0.078 * width + 4.8, 0.27 * max(len(shown), 4) + 0.9, text=text)
    ax = figure.subplots()
    lanes = [0.087 * width + 1.2, 0.087 * width + 3.1]  # slow, fast
    for y, n in enumerate(shown):
        if n is None:
            ax.text(0, y, "  ⋮", color=GREY, va="center")
            continue
        colour = {late: BLUE, early: DARK_ORANGE}.get(n, GREY)
        if n in race.lines:
            ax.axhspan(y - 0.5, y + 0.5, color=LIGHT, zorder=0)
        ax.text(0, y, f"{n:>3}  {lines[y]}", family="monospace", color=colour,
                va="center", weight="bold" if n in race.lines else "normal")  # fmt: skip
    for lane, name in zip(lanes, (slow, fast), strict=True):
        ax.text(lane, -1.1, name, ha="center", fontsize=9.5)
        ax.plot([lane, lane], [-0.6, len(shown) - 0.6], color=GREY, linewidth=1, zorder=1)
    last = max(len(shown) - 1, 1)
    times = last / 2 - GAP / 2, last / 2 + GAP / 2  # from top to bottom, whatever the lines are
    for order, (y, (which, where, words, colour)) in enumerate(zip(times, events, strict=True), 1):
        ax.text(lanes[which], y, f"{order}. {where}:\n{words}", **CENTRED, color=PAPER, zorder=3,
                bbox={"boxstyle": "round,pad=0.3", "facecolor": colour,
                      "edgecolor": "none"})  # fmt: skip
    ax.add_patch(FancyArrowPatch((lanes[1], times[0]), (lanes[0], times[1]), arrowstyle="-|>",
                                 mutation_scale=11, color=RED, zorder=2, linestyle="--",
                                 shrinkA=18, shrinkB=18))  # fmt: skip
    arrow = {"arrowstyle": "->", "color": GREY}
    ax.annotate("time", (lanes[1] + 1.25, last + 0.4), (lanes[1] + 1.25, -0.4), color=GREY,
                fontsize=8.5, ha="center", arrowprops=arrow)  # fmt: skip
    ax.set(xlim=(-0.1, lanes[1] + 1.5), ylim=(len(shown) - 0.4, -2.6))
    ax.text(sum(lanes) / 2, -2.0, "no barrier forbids this order", ha="center", fontsize=10,
            color=RED)  # fmt: skip
    ax.axis("off")
    return figure


def _shown(code, early, late):
    """Line numbers to show: around both lines, None for many between them."""
    low, high = min(early, late), max(early, late)
    if high - low < MOST_LINES:
        return [n for n in range(low - 1, high + 2) if n in code]
    ends = [*range(low - 1, low + 3), None, *range(high - 2, high + 2)]
    return [n for n in ends if n is None or n in code]


def _name(thread):
    x, y, z = (*thread, 0, 0)[:3] if isinstance(thread, tuple) else (thread, 0, 0)
    return f"thread {x}" if y == z == 0 else f"thread ({x}, {y})" if z == 0 else f"thread {thread}"
