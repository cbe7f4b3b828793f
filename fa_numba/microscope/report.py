"""The microscope: everything about a launch, on one page, on any machine.

`fa-numba trace` and the cell magic `%%trace` make their reports here: the CPU engine's counts, the
compilers' machine code, and what they mean on a GPU, which need not be in this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from operator import attrgetter
from pathlib import Path

from numba.core.errors import NumbaError

from fa_numba import analysis
from fa_numba.analysis.compile_errors import without_colours
from fa_numba.analysis.devices import Device
from fa_numba.analysis.machine_code import CompilerMissingError, signature_of
from numba_cuda_simulator.launch import host_value
from numba_cuda_simulator.trace import LineTraffic, Trace

DEVICE = "H100"
WASTEFUL = 0.5  # a line is named if it uses less than this of the bytes it moves
MOST_LINES = 8


@dataclass(frozen=True)
class Table:
    """Part of a report: numbers are right-aligned, with commas."""

    head: list[str]
    rows: list[list]

    def text(self) -> str:
        cells = [self.head, *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        left = [self._is_left(i) for i in range(len(self.head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if is_left else cell.rjust(width)
                for cell, width, is_left in zip(row, widths, left, strict=True)
            ).rstrip()
            for row in cells
        )

    def _is_left(self, column: int) -> bool:
        return all(isinstance(row[column], str) and row[column][-1:] != "%" for row in self.rows)

    def html(self) -> str:
        def line(tag, cells):
            aligned = (
                f'<{tag} style="text-align: {"left" if self._is_left(i) else "right"}">'
                f"{escape(_shown(cell))}</{tag}>"
                for i, cell in enumerate(cells)
            )
            return f"<tr>{''.join(aligned)}</tr>"

        body = "".join(line("td", row) for row in self.rows)
        return f"<table><thead>{line('th', self.head)}</thead><tbody>{body}</tbody></table>"


def _shown(cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@dataclass(repr=False)
class LaunchReport:
    """One launch: its counts, and its cost on a GPU. Shown as text and as HTML.

    Parameters
    ----------
    trace : Trace
    device : str or Device, default="H100"
        The GPU for machine code, occupancy and roofline.
    times : int, default=1
        Number of equal launches that the report is about.
    """

    trace: Trace
    device: str | Device = DEVICE
    times: int = 1

    def __post_init__(self):
        self.device = analysis.device(self.device)

    # ------------------------------------------------------------------ facts

    @cached_property
    def _compiled(self):
        """(Findings, None), or (None, the reason why there are none)."""
        kernel = self.trace.launched.kernel
        if not hasattr(kernel, "py_func"):
            return None, "the kernel has no @cuda.jit"
        try:
            args = [host_value(arg) for arg in self.trace.launched.arguments]
            return analysis.lint(kernel, args, device=self.device), None
        except CompilerMissingError as error:
            return None, str(error)
        except (NumbaError, TypeError) as error:
            return None, f"it does not compile for a GPU: {without_colours(error).strip()}"
        except RuntimeError as error:  # of ptxas: too old for this NVVM, or the kernel too large
            return None, f"a compiler on this machine failed: {str(error).strip()}"

    @property
    def findings(self):
        """The lint's findings, or None if the compilers are not installed."""
        return self._compiled[0]

    @property
    def code(self):
        """The `MachineCode`, or None if the compilers are not installed."""
        return None if self.findings is None else self.findings.code

    @property
    def threads(self) -> int:
        """Threads per thread block."""
        x, y, z = self.trace.block
        return x * y * z

    @cached_property
    def occupancy(self):
        """The `Occupancy`; without a compiler, that of a kernel with one register."""
        shared, registers = self.trace.shared_bytes, 1
        if self.code is not None:
            registers = max(self.code.registers, 1)
            shared = self.code.shared_bytes + self.trace.launched.dynamic_bytes
        return analysis.occupancy(self.threads, registers, shared, device=self.device)

    @property
    def num_bytes(self) -> int:
        """Bytes that the threads load from and store to global memory."""
        return self.trace.load_bytes + self.trace.store_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of the launch."""
        return self.trace.flops.total

    def wasteful(self) -> list[LineTraffic]:
        """Lines with bank conflicts, or that use little of their sectors: worst first."""

        def extra(line):  # bytes moved in vain; a wavefront counts as 128 bytes
            if line.kind == "shared":
                return 128 * line.conflicts
            return (32 * line.cost - line.bytes) * (used(line) < WASTEFUL)

        return sorted((x for x in self.trace.lines if extra(x) > 0), key=extra, reverse=True)

    # ------------------------------------------------------------------ as text

    def sections(self) -> Iterator[tuple[str, list]]:
        """Yield (title, parts); a part is a `Table` or a piece of text."""
        for title, head, rows in self.trace.tables():
            yield title, [Table(head, rows)]
        if wasteful := self.wasteful():
            parts = [Table(["line", "array", "", "requests", "what"], [
                [x.line, x.array, x.action, x.requests, _waste(x)] for x in wasteful[:MOST_LINES]
            ])]  # fmt: skip
            if more := len(wasteful) - MOST_LINES:
                parts += [f"and {more} more"] if more > 0 else []
            yield "lines to look at", parts
        problems = self.trace.problems()
        yield "races and uninitialised reads", problems or ["none found"]
        yield "occupancy", [self._occupancy_text()]
        yield f"roofline of the {self.device.name}", [self._roofline_text()]
        if self.code is None:
            yield "machine code", [f"not known: {self._compiled[1]}"]
            return
        yield "machine code", [self._code_text()]
        yield "lint", [self._lint_text()]

    def _occupancy_text(self) -> str:
        if self.code is None:
            return f"at most {self.occupancy}; how many registers it takes is not known"
        shared = self.occupancy.shared_bytes
        return (
            f"{self.code.registers} registers a thread, {shared:,} bytes shared: {self.occupancy}"
        )

    def _roofline_text(self) -> str:
        moved = f"{self.flops:,} FLOP, {self.num_bytes:,} bytes before any cache"
        try:
            roof = analysis.Roofline(self.device)
        except ValueError as error:
            return f"{moved}; {error}"
        point = roof.place(self.trace)
        return (
            f"{moved}: {point.intensity:.3g} FLOP per byte, bound by {point.bound} "
            f"(ridge {roof.ridge:.3g}); at least {_seconds(point.seconds)} in float32"
        )

    def _code_text(self) -> str:
        try:
            return self.code.summary()
        except CompilerMissingError as error:
            return f"{self.code.registers} registers; no instructions: {error}"

    def _lint_text(self) -> str:
        """The findings by kind, the first of each kind in full."""
        kinds: dict[str, list] = {}
        for finding in self.findings:
            kinds.setdefault(finding.kind, []).append(finding)
        parts = []
        for kind, found in kinds.items():
            lines = ", ".join(str(f.line) for f in found)
            more = f"{kind}, lines {lines}; the first of them:\n" if len(found) > 1 else ""
            parts.append(f"{more}{found[0]}")
        parts += [self.findings.gain] if self.findings.gain else []
        return "\n\n".join(parts) or "nothing found"

    @property
    def title(self) -> str:
        times = f", {self.times} times" if self.times > 1 else ""
        return self.trace.title() + times

    def text(self) -> str:
        """The report as text."""
        lines = [self.title, "=" * len(self.title)]
        for title, parts in self.sections():
            body = "\n".join(p.text() if isinstance(p, Table) else p for p in parts)
            lines += ["", title, *(f"  {line}".rstrip() for line in body.splitlines())]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        html = [f"<h4>{escape(self.title)}</h4>"]
        for title, parts in self.sections():
            html.append(f"<p><b>{escape(title)}</b></p>")
            for part in parts:
                if isinstance(part, Table):
                    html.append(part.html())
                else:
                    html.append(f'<pre style="white-space: pre-wrap">{escape(part)}</pre>')
        return "".join(html)

    # ------------------------------------------------------------------ as pictures

    def figures(self) -> Iterator[tuple[str, object]]:
        """Yield (name, Drawing) for all parts of the report that can be drawn."""
        from fa_numba.figures.addresses import addresses
        from fa_numba.figures.banks import banks
        from fa_numba.figures.kernel_roofline import kernel_roofline
        from fa_numba.figures.occupancy_by_block import occupancy_by_block
        from fa_numba.figures.race import race_diagram
        from fa_numba.figures.sectors import sectors

        trace, kernel = self.trace, self.trace.launched.kernel
        if any(a.load_sectors + a.store_sectors for a in trace.arrays.values()):
            yield "sectors", sectors(trace)
        lines = [x for x in trace.lines if x.kind == "global" and x.addresses]
        if lines:
            worst, order = sorted(lines, key=used)[:4], attrgetter("line", "array", "action")
            yield "addresses", addresses({_named(x): x for x in sorted(worst, key=order)})
        lines = [x for x in trace.lines if x.kind == "shared" and x.addresses]
        if lines:
            worst = sorted(lines, key=lambda x: -x.conflicts / x.requests)[:2]
            words = {_named(x): ([a // 4 for a in x.addresses], None) for x in worst}
            yield "banks", banks(words)
        if self.code is not None:
            yield "occupancy", occupancy_by_block({trace.kernel: self.occupancy})
        if self.flops and self.num_bytes:
            work = {trace.kernel: (self.flops, self.num_bytes)}
            yield "roofline", kernel_roofline(work, self.device)
        for number, race in enumerate(trace.races[:3], 1):
            try:
                yield f"race_{number}", race_diagram(race, kernel)
            except OSError:  # the kernel was made by exec: no source to show
                return


def used(line: LineTraffic) -> float:
    """The share of the bytes moved for a source line that its threads asked for."""
    return line.bytes / (32 * line.cost) if line.cost else 1.0


def _waste(line: LineTraffic) -> str:
    each = line.cost / line.requests
    if line.kind == "shared":
        return f"{each:.3g} wavefronts a request, {line.conflicts:,} bank conflicts"
    return f"{each:.3g} sector{'s' * (each != 1)} a request, {used(line):.0%} of their bytes used"


def _named(line: LineTraffic) -> str:
    return f"line {line.line}: {line.action} {line.array}"


def _seconds(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


@dataclass(repr=False)
class LaunchReports:
    """The reports of several launches, equal launches together."""

    reports: list[LaunchReport] = field(default_factory=list)

    @classmethod
    def of(cls, traces: list[Trace], *, device: str | Device = DEVICE) -> LaunchReports:
        """One report for each trace; equal launches of one kernel share a report."""
        alike: dict[tuple, list[Trace]] = {}
        for trace in traces:
            alike.setdefault((_key(trace), trace.summary()), []).append(trace)
        return cls([LaunchReport(group[0], device, len(group)) for group in alike.values()])

    def __iter__(self):
        return iter(self.reports)

    def __len__(self):
        return len(self.reports)

    @property
    def problems(self) -> list[str]:
        """Races and uninitialised reads of all launches."""
        return [problem for report in self for problem in report.trace.problems()]

    def __repr__(self) -> str:
        return "\n\n\n".join(report.text() for report in self)

    def _repr_html_(self) -> str:
        return "<hr>".join(report._repr_html_() for report in self)

    def write_figures(self, folder) -> list[Path]:
        """Write every drawing of every report as PNG; return the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, report in enumerate(self, 1):
            prefix = f"{number}_" if len(self) > 1 else ""
            for name, drawing in report.figures():
                paths.append(folder / f"{prefix}{report.trace.kernel}_{name}.png")
                drawing.savefig(paths[-1], dpi=110)
        return paths


def _key(trace: Trace):
    """A key that is equal for launches of the same machine code."""
    launched = trace.launched
    try:
        return id(launched.kernel), str(signature_of([host_value(a) for a in launched.arguments]))
    except TypeError:
        return id(launched.kernel), ""
