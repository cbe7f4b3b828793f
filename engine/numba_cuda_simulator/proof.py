"""A proof for all sizes: no race, no index out of bounds, no barrier that some threads miss.

A test runs a few sizes; this asks about all of them. `walk` goes through a kernel with symbols for
threads, blocks, loops and sizes, and collects accesses. Z3 then decides three questions:

    bounds      is there a size and a thread whose index lies outside?
    barriers    are there two threads of a block, one that arrives and one that does not?
    races       are there two threads, of a block or of two, that touch one element, one of them
                storing, with no barrier between?

Barriers that all threads of a block meet cut its run into phases. Two accesses are in one phase if
no barrier lies between them in the text; in a loop with a barrier, also if the one is behind the
last barrier of an iteration and the other before the first of the next. Nothing orders blocks.

If the answers are no, the kernel is proven. Where one is yes, Z3 names sizes, small ones first, and
the kernel runs there on the engine: only what the engine then reports is shown. If it reports
nothing, the kernel is undecided, for example as an index depends on data. "Proven" errs on no side:
what the walk cannot follow is a free variable, or a refusal.

Assumed: arrays do not overlap, sizes fit into 31 bits. Not asked: values, rounding, reads of memory
that nothing has written, warp intrinsics. Not followed: slices, whole arrays, fences, locks,
barriers of the grid, dynamic shared memory, products of two numbers that differ between threads.
"""

import ast
import importlib.util
from dataclasses import dataclass, field

from .errors import KernelError, UnsupportedError
from .names import check_kernel


@dataclass
class Verdict:
    """What `prove` found; true if the kernel is proven.

    Attributes
    ----------
    kernel : str
    status : str
        "proven", "refuted" or "undecided".
    grid, block, sizes
        Of the launches that it is about; of a refuted kernel, of the one that the engine has run.
    error : KernelError or None
        What the engine reports there, with lines and threads.
    reason : str
        Why it is undecided.
    questions : int
        How many were asked.
    """

    kernel: str
    status: str
    grid: tuple | None = None
    block: tuple = ()
    sizes: dict = field(default_factory=dict)
    error: KernelError | None = None
    reason: str = ""
    questions: int = 0

    def __bool__(self):
        return self.status == "proven"

    @property
    def launch(self):
        """The launches that it is about, in words."""
        grid = "any grid" if self.grid is None else f"grid {short(self.grid)}"
        named = ", ".join(n if v is None else f"{n} = {v}" for n, v in self.sizes.items())
        named = f"all {named}; " if named and self.status == "proven" else named and f"{named}, "
        return f"{named}{grid}, block {short(self.block)}"

    def __str__(self):
        if self.status == "proven":
            return (
                f"{self.kernel}: proven for {self.launch}. No race, no index out of bounds, and "
                "every barrier is met by all threads of its block."
            )
        if self.status == "refuted":
            found = f"{type(self.error).__name__}: {self.error}"
            return f"{self.kernel}: refuted by a launch with {self.launch}.\n{found}"
        return f"{self.kernel}: undecided. {self.reason}"


def prove(kernel, grid, block, *arguments, where=()):
    """Ask whether a kernel is free of races and wrong indices at every size.

    Parameters
    ----------
    kernel : function decorated with @cuda.jit
    grid : str, int, tuple of these, or None
        A text has names of sizes: "-(-N // 8), M". None: any grid along the axes that it uses.
    block : str, int or tuple of these
    *arguments : str, number or None
        "float32[M, N]" for an array, "N" or "N // 2" for an integer, a number as it is, None for an
        array of any shape or any integer. None at all: each of them is None.
    where : str or tuple of str, default=()
        Facts of the sizes, such as "N % 32 == 0".

    Returns
    -------
    Verdict
        Proven, refuted by a launch that the engine has run, or undecided with a reason: without
        the package z3-solver always undecided.

    Examples
    --------
    >>> print(simt.prove(add, "-(-n // 128)", 128, "float32[n]", "float32[n]", "float32[n]"))
    """
    function = check_kernel(kernel)
    name, names = function.__name__, function.__code__.co_varnames[: function.__code__.co_argcount]
    arguments = arguments or (None,) * len(names)
    if len(arguments) != len(names):
        raise ValueError(
            f"{name}({', '.join(names)}) takes {len(names)} arguments, got {len(arguments)}"
        )
    grid, block = parts(grid, "grid"), parts(block, "block")
    where = (where,) if isinstance(where, str) else where
    if importlib.util.find_spec("z3") is None:
        return Verdict(name, "undecided", reason="Z3 is not installed: pip install z3-solver")
    from .questions import Questions
    from .walk import Again, Walk

    unroll = set()
    while True:
        try:
            walk = Walk(function, grid, block, arguments, where, unroll)
        except Again:
            continue
        except UnsupportedError as error:
            return Verdict(name, "undecided", reason=str(error))
        sizes = {n: None for n in walk.integers.sizes if not n.startswith("gridDim")}
        verdict = Verdict(name, "proven", grid, block, sizes)
        return Questions(kernel, walk, arguments).verdict(verdict)


def short(sizes):
    """Return sizes of three axes as they are written: 8, or (8, 4)."""
    sizes = list(sizes)
    while len(sizes) > 1 and sizes[-1] in (1, "1"):
        sizes.pop()
    return str(sizes[0]) if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"


def parts(sizes, what):
    """Return a grid or a block as a list of texts and ints."""
    if isinstance(sizes, str):
        try:
            return [ast.unparse(x) for x in ast.parse(f"({sizes},)", mode="eval").body.elts]
        except SyntaxError:
            raise ValueError(f"{what} must be sizes as 'n // 8, m', got {sizes!r}") from None
    return sizes if sizes is None else list(sizes) if isinstance(sizes, (tuple, list)) else [sizes]
