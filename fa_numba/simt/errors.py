"""What goes wrong in a kernel, said in the learner's own terms.

Every error names the line, the array, the thread and the block. `Site` is a place in
the learner's source; `prune` removes the engine's frames from a traceback so that the
last frame shown is the learner's own line, caret included.
"""

import linecache
import os
import types
from dataclasses import dataclass, field

ENGINE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, eq=False)
class Site:
    """A place in a kernel's source: one load, store, barrier or other statement."""

    file: str
    line: int
    column: int  # first column, from 0
    end_column: int
    function: str
    name: str = field(default="")  # the variable that an allocation is assigned to
    variables: tuple = ()  # of an access: which of its indices are plain variables

    @property
    def text(self):
        """The source line without its newline."""
        return linecache.getline(self.file, self.line).rstrip()

    def __str__(self):
        return f"{short_name(self.file)}, line {self.line}"

    def excerpt(self):
        """Return the line with a caret under the expression."""
        text = self.text
        if not text.strip():
            return f"  {self}"
        indent = len(text) - len(text.lstrip())
        start = max(self.column - indent, 0)
        width = max(min(self.end_column, len(text)) - self.column, 1)
        return f"  {self}\n    {text.strip()}\n    {' ' * start}{'^' * width}"


def short_name(file):
    """Return a readable name for a source file; a notebook cell's own is a temporary path."""
    base = os.path.basename(file)
    if "ipykernel" in file:
        return "this notebook"
    return base or file


class KernelError(Exception):
    """Base of every error that the engine raises about a kernel.

    Attributes
    ----------
    sites : tuple of Site
        Where in the source; two for a race.
    array : str or None
    thread, block : tuple of three ints or None
    """

    def __init__(self, message, *, sites=(), array=None, thread=None, block=None, hint=None):
        super().__init__(message)
        self.message = message
        self.sites = tuple(sites)
        self.array = array
        self.thread = thread
        self.block = block
        self.hint = hint

    @property
    def lines(self):
        """The source line numbers, one per site."""
        return tuple(site.line for site in self.sites)

    def __str__(self):
        parts = [self.message, *(site.excerpt() for site in self.sites)]
        if self.hint:
            parts.append(f"  {self.hint}")
        return "\n".join(parts)


class KernelIndexError(KernelError, IndexError):
    """An index outside an array, negative, or not an integer."""


class KernelZeroDivisionError(KernelError, ZeroDivisionError):
    """An integer divided by zero in an active thread."""


class RaceError(KernelError):
    """Two threads use one element, one of them writes, and no barrier orders them."""


class UninitialisedReadError(KernelError):
    """A shared element is read that no thread has written."""


class BarrierDivergenceError(KernelError):
    """Some threads wait at a barrier that others never reach."""


class LaunchError(KernelError, ValueError):
    """A launch that no GPU would accept: grid, thread block, memory or arguments."""


class UnsupportedError(KernelError, TypeError):
    """Python that cannot run inside a CUDA kernel, or not on this engine."""


def thread_name(thread, block):
    """Return 'thread (x, y, z) of block (x, y, z)'."""
    return f"thread {tuple(map(int, thread))} of block {tuple(map(int, block))}"


def is_engine_frame(frame):
    """Tell whether a frame runs the engine's own code (kernel code keeps its own file name)."""
    return os.path.dirname(frame.f_code.co_filename) == ENGINE


def site_of_traceback(traceback):
    """Return the Site of the innermost kernel frame in a traceback, or None."""
    found = None
    while traceback is not None:
        if "_simt_machine" in traceback.tb_frame.f_globals:
            found = traceback
        traceback = traceback.tb_next
    if found is None:
        return None
    code = found.tb_frame.f_code
    positions = list(code.co_positions())[found.tb_lasti // 2]
    line, end_line, column, end_column = positions
    line = line or found.tb_lineno
    if column is None:
        column, end_column = 0, 0
    if end_line != line:
        end_column = 1 << 30  # the expression goes on below: underline to the end of the line
    return Site(code.co_filename, line, column, end_column, code.co_name)


def prune(traceback):
    """Return the traceback without the engine's frames."""
    frames = []
    while traceback is not None:
        if not is_engine_frame(traceback.tb_frame):
            frames.append(traceback)
        traceback = traceback.tb_next
    pruned = None
    for tb in reversed(frames):
        pruned = types.TracebackType(pruned, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return pruned
