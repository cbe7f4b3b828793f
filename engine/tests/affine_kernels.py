"""Random kernels whose indices are mostly linear: guards, loops, barriers, races, wrong indices."""

import random

from numba import cuda, int64
from sources import run_text

THREADS = 4
SHAPES = "8", "n", "n + 4", "4 * g", "2 * n + m", "4 * g + n", "64"
CELLS = {"s": "12", "out": "out.shape[0]", "x": "x.shape[0]"}  # arrays, and how long they are
OWN = {"s": ["t", "t", "t + 4", "2 * t + 4"], "out": ["4 * w + t"], "x": ["4 * w + t"]}
USUAL = ["t", "4 * w + t", "t + 4", "3 - t", "t % 2", "t ^ 1"]


class Writer:
    """Writes one kernel; names of variables: i, j (the same in all threads) and v."""

    def __init__(self, seed):
        self.random, self.lines, self.depth, self.count = random.Random(seed), [], 1, 0
        self.polite = self.chance(0.75)  # threads store into elements of their own

    def chance(self, p):
        return self.random.random() < p

    def pick(self, *choices):
        return self.random.choice(choices)

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def term(self, names):
        name = self.pick(*names)
        forms = ["{}"] * 8 + ["{} // 2", "{} // 3", "{} % 2", "{} % 4", "2 * {}", "4 * {}", "-{}"]
        return self.pick(*forms).format(name)

    def index(self, names):
        if self.chance(0.45):
            return self.pick(*USUAL, *names)
        parts = [self.term(names) for _ in range(self.pick(1, 2))]
        parts += [str(self.pick(0, 1, 2, 3))] * self.chance(0.4)
        return f"min({' + '.join(parts)}, 7)" if self.chance(0.08) else " + ".join(parts)

    def condition(self, names, uniform):
        if uniform:
            names = [n for n in names if n[0] not in "tiv"]
        elif self.chance(0.1):
            return self.pick("x[0] > 1", "0 < x[t % x.shape[0]] < 3")
        relation = self.pick("<", "<", "<=", "==", ">", "!=")
        text = f"{self.term(names)} {relation} {self.pick('n', 'm', 1, 2, 3)}"
        more = f" {self.pick('and', 'or')} {self.term(names)} < {self.pick('n', 2)}"
        return text + more * self.chance(0.2)

    def inside(self, head, names, uniform, left, loop):
        self.line(head)
        self.depth += 1
        self.line("pass")
        names = list(names)
        for _ in range(self.pick(1, 2, 3)):
            self.statement(names, uniform, left - 1, loop)
        self.depth -= 1

    def statement(self, names, uniform, left, loop):
        self.count += 1
        kind = self.pick(*["access"] * 6, *["barrier"] * 3, *["branch"] * 3, *["loop"] * 4, "name")
        if self.count > 16 or kind == "access" or (left == 0 and kind in ("branch", "loop")):
            self.access(names)
        elif kind == "barrier":
            self.line("cuda.syncthreads()" if uniform or self.chance(0.06) else "cuda.syncwarp()")
        elif kind == "branch":
            same = uniform and self.chance(0.5)
            self.inside(f"if {self.condition(names, same)}:", names, same, left, loop)
            leave = (["break", "continue"] if loop else []) + ["return"]
            if self.chance(0.2):
                self.line("    " + self.pick(*leave))
            if self.chance(0.3):
                self.inside("else:", names, same, left, loop)
        elif kind == "loop":
            self.loop(names, uniform, left)
        else:
            name = self.pick("v0", "v1")
            adds = f"{name} {self.pick('+=', '-=')} {self.pick(1, 't', 'n')}"
            self.line(self.pick(adds, f"{name} = {self.index(names)}"))
            names.append(name)

    def access(self, names):
        array = self.pick("s", "s", "out", "x")
        more = ["load", "store"] * 3 * (array != "x") + ["+=", "add"] * (array != "x")
        action = self.pick("load", "store", *more)
        index = self.index(names)
        if self.polite and action in ("store", "+="):
            index = self.pick(*OWN[array])
        value = f"{100 * self.count} + 10 * t + w"
        texts = {"load": f"d = {array}[{index}]", "store": f"{array}[{index}] = {value}"}
        texts |= {
            "+=": f"{array}[{index}] += 1 + t",
            "add": f"cuda.atomic.add({array}, {index}, 1)",
        }
        guard = f"if 0 <= {index} < {CELLS[array]}: " * self.chance(0.6)
        self.line(guard + texts[action])

    def loop(self, names, uniform, left):
        same = uniform and self.chance(0.7)
        name = f"{'j' if same else 'i'}{self.count}"
        low, high = self.pick("0", "1", "0" if same else "t"), self.pick("n", "m", 2, 3, "n + 1")
        form = self.pick(*["for"] * 6, "while", "half")
        if form == "for":
            step = self.pick("", "", ", 2", ", 4", ", m + 1", ", cuda.gridDim.x", ", -1")
            head = f"for {name} in range({low}, {high}{step}):"
            self.inside(head, [*names, name], same, left, True)
            return
        self.line(f"{name} = {low if form == 'while' else 4}")
        test = f"{name} < {high}" if form == "while" else f"{name} > 0"
        self.inside(f"while {test}:", [*names, name], same, left, False)
        self.line(f"    {name} {'+= 1' if form == 'while' else '//= 2'}")


def affine_kernel(seed):
    """Return a kernel of x, out, n, m, and its text."""
    writer = Writer(seed)
    writer.line("s = cuda.shared.array(12, int64)")
    writer.line("t, w = cuda.threadIdx.x, cuda.blockIdx.x")
    writer.line("v0 = v1 = 0")
    names = ["t", "t", "w", "n", "m"]
    for _ in range(writer.pick(2, 3, 4, 5)):
        writer.statement(names, True, 3, False)
    return compiled("\n".join(["def kernel(x, out, n, m):", *writer.lines, ""]), int64=int64)


def compiled(text, **world):
    """Return a kernel written as a text, and the text."""
    return cuda.jit(run_text(text, world | {"cuda": cuda})["kernel"]), text
