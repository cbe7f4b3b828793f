"""Numba's compile errors as a sentence that names the line, the reason and the remedy."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap

LOCATION = re.compile(r'File "([^"]*)", line (\d+):|\bat (\S+) \((\d+)\)')
CALLED = r"(np\.\w+|the shape of cuda\.(?:shared|local)\.array|\w+(?= cannot be called))"
ARRAY_MAKERS = {"zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like", "array"}
ALLOCATES = "memory cannot be allocated in a kernel. Write to an array that is an argument, use "
ALLOCATES += "cuda.local.array or cuda.shared.array, and compute element by element"


class NotForGpuError(AssertionError):
    """A kernel that does not compile for a GPU; the message says why, and where."""


def explain_compile_error(error: BaseException, kernel) -> NotForGpuError:
    """The error of Numba about a kernel, in plain words."""
    text = without_colours(error)
    name = getattr(getattr(kernel, "py_func", kernel), "__name__", "the kernel")
    for pattern, words in REASONS:
        if found := re.search(pattern, f"{type(error).__name__}: {text}", re.DOTALL):
            reason = words.format(*found.groups(), name=name)
            break
    else:
        reason = f"Numba cannot compile {name}: {_first_reason(text)}"
    line, source = _location(text, kernel, reason)
    if called := re.search(r"= *(\w+)\(", source):
        reason = reason.replace("a device function returned", f"{called[1]} returned")
    return NotForGpuError(reason + (f"\n  line {line}: {source}" if line else ""))


def without_colours(error: BaseException) -> str:
    """The text of an error; where colorama is installed, Numba's has a terminal's codes in it."""
    return re.sub(r"\x1b\[[\d;]*m", "", str(error))


# Patterns of Numba's messages, and the advice to a learner. {0} is a group of the pattern.
REASONS = [
    (
        r"'function' object has no attribute 'targetoptions'",
        "{name} is a plain Python function: write @cuda.jit in the line above it",
    ),
    (r"must have void return type", "{name} returns a value, and a kernel cannot: store it in an "
     "array that is an argument, and write `return` alone"),
    (r"Function\(<function (shared|local)\.array", "the shape of cuda.{0}.array must be a constant "
     "when the kernel is compiled: a number, or a name of the module or of the function around the "
     "kernel, not a value that the kernel computes or is given. Instead of N + 1 in the shape "
     "write SIZE = N + 1 above the kernel's @cuda.jit, and SIZE in the shape"),
    (r"Function\(<built-in function (" + "|".join(ARRAY_MAKERS) + r")>\)",
     "np.{0} makes an array: " + ALLOCATES),
    (r"_ol_array_allocate|NRT required|nrt_", "a line makes a new array: " + ALLOCATES),
    (r"KeyError: .*<ufunc '(\w+)'>", "np.{0} does not compile in a kernel: write math.{0}, or an "
     "operator, for one number"),
    (r"Function\(<(?:built-in )?function (\w+)[ >]", "{0} cannot be called with these arguments in "
     "a kernel"),
    (r"NameError: name '(\w+)' is not defined", "the name {0} is not defined"),
    (r"Unknown attribute '(\w+)' of type (\w+)", "a {1} has no .{0} in a kernel"),
    (r"failed to unpack none", "a device function returned nothing: is a return missing?"),
    (r"wrong tuple length.*expected (\d+), got (\d+)", "a device function returned {1} values, and "
     "{0} are expected"),
    (r"Cannot unify (\S+) and (\S+) for '(\w+)", "{2} is {0} on one line and {1} on another: a "
     "variable has one type in a kernel"),
    (r"set_try_status|try_status", "try and except do not work in a kernel"),
    (r"Untyped global name '(\w+)'", "{0} cannot be used in a kernel: it is neither a number nor a "
     "function decorated with @cuda.jit(device=True)"),
]  # fmt: skip


def _first_reason(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [
        line for line in lines if not line.startswith(("Failed in", "During:", "- Resolution"))
    ]
    return lines[0][:300] if lines else "no reason given"


def _location(text, kernel, reason):
    """(line, source) that Numba names, else of the call that the reason names, else (0, "")."""
    function = getattr(kernel, "py_func", kernel)
    file = function.__code__.co_filename
    named = [(a or b, int(m or n)) for a, m, b, n in LOCATION.findall(text)]
    numbers = [n for path, n in named if _same(path, file)] or _lines_like(function, reason)
    if not numbers:
        return 0, ""
    return numbers[-1], linecache.getline(file, numbers[-1]).strip()


def _same(path, file):
    return path.replace("\\", "/").rpartition("/")[2] == file.replace("\\", "/").rpartition("/")[2]


def _lines_like(function, reason):
    """Lines that call the function of the reason, or return a value."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return []
    called = re.match(CALLED, reason)
    wanted = called[1].removeprefix("the shape of ") if called else None
    for node in ast.walk(tree):
        if wanted and isinstance(node, ast.Call) and ast.unparse(node.func).endswith(wanted):
            return [first + node.lineno - 1]
        if "returns a value" in reason and isinstance(node, ast.Return) and node.value is not None:
            return [first + node.lineno - 1]
        if reason.startswith("try") and isinstance(node, ast.Try):
            return [first + node.lineno - 1]
    return []
