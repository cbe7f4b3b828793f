"""The counts of one launch: the result of `simt.trace`."""

import math
from dataclasses import dataclass, field
from html import escape

from .flops import Flops


@dataclass
class Traffic:
    """Totals of an array; `add` adds to the fields that `counts` names."""

    loads: int = 0
    stores: int = 0
    atomics: int = 0
    load_requests: int = 0
    store_requests: int = 0
    atomic_requests: int = 0

    def add(self, action, *total):
        for what, number in zip(self.counts, total, strict=True):
            if what:
                setattr(self, action + what, getattr(self, action + what) + number)


@dataclass
class GlobalTraffic(Traffic):
    """What a launch moved to and from one global array.

    loads, stores and atomics count elements, once per thread; requests are those of warps;
    sectors are the 32-byte pieces of memory that the requests touch. storing_threads and
    storing_blocks are how many threads, and thread blocks, store into the array at all.
    """

    load_bytes: int = 0
    store_bytes: int = 0
    atomic_bytes: int = 0
    load_sectors: int = 0
    store_sectors: int = 0
    atomic_sectors: int = 0
    storing_threads: int = 0
    storing_blocks: int = 0
    counts = "s", "_bytes", "_requests", "_sectors", ""


@dataclass
class SharedTraffic(Traffic):
    """What a launch did with one array in shared memory.

    wavefronts are the steps in which the banks serve the requests; bank_conflicts counts those
    beyond what each request needs: one, or one for each half of a warp with 8-byte elements.
    """

    load_wavefronts: int = 0
    store_wavefronts: int = 0
    atomic_wavefronts: int = 0
    load_conflicts: int = 0
    store_conflicts: int = 0
    atomic_conflicts: int = 0
    counts = "s", "", "_requests", "_wavefronts", "_conflicts"

    @property
    def bank_conflicts(self):
        return self.load_conflicts + self.store_conflicts + self.atomic_conflicts


@dataclass
class LineTraffic:
    """What one line of the source did with one array."""

    line: int
    kind: str
    array: str
    action: str
    elements: int
    bytes: int
    requests: int
    cost: int  # sectors of a global array, wavefronts of a shared one
    conflicts: int  # those of the wavefronts that are bank conflicts
    addresses: tuple = ()  # of the first request, in bytes, lane by lane; -1: idle

    @property
    def itemsize(self):
        """Bytes of an element."""
        return self.bytes // self.elements


@dataclass(frozen=True, eq=False)
class Launched:
    """What `simt.run` was given: the kernel's object, its arguments, dynamic shared memory."""

    kernel: object
    arguments: tuple
    dynamic_bytes: int


@dataclass(repr=False)
class Trace:
    """What one launch did.

    Attributes
    ----------
    kernel : str
    grid, block : tuples of three ints
    arrays : dict of str to GlobalTraffic
        By the name of the kernel's parameter.
    shared : dict of str to SharedTraffic
        By the name of the variable.
    barriers : int
        Barriers passed, summed over blocks.
    shuffles : int
        Shuffles of all kinds, summed over warps.
    races : list of Race
    uninitialised : list of Uninitialised
    lines : list of LineTraffic
    launched : Launched
        What was launched: to compile it, or to launch it again.
    shared_bytes : int
        Shared memory of a block, static and dynamic.
    local_bytes : int
        Local arrays of a thread: each that the source declares, counted once. A compiler may keep
        them in registers.
    flops : Flops
        The floating-point operations, by kind, type and line.
    """

    kernel: str
    grid: tuple
    block: tuple
    arrays: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)
    barriers: int = 0
    shuffles: int = 0
    races: list = field(default_factory=list)
    uninitialised: list = field(default_factory=list)
    lines: list = field(default_factory=list)
    launched: Launched | None = field(default=None, repr=False)
    shared_bytes: int = 0
    local_bytes: int = 0
    flops: Flops = field(default_factory=lambda: Flops({}))

    @classmethod
    def of(cls, watch, function, launched):
        """Make the trace of a launch from its watch."""
        lanes, memory = watch.lanes, watch.memory
        counters, findings = watch.counters, watch.findings
        trace = cls(
            function.__name__, lanes.grid, lanes.block, barriers=counters.barriers,
            shuffles=counters.shuffles, launched=launched,
            shared_bytes=memory.shared_bytes + memory.dynamic_bytes,
            local_bytes=sum(memory.local_sizes.values()), flops=Flops(watch.flops.totals),
        )  # fmt: skip
        for array in memory.globals:
            trace.arrays.setdefault(array.name, GlobalTraffic())
        for array in memory.allocations.values():
            trace.shared.setdefault(array.name, SharedTraffic())
        for (kind, name, site, action), total in counters.totals.items():
            if kind == "global":
                trace.arrays.setdefault(name, GlobalTraffic()).add(action, *total)
            else:
                trace.shared.setdefault(name, SharedTraffic()).add(action, *total)
            addresses = counters.samples.get((kind, name, site, action), ())
            trace.lines.append(LineTraffic(site.line, kind, name, action, *total, addresses))
        for name, threads in counters.storing.items():
            array = trace.arrays[name]
            array.storing_threads = int(threads.sum())
            array.storing_blocks = int(threads.any(0).sum())
        trace.lines.sort(key=lambda line: (line.line, line.array, line.action))
        trace.races = list(findings.races.values())
        trace.uninitialised = list(findings.uninitialised.values())
        return trace

    @property
    def load_bytes(self):
        """Bytes loaded from global memory."""
        return sum(a.load_bytes + a.atomic_bytes for a in self.arrays.values())

    @property
    def store_bytes(self):
        """Bytes stored to global memory."""
        return sum(a.store_bytes + a.atomic_bytes for a in self.arrays.values())

    @property
    def intensity(self):
        """FLOPs per byte loaded from or stored to global memory, as the threads ask for it.

        Infinite where nothing is.
        """
        moved = self.load_bytes + self.store_bytes
        return self.flops.total / moved if moved else math.inf

    def tables(self):
        """Return [(title, head, rows)] of the tables that the summary shows."""
        head = ["array", "loads", "stores", "atomics", "bytes", "sectors", "bytes used"]
        rows = []
        for name, a in self.arrays.items():
            moved = a.load_bytes + a.store_bytes + a.atomic_bytes
            sectors = a.load_sectors + a.store_sectors + a.atomic_sectors
            used = f"{100 * moved / (32 * sectors):.0f}%" if sectors else ""
            rows.append([name, a.loads, a.stores, a.atomics, moved, sectors, used])
        tables = [("global memory", head, rows)]
        if self.shared:
            head = ["array", "loads", "stores", "atomics", "bank conflicts"]
            rows = [
                [n, s.loads, s.stores, s.atomics, s.bank_conflicts] for n, s in self.shared.items()
            ]
            tables.append(("shared memory", head, rows))
        if self.flops.operations:
            per_byte = f"{self.intensity:.3g} FLOP per byte of global memory"
            tables.append((f"floating-point operations: {per_byte}", *self.flops.table()))
        return tables

    def problems(self):
        """Return the races and uninitialised reads as sentences."""
        return [str(p) for p in (*self.races, *self.uninitialised)]

    def title(self):
        blocks = " x ".join(map(str, trimmed(self.grid)))
        threads = " x ".join(map(str, trimmed(self.block)))
        return f"{self.kernel}: {blocks} blocks of {threads} threads, {self.barriers} barriers"

    def summary(self):
        """Return the trace as text."""
        parts = [self.title()]
        for title, head, rows in self.tables():
            cells = [head] + [[f"{c:,}" if isinstance(c, int) else c for c in r] for r in rows]
            widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
            parts.append(f"\n{title}")
            for row in cells:
                first = row[0].ljust(widths[0])
                rest = (c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))
                parts.append("  ".join(["", first, *rest]).rstrip())
        parts += [f"\n{p}" for p in self.problems()]
        return "\n".join(parts)

    def __repr__(self):
        return self.summary()

    def _repr_html_(self):
        parts = [f"<p>{escape(self.title())}</p>"]
        for title, head, rows in self.tables():
            top = "".join(f"<th>{escape(h)}</th>" for h in head)
            body = "".join(
                "<tr>"
                + "".join(
                    f"<td>{c:,}</td>" if isinstance(c, int) else f"<td>{escape(c)}</td>"
                    for c in row
                )
                + "</tr>"
                for row in rows
            )
            parts.append(
                f"<table><caption>{escape(title)}</caption><thead><tr>{top}</tr></thead>"
                f"<tbody>{body}</tbody></table>"
            )
        parts += [f"<p><strong>{escape(p)}</strong></p>" for p in self.problems()]
        return "".join(parts)


def trimmed(dims):
    """Return dimensions without trailing ones."""
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]
    return dims
