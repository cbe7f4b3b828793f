"""Functions that a program makes by exec: their text is kept, for the engine reads a kernel's."""

import functools
import linecache
import os
import sys

from .transform import FUTURE

FUNCTION = "def ", "lambda"


def keeping_source(execute):
    """Wrap exec() so that linecache knows the text of the functions that it makes."""

    @functools.wraps(execute)
    def execute_and_keep(source, globals=None, locals=None, /, **more):
        __tracebackhide__ = True
        frame = sys._getframe(1)
        if isinstance(source, str) and any(word in source for word in FUNCTION):
            source = compiled(source, frame)
        globals = more.pop("globals", globals)
        locals = more.pop("locals", locals)
        if globals is None:
            globals = frame.f_globals
            if locals is None:
                locals = frame.f_locals
                locals = locals if isinstance(locals, dict) else dict(locals)
        return execute(source, globals, locals, **more)

    return execute_and_keep


def compiled(source, frame):
    """Compile a text under a name that says where it was executed, and keep it."""
    where = f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
    number, file = 1, f"<exec in {where}>"
    while file in linecache.cache and "".join(linecache.cache[file][2]) != source:
        number, file = number + 1, f"<exec {number + 1} in {where}>"
    code = compile(source, file, "exec", frame.f_code.co_flags & FUTURE, dont_inherit=True)
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    return code
