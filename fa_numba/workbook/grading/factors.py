"""Finds the factor that sets failing checks apart: a size, an option, a shape of thread blocks.

Each request of a check has traits, phrases such as "K is not a multiple of TILE"; a check has those
of all its requests. A trait is told that all failing checks have, and no passing one that compares
the same: so the sentence is true of the checks by construction.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
import types
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from fa_numba.workbook.graders.causes import diagnosing

SHAPE = re.compile(r"\b((?:\w+, )*\w+):?\s+(?:is )?\(([^()\n]*)\)")  # of a statement: x, y (n, d)
TILE = re.compile(r"B_|BLOCK|TILE|CHUNK|PAGE_SIZE|page_size|tile|chunk")
LIMITS = 16, 32, 64, 128, 256, 1024
EXP_OVERFLOWS = 88
LARGEST = 1 << 20  # elements of an array whose values are looked at
UNTILED = {"batch", "num_heads", "num_kv_heads", "heads"}  # axes that no kernel here cuts
MOST_TOLD = 3  # traits of one rank that come together
SUBJECT = -1  # the rank of a trait that says only what a check is about
PLAIN = range(4)  # ranks of traits that tell much; others need more checks to speak


@dataclass
class Evidence:
    """A check, for the comparison with others."""

    # Phrase -> rank: a lower one is a likelier reason
    traits: dict[str, int] = field(default_factory=dict)
    # The grader's functions that the check may call
    reached: list[str] = field(default_factory=list)
    raised_in: str = ""  # the one of them in which it failed


def only_where(failed: list[Evidence], passed: list[Evidence], number: int) -> str:
    """The likeliest trait of the failed checks that no comparable passed one has, in a sentence.

    The first failed check is the one that the report shows. If all have nothing in common, those
    that failed in the same function of the grader may. `number` counts all checks that fail, those
    among them that say little.
    """
    same = [e for e in failed if e.raised_in == failed[0].raised_in]
    for group in (failed, same):
        places = {e.raised_in for e in group} - {""}
        compared = [e for e in passed if places.intersection(e.reached)]
        found = {}  # phrase -> number of passed checks that have its subject, but not the trait
        for phrase, rank in group[0].traits.items():
            like = [e for e in compared if _subject(phrase, group[0]) in e.traits]
            enough = 2 if rank in PLAIN else 3
            if min(len(group), len(like)) < enough or len(group) + len(like) < 4 * enough - 2:
                continue
            if rank != SUBJECT and all(phrase in e.traits for e in group):
                if not any(phrase in e.traits for e in compared):
                    found[phrase] = len(like)
        if found:
            best = min(group[0].traits[p] for p in found)
            told = [p for p in found if group[0].traits[p] == best][:MOST_TOLD]
            phrase = " and ".join(told) if best == 0 else f"where {' and '.join(told)}"
            who = f"All {number} fail" if len(group) == number else f"{len(group)} of these fail"
            who = "Both fail" if len(group) == number == 2 else who
            return f"{who} only {phrase}; {min(found[p] for p in told)} checks like them pass."
    return ""


def _subject(phrase, evidence):
    """The trait that says which size, array or launch a phrase is about."""
    words = (f"#{word}" for word in re.findall(r"[A-Za-z_]\w*", phrase))
    return next((word for word in words if word in evidence.traits), "")


# --- traits


class Recorder:
    """Collects the traits of the check under way, for one answer."""

    def __init__(self, reference: str | None):
        self.tree = ast.parse(reference or "")
        self.axes = shapes_in(ast.get_docstring(self.tree) or "")
        self.constants = {}  # of a kernel, by its number: those that it was made with
        self.begin()

    def begin(self):
        self.traits = {}

    @functools.cached_property
    def parameters(self):
        """{function: names of its parameters}, None where two functions share a name."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                names = [a.arg for a in node.args.posonlyargs + node.args.args if a.arg != "self"]
                found[node.name] = None if node.name in found else names
        return found

    def call(self, name, args, kwargs, made=()):
        """A function of the answer's was called; `made` are the numbers of kernels it returned."""
        names = self.parameters.get(name)
        if names is None or diagnosing:
            return
        values = dict(zip(names, args, strict=False)) | kwargs
        for number in made:
            self.constants[number] = values
        if not made:
            self.traits |= traits_of(values, self.axes)

    def launch(self, number, names, grid, block, args):
        """A kernel was launched."""
        names = names or [f"argument {i}" for i in range(len(args))]
        values = self.constants.get(number, {}) | dict(zip(names, args, strict=False))
        grid, block = (x if isinstance(x, tuple | list) else (x,) for x in (grid, block))
        if diagnosing or not all(isinstance(n, int | np.integer) for n in (*grid, *block)):
            return  # of the latter the engine will say so
        sides = dict(zip("xyz", zip(grid, block, strict=False), strict=False))
        self.traits |= launch_traits(grid, block) | traits_of(values, self.axes, sides)


def shapes_in(statement: str) -> dict[str, list[str]]:
    """{array: names of its axes} of a statement, such as ``k, v (seqlen_k, HEAD_DIM)``."""
    found = {}
    for names, axes in SHAPE.findall(statement):
        axes = [axis.strip() for axis in axes.split(",") if axis.strip()]
        for name in names.split(", "):
            found.setdefault(name, axes)
    return found


def traits_of(values: dict, axes: dict[str, list[str]], sides: dict = {}) -> dict[str, int]:  # noqa: B006
    """The traits of one request: {phrase: rank}.

    Parameters
    ----------
    values : dict of str to object
        Arguments, and the constants that the kernel was made with.
    axes : dict of str to list of str
        As `shapes_in` finds them.
    sides : dict of str to (int, int)
        Of "x", "y", "z": the sides of the grid and of the thread block.
    """
    sizes, found = {}, {f"#{name}": SUBJECT for name in values}
    for name, value in values.items():
        if isinstance(value, bool | np.bool_):
            found[f"with {name}" if value else f"without {name}"] = 0
        elif isinstance(value, int | np.integer):
            sizes[name] = int(value)
        elif isinstance(value, float | np.floating):
            if value <= 0:
                found[f"{name} is {'0' if value == 0 else 'negative'}"] = 6
        elif isinstance(value, np.ndarray):
            sizes |= _axes(name, value, axes, sizes)
            found |= _values(name, value)
        elif isinstance(value, list | tuple | dict | set) and len(value) < 2:
            found[f"{name} is {'empty' if not value else 'of one item'}"] = 4
    tiles = {n: v for n, v in sizes.items() if TILE.match(n) and v > 1}
    for name, size in sizes.items():
        found[f"#{name}"] = SUBJECT
        found |= _of_a_size(name, size)
        if name not in tiles and name not in UNTILED:
            covered = {
                f"blockDim.{axis}": block
                for axis, (grid, block) in sides.items()
                if block > 1 and grid == -(-size // block)
            }
            found |= _in_tiles(name, [size], tiles, 1 if name.isidentifier() else 6)
            found |= _in_tiles(name, [size], covered, 3)
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
            found |= _in_tiles(f"an element of {name}", value.tolist()[:100], tiles, 1)
    for one, other in combinations(sizes, 2):
        if sizes[one] != sizes[other] and _are_alike(one, other):
            found[f"{one} is not {other}"] = 5
            more = sizes[one] > sizes[other]
            found[f"{one} is {'more' if more else 'less'} than {other}"] = 5
    return found


def _axes(name, array, axes, known):
    """{axis: its length}; an axis is called by the statement's word where that is clear."""
    words = axes.get(name, [])
    if len(words) != array.ndim:
        words = [""] * array.ndim
    found = {}
    for i, (word, length) in enumerate(zip(words, array.shape, strict=True)):
        clear = word.isidentifier() and (known | found).get(word, length) == length
        found[word if clear else f"{name}.shape[{i}]" if array.ndim > 1 else f"len({name})"] = (
            length
        )
    return found


def _values(name, array):
    if array.dtype.kind != "f" or not 0 < array.size <= LARGEST:
        return {}
    found = {}
    if not array.flags.c_contiguous:
        found[f"{name} is not contiguous"] = 7
    if np.isneginf(array).any():
        found[f"{name} holds -inf"] = 7
    finite = np.abs(array[np.isfinite(array)])
    if array.max() < 0:
        found[f"{name} has only negative numbers"] = 5
    if (finite > EXP_OVERFLOWS).any():
        found[f"{name} holds numbers beyond ±{EXP_OVERFLOWS}"] = 7
    return found


def _in_tiles(name, sizes, tiles, rank):
    """How sizes fit into tiles."""
    found = {}
    for tile, length in tiles.items():
        for phrase, holds, less_likely in (
            ("not a multiple of", any(size % length for size in sizes), 0),
            ("more than", any(size > length for size in sizes), 1),
            ("less than", any(size < length for size in sizes), 1),
        ):
            if holds:
                found[f"{name} is {phrase} {tile}"] = rank + less_likely
    return found


def _are_alike(one, other):
    """Whether two sizes are worth a comparison: seqlen_q and seqlen_k, M and N."""
    shared = set(one.split("_")) & set(other.split("_")) - {"num"}
    both = {one.removeprefix("num_"), other.removeprefix("num_")}
    return bool(shared) or both == {"rows", "cols"} or len(one) == len(other) == 1


def _of_a_size(name, size):
    found = {}
    found[f"{name} is {size}" if size in (0, 1) else f"{name} is more than 1"] = 4
    if size % 2:
        found[f"{name} is odd"] = 6
    if size & (size - 1):
        found[f"{name} is no power of two"] = 6
    found |= {f"{name} is more than {limit}": 6 for limit in LIMITS if size > limit}
    return found


def launch_traits(grid, block) -> dict[str, int]:
    """Traits of the sides of a grid and of a thread block."""
    found = {f"#{word}": SUBJECT for word in ("grid", "block", "gridDim", "blockDim")}
    threads = math.prod(block)
    if threads > 32:
        found["a thread block has more than one warp"] = 3
    if threads % 32:
        found["the last warp of a thread block is not full"] = 6
    if math.prod(grid) > 1:
        found["the grid has more than one thread block"] = 3
    for name, sides in (("gridDim", grid), ("blockDim", block)):
        if len(sides) > 1:
            found |= {f"{name}.{a} is more than 1": 5 for a, n in zip("xyz", sides) if n > 1}  # noqa: B905
    return found


# --- the functions of a grader


def _is_grader(code) -> bool:
    path = Path(code.co_filename)
    return path.name.startswith("test_ex") or path.parent.name == "graders"


def _name(code) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname.split('.<locals>')[0]}"


def raised_in(traceback) -> str:
    """The innermost function of the grader in a traceback."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if _is_grader(code):
            found = _name(code)
        traceback = traceback.tb_next
    return found


@functools.cache
def reached(function) -> frozenset[str]:
    """The grader's functions that a check may call, by the names in the code."""
    found, left = set(), [function]
    while left:
        value = left.pop()
        if isinstance(value, type):
            left += [x for x in vars(value).values() if isinstance(x, types.FunctionType)]
        value = inspect.unwrap(value) if callable(value) else value
        code = value.__code__ if isinstance(value, types.FunctionType) else None
        if code is None or not _is_grader(code) or _name(code) in found:
            continue
        found.add(_name(code))
        for name in _names(code):
            known = value.__globals__.get(name)
            left.append(known)
            if isinstance(known, types.ModuleType) and "graders" in known.__name__:
                left += [vars(known).get(n) for n in _names(code)]
    return frozenset(found)


def _names(code):
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
