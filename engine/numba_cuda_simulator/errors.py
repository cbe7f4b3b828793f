"""Errors in a kernel, said in the learner's own terms.

Every error names the line, the array, the thread and the block. `Site` is a place in
the learner's source; `explain` removes the engine's frames from a traceback so that the
last frame shown is the learner's own line, caret included.
"""

import difflib
import dis
import functools
import linecache
import math
import os
import re
import sys
import textwrap
import types
import warnings
from dataclasses import dataclass, field

from numba import cuda

from .other_names import TRITON, meant
from .without_numba.missing import CompilerMissingError as CompilerMissingError

ENGINE = os.path.dirname(__file__)
RAISE = dis.opmap["RAISE_VARARGS"]
WRONG_CALL = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple)")


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
    """Return a readable name for a source file; a notebook cell has the one that IPython gives."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    cell = shell and shell.compile.format_code_name(file)
    if cell:
        return " ".join(cell)
    return "this notebook" if "ipykernel" in file else os.path.basename(file)


class KernelWarning(UserWarning):
    """What works, here and as a rule on a GPU, although CUDA's rules forbid it."""


NOTICES = {}  # file -> what warnings remembers of it, so that a line is warned of once


def notice(site, message, why):
    """Warn of a customary piece of code that CUDA's rules forbid."""
    registry = NOTICES.setdefault(site.file, {})
    text = f"{message}\n  {why}"
    warnings.warn_explicit(text, KernelWarning, site.file, site.line, registry=registry)


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

    def _render_traceback_(self):
        """What IPython shows: its own traceback, the message in lines that fit on a page.

        A notebook would cut longer lines in mid-word.
        """
        shell = sys.modules["IPython"].get_ipython()
        *frames, message = shell.InteractiveTB.structured_traceback(
            type(self), self, self.__traceback__
        )
        return [*frames, "\n".join(map(_fitting, message.split("\n")))]


def _fitting(line):
    """A line of more than a page's width as several."""
    if len(line) <= 100:
        return line
    return textwrap.fill(line, 90, subsequent_indent="  ", break_long_words=False)


class KernelIndexError(KernelError, IndexError):
    """An index outside an array, negative, or not an integer."""


class KernelNameError(KernelError, UnboundLocalError):
    """A variable that a thread reads before it assigns it, or a name that nothing defines."""


class KernelZeroDivisionError(KernelError, ZeroDivisionError):
    """An integer divided by zero in an active thread."""


class RaceError(KernelError):
    """Two threads use one element, one of them writes, and no barrier orders them."""


class UninitialisedReadError(KernelError):
    """An element of shared or local memory is read that no thread has written."""


class BarrierDivergenceError(KernelError):
    """Some threads wait at a barrier that others never reach."""


class LaunchError(KernelError, ValueError):
    """A launch that no GPU would accept: grid, thread block, memory or arguments."""


class SignatureError(LaunchError, TypeError):
    """Arguments that do not fit the signature of a kernel or device function."""


class UnsupportedError(KernelError, TypeError):
    """Python that cannot run inside a CUDA kernel, or not on this engine."""


class FieldError(UnsupportedError, AttributeError):
    """A field that a record does not have."""


AS_THEY_ARE = AssertionError, NameError, KeyboardInterrupt, KernelWarning


def thread_name(thread, block):
    """Return 'thread (x, y, z) of block (x, y, z)'."""
    return f"thread {tuple(map(int, thread))} of block {tuple(map(int, block))}"


def runs_kernel(frame):
    """Tell whether a frame runs a kernel or a device function."""
    return "_simt_machine" in frame.f_globals


def kernel_traceback(error):
    """Return the frames of an error's traceback in kernel code, from the outside in."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        if runs_kernel(traceback.tb_frame):
            inside = found and traceback.tb_frame.f_code in found[-1].tb_frame.f_code.co_consts
            if inside:  # a part of the same statement, evaluated under a smaller mask
                found.pop()
            found.append(traceback)
        traceback = traceback.tb_next
    return found


def site_of_traceback(traceback):
    """Return the Site of a traceback's frame."""
    code = traceback.tb_frame.f_code
    return site_at(code.co_filename, code, traceback.tb_lasti, traceback.tb_lineno)


@functools.lru_cache(maxsize=1024)
def site_at(file, code, instruction, line):
    """Return the Site of an instruction; code objects of two files may be equal."""
    there, end_line, column, end_column = list(code.co_positions())[instruction // 2]
    line = there or line
    if column is None:
        column, end_column = 0, 0
    if end_line != line:
        end_column = 1 << 30  # the expression goes on below: underline to the end of the line
    return Site(file, line, column, end_column, code.co_name)


def explain(error):
    """Return an error as the learner should see it.

    Its traceback goes straight to the learner's own line, and what Python or NumPy said about
    the engine's values becomes an `UnsupportedError`. What the kernel itself raises, a stub's
    NotImplementedError for one, and NameErrors stay what they are.
    """
    frames = kernel_traceback(error)
    if isinstance(error, KernelError):
        if not error.sites and frames:
            error.sites = (site_of_traceback(frames[-1]),)
    elif not frames:
        return error  # nothing of the kernel has run
    elif isinstance(error, NameError) and not raised_by_kernel(error):
        error = undefined(error, frames[-1])
    elif not (isinstance(error, AS_THEY_ARE) or raised_by_kernel(error)):
        error = unexpected(error, site_of_traceback(frames[-1]))
    error.__suppress_context__ = True
    pruned = None if frames else launching_line()
    for tb in reversed(frames):
        pruned = types.TracebackType(pruned, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return error.with_traceback(pruned)


def launching_line():
    """Return a traceback of the line that launches, where errors end that no thread has met."""
    frame = sys._getframe()
    while os.path.dirname(frame.f_code.co_filename) == ENGINE:
        frame = frame.f_back
    return types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno)


def raised_by_kernel(error):
    """Tell whether an error comes from a `raise` in the kernel."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code.co_code
    return runs_kernel(traceback.tb_frame) and code[traceback.tb_lasti] == RAISE


def attributes(value):
    """Return a hint: what a value in a kernel has instead of the attribute asked for."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields:
            return f"Its fields are {', '.join(fields)}."
        return "It is a tuple, whose elements have no names: index it, or unpack it."
    if getattr(value, "kind", None) in ("global", "shared", "local"):
        return "Arrays have .shape, .size, .ndim and .dtype there; work element by element."
    if hasattr(value, "dtype"):
        return f"It is a number here, of type {value.dtype}."
    return None


def undefined(error, traceback):
    """Return the error of a name that nothing defines, with its line."""
    name, code = error.name, traceback.tb_frame.f_code
    near = difflib.get_close_matches(str(name), [*code.co_varnames, *traceback.tb_frame.f_globals])
    hint = "Define it, import it, or pass it as an argument."
    plain = str(name).strip("_")  # __syncthreads
    if hasattr(cuda, plain):
        hint = f"Write cuda.{plain}."
    elif hasattr(math, str(name)):
        hint = f"Write math.{name}."
    elif near:
        hint = f"Did you mean {near[0]}?"
    elif name == "tl":
        hint = TRITON
    elif other := meant(str(name)):
        hint = f"Numba has {other}."
    sites = [site_of_traceback(traceback)]
    return KernelNameError(f"name '{name}' is not defined", sites=sites, hint=hint)


def unexpected(error, site):
    """Return an error of Python or NumPy about a kernel's expression as an UnsupportedError."""
    expression = site.text[site.column : site.end_column]
    if isinstance(error, TypeError) and WRONG_CALL.search(str(error)):
        message, hint = f"{expression.partition('(')[0]}() does not take these arguments", None
    elif isinstance(error, AttributeError):
        message, hint = f"{expression} is not available inside a kernel", attributes(error.obj)
    else:
        message, hint = f"this does not work in a kernel: {error}", None
        operand = "unsupported operand" in message and "Array'" in message
        if operand or "does not support ufuncs" in message:
            message = f"a whole array takes no part in arithmetic in a kernel: {expression}"
            hint = "Loop over its elements, or let each thread compute one: o[i] = x[i] * 2."
        elif "ufunc 'bitwise" in message or "_shift' not supported" in message:
            message = f"an operation on bits takes integers: {expression}"
            hint = "No float, nor uint64 beside a signed integer, which make one: convert either."
        elif "Array'" in message:
            hint = "Index the array down to one element."
    new = UnsupportedError(message, sites=[site], hint=hint)
    new.__context__ = error  # not shown, but there for whoever mends the engine
    return new
