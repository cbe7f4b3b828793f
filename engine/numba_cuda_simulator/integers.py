"""Integers of a proof: Python's, or Z3's where they depend on sizes and threads.

Conditions are bools or Z3's. Only sums are linear; the rest is written with further variables:

    e // c, e % c  e = c * q + r with 0 <= r < c
    D * q          of two unknowns, where D is the same in all threads: a variable. `lemmas` says
                   how two such products compare: row * num_cols + col needs no more
"""

import itertools

import z3

LARGE = 2**31  # sizes are taken to be below


def is_number(x):
    return isinstance(x, (int, z3.ArithRef)) and not isinstance(x, bool)


def is_condition(x):
    return isinstance(x, (bool, z3.BoolRef))


def conj(conditions):
    """Return And of conditions; `disj` and `neg` likewise."""
    left = [c for c in conditions if c is not True]
    if any(c is False for c in left):
        return False
    return z3.And(left) if len(left) > 1 else left[0] if left else True


def neg(c):
    return not c if isinstance(c, bool) else z3.Not(c)


def disj(conditions):
    return neg(conj([neg(c) for c in conditions]))


def choose(c, a, b):
    """Return a where the condition holds, else b."""
    return (a if c else b) if isinstance(c, bool) else z3.If(c, a, b)


def variables(e):
    """Return the variables of an expression."""
    seen, left, found = set(), [e] if isinstance(e, z3.ExprRef) else [], []
    while left:
        x = left.pop()
        if x.get_id() not in seen:
            seen.add(x.get_id())
            left += x.children()
            found += [x] * (z3.is_const(x) and x.decl().kind() == z3.Z3_OP_UNINTERPRETED)
    return found


def key(x):
    return x if isinstance(x, int) else ("z3", x.get_id())


class Integers:
    """The variables of a kernel.

    Attributes
    ----------
    sizes : dict, name -> variable of a size, the same in all threads
    facts : conditions of these
    about : dict, number of a variable of a thread -> conditions that it meets
    threads, blocks : variables that differ between threads, and between blocks alone
    products : list of (D, q, their product)
    """

    def __init__(self):
        self.sizes, self.facts, self.about = {}, [], {}
        self.threads, self.blocks, self.products = [], [], []
        self.shared, self.kept, self.known = set(), [], {}

    def size(self, name, least=0):
        """Return the variable of a size."""
        if name not in self.sizes:
            self.sizes[name] = z3.Int(name)
            self.shared.add(self.sizes[name].get_id())
            self.facts.append(self.sizes[name] >= least)
        return self.sizes[name]

    def fresh(self, name, shared=False, sort=z3.Int):
        """Return a new variable, of each thread or of all."""
        variable = sort(f"{name}!{len(self.kept)}")
        self.kept.append(variable)
        if shared:
            self.shared.add(variable.get_id())
        else:
            self.threads.append(variable)
        return variable

    def is_shared(self, e):
        """Tell whether an integer is the same in all threads."""
        return all(v.get_id() in self.shared for v in variables(e))

    def define(self, found, *conditions):
        """Add what new variables meet."""
        for v in found:
            where = (
                self.facts if v.get_id() in self.shared else self.about.setdefault(v.get_id(), [])
            )
            where += conditions

    def remember(self, name, a, b, value):
        self.kept += [a, b]  # so that no other expression gets their numbers
        self.known[name, key(a), key(b)] = value
        return value

    def product(self, a, b):
        """Return a * b, or None for two unknowns of a thread, and where it may not fit."""
        if isinstance(a, int) or isinstance(b, int):
            known = a if isinstance(a, int) else b
            return a * b if abs(known) < LARGE else None
        if not self.is_shared(a):
            a, b = b, a
        if not self.is_shared(a):
            return None
        if ("*", key(a), key(b)) in self.known:
            return self.known["*", key(a), key(b)]
        p = self.fresh("product", self.is_shared(b))
        self.products.append((a, b, p))
        if self.is_shared(b):
            self.products.append((b, a, p))
        self.remember("*", b, a, p)
        return self.remember("*", a, b, p)

    def divide(self, e, d):
        """Return e // d and e % d, or None where d differs between threads."""
        if isinstance(e, int) and isinstance(d, int):
            return divmod(e, d) if d else None
        if not self.is_shared(d) or isinstance(d, int) and d <= 0:
            return None
        for a, b, p in self.products:
            if p is e and isinstance(d, z3.ExprRef) and a.eq(d):
                return b, 0
        if ("/", key(e), key(d)) not in self.known:
            shared = self.is_shared(e)
            q, r = self.fresh("quotient", shared), self.fresh("rest", shared)
            product = d * q if isinstance(d, int) else self.product(d, q)
            parts = z3.And(e == product + r, r >= 0, r < d)
            self.define((q, r), parts if isinstance(d, int) else z3.Implies(d > 0, parts))
            self.remember("/", e, d, (q, r))
        return self.known["/", key(e), key(d)]

    def needed(self, condition, names):
        """Return the conditions and the products that a question depends on.

        names : dict, number of a variable of the second thread -> that of the first
        """
        left, seen, found = variables(condition), set(), []
        shared = [x for x in self.products if x[2].get_id() in self.shared]
        products = []
        while left:
            v = left.pop()
            v = names.get(v.get_id(), v)
            if v.get_id() in seen:
                continue
            seen.add(v.get_id())
            found += self.about.get(v.get_id(), [])
            products += [x for x in self.products if x[2].eq(v) and x not in shared]
            for c in (*self.about.get(v.get_id(), ()), *(x[1] for x in products[-1:])):
                left += variables(c)
        return found, shared + products


def lemmas(products, other):
    """Return how products of two threads compare; `other` renames the second one's."""
    terms, done = {}, []
    for d, q, p in products:
        for x in (d, q, p), (d, other(q), other(p)):
            terms[x[1].get_id(), x[2].get_id()] = x
    for d, q, p in terms.values():
        done += [compare(d, q, p, z3.IntVal(k), k * d) for k in (0, 1)]
    for (d, q, p), (d2, q2, p2) in itertools.combinations(terms.values(), 2):
        rule = compare(d, q, p, q2, p2)
        done.append(rule if d.eq(d2) else z3.Implies(d == d2, rule))
    return done


def exact(products, other):
    """Return p == d * q for each product. It is not linear: for bounded variables only."""
    return [x for d, q, p in products for x in (p == d * q, other(p) == d * other(q))]


def compare(d, q, p, q2, p2):
    """Return how p = d * q and p2 = d * q2 follow from q and q2, in linear terms."""
    return z3.And(
        z3.Implies(q == q2, p == p2),
        z3.Implies(z3.And(d >= 0, q > q2), p >= p2 + d),
        z3.Implies(z3.And(d >= 0, q < q2), p2 >= p + d),
    )
