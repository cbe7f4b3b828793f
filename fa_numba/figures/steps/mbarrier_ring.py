"""A ring of stages between a producer and a consumer, at each moment at which something happens."""

from fa_numba.figures.steps.steps import Step, Steps, box, label

WIDE = 100


def mbarrier_ring_steps(ring, num_stages):
    """A step for each moment: the tile of each stage, and how many phases its mbarriers have ended.

    Parameters
    ----------
    ring : Ring
        From `fa_numba.analysis.ring_pipeline.run_ring`, with one consumer.
    num_stages : int
        At most 3.

    Returns
    -------
    Steps
    """
    if ring.problem:
        raise ValueError(f"ring must have run to its end, got a {ring.problem}")
    moments = sorted({t for span in ring.spans for t in (span.start, span.end)})
    tiles = 1 + max(span.tile for span in ring.spans)
    steps = []
    for now in moments:
        stages = [state_of(ring.spans, stage, now) for stage in range(num_stages)]
        words = [f"stage {i} {doing(*stage[:2])}" for i, stage in enumerate(stages)]
        steps.append(Step(draw(now, stages, ring.spans, tiles),
                          f"time {now:g}: {'; '.join(words)}"))  # fmt: skip
    size = 12 + max(3, num_stages) * (WIDE + 8), 176
    return Steps("A ring of tiles between a producer and a consumer, with its mbarriers.",
                 steps, size, pace=1200)  # fmt: skip


def state_of(spans, stage, now):
    """(action, tile, phases of full, phases of empty) of a stage just after a moment.

    A copy that ends is a phase of full, a read that ends a phase of empty.
    """
    here = [s for s in spans if s.stage == stage and s.start <= now]
    ended = [s for s in here if s.end <= now]
    full, empty = (sum((s.who > 0) == read for s in ended) for read in (False, True))
    if not here:
        return "", None, full, empty
    last = max(here, key=lambda s: (s.start, s.who))
    action = "read" if last.who else "copy"
    if last.end <= now:
        action = "" if last.who else "there"
    return action, last.tile if action else None, full, empty


def doing(action, tile):
    """What happens in a stage, in words."""
    words = {"copy": "is being filled with tile {}", "there": "has tile {}",
             "read": "is read: tile {}", "": "is free"}  # fmt: skip
    return words[action].format(tile)


KINDS = {"copy": ("c0", "faint", "dashed"), "there": ("c0",), "read": ("c1",), "": ()}


def draw(now, stages, spans, tiles):
    """The stages side by side, their barriers below them, and all tiles at the bottom."""
    parts = [label(2, 14, f"time {now:g}")]
    for i, (action, tile, full, empty) in enumerate(stages):
        x = 6 + i * (WIDE + 8)
        word = {"copy": f"tile {tile} comes", "there": f"tile {tile}", "read": f"reads tile {tile}",
                "": "free"}[action]  # fmt: skip
        parts.append(label(x, 34, f"stage {i}", "grey"))
        parts.append(box(x, 40, WIDE, 40, word, *KINDS[action]))
        parts.append(label(x, 98, f"full: phase {full}"))
        parts.append(label(x, 116, f"empty: phase {empty}"))
    wide = min(30, (3 * (WIDE + 8) - 52) / tiles)
    parts.append(label(2, 149, "tiles"))
    for tile in range(tiles):
        mine = [s for s in spans if s.tile == tile and s.start <= now]
        read = any(s.who and s.end <= now for s in mine)
        last = "" if not mine or read else action_of(mine, now)
        kinds = ("pale",) if read else KINDS[last]
        parts.append(box(44 + wide * tile, 132, wide - 2, 26, tile, *kinds))
    parts.append(label(2, 172, "dashed: comes; blue: there; orange: read", "grey"))
    return "".join(parts)


def action_of(spans, now):
    """The action of a tile that is not read to the end."""
    if any(s.who for s in spans):
        return "read"
    return "there" if spans[0].end <= now else "copy"
