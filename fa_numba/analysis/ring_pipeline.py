"""A ring of tiles between a producer and its consumers, step by step, with its mbarriers.

The producer starts copies; consumers read tiles that have arrived. A program is a list of steps:

    ("wait", "full" or "empty", stage, parity)   until the phase of this parity has ended
    ("load", stage, tile)                        start a copy; its end ends a phase of "full"
    ("read", stage, tile)                        read a tile, which must have arrived
    ("arrive", stage)                            at "empty", whose phase ends after one arrival of
                                                 each consumer

If a program leaves out a wait, the result names the tile that is read too early or overwritten.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Barrier:
    """An mbarrier: its phases end one after the other, each after `count` arrivals."""

    count: int
    phase: int = 0  # the present one
    arrived: int = 0

    def arrive(self):
        self.arrived += 1
        if self.arrived == self.count:
            self.phase, self.arrived = self.phase + 1, 0

    def ended(self, parity):
        """Whether the last phase that ended had this parity, as mbarrier_try_wait tells.

        On a new barrier this is true for parity 1, as if a phase −1 had ended.
        """
        return (self.phase - 1) % 2 == parity


class Span(NamedTuple):
    """A copy (who = 0) or a read by consumer 1, 2, ... of a tile."""

    who: int
    stage: int
    tile: int
    start: float
    end: float


@dataclass(frozen=True)
class Ring:
    """The copies and reads. `problem` is a sentence, or "" if there is none."""

    spans: list
    problem: str

    @property
    def end(self):
        return max((span.end for span in self.spans), default=0)


def usual_times(who, tile):
    """Time of a copy and of a read."""
    return 5 if who == 0 else 3


def run_ring(producer, consumers, num_stages, *, times=usual_times):
    """Run a producer and its consumers, each step as early as possible.

    Parameters
    ----------
    producer : sequence of steps
    consumers : sequence of such sequences
    num_stages : int
    times : function of (who, tile)
        Duration of a copy (who = 0) or of a read by consumer who = 1, 2, ...

    Returns
    -------
    Ring
        It ends at the first problem: a read of a tile that has not arrived, a copy over a tile
        that a consumer still has to read, or a deadlock.
    """
    barriers = {
        "full": [Barrier(1) for _ in range(num_stages)],
        "empty": [Barrier(len(consumers)) for _ in range(num_stages)],
    }
    programs = [list(producer), *map(list, consumers)]
    at = [0] * len(programs)  # the next step of each
    reads = [None] * len(programs)  # in progress
    copies, spans, holds = [], [], {}
    unread = {stage: set() for stage in range(num_stages)}  # consumers still to read the tile
    clock = 0
    while True:
        for copy in [copy for copy in copies if copy.end <= clock]:
            copies.remove(copy)
            holds[copy.stage] = copy.tile
            unread[copy.stage] = set(range(1, len(programs)))
            barriers["full"][copy.stage].arrive()
        who = 0
        while who < len(programs):  # back to the first after every step: it may free another
            if reads[who] and reads[who].end <= clock:
                unread[reads[who].stage].discard(who)
                reads[who] = None
            if reads[who] or at[who] == len(programs[who]):
                who += 1
                continue
            kind, *details = programs[who][at[who]]
            if kind == "wait":
                barrier, stage, parity = details
                if not barriers[barrier][stage].ended(parity):
                    who += 1
                    continue
            elif kind == "arrive":
                barriers["empty"][details[0]].arrive()
            else:
                stage, tile = details
                span = Span(who, stage, tile, clock, clock + times(who, tile))
                in_flight = next((copy.tile for copy in copies if copy.stage == stage), None)
                if kind == "load":
                    problem = _overwrites(span, holds, unread, in_flight)
                    copies.append(span)
                else:
                    problem = _not_there(span, holds, in_flight)
                    reads[who] = span
                if problem:
                    return Ring(spans, problem)
                if kind == "load":
                    holds.pop(stage, None)
                spans.append(span)
            at[who] += 1
            who = 0
        ends = [span.end for span in (*copies, *reads) if span]
        if not ends:
            return Ring(spans, _deadlock(programs, at, barriers))
        clock = min(ends)


def _overwrites(span, holds, unread, in_flight):
    if in_flight is not None:
        return (
            f"race: tile {span.tile} is copied to stage {span.stage}, to which a copy of tile "
            f"{in_flight} is still in flight"
        )
    waiting = sorted(unread[span.stage])
    if span.stage in holds and waiting:
        return (
            f"race: tile {span.tile} is copied over tile {holds[span.stage]} in stage "
            f"{span.stage}, which consumer {waiting[0]} has not finished reading"
        )
    return ""


def _not_there(span, holds, in_flight):
    if holds.get(span.stage) == span.tile:
        return ""
    if in_flight is not None:
        there = f"tile {in_flight} is still in flight"
    else:
        there = f"tile {holds[span.stage]} is" if span.stage in holds else "there is no tile yet"
    return f"race: consumer {span.who} reads tile {span.tile} in stage {span.stage}, where {there}"


def _deadlock(programs, at, barriers):
    stuck = []
    for who, (program, step) in enumerate(zip(programs, at, strict=True)):
        if step < len(program):
            _, barrier, stage, parity = program[step]
            name = f"consumer {who}" if who else "the producer"
            last = barriers[barrier][stage].phase - 1
            ended = f"phase {last} ended last" if last >= 0 else "no phase has ended"
            stuck.append(f"{name} waits for {barrier}[{stage}], parity {parity} ({ended})")
    return f"deadlock: {'; '.join(stuck)}; nobody will arrive" if stuck else ""
