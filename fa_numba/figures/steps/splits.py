"""Split-K: thread blocks on the SMs of a GPU, a step for each number of splits."""

from fa_numba.analysis.waves import schedule
from fa_numba.figures.steps.steps import COLOURS, Step, Steps, box, label

LEFT, WIDE, HIGH = 44, 290, 20


def split_steps(grids, num_slots):
    """A step for each grid: a row for each SM, a bar for each thread block.

    Parameters
    ----------
    grids : dict of str to list of (str, float)
        By title: the thread blocks in the order of the grid. Each has the owner of its keys, and a
        duration.
    num_slots : int
        Thread blocks that run at a time.

    Returns
    -------
    Steps
    """
    owners = list(dict.fromkeys(owner for grid in grids.values() for owner, _ in grid))
    if len(owners) > len(COLOURS):
        raise ValueError(f"grids must have at most {len(COLOURS)} owners, got {len(owners)}")
    ran = {}
    for title, grid in grids.items():
        durations = [duration for _, duration in grid]
        begun = schedule(durations, num_slots)
        ran[title] = [
            (owner, slot, start, start + duration)
            for (owner, duration), (slot, start) in zip(grid, begun, strict=True)
        ]
    longest = max(end for bars in ran.values() for *_, end in bars)
    steps = []
    for title, bars in ran.items():
        last = max(end for *_, end in bars)
        busy = sum(end - start for *_, start, end in bars) / (num_slots * last)
        words = f"{title}: {len(bars)} thread blocks, done at {last:g}, {busy:.0%} busy"
        steps.append(Step(draw(title, bars, last, owners, num_slots, WIDE / longest), words))
    height = 50 + HIGH * num_slots + 18
    subject = f"Thread blocks on {num_slots} SMs, time from left to right."
    return Steps(subject, steps, (LEFT + WIDE + 6, height), pace=1200)


def draw(title, bars, last, owners, num_slots, scale):
    """The bars of one grid; pale is idle until the last thread block has ended."""
    parts = [label(2, 14, f"{title}: done at {last:g}")]
    x = 2
    for colour, owner in zip(COLOURS, owners, strict=False):
        parts += [box(x, 22, 12, 12, "", colour), label(x + 17, 33, owner)]
        x += 30 + 7 * len(owner)
    top = 42
    parts.append(box(LEFT, top, scale * last, HIGH * num_slots, "", "pale"))
    for slot in range(num_slots):
        parts.append(label(2, top + HIGH * slot + 15, f"SM {slot}", "grey"))
    for owner, slot, start, end in bars:
        parts.append(box(LEFT + scale * start, top + HIGH * slot + 1, scale * (end - start),
                         HIGH - 2, "", COLOURS[owners.index(owner)]))  # fmt: skip
    parts.append(label(LEFT, top + HIGH * num_slots + 15, "time, in tiles of keys →", "grey"))
    return "".join(parts)
