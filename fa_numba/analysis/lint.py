"""Hidden costs of a kernel, by line, and how to avoid them.

Each rule needs two facts. The types that Numba inferred tell where a cost may come from. The
compilers' code tells whether it is there, since much is optimised away. No rule guesses from the
source text.
"""

import functools
import html
import operator
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from numba import types

from fa_numba.analysis import probes
from fa_numba.analysis.machine_code import (
    assemble,
    compile_with_lines,
    compute_capability,
    source_line,
)

try:
    from numba.cuda.core import ir as numba_ir
except ImportError:  # no numba-cuda, and nothing to lint with
    numba_ir = None


@dataclass(frozen=True)
class Finding:
    """One fault on one line.

    Attributes
    ----------
    kind : str
        "negative index", "float64", "division", "signed division", "local memory" or "spill".
    line : int
    source : str
        Text of that line.
    cost : str
        The work that it causes.
    mend : str
    file : str
        File of the kernel, or of a device function that it calls.
    """

    kind: str
    line: int
    source: str
    cost: str
    mend: str
    file: str = field(repr=False)

    def __str__(self):
        name = Path(self.file).name
        return (
            f"{name}:{self.line}: {self.kind}\n    {self.source}\n"
            f"  costs  {self.cost}\n  mend   {self.mend}"
        )


class Findings(list):
    """A list of `Finding` that prints as a report, as a table in a notebook.

    Attributes
    ----------
    code : MachineCode
        Machine code of the kernel.
    gain : str
        The cost of all negative indices together; "" if there are none.
    """

    def __init__(self, findings, code, gain=""):
        super().__init__(findings)
        self.code, self.gain = code, gain

    def __str__(self):
        if not self:
            return "nothing found"
        return "\n\n".join([*map(str, self), *filter(None, [self.gain])])

    def _repr_html_(self):
        if not self:
            return "<p>nothing found</p>"
        left = "text-align: left"
        rows = "".join(
            f'<tr><td>{f.line}</td><td style="{left}">{f.kind}</td>'
            + f'<td style="{left}"><code>{html.escape(f.source)}</code></td>'
            + f'<td style="{left}">{html.escape(f.cost)}</td>'
            + f'<td style="{left}">{html.escape(f.mend)}</td></tr>'
            for f in self
        )
        heads = "".join(
            f'<th style="{left}">{name}</th>' for name in ("line", "", "source", "costs", "mend")
        )
        return (
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{html.escape(self.gain)}</p>"
        )


def lint(kernel, args, *, device=None):
    """The hidden costs of a kernel. Needs no GPU.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence of arrays, scalars or Numba types, or a signature
        Arguments of a launch; the findings depend on their types.
    device : str, Device or tuple, default=None
        As for `machine_code`.

    Returns
    -------
    Findings
        A list of `Finding`, by line.

    Raises
    ------
    CompilerMissingError
        NVVM, NVRTC, ptxas or nvdisasm is not installed.
    numba.core.errors.TypingError
        Numba cannot compile the kernel.

    Examples
    --------
    >>> print(lint(kernel, (x, y), device="T4"))    # doctest: +SKIP
    """
    cc = compute_capability(device)
    ptx, results = compile_with_lines(kernel, args, cc=cc)
    case = _Case(kernel, args, cc, ptx, [_Function(result) for result in results])
    rules = (_negative_indices, _float64, _divisions, _local_memory, _spills)
    findings = {f for rule in rules for f in rule(case)}
    gain = _gain(case.code, case.without_index_tests) if case.negative_indices else ""
    return Findings(sorted(findings, key=lambda f: (f.file, f.line, f.kind)), case.code, gain)


def float64_sources(kernel, args, *, cc=(8, 0)):
    """Where the float64 of a kernel comes from: the literals, arguments and calls, by line.

    Parameters
    ----------
    kernel, args
        As for `lint`.
    cc : tuple, default=(8, 0)

    Returns
    -------
    list of Finding
        Of the kernel and of the device functions that it calls. It needs no ptxas.
    """
    ptx, results = compile_with_lines(kernel, args, cc=cc)
    lines = _Lines(ptx, [_Function(result) for result in results])
    return sorted(set(_float64(lines)), key=lambda f: (f.file, f.line))


class _Lines:
    """A kernel before ptxas: its types, and its PTX by line."""

    def __init__(self, ptx, functions):
        self.functions = functions
        self.path_of = {Path(f.file).name: f.file for f in functions}
        self.ptx = _ptx_by_line(ptx, self.path_of)

    def count(self, where, pattern):
        """PTX instructions on a line that match."""
        return sum(bool(re.match(pattern, text)) for text in self.ptx.get(where, ()))

    def finding(self, kind, where, cost, mend):
        name, line = where
        path = self.path_of[name]
        return Finding(kind, line, source_line(path, line).strip(), cost, mend, path)


class _Case(_Lines):
    """A kernel under the lint: its types, its PTX by line, its machine code."""

    def __init__(self, kernel, args, cc, ptx, functions):
        super().__init__(ptx, functions)
        self.kernel, self.args, self.cc = kernel, args, cc
        self.code = assemble(kernel, ptx, cc)
        self.negative_indices, self.signed_divisions = probes.surviving_tests(kernel, args, cc)

    @functools.cached_property
    def without_index_tests(self):
        ptx = probes.compile_without_index_tests(self.kernel, self.args, self.cc)
        return assemble(self.kernel, ptx, self.cc)

    @functools.cached_property
    def used_divisions(self):
        return probes.surviving_divisions(self.kernel, self.args, self.cc)


class _Function:
    """Numba's view of one compiled function: statements, and the type of every variable."""

    def __init__(self, result):
        annotation = result.type_annotation
        self.python = annotation.func_id.func
        self.file = self.python.__code__.co_filename
        self.arg_types = result.signature.args
        self.types, self.calls = annotation.typemap, annotation.calltypes
        self.statements = [
            statement
            for _, block in sorted(annotation.blocks.items())
            for statement in block.body
            if not isinstance(statement, numba_ir.Del)
        ]
        self.definitions = {}  # variable -> all its assigned values
        for s in self.statements:
            if isinstance(s, numba_ir.Assign):
                self.definitions.setdefault(s.target.name, []).append(s.value)
        self.constants = self._only_from(self._is_constant)
        # Known once loops over constants are unrolled: such loops' variables, and sums of them.
        self.unrollable = self._only_from(self._is_unrollable)

    def where(self, statement):
        return Path(statement.loc.filename).name, statement.loc.line

    def name_of(self, variable):
        """The name of a function or type: "sqrt", "float32"."""
        for value in self.definitions.get(variable.name, ()):
            if isinstance(value, (numba_ir.Global, numba_ir.FreeVar)):
                return value.name
            if isinstance(value, numba_ir.Expr) and value.op == "getattr":
                return value.attr
            if isinstance(value, numba_ir.Var):
                return self.name_of(value)
        return variable.name

    def _is_constant(self, value):
        if not isinstance(value, numba_ir.Expr):
            return isinstance(value, _CONSTANT)
        if value.op == "call":
            return isinstance(self.types[value.func.name], types.NumberClass)
        return value.op in ("binop", "unary")

    def _is_unrollable(self, value):
        if not isinstance(value, numba_ir.Expr) or value.op == "call":
            is_call = isinstance(value, numba_ir.Expr)
            in_range = is_call and "range" in self.types[value.func.name].name
            return in_range or self._is_constant(value)
        return value.op not in ("getitem", "static_getitem", "getattr")

    def _only_from(self, accepted):
        """Variables whose definitions are all accepted and use only such variables."""
        good = set(self.definitions)
        changed = True
        while changed:
            changed = False
            for name, values in self.definitions.items():
                if name in good and not all(
                    (isinstance(v, numba_ir.Var) or accepted(v))
                    and all(o.name in good for o in _operands(v))
                    for v in values
                ):
                    good.discard(name)
                    changed = True
        return good


_CONSTANT = (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar) if numba_ir else ()


def _operands(value):
    """Variables that an expression computes with; not the function that it calls."""
    if isinstance(value, numba_ir.Var):
        return [value]
    if not isinstance(value, numba_ir.Expr):
        return []
    if value.op == "call":
        return [*value.args, *(v for _, v in value.kws)]
    return value.list_vars()


def _operator(value):
    """`operator.add` of both a + b and a += b."""
    return value.immutable_fn if value.op == "inplace_binop" else value.fn


def _ptx_by_line(ptx, path_of):
    """Instructions of the PTX by (file name, line), the innermost in a file of the kernel's."""
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx))
    lines, chain = {}, []
    location = re.compile(r"\.loc\s+(\d+)\s+(\d+)|inlined_at\s+(\d+)\s+(\d+)")
    previous_was_place = False
    for text in map(str.strip, ptx.splitlines()):
        if text.startswith(".loc"):
            # An inlined call in an inlined call is a list of locations, the innermost last.
            chain = chain if previous_was_place else []
            for file, line, at_file, at_line in reversed(location.findall(text)):
                name = Path(files.get(file or at_file, "")).name
                chain.append((name, int(line or at_line)))
            previous_was_place = True
        elif text and not text.startswith("//"):
            previous_was_place = False
            known = [where for where in chain if where[0] in path_of and where[1]]
            instruction = re.sub(r"^@!?%p\d+\s+", "", text)
            lines.setdefault(known[-1] if known else None, []).append(instruction)
    return lines


# --- Negative indices ---------------------------------------------------------------------------


def _negative_indices(case):
    if not case.negative_indices:
        return
    bare = case.without_index_tests
    by_line = {}
    for function in case.functions:
        for s in function.statements:
            for _, index in _accesses(s):
                named = [_expression(function, part) for part in _signed_parts(function, index)]
                by_line.setdefault(function.where(s), set()).update(named)
    for where in case.negative_indices:
        if where[0] not in case.path_of:
            continue  # in a function of Numba's own
        names = sorted(name for name in by_line.get(where, ()) if not name.startswith("$"))
        which = f" ({', '.join(names)})" if names else ""
        cost = (
            f"a signed index{which} could be negative, to count from the end: its sign is tested "
            "and the length added, and neighbouring loads no longer merge"
        )
        if where[0] == Path(case.code.file).name:
            now, then = (sum(c.lines.get(where[1], {}).values()) for c in (case.code, bare))
            if now > then:
                cost += f"; {now} instructions, {then} without the test"
        mend = f"uint64({names[0]})" if names else "uint64(row * stride + col)"
        yield case.finding(
            "negative index",
            where,
            cost,
            f"make the whole index unsigned where it is used: x[{mend}]; in x[row, col] every one",
        )


def _gain(code, bare):
    """The kernel without tests for negative indices."""
    wider = [
        f"{label} {code.counts[label]} → {bare.counts[label]}"
        for label in ("LDS.64", "LDS.128", "LDG.64", "LDG.128", "STS.64", "STS.128")
        if bare.counts[label] > code.counts[label]
    ]
    now, then = len(code.instructions), len(bare.instructions)
    return (
        f"{now} instructions; {then} without the tests for negative indices"
        + (" (loops unrolled further)" if then > now else "")
        + (f"; wider loads: {', '.join(wider)}" if wider else "")
    )


def _accesses(statement):
    """(array, index) variables of a load or store."""
    value = getattr(statement, "value", None)
    if isinstance(statement, numba_ir.SetItem):
        yield statement.target, statement.index
    elif isinstance(statement, numba_ir.StaticSetItem):
        yield statement.target, statement.index_var
    elif isinstance(value, numba_ir.Expr) and value.op == "getitem":
        yield value.value, value.index
    elif isinstance(value, numba_ir.Expr) and value.op == "static_getitem" and value.index_var:
        yield value.value, value.index_var


def _parts(function, index):
    """The variables of an index: of a tuple, its items."""
    for value in function.definitions.get(index.name, ()):
        if isinstance(value, numba_ir.Expr) and value.op == "build_tuple":
            return list(value.items)
    return [index]


def _signed_parts(function, index):
    for part in _parts(function, index):
        kind = function.types.get(part.name)
        if isinstance(kind, types.Integer) and kind.signed and part.name not in function.constants:
            yield part


def _expression(function, variable):
    """A variable's name in the source; for a temporary, the name of its origin."""
    name = variable.name
    if name.startswith("$"):
        for value in function.definitions.get(name, ()):
            if isinstance(value, numba_ir.Var):
                return _expression(function, value)
    return name.split(".")[0]


# --- float64 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Where a float64 comes from."""

    where: tuple
    what: str
    mend: str


def _float64(case):
    arrays = [t for t in case.functions[-1].arg_types if isinstance(t, types.Array)]
    if any(t.dtype == types.float64 for t in arrays):
        return  # asked for
    reached = {}  # source -> lines that compute in float64 because of it
    flow = _Flow({(f.python, f.arg_types): f for f in case.functions}, reached)
    flow.follow(case.functions[-1], None)
    explained = set()
    for where in {source.where for source in reached}:
        sources = [s for s in reached if s.where == where]
        lines = {line for s in sources for line in reached[s]}
        explained |= lines
        counts = {line: case.count(line, _FLOAT64) for line in lines}
        total = sum(counts.values())
        if not total:
            continue  # folded into a constant, or narrowed by the compiler
        numbers = sorted(line for (_, line), count in counts.items() if count)
        on = "line" if len(numbers) == 1 else "lines"
        what = " and ".join(sorted({s.what for s in sources}))
        yield case.finding(
            "float64",
            where,
            f"{what} makes {total} float64 instructions of PTX, on {on} "
            f"{', '.join(map(str, numbers))}; their rate is 1/2 of float32's on A100 and H100, "
            "1/32 to 1/64 on T4, L4 and GeForce",
            "; ".join(sorted({s.mend for s in sources})),
        )
    for function in case.functions:
        for s in function.statements:
            where = function.where(s)
            if where not in explained and _is_power_of_an_integer(function, s):
                explained.add(where)
                if total := case.count(where, _FLOAT64):
                    yield case.finding(
                        "float64",
                        where,
                        f"a power whose exponent is an integer makes {total} float64 instructions "
                        "of PTX: Numba computes it in float64, of float32 as well",
                        "make the exponent a float32, or multiply: x ** float32(n)",
                    )


_FLOAT64 = r"[^/]*\.f64\b"  # instructions of PTX


def _is_power_of_an_integer(function, s):
    value = getattr(s, "value", None)
    if not isinstance(value, numba_ir.Expr) or value.op not in ("binop", "inplace_binop"):
        return False
    exponent = function.types[value.rhs.name]
    return _operator(value) is operator.pow and isinstance(exponent, types.Integer)


def _is_float64(kind):
    if isinstance(kind, types.BaseTuple):
        return any(map(_is_float64, kind))
    return kind == types.float64 or (isinstance(kind, types.Array) and kind.dtype == types.float64)


class _Flow:
    """Follows float64 values from where they arise to the lines that compute with them."""

    def __init__(self, functions, reached):
        self.functions, self.reached = functions, reached
        self.active = []

    def follow(self, function, arg_sources):
        """Sources of what the function returns. `arg_sources` is None for a kernel."""
        if function in self.active:  # recursion
            return set()
        self.active.append(function)
        sources, returned = {}, set()
        for _ in range(10):  # a value goes round a loop; few rounds reach everything
            known = sum(map(len, sources.values()))
            for s in function.statements:
                self._statement(function, s, sources, arg_sources, returned)
            if sum(map(len, sources.values())) == known:
                break
        self.active.pop()
        return returned

    def _statement(self, function, s, sources, arg_sources, returned):
        def of(variables):
            return set().union(*(sources.get(v.name, ()) for v in variables))

        def reach(found):
            for source in found:
                self.reached.setdefault(source, set()).add(function.where(s))

        if isinstance(s, numba_ir.Return):
            returned |= of([s.value])
        elif isinstance(s, (numba_ir.SetItem, numba_ir.StaticSetItem)):
            if _is_float64(function.types[s.target.name]):
                sources.setdefault(s.target.name, set()).update(of([s.value]))
            elif s.value.name not in function.constants:
                reach(of([s.value]))
        elif isinstance(s, numba_ir.Assign):
            value, kind = s.value, function.types.get(s.target.name)
            incoming = of(_operands(value))
            if isinstance(value, numba_ir.Expr):
                incoming = self._expression(function, s, incoming, of, reach)
            elif not _is_float64(kind):
                return
            elif isinstance(value, numba_ir.Arg):
                of_kernel = arg_sources is None
                incoming = {_argument(function, value)} if of_kernel else arg_sources[value.index]
            elif isinstance(value, _CONSTANT):
                incoming = {_literal(function, s)}
            if _is_float64(kind):
                sources.setdefault(s.target.name, set()).update(incoming)

    def _expression(self, function, s, incoming, of, reach):
        value, kind = s.value, function.types.get(s.target.name)
        if value.op == "call":
            called = function.types[value.func.name]
            if isinstance(called, types.Dispatcher):
                arguments = function.calls[value].args
                callee = self.functions.get((called.dispatcher.py_func, tuple(arguments)))
                if callee:
                    return self.follow(callee, [of([v]) for v in value.args])
            converts = isinstance(called, types.NumberClass)
            if converts and all(v.name in function.constants for v in value.args):
                return {_computed(function, s)} if _is_float64(kind) else set()
        if value.op in ("cast", "build_tuple", "exhaust_iter", "static_getitem", "getitem"):
            return incoming
        if incoming:
            reach(incoming)
            return incoming
        if _is_float64(kind) and value.op in ("call", "binop", "inplace_binop", "unary"):
            found = {_computed(function, s)}
            reach(found)
            return found
        return set()


def _argument(function, arg):
    where = Path(function.file).name, function.statements[0].loc.line
    mend = f"pass np.float32({arg.name})"
    return _Source(where, f"the argument {arg.name}, a Python float,", mend)


def _literal(function, s):
    where, number = function.where(s), s.value.value
    if isinstance(s.value, numba_ir.Const):
        return _Source(where, f"the literal {number}", f"write float32({number})")
    name = s.value.name
    return _Source(where, f"{name}, a Python float,", f"make it {name} = np.float32({number})")


_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.pow: "**",
}  # fmt: skip


def _computed(function, s):
    value = s.value
    kinds = [function.types[v.name] for v in _operands(value)]
    # A literal's type is Literal[int](2); the type that it is computed in says more.
    names = [str(getattr(kind, "literal_type", kind)) for kind in kinds]
    if value.op == "call":
        name = function.name_of(value.func)
        if isinstance(function.types[s.target.name], types.Array):
            return _Source(function.where(s), "an array of float64", "give it float32")
        what = f"{name}({', '.join(names)})"
        return _Source(function.where(s), what, f"hand {name} a float32: {name}(float32(…))")
    sign = _SIGNS.get(_operator(value), "?")
    what = f" {sign} ".join(names)
    return _Source(
        function.where(s),
        f"{what}, which Numba computes in float64,",
        f"convert the integers first: float32(a) {sign} float32(b)",
    )


# --- Division -----------------------------------------------------------------------------------


def _divisions(case):
    for function in case.functions:
        for s in function.statements:
            where, value = function.where(s), getattr(s, "value", None)
            if where[0] not in case.path_of or not isinstance(value, numba_ir.Expr):
                continue
            if _is_range_with_step(function, value):
                yield case.finding(
                    "division",
                    where,
                    "range divides to count its iterations, as its step is known only at run time; "
                    + _division_cost(case, wide=True),
                    "make the step a constant, or count yourself: while i < stop: ...; i += step",
                )
                continue
            divisor = _divisor(function, value)
            if divisor is None:
                continue
            if divisor.name in function.constants:
                if where in case.signed_divisions:
                    yield case.finding(
                        "signed division",
                        where,
                        "// and % round down as in Python: after the division of a signed number "
                        "the remainder's sign is tested and the result corrected",
                        "by a power of two: i >> 5 is i // 32, and i & 31 is i % 32; by another "
                        "number, unsigned: uint32(i) // uint32(7)",
                    )
            elif where in case.used_divisions:
                name = _expression(function, divisor)
                wide = function.types[s.target.name].bitwidth == 64 if s.target else True
                yield case.finding(
                    "division",
                    where,
                    f"{'the divisor' if name.startswith('$') else name} is known only at run "
                    f"time; {_division_cost(case, wide)}",
                    "make the divisor a constant of the kernel (a closure variable); or divide "
                    "once, outside the loop; or keep quotient and remainder as running counters",
                )


def _division_cost(case, wide):
    routines = Counter(i.helper for i in case.code.instructions if i.helper)
    steps = [n for name, n in routines.items() if re.match(r"(div|rem)_[su]64", name)]
    if wide and steps:
        return (
            f"64-bit division is a routine of {max(steps)} instructions, some 20 where both "
            "numbers happen to fit 32 bits"
        )
    return "the hardware has no integer division: it is some 20 instructions"


def _is_range_with_step(function, value):
    if value.op != "call" or "range" not in function.name_of(value.func):
        return False
    return len(value.args) == 3 and value.args[2].name not in function.constants


def _divisor(function, value):
    """The divisor variable of an integer division, else None."""
    if value.op in ("binop", "inplace_binop"):
        if _operator(value) not in (operator.floordiv, operator.mod):
            return None
        divisor = value.rhs
    elif value.op == "call" and function.name_of(value.func) == "divmod":
        divisor = value.args[1]
    else:
        return None
    operands = [function.types[v.name] for v in _operands(value)]
    return divisor if all(isinstance(t, types.Integer) for t in operands) else None


# --- Local memory and spills --------------------------------------------------------------------

_LOCAL = r"(ld|st)\.local\b"
_LATENCY = "local memory is in HBM, hundreds of cycles away unless a cache has it"


def _local_memory(case):
    lines = {where for where in case.ptx if where and case.count(where, _LOCAL)}
    if not lines or not case.code.local_bytes:
        return
    explained, waiting = set(), {}
    for function in case.functions:
        arrays = _local_arrays(function)
        for s in function.statements:
            where = function.where(s)
            for array, index in _accesses(s):
                definition = arrays.get(array.name)
                if definition is None or where not in lines:
                    continue
                explained.add(where)
                if all(p.name in function.unrollable for p in _parts(function, index)):
                    waiting.setdefault(definition, array)
                else:
                    waiting[definition] = None  # the run-time index explains the others
                    name = next(
                        _expression(function, p)
                        for p in _parts(function, index)
                        if p.name not in function.unrollable
                    )
                    shown = "the index" if name.startswith("$") else f"the index {name}"
                    yield case.finding(
                        "local memory",
                        where,
                        f"{shown} is known only at run time, and registers have no address: the "
                        f"array is in local memory ({case.code.local_bytes} bytes per thread); "
                        + _LATENCY,
                        "index it by constants and by loops over constant ranges, which are "
                        "unrolled, or put it in shared memory",
                    )
    for definition, array in waiting.items():
        if array is not None:
            yield case.finding(
                "local memory",
                definition,
                f"a loop over {array.name.split('.')[0]} is not unrolled, so that the array "
                f"({case.code.local_bytes} bytes per thread) is in local memory; {_LATENCY}",
                "loop over a constant range of fewer than about 190 elements in all: a smaller "
                "array, or a smaller tile per thread",
            )
    for where in lines - explained:
        if not case.count(where, r"ld\.local\b"):
            continue  # an array set to zero where the function begins
        yield case.finding(
            "local memory",
            where,
            f"a function called here keeps numbers in local memory; {_LATENCY}",
            "float16 and bfloat16: compute in float32(x); sin, cos, tan: @cuda.jit(fastmath=True)",
        )


def _local_arrays(function):
    """Variables that are local arrays -> the line of their cuda.local.array."""
    arrays = {}
    for _ in range(3):  # copies of copies
        for s in function.statements:
            if not isinstance(s, numba_ir.Assign):
                continue
            value = s.value
            if isinstance(value, numba_ir.Var) and value.name in arrays:
                arrays[s.target.name] = arrays[value.name]
            elif isinstance(value, numba_ir.Expr):
                if value.op == "call" and "local.array" in str(function.types[value.func.name]):
                    arrays[s.target.name] = function.where(s)
                # A row of a local array.
                elif value.op in ("getitem", "static_getitem") and value.value.name in arrays:
                    if isinstance(function.types[s.target.name], types.Array):
                        arrays[s.target.name] = arrays[value.value.name]
    return arrays


def _spills(case):
    code = case.code
    if not code.spill_bytes:
        return
    name = Path(code.file).name
    moves = Counter(
        i.line
        for i in code.instructions
        if i.kind == "local" and i.line and not case.count((name, i.line), _LOCAL)
    )
    line = moves.most_common(1)[0][0] if moves else code.first_line
    yield case.finding(
        "spill",
        (name, line),
        f"more values live at once than the {code.registers} registers hold: "
        f"{code.spill_bytes} bytes of spill code, most of it on this line; {_LATENCY}",
        "fewer numbers per thread: a smaller tile or shorter local array; or a smaller "
        "launch_bounds, which leaves each thread more registers",
    )
