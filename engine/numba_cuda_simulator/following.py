"""Variables after each line of a launch, as a debugger shows them: for drawings.

Follow launches of a few threads: each line copies the variables.
"""

import sys
from dataclasses import dataclass

import numpy as np

from .launch import attempt
from .options import current_options
from .transform import PREFIX
from .watch import Watch


@dataclass(frozen=True, eq=False)
class Line:
    """A line of the kernel, or of a device function, that has run.

    Attributes
    ----------
    function : str
    file : str
    line : int
    blocks : array of shape (num_blocks,)
        The numbers of the thread blocks that ran it side by side, x fastest.
    active : boolean array of shape (num_threads, num_blocks)
        Who ran it.
    values : dict of str to array
        The variables after it, by name: (num_threads, num_blocks) of a number,
        (elements, num_threads, num_blocks) of a local array, (elements, num_blocks) of a shared one
        and (elements,) of a global one. A variable without a value is left out.
    """

    function: str
    file: str
    line: int
    blocks: np.ndarray
    active: np.ndarray
    values: dict


class Follower(Watch):
    """A watch that also reads variables, line by line."""

    def __init__(self, options, files, names):
        super().__init__(options, collect=True)
        self.files, self.names, self.lines, self.lanes = files, names, [], None

    def enter(self, frame, event, argument):
        """Python calls it at the beginning of each function."""
        if frame.f_code.co_filename not in self.files or self.lanes is None:
            return None
        at = None  # the line that runs, and who runs it

        def step(frame, event, argument):
            nonlocal at
            if at is not None:
                self.keep(frame, *at)
            at = (frame.f_lineno, self.lanes.active()) if event == "line" else None
            return step

        return step

    def keep(self, frame, line, active):
        lanes, code, present = self.lanes, frame.f_code, frame.f_locals
        if code.co_name.startswith("<"):
            return  # not the learner's: what the engine wraps around a function
        values = {name: snapshot(present[name], lanes) for name in self.names or present
                  if name in present and not name.startswith(PREFIX)}  # fmt: skip
        values = {name: value for name, value in values.items() if value is not None}
        blocks = lanes.first_block + np.arange(lanes.num_blocks)
        kept = Line(code.co_name, code.co_filename, line, blocks, active & lanes.active(), values)
        same = self.lines and (self.lines[-1].function, self.lines[-1].line) == (code.co_name, line)
        self.lines[-1 if same else len(self.lines) :] = [kept]  # parts of one line are one


def snapshot(value, lanes):
    """Return a copy of what a variable holds, None if it holds no numbers."""
    kind = getattr(type(value), "kind", None)
    if kind == "local":
        return np.array([lanes.full(x) for x in value.values])
    if kind == "shared":
        return value.rows.copy()
    if kind == "global":
        return value.flat.copy()
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        return np.array(lanes.full(np.asarray(value)))
    return None


def follow(kernel, grid, block, *args, names=(), shared_bytes=0):
    """Run a kernel as `trace` does and return its lines, with variables after each.

    Parameters
    ----------
    kernel, grid, block, *args, shared_bytes
        As for `run`.
    names : sequence of str, default=all
        The variables to read, in the kernel and in its device functions of the same file.

    Returns
    -------
    list of Line
        In the order in which they ended. A debugger or a profiler that uses `sys.settrace` hears
        nothing meanwhile.
    """
    __tracebackhide__ = True
    file = getattr(kernel, "py_func", kernel).__code__.co_filename
    follower = Follower(current_options(), {file}, tuple(names))
    before = sys.gettrace()
    sys.settrace(follower.enter)
    try:
        error = attempt(kernel, grid, block, args, shared_bytes, follower)
    finally:
        sys.settrace(before)
    if error is not None:
        raise error
    return follower.lines
