"""The questions of a proof, asked of Z3, and the launches that confirm its answers; see `proof`."""

import itertools
import math
import warnings

import numpy as np
import z3

from .errors import BarrierDivergenceError, KernelIndexError, RaceError
from .integers import conj, disj, exact, lemmas, neg, variables
from .launch import attempt
from .options import options
from .race_rules import ATOMIC, LOAD
from .walk import BLOCK_BARRIER, EXIT, WARP, WARP_BARRIER, Array, Loop
from .watch import Watch

CONFIRMS = BarrierDivergenceError, KernelIndexError, RaceError
SMALL = 1, 2, 3, 4, 5, 8, 12, 16, 24, 33, 48, 65, 100, 130, 260, 520, 1030, 4100  # sizes to try
LARGE = 34, 66, 132  # where small ones show nothing: two stores of one value are no race, say
MOST_UNDECIDED = 3  # after these there is no hope of a proof
MOST_THREADS, MOST_ELEMENTS = 1 << 16, 1 << 22  # of a launch that is tried
MILLISECONDS = 5000  # for one answer
THREAD, BLOCK, GRID = "one thread", "two threads of a block", "two threads of two blocks"


class Questions:
    """The questions about one kernel."""

    def __init__(self, kernel, walk, given):
        self.kernel, self.walk, self.given = kernel, walk, given
        self.asked, self.reasons, self.rules, self.others = {}, [], {}, {}
        threads, blocks = walk.integers.threads, walk.integers.blocks
        self.second = {THREAD: []}
        self.second[BLOCK] = [(v, z3.FreshConst(v.sort())) for v in threads]
        self.second[GRID] = [(v, z3.FreshConst(v.sort())) for v in threads + blocks]
        self.error = None
        # Arrays of integers are often indices: random ones would show nothing.
        self.indices = any(
            isinstance(g, str) and g.strip().startswith(("int", "uint")) for g in given
        )
        self.warps = False  # whether warps wait for themselves

    def other(self, e, mode):
        """Return an expression as the second thread has it."""
        if isinstance(e, (bool, int)) or mode == THREAD:
            return e
        key = mode, e.get_id()
        if key not in self.others:
            self.others[key] = e, z3.substitute(e, *self.second[mode])
        return self.others[key][1]

    # ------------------------------------------------------------------ asking

    def possible(self, mode, conditions, what=None):
        """Tell whether conditions may hold; what: the sentence for where it stays open."""
        condition = conj(conditions)
        if condition is False or len(self.reasons) >= MOST_UNDECIDED:
            return False
        places = {THREAD: [], BLOCK: self.walk.thread, GRID: self.walk.blockIdx}[mode]
        pairs = [(x, self.other(x, mode)) for x in places if isinstance(x, z3.ExprRef)]
        if mode != THREAD:
            condition = z3.And(condition, z3.Or([a != b for a, b in pairs]))
        key = mode, condition if isinstance(condition, bool) else condition.get_id()
        if key in self.asked:
            return self.asked[key][0]
        names = {copy.get_id(): v for v, copy in self.second[mode]}
        facts, products = self.walk.integers.needed(condition, names)
        solver = z3.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(condition, *self.walk.integers.facts, *facts)
        solver.add(*(self.other(c, mode) for c in facts if mode != THREAD))
        rules = mode, *(p.get_id() for _, _, p in products)
        if rules not in self.rules:
            self.rules[rules] = lemmas(products, lambda e: self.other(e, mode))
        solver.add(*self.rules[rules])
        answer = solver.check()
        self.asked[key] = answer != z3.unsat, condition
        hidden = ("contents", "data") if self.indices else ("contents",)
        loaded = any(str(v).startswith(hidden) for v in variables(condition))
        if answer == z3.sat and what and not loaded:
            self.error = self.shown(solver, exact(products, lambda e: self.other(e, mode)))
        if answer != z3.unsat and what and self.error is None:
            self.reasons.append(what)
        return answer != z3.unsat

    def shown(self, solver, exact):
        """Run the kernel at sizes that the solver names; return what goes wrong there, or None."""
        sizes, runs = self.walk.integers.sizes.values(), 0
        solver.set("timeout", MILLISECONDS // 10)
        for low, high in [(-n, n) for n in SMALL] + [(n // 2, n) for n in LARGE]:
            if runs == 2 and low < 0:
                continue
            solver.push()
            solver.add(*(z3.And(low <= v, v <= high) for v in sizes), *exact)
            model = solver.model() if solver.check() == z3.sat else None
            solver.pop()
            error = self.run(model) if model else None
            runs += model is not None
            if error is not None or not sizes:
                return error
        return None

    def run(self, model):
        """Run the kernel on the engine; return its error, if it is one of those asked for."""

        def value(e):
            if isinstance(e, Array):
                return [value(d) for d in e.dims]
            return model.eval(e, True).as_long() if isinstance(e, z3.ExprRef) else e

        walk = self.walk
        grid = tuple(1 if g is None else value(g) for g in walk.grid)
        block, values = tuple(map(value, walk.block)), [*map(value, walk.arguments.values())]
        largest = max([math.prod(v) for v in values if isinstance(v, list)], default=0)
        if math.prod(block) > 1024 or math.prod(block) * math.prod(grid) > MOST_THREADS:
            return None
        for seed in range(2 * (largest <= MOST_ELEMENTS)):
            rng = np.random.default_rng(seed)
            pairs = zip(self.given, values, strict=True)
            arguments = [
                sample(rng, g, v) if isinstance(v, list) else v if isinstance(v, int) else g
                for g, v in pairs
            ]
            checks = {"races": True, "divergence": True, "uninitialised": False, "wrap": False}
            with options(**checks, compiled="never") as now, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                watch = Watch(now, collect=False)
                error = attempt(self.kernel, grid, block, arguments, 0, watch)
            if isinstance(error, CONFIRMS) and "must be an integer" not in error.message:
                self.found = grid, block, {n: value(v) for n, v in walk.integers.sizes.items()}
                return error
        return None

    # ------------------------------------------------------------------ the questions

    def verdict(self, verdict):
        """Ask; fill in a Verdict."""
        if not self.possible(THREAD, [True]):
            raise ValueError("no sizes fit the grid, the block, the arguments and where")
        for step, site in self.walk.positive:
            self.possible(THREAD, [step <= 0], f"The step of a loop may be 0 at {site}.")
        for question in self.bounds, self.barriers, self.races:
            if self.error is None:
                question()
        verdict.questions = len(self.asked)
        if self.error is not None:
            verdict.status, verdict.error = "refuted", self.error
            verdict.grid, verdict.block, sizes = self.found
            verdict.sizes = {n: v for n, v in sizes.items() if not n.startswith("gridDim")}
        elif self.reasons:
            verdict.status, verdict.reason = "undecided", self.reasons[0]
        return verdict

    def bounds(self):
        for x in self.walk.nodes:
            for i, (index, extent) in enumerate(
                zip(x.index, getattr(x.array, "dims", ()), strict=False)
            ):
                outside = disj([index < 0, index >= extent])
                outside = outside if isinstance(outside, bool) else z3.simplify(outside)
                why = f", for all that is known: {x.why}" if x.why else ""
                what = f"Index {i} of '{x.array.name}' may be out of bounds at {x.site}{why}."
                if self.error is None:
                    self.possible(THREAD, [x.guard, outside], what)

    def barriers(self):
        """Ask whether all threads of a block meet each barrier, and leave each loop with one."""
        for x in self.meeting(BLOCK_BARRIER):
            if self.error is None:
                what = f"It is not clear that all threads of a block meet {x.site}."
                self.possible(BLOCK, self.apart(x), what)
        found, near = self.meeting(WARP_BARRIER), self.same_warp()
        # One that a warp may not meet as a whole orders nothing.
        self.warps = bool(found) and not any(
            self.possible(BLOCK, [*self.apart(x), near]) for x in found
        )

    def meeting(self, kind):
        """Return the barriers of a kind, and the exits that threads must take together for them."""
        nodes = self.walk.nodes
        found = [x for x in nodes if x.action == kind]
        for x in nodes if found else ():
            loops = [body[i] for body, i in x.path[:-1]]
            waits = x.why == "return" or any(self.waits(loop, (kind,)) for loop in loops)
            if x.action == EXIT and waits:
                found.append(x)
        return found

    def apart(self, x):
        """Return when one thread is at a place, in a turn of its loops, and another is not."""
        loops = [body[i] for body, i in x.path[:-1]]
        turns = [loop.j == self.other(loop.j, BLOCK) for loop in loops]
        return [x.guard, neg(self.other(x.guard, BLOCK)), *turns]

    def same_warp(self):
        if all(isinstance(n, int) for n in self.walk.block) and math.prod(self.walk.block) <= WARP:
            return True
        return self.walk.warp == self.other(self.walk.warp, BLOCK)

    def races(self):
        by_array = {}
        for x in self.walk.nodes:
            if x.array is not None and x.array.kind in ("shared", "global"):
                by_array.setdefault(x.array, []).append(x)
        for array, found in by_array.items():
            for a, b in itertools.combinations_with_replacement(found, 2):
                actions = {a.action, b.action}
                if actions in ({LOAD}, {ATOMIC}) or self.error is not None:
                    continue
                self.race(BLOCK, array, a, b)
                if array.kind == "global" and self.error is None:
                    self.race(GRID, array, a, b)

    def race(self, mode, array, a, b):
        """Ask whether two threads may use one element at a time."""
        what = f"'{array.name}' may be raced for by {a.site} and line {b.site.line}"
        what += next((f": {x.why}" for x in (a, b) if x.why), "") + "."
        phases = [[]]
        if mode == BLOCK:
            phases = [[self.together(a.path, b.path, 0, (BLOCK_BARRIER,))]]
            if self.warps:
                near, kinds = self.same_warp(), (BLOCK_BARRIER, WARP_BARRIER)
                phases[0].append(neg(near))
                phases.append([near, self.together(a.path, b.path, 0, kinds)])
        for phase in phases:
            if conj(phase) is not False and self.error is None:
                pairs = zip(a.index, b.index, strict=True)
                same = [i == self.other(j, mode) for i, j in pairs]
                self.possible(mode, [a.guard, self.other(b.guard, mode), *same, *phase], what)

    # ------------------------------------------------------------------ phases

    def waits(self, x, kinds):
        """Tell whether a node is a barrier, or a loop with one."""
        if isinstance(x, Loop):
            return any(self.waits(y, kinds) for y in x.body)
        return x.action in kinds

    def always_waits(self, loop, kinds):
        return any(
            not isinstance(y, Loop) and y.action in kinds and y.inner is True for y in loop.body
        )

    def passed(self, items, kinds):
        """Return when a thread gets past some nodes without a barrier."""
        found = []
        for x in items:
            if found and found[-1] is False:
                return False
            if isinstance(x, Loop) and self.waits(x, kinds):
                if x.first is not None and self.always_waits(x, kinds):
                    found.append(disj([neg(x.inner), neg(x.first)]))
            elif not isinstance(x, Loop) and x.action in kinds:
                found.append(neg(x.inner))
        return conj(found)

    def together(self, a, b, depth, kinds):
        """Return when two accesses, at these paths, may lie in one phase.

        The first thread makes the one, the second thread the other.
        """
        (body, i), (_, k) = a[depth], b[depth]
        inner = depth + 1, kinds
        if i != k:
            between = self.passed(body[min(i, k) + 1 : max(i, k)], kinds)
            first, second = (self.left, self.entered) if i < k else (self.entered, self.left)
            return conj([first(a, *inner), between, self.other(second(b, *inner), BLOCK)])
        loop = body[i]
        if not isinstance(loop, Loop) or not self.waits(loop, kinds):
            return True
        j, j2 = loop.j, self.other(loop.j, BLOCK)
        adjacent = self.always_waits(loop, kinds)
        ahead = j2 == j + 1 if adjacent else j2 > j
        behind = j == j2 + 1 if adjacent else j > j2
        first, second = self.rest(a, *inner), self.other(self.begun(b, *inner), BLOCK)
        ahead = conj([ahead, first, second])
        first, second = self.begun(a, *inner), self.other(self.rest(b, *inner), BLOCK)
        behind = conj([behind, first, second])
        return disj([conj([j == j2, self.together(a, b, *inner)]), ahead, behind])

    def rest(self, path, depth, kinds):
        """Return when no barrier follows an access in its turn of the loop around `depth`."""
        body, i = path[depth]
        return conj([self.left(path, depth + 1, kinds), self.passed(body[i + 1 :], kinds)])

    def begun(self, path, depth, kinds):
        """Return when no barrier precedes it there."""
        body, i = path[depth]
        return conj([self.entered(path, depth + 1, kinds), self.passed(body[:i], kinds)])

    def left(self, path, depth, kinds):
        """Return when no barrier follows an access in the loop around `depth`."""
        if depth == len(path):
            return True
        body, i = path[depth - 1]
        loop, last = body[i], True
        if self.always_waits(loop, kinds) and not loop.exits and loop.next is not None:
            last = neg(loop.next)
        return conj([last, self.rest(path, depth, kinds)])

    def entered(self, path, depth, kinds):
        """Return when no barrier precedes it there."""
        if depth == len(path):
            return True
        body, i = path[depth - 1]
        first = body[i].j == 0 if self.always_waits(body[i], kinds) else True
        return conj([first, self.begun(path, depth, kinds)])


def sample(rng, given, shape):
    """Return an array of a shape, of the type that its text says."""
    if isinstance(given, np.ndarray):
        return given.copy()
    name = given[: given.index("[")].strip() if isinstance(given, str) else ""
    dtype = np.dtype(name or "float32")
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 4, shape).astype(dtype)
