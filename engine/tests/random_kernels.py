"""Random kernels on integers: control flow, barriers, shared memory, shuffles, votes, atomics.

Every program is free of races and ends: threads exchange values only in the forms written below,
which end with the barriers they need. Without one of those barriers most of them do race.
"""

import math
import random
from dataclasses import dataclass

import numpy as np
from numba import cuda
from sources import run_text

VARIABLES = "abc"
NUM_INPUTS = 50
BLOCKS = (32, 64, (8, 8), (4, 4, 2), 20, 48, (7, 3))


@dataclass(frozen=True)
class Program:
    seed: int
    source: str
    grid: int
    block: int | tuple
    dtypes: tuple  # of x and of the shared cells

    @property
    def num_threads(self):
        return math.prod(np.atleast_1d(self.block).tolist())

    def kernel(self, source=None):
        """Compile the program, or a changed `source` of it, into a kernel."""
        return run_text(source or self.source, {"cuda": cuda})["kernel"]

    def arguments(self):
        rng = np.random.default_rng(self.seed)
        num_threads = self.grid * self.num_threads
        x = rng.integers(0, 100, NUM_INPUTS).astype(self.dtypes[0])
        out = np.zeros((num_threads, 3), np.int64)
        return x, out, np.zeros((4, 8), np.int64), np.zeros(num_threads, np.int64)

    def barriers(self):
        """Numbers, from 1, of the lines that hold a syncthreads or syncwarp."""
        lines = enumerate(self.source.splitlines(), 1)
        return [n for n, line in lines if line.strip() in ("cuda.syncthreads()", "cuda.syncwarp()")]

    def without_line(self, number):
        lines = self.source.splitlines(True)
        indent = lines[number - 1][: -len(lines[number - 1].lstrip())]
        lines[number - 1] = indent + "pass\n"
        return "".join(lines)


def random_program(seed):
    r = random.Random(seed)
    block = r.choice(BLOCKS)
    # Signed, and wide enough for abs(): there Numba's result does not depend on what it infers.
    dtypes = tuple(r.choice(["int16", "int32", "int64"]) for _ in range(2))
    program = Program(seed, "", r.randint(1, 3), block, dtypes)
    source = _Writer(r, program.num_threads, dtypes[1]).write()
    return Program(seed, source, program.grid, block, dtypes)


class _Writer:
    """Writes one program; `depth` counts nested blocks and bounds them."""

    def __init__(self, r, num_threads, cell_dtype):
        self.r, self.n, self.cell_dtype = r, num_threads, cell_dtype
        self.lines, self.in_device_function = [], False
        self.all_threads_here = True  # no thread may have returned: shuffles are defined

    def write(self):
        r, n = self.r, self.n
        self.in_device_function = True
        self.put(0, "@cuda.jit(device=True)", "def helper(a, b, x):")
        self.put(1, "c = a - b", "i = b")
        self.statements(1, in_loop=False, depth=2, most=3)
        self.put(1, "return (a + b + c) % 1000")
        self.in_device_function = False
        self.put(0, "@cuda.jit", "def kernel(x, out, sums, scratch):")
        self.put(1, f"cells = cuda.shared.array({n}, np.{self.cell_dtype})")
        self.put(1, "private = cuda.local.array(4, np.int64)")
        self.put(1, "ti = cuda.threadIdx", "bd = cuda.blockDim", "block = cuda.blockIdx.x")
        self.put(1, "t = (ti.z * bd.y + ti.y) * bd.x + ti.x", f"i = block * {n} + t")
        self.put(1, "a = i", "b = i * 3 % 11", "c = 5")
        self.put(1, "for j in range(4):", "    private[j] = i * j")
        self.put(1, "cells[t] = i % 100", "cuda.syncthreads()")
        for _ in range(r.randint(2, 5)):
            self.phase(1, depth=0)
        self.statements(1, in_loop=False, depth=0, most=4)
        self.put(1, "out[i, 0] += a", "out[i, 1] += b + private[c % 4]", "out[i, 2] += c")
        return "import numpy as np\n" + "\n".join(self.lines) + "\n"

    def put(self, indent, *lines):
        self.lines += ["    " * indent + line for line in lines]

    # what all threads of a block (or warp) do together

    def phase(self, indent, depth):
        r = self.r
        kinds = ["statements", "exchange", "exchange", "block_vote", "global_exchange", "return"]
        kinds += ["histogram"] if self.cell_dtype != "int16" else []  # no atomics on 16 bits
        kinds += ["uniform_if", "uniform_for", "uniform_while"] if depth < 2 else []
        kinds += ["warp_exchange", "shuffle", "vote"] if self.n % 32 == 0 else []
        kind = r.choice(kinds)
        if kind == "statements":
            self.statements(indent, in_loop=False, depth=1, most=3)
        elif kind == "exchange":
            self.exchange(indent, "cells", self.permutation())
        elif kind == "global_exchange":
            self.exchange(indent, "scratch", self.permutation())
        elif kind == "warp_exchange":
            self.warp_exchange(indent)
        elif kind == "block_vote":
            vote = f"cuda.syncthreads_{r.choice(['count', 'and', 'or'])}"
            self.put(indent, f"{self.variable()} = {vote}(1 if {self.condition()} else 0)")
        elif kind == "histogram":
            self.histogram(indent)
        elif kind == "vote":
            self.vote(indent)
        elif kind == "shuffle":
            self.shuffle(indent)
        elif kind == "return" and indent == 1:
            self.put(indent, f"if {self.condition()}:", "    return")
            self.all_threads_here = False
        elif kind == "uniform_if":
            self.put(indent, f"if block % 2 == {r.randint(0, 1)}:")
            self.phases(indent + 1, depth)
            if r.random() < 0.4:
                self.put(indent, "else:")
                self.phases(indent + 1, depth)
        elif kind == "uniform_for":
            counter = f"n{depth}"
            self.put(indent, f"for {counter} in range({r.choice(['2', 'block + 1', 'block, 3'])}):")
            self.phases(indent + 1, depth)
            self.put(indent + 1, f"a += {counter}")
            if r.random() < 0.3:
                self.put(indent + 1, f"if {counter} == block:", "    break")
        elif kind == "uniform_while":
            counter = f"m{depth}"
            self.put(indent, f"{counter} = 0", f"while {counter} < {r.choice(['2', 'block + 1'])}:")
            self.put(indent + 1, f"{counter} += 1")
            self.phases(indent + 1, depth)

    def phases(self, indent, depth):
        self.put(indent, "pass")
        for _ in range(self.r.randint(1, 2)):
            self.phase(indent, depth + 1)

    def permutation(self):
        """A place of its own for every thread of the block."""
        n = self.n
        factors = [f for f in (3, 5, 7, 11) if math.gcd(f, n) == 1]
        shifted = f"(t * {self.r.choice(factors)} + {self.r.randint(0, 9)}) % {n}"
        return self.r.choice(["t", f"{n - 1} - t", f"(t + {self.r.randint(1, 9)}) % {n}", shifted])

    def exchange(self, indent, array, place):
        """Everybody (or some) writes a place of its own; barrier; anybody reads; barrier."""
        r = self.r
        base = f"block * {self.n} + " if array == "scratch" else ""
        store = f"{array}[{base}{place}] {r.choice(['=', '=', '+='])} {self.expression()} % 120"
        if r.random() < 0.4:
            self.put(indent, f"if {self.condition()}:", "    " + store)
        else:
            self.put(indent, store)
        self.put(indent, "cuda.syncthreads()")
        for _ in range(r.randint(1, 2)):
            self.load(indent, f"{array}[{base}({self.expression()}) % {self.n}]")
        self.put(indent, "cuda.syncthreads()")

    def load(self, indent, load):
        if self.r.random() < 0.25:
            self.put(indent, f"if {self.condition()}:", f"    {self.variable()} = {load}")
        else:
            self.put(indent, f"{self.variable()} = {load}")

    def warp_exchange(self, indent):
        """The same within each warp, by syncwarp alone; sometimes one warp stays out."""
        r = self.r
        if r.random() < 0.3:
            self.put(indent, f"if t // 32 == {r.randint(0, 1)}:")
            inner = indent + 1
        else:
            inner = indent
        self.put(inner, f"cells[t - t % 32 + (t + {r.randint(0, 9)}) % 32] = {self.expression()}")
        self.put(inner, "cuda.syncwarp()")
        self.load(inner, f"cells[t - t % 32 + ({self.expression()}) % 32]")
        self.put(indent, "cuda.syncthreads()")

    def histogram(self, indent):
        """Shared atomics between barriers, unless the threads that clear or count are gone."""
        op = self.r.choice(["add", "max", "min", "xor", "or_", "and_"])
        self.put(indent, f"cells[t] = {self.r.randint(0, 9)}", "cuda.syncthreads()")
        bins = self.r.randint(1, self.n)
        atomic = f"cuda.atomic.{op}(cells, ({self.expression()}) % {bins}, {self.positive(50)})"
        self.put(indent, f"if {self.condition()}:", "    " + atomic, "cuda.syncthreads()")
        self.load(indent, f"cells[({self.expression()}) % {self.n}]")
        self.put(indent, "cuda.syncthreads()")

    def shuffle(self, indent):
        r = self.r
        if not self.all_threads_here:
            return
        amount = r.choice([str(r.randint(0, 31)), self.positive(32)])
        kind = r.choice(["shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"])
        value = f"cuda.{kind}(0xFFFFFFFF, {self.expression()} % 1000, {amount})"
        if r.random() < 0.3:
            self.put(
                indent, f"if t // 32 == {r.randint(0, 1)}:", f"    {self.variable()} = {value}"
            )
        else:
            self.put(indent, f"{self.variable()} = {value}")

    def vote(self, indent):
        r = self.r
        kind = r.choice(["popc(cuda.ballot_sync", "any_sync", "all_sync"])
        vote = f"cuda.{kind}(0xFFFFFFFF, {self.condition()})"
        if kind.startswith("popc"):
            self.put(indent, f"{self.variable()} += {vote})")
        else:
            self.put(indent, f"if {vote}:", f"    {self.variable()} += 7")

    # what a thread does alone

    def statements(self, indent, in_loop, depth, most):
        for _ in range(self.r.randint(1, most)):
            if not self.statement(indent, in_loop, depth):
                return

    def statement(self, indent, in_loop, depth):
        """One statement; False if nothing may follow it."""
        r, choice = self.r, self.r.random()
        if depth > 3 or choice < 0.36:
            self.put(indent, f"{self.variable()} = ({self.expression()}) % 1000")
        elif choice < 0.42:
            pair = f"({self.expression()}) % 97, ({self.expression()}) % 89"
            names = r.sample(VARIABLES, 2)  # not one twice: Python 3.11.2 keeps the first value
            self.put(indent, f"{', '.join(names)} = {pair}")
        elif choice < 0.48:
            self.put(
                indent, f"{self.variable()} {r.choice(['+=', '-=', '^='])} {self.positive(50)}"
            )
        elif choice < 0.60 and not self.in_device_function:
            self.put(indent, self.effect())
        elif choice < 0.74:
            self.branch(indent, in_loop, depth)
        elif choice < 0.83:
            bounds = r.choice(["3", "a % 4", "i % 3, 4", "1, b % 6, 2", "c % 3, -2, -1"])
            self.put(indent, f"for k{depth} in range({bounds}):")
            self.statements(indent + 1, True, depth + 1, most=3)
            if r.random() < 0.5:
                self.put(indent + 1, f"a += k{depth}")
            self.loop_else(indent, in_loop, depth)
        elif choice < 0.90:
            test = f"w{depth} < {r.choice(['4', 'b % 5'])}"
            if r.random() < 0.5:
                test += f" {r.choice(['and', 'and not'])} ({self.condition()})"
            self.put(indent, f"w{depth} = 0", f"while {test}:", f"    w{depth} += 1")
            self.statements(indent + 1, True, depth + 1, most=3)
            self.loop_else(indent, in_loop, depth)
        elif choice < 0.95 and in_loop:
            self.put(indent, f"if {self.condition()}:", f"    {r.choice(['break', 'continue'])}")
        elif choice < 0.96 and in_loop:
            self.put(indent, r.choice(["break", "continue"]))
            return False
        elif choice < 0.98 and self.in_device_function:
            self.put(indent, f"if {self.condition()}:", f"    return {self.expression()}")
        else:
            self.put(indent, f"{self.variable()} = ({self.expression()}) % 500")
        return True

    def loop_else(self, indent, in_loop, depth):
        if self.r.random() < 0.3:
            self.put(indent, "else:")
            self.statements(indent + 1, in_loop, depth + 1, most=2)

    def branch(self, indent, in_loop, depth):
        r = self.r
        self.put(indent, f"if {self.condition()}:")
        self.statements(indent + 1, in_loop, depth + 1, most=3)
        if r.random() < 0.4:
            self.put(indent, f"elif {self.condition()}:")
            self.statements(indent + 1, in_loop, depth + 1, most=2)
        if r.random() < 0.5:
            self.put(indent, "else:")
            self.statements(indent + 1, in_loop, depth + 1, most=3)

    def effect(self):
        r = self.r
        op = r.choice(["add", "max", "xor", "or_"])
        row = ["add", "max", "xor", "or_"].index(op)
        atomic = f"cuda.atomic.{op}(sums, ({row}, ({self.expression()}) % 8), {self.positive(60)})"
        own = f"out[i, ({self.expression()}) % 3] {r.choice(['=', '+=', '-='])} {self.expression()}"
        private = f"private[({self.expression()}) % 4] {r.choice(['=', '+='])} {self.positive(90)}"
        return r.choice([atomic, own, private])

    # expressions

    def variable(self):
        return self.r.choice(VARIABLES)

    def positive(self, bound):
        return f"({self.expression()}) % {bound}"

    def expression(self, depth=0):
        r, choice = self.r, self.r.random()
        if depth > 2 or choice < 0.35:
            return r.choice([*VARIABLES, "i", str(r.randint(-3, 9))])
        a, b = self.expression(depth + 1), self.expression(depth + 1)
        if choice < 0.68:
            return f"({a} {r.choice('+-*')} {b})"
        if choice < 0.73:
            return f"({a} {r.choice('&|^')} {b})"
        if choice < 0.77:
            return f"({a} >> {r.randint(0, 5)})"
        if choice < 0.81:
            return f"({a} {r.choice(['%', '//'])} {r.choice([-3, 2, 5, 7])})"
        if choice < 0.84:
            return f"{r.choice(['min', 'max'])}({a}, {b})"
        if choice < 0.87:
            return f"abs({a})"
        if choice < 0.91:
            return f"({a} if {self.condition(depth + 1)} else {b})"
        if choice < 0.95 or self.in_device_function:
            return f"x[({a}) % {NUM_INPUTS}]"
        if choice < 0.97:
            return f"private[({a}) % 4]"
        return f"helper({a}, {b}, x)"

    def condition(self, depth=0):
        r, choice = self.r, self.r.random()
        if depth > 2 or choice < 0.6:
            comparison = r.choice(["<", ">", "==", "!=", "<=", ">="])
            return f"{self.expression(depth + 1)} {comparison} {self.expression(depth + 1)}"
        if choice < 0.75:
            connective = r.choice(["and", "or"])
            return f"({self.condition(depth + 1)} {connective} {self.condition(depth + 1)})"
        if choice < 0.85:
            return f"not ({self.condition(depth + 1)})"
        return f"-4 < {self.expression(depth + 1)} <= {r.randint(0, 9)}"
