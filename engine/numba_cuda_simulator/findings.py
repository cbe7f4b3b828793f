"""Races and uninitialised reads, as sentences."""

from dataclasses import dataclass, field

from .errors import (
    BarrierDivergenceError,
    KernelIndexError,
    KernelZeroDivisionError,
    RaceError,
    Site,
    UninitialisedReadError,
    notice,
    short_name,
)
from .race_rules import custom
from .shadow import PLACE_MASK

# What a value that was loaded too early can lead to.
CONSEQUENCES = KernelIndexError, KernelZeroDivisionError, BarrierDivergenceError
VERBS = {"load": "loads", "store": "stores", "atomic": "updates"}


@dataclass
class Race:
    """Two threads use one element, at least one changes it, and nothing orders them.

    Attributes
    ----------
    array : str
    kind : str
        "RAW" (a load of what another thread has just stored), "WAR" (a store to what another
        thread has just loaded) or "WAW" (two stores of different values).
    lines : tuple of two ints
        Source lines, the earlier access first.
    threads, blocks : tuples of two (x, y, z)
    block : (x, y, z)
        Of the later access.
    element : str
        One of the elements, as "s_tile[3, 4]".
    count : int
        How many accesses were found to race in this way.
    """

    array: str
    memory: str  # shared or global
    kind: str
    element: str
    sites: tuple
    actions: tuple
    threads: tuple
    blocks: tuple
    count: int = 0

    @property
    def lines(self):
        return tuple(site.line for site in self.sites)

    @property
    def block(self):
        return self.blocks[1]

    def __str__(self):
        first, second = (VERBS[a] for a in self.actions)
        one, two = self.threads
        line, next_line = self.lines
        file = short_name(self.sites[0].file)
        if self.blocks[0] != self.blocks[1]:
            one, two = (f"{t} of block {b}" for t, b in zip(self.threads, self.blocks, strict=True))
            where, order = "", "nothing orders blocks"
        else:
            where, order = f" in block {self.block}", "no barrier lies between"
        if self.sites[0] is self.sites[1] and self.actions[0] == self.actions[1]:
            return (
                f"{self.kind} race on {self.element}{where}: threads {one} and {two} both "
                f"{first[:-1]} different values at {file}, line {line}, and {order}"
            )
        same_file = self.sites[0].file == self.sites[1].file
        other = "" if same_file else f"{short_name(self.sites[1].file)}, "
        return (
            f"{self.kind} race on {self.element}{where}: thread {one} {first} at {file}, line "
            f"{line}, thread {two} {second} at {other}line {next_line}, and {order}"
        )

    def hint(self, locked=False):
        if locked:
            return (
                "A lock orders them only if a cuda.threadfence() follows where it is taken, and "
                "comes before it is freed."
            )
        if self.blocks[0] != self.blocks[1]:
            return "Use an atomic, give each block its own elements, or launch twice."
        if self.sites[0] is self.sites[1] and self.kind == "WAW":
            return "Write after write: let one thread store, or use an atomic."
        first, second = self.sites
        if (first.file, first.line) == (second.file, second.line) and self.kind != "WAW":
            return (
                "One line loads and stores, so no barrier fits between the two. To add into one "
                "element, use cuda.atomic.add; else load into a variable, call "
                "cuda.syncthreads(), and store then. Between iterations of a loop, a "
                "cuda.syncthreads() at the end of its body is enough."
            )
        if self.kind == "RAW":
            return (
                "Read after write: a cuda.syncthreads() between the two lets every store finish "
                "before the load."
            )
        if self.kind == "WAR":
            return (
                "Write after read: a cuda.syncthreads() between the two lets every load finish "
                "before the store (in a loop, the store may be in the next iteration)."
            )
        return (
            "Write after write: a cuda.syncthreads() between the two says which store comes last."
        )

    def error(self, locked=False):
        sites = self.sites[:1] if self.sites[0] is self.sites[1] else self.sites
        return RaceError(
            str(self), sites=sites, array=self.array, thread=self.threads[1], block=self.block,
            hint=self.hint(locked),
        )  # fmt: skip


@dataclass
class Uninitialised:
    """A shared element is read that no thread of the block has stored, or a thread's own."""

    array: str
    memory: str  # shared or local
    element: str
    site: Site
    thread: tuple
    block: tuple
    count: int = field(default=0)

    @property
    def line(self):
        return self.site.line

    def __str__(self):
        who = "it" if self.memory == "local" else "no thread of the block"
        return (
            f"uninitialised read of {self.element}: thread {self.thread} of block {self.block} "
            f"loads it at {self.site}, and {who} has {'not ' * (who == 'it')}stored it"
        )

    def error(self):
        return UninitialisedReadError(
            str(self), sites=(self.site,), array=self.array, thread=self.thread, block=self.block,
            hint="On a GPU it holds whatever was there before.",
        )  # fmt: skip


class Findings:
    """Collects races and uninitialised reads, or raises the first."""

    def __init__(self, lanes, options, collect):
        self.lanes, self.options, self.collect = lanes, options, collect
        self.races = {}
        self.uninitialised = {}
        self.swaps = set()  # Sites of compare-and-swap
        self.noticed = set()  # races that are customary
        self.numbers = {}  # (Site, action) -> place
        self.places = []  # place -> (Site, action)

    def locked(self):
        """Tell whether threads have taken turns with a lock: see turns.py."""
        return bool(self.swaps) and self.lanes.turns.order > 0

    def place(self, site, action):
        """Return the number under which shadows remember a line and what it does."""
        number = self.numbers.get((site, action))
        if number is None:
            number = self.numbers[site, action] = len(self.places)
            self.places.append((site, action))
        return number & PLACE_MASK

    def race(self, kind, array, offset, earlier, now, count, unchanged=False, why=None):
        """Report a race; earlier and now: (thread number, block of the grid, place).

        unchanged : whether the thread stores what it has just loaded there.
        why : why it does no harm in practice, if that is known.
        """
        key = array.name, kind, earlier[2], now[2]
        race = self.races.get(key)
        if race is None:
            if key in self.noticed:
                return
            places = [self.places[p] for _, _, p in (earlier, now)]
            race = Race(
                array.name, array.kind, kind, array.element(offset),
                tuple(site for site, _ in places), tuple(action for _, action in places),
                tuple(self.lanes.thread_coordinates(t) for t, _, _ in (earlier, now)),
                tuple(self.lanes.grid_coordinates(b) for _, b, _ in (earlier, now)),
            )  # fmt: skip
            swaps = tuple(site in self.swaps for site in race.sites)
            why = why or custom(race.actions, swaps, unchanged)
            if why:
                self.noticed.add(key)
                notice(race.sites[1], str(race), why)
                return
            self.races[key] = race
            if not self.collect:
                raise race.error(self.locked())
        race.count += count

    def unwritten(self, array, offset, now, count):
        key = array.name, now[2]
        finding = self.uninitialised.get(key)
        if finding is None:
            thread, block, place = now
            finding = self.uninitialised[key] = Uninitialised(
                array.name, array.kind, array.element(offset), self.places[place][0],
                self.lanes.thread_coordinates(thread), self.lanes.grid_coordinates(block),
            )  # fmt: skip
            if not self.collect:
                raise finding.error()
        finding.count += count

    def root_cause(self, error):
        """Return the error of the race or uninitialised read that another error follows from."""
        found = [*self.races.values(), *self.uninitialised.values()]
        if not found or not isinstance(error, CONSEQUENCES):
            return error
        cause = min(found, key=lambda f: getattr(f, "kind", "RAW") != "RAW").error()
        cause.hint += f"\n  It led to this: {error.message}"
        cause.__suppress_context__ = True
        return cause.with_traceback(error.__traceback__)
