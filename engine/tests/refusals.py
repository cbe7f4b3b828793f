"""What foreign kernels use and the engine refuses: the README's table, made from these kernels.

    python tests/refusals.py          writes the table into README.md

Each kernel is what Numba compiles for a GPU. `test_readme.py` runs them all, and compares.
"""

import re
import types
from pathlib import Path

import numpy as np
from numba import cuda, float32
from numba.extending import overload
from sources import run_text

import numba_cuda_simulator as simt

README = Path(__file__).parents[1] / "README.md"
TABLE = re.compile(r"(?<=\n)\| a kernel uses \|.*?\n(?=\n)", re.S)
PAIR = np.dtype([("n", np.int32), ("x", np.float32)])


def undecorated(x):
    """A plain function, which Numba compiles by its overload alone."""


@overload(undecorated, target="cuda")
def undecorated_overload(x):
    return lambda x: x


WORLD = {"cuda": cuda, "np": np, "float32": float32, "PAIR": PAIR, "undecorated": undecorated}
run_text("@cuda.jit(device=True)\ndef some(a):\n    if cuda.grid(1): return a", WORLD)
WORLD["add_c"] = cuda.declare_device("add_c", "float64(float64)")
NUMBERS, DATES = np.arange(8.0), np.zeros(8, "datetime64[s]")
PAIRS, NAMES = np.zeros(8, PAIR), np.array(["a", "b"])
LOCAL, SHARED = " = cuda.local.array(2, np.float64)", " = cuda.shared.array(8, np.complex64)"
# What it is -> the statements of a kernel of x, and x.
REFUSED = {
    "a function or lambda defined in it": ("def f(a):\n        return a\n    x[0] = f(1)", NUMBERS),
    "a device function with a value for some threads alone": ("x[0] = some(x[0])", NUMBERS),
    "an extension of the compiler: `@overload`, `@intrinsic`": ("x[0] = undecorated(1)", NUMBERS),
    "a function of C++ or PTX (`cuda.declare_device`)": ("x[0] = add_c(1)", NUMBERS),
    "records in shared or local memory": ("s = cuda.shared.array(8, PAIR)", NUMBERS),
    "a part of an array of records": ("y = x[2:]", PAIRS),
    "dates and times": ("x[0] = x[1]", DATES),
    "strings and bytes": ("x[0] = x[1]", NAMES),
    "`x.view(dtype)` of an array": ("y = x.view(np.int64)", NUMBERS),
    "a slice whose length differs between threads": ("y = x[cuda.grid(1) :]", NUMBERS),
    "an array chosen by each thread": (f"a{LOCAL}\n    y = x if cuda.grid(1) else a", NUMBERS),
    "`.real` of a complex array in shared memory": (f"s{SHARED}\n    y = s.real", NUMBERS),
    "`isinstance`, `hasattr`": ("x[0] = isinstance(x[0], float)", NUMBERS),
    "numba-cuda-mlir's `struct`": ("s = Pair()", NUMBERS),
    "its `union`": ("u = Bits()", NUMBERS),
    "its `inline_ptx`": ("inline_ptx('nanosleep.u32 1;')", NUMBERS),
    "its `intrin`": ("x[0] = intrin.elect_sync()", NUMBERS),
    "its `tcgen05_descriptors`": ("x[0] = tcgen05_descriptors.build()", NUMBERS),
    "its `current_target_options`": ("x[0] = cuda.consteval(current_target_options())", NUMBERS),
}


# Stand-ins for what numba-cuda-mlir has: the engine knows them by their names.
EXPERIMENTAL = "numba_cuda_mlir.cuda.experimental"
for name, kind in {"Pair": "StructTypeWrapper", "Bits": "UnionTypeWrapper"}.items():
    WORLD[name] = type(kind, (), {"__module__": EXPERIMENTAL})()
for name in "intrin", "tcgen05_descriptors":
    WORLD[name] = types.ModuleType(f"{EXPERIMENTAL}.{name}")
WORLD["inline_ptx"] = types.FunctionType(
    undecorated.__code__, {"__name__": EXPERIMENTAL}, "inline_ptx"
)


def refusal(what):
    """Run a kernel; return the UnsupportedError that it raises, None without one."""
    body, x = REFUSED[what]
    kernel = run_text(f"@cuda.jit\ndef kernel(x):\n    {body}\n", dict(WORLD))["kernel"]
    try:
        simt.run(kernel, 1, 2, x.copy())
    except simt.errors.UnsupportedError as error:
        return error
    return None


def table():
    """Return the README's table."""
    lines = ["| a kernel uses | the engine says |", "|---|---|"]
    for what in REFUSED:
        error = refusal(what)
        lines.append(f"| {what} | {error.message}. {error.hint or ''}".rstrip() + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(TABLE.sub(lambda _: table(), text), encoding="utf-8")
