"""A ring of ranks, step by step: whose keys each rank has, and which pairs it computes."""

import numpy as np

from fa_numba.figures.steps.steps import COLOURS, Step, Steps, box, label, line

WIDE, HIGH, GAP = 72, 30, 8


def ring_steps(holders, layouts=None):
    """A step of the ring for each step, once for each layout.

    Parameters
    ----------
    holders : integer array of shape (num_steps, world_size)
        The owner of the keys that each rank has in each step, as recorded; at most 4 ranks.
    layouts : dict of str to (rank_of, step_of), optional
        By name: the rank of each token, and the step in which each pair of a query and a key is
        computed, −1 where the mask hides it.

    Returns
    -------
    Steps
    """
    num_steps, world_size = np.shape(holders)
    if world_size > len(COLOURS):
        raise ValueError(f"holders must have at most {len(COLOURS)} ranks, got {world_size}")
    steps, height = [], 76
    for name, pairs in (layouts or {"": None}).items():
        for step, owners in enumerate(np.asarray(holders).tolist()):
            title = f"{name}, step {step}" if name else f"step {step}"
            drawing, words = ranks_of(owners, title, step + 1 < num_steps)
            if pairs is not None:
                seqlen, done = len(pairs[0]), counts(pairs, step, world_size)
                words = f"{title}: pairs of ranks 0 to {world_size - 1}: {' '.join(map(str, done))}"
                drawing += pairs_of(pairs, step, done)
                height = 130 + seqlen * side_of(seqlen)
            steps.append(Step(drawing, words))
    subject = f"A ring of {world_size} ranks: whose keys each has" + (
        ", and the pairs of queries and keys that it computes." if layouts else "."
    )
    return Steps(subject, steps, (4 * (WIDE + GAP) + 12, height), pace=1500)


def counts(pairs, step, world_size):
    """The pairs that each rank computes in a step."""
    rank_of, step_of = pairs
    return [int((step_of[rank_of == rank] == step).sum()) for rank in range(world_size)]


def ranks_of(owners, title, more):
    """The ranks in a row with the keys that they have, an arrow for each message; words."""
    then = "; then the keys move on" * more
    parts = [label(2, 14, title + then)]
    for rank, owner in enumerate(owners):
        x = 8 + rank * (WIDE + GAP)
        parts.append(label(x + WIDE / 2, 30, f"rank {rank}", "grey", anchor="middle"))
        parts.append(box(x, 36, WIDE, HIGH, f"keys of {owner}", COLOURS[owner]))
        if more:
            parts.append(line((x + WIDE, 51), (x + WIDE + GAP, 51)))
    if more:
        end = 8 + len(owners) * (WIDE + GAP) - GAP
        parts.append(line((end + GAP, 51), (end + GAP, 72), (3, 72), (3, 51), (8, 51)))
    have = f"ranks 0 to {len(owners) - 1} have the keys of {' '.join(map(str, owners))}"
    return "".join(parts), f"{title}: {have}"


def side_of(seqlen):
    return 4 * WIDE // seqlen


def pairs_of(pairs, step, done):
    """The mask, queries downwards: dark what is computed now, pale what was; pairs of each rank."""
    rank_of, step_of = pairs
    side, parts = side_of(len(rank_of)), []
    for rank, count in enumerate(done):
        x = 8 + rank * (WIDE + GAP) + WIDE / 2
        busiest = "ink" if count == max(done) else "grey"
        parts.append(label(x, 90, f"{count} pairs", busiest, anchor="middle"))
    parts.append(label(2, 112, "the mask: queries down, keys across"))
    for (m, n), at in np.ndenumerate(step_of):
        if 0 <= at <= step:
            kinds = [COLOURS[rank_of[m]], *["faint"] * int(at < step)]
            parts.append(box(8 + side * n, 120 + side * m, side, side, "", *kinds))
    whole = side * len(rank_of)
    parts.append(box(8, 120, whole, whole, "", "clear"))
    return "".join(parts)
