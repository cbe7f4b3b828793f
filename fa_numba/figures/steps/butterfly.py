"""A butterfly of warp shuffles: what each lane holds after each step, and whose values it has."""

import numpy as np

from fa_numba.figures.steps.steps import Step, Steps, box, label

LANES, COLUMNS, WIDE, HIGH = 32, 8, 40, 34


def butterfly_steps(run, x, lane=5):
    """The start, and a step for each shuffle.

    Parameters
    ----------
    run : function
        ``run(x)``: what each lane holds after each step, (num_steps, 32), for values x of the
        lanes. Called with x, and with a 1 in each lane and 0 elsewhere: so the picture knows whose
        values a lane's result has.
    x : array of shape (32,)
    lane : int, default=5
        The lane to follow.

    Returns
    -------
    Steps
    """
    history = np.vstack([x, run(np.asarray(x))])
    units = np.eye(LANES, dtype=np.float32)
    parts = np.array([np.vstack([unit, run(unit)]) for unit in units]) != 0  # source, step, lane
    steps = []
    for number, values in enumerate(history):
        mine = parts[:, number, lane]
        words = f"at the start lane {lane} holds {values[lane]:g}"
        partner = None
        if number:
            partner = partner_of(lane, parts[:, number - 1], mine)
            words = (f"step {number}: lane {lane} gets the value of lane {partner}, "
                     f"{lane} XOR {lane ^ partner}, and holds {values[lane]:g}: "
                     f"that of {mine.sum()} lanes")  # fmt: skip
        steps.append(Step(draw(values, mine, lane, partner), words))
    size = COLUMNS * (WIDE + 2) + 4, 24 + LANES // COLUMNS * (HIGH + 8) + 22
    return Steps("A butterfly: the value of each of the 32 lanes after each shuffle.", steps, size,
                 pace=1800)  # fmt: skip


def partner_of(lane, before, mine):
    """The lane whose value came: it differs in one bit, and has what was missing."""
    for other in (lane ^ (1 << bit) for bit in range(5)):
        if (before[:, lane] | before[:, other] == mine).all() and not before[other, lane]:
            return other
    raise ValueError("run must exchange lanes in pairs that differ in one bit, got another pattern")


def draw(values, mine, lane, partner):
    """The lanes in rows of 8, each with its value; blue those whose values the lane's one has."""
    parts = [label(2, 14, f"each lane's value; thick: lane {lane}, its partner")]

    def corner(i):
        return 2 + i % COLUMNS * (WIDE + 2), 24 + i // COLUMNS * (HIGH + 8)

    for i, value in enumerate(values):
        x, y = corner(i)
        thick = ["hot"] if i in (lane, partner) else []
        parts.append(box(x, y, WIDE, HIGH, f"{value:g}", *["c0", "faint"] * int(mine[i]), *thick))
        parts.append(label(x + 3, y + 10, i, "grey", size=9))
    bottom = 24 + LANES // COLUMNS * (HIGH + 8) + 14
    parts.append(label(2, bottom, f"blue: whose values are in lane {lane}'s", "grey"))
    return "".join(parts)
