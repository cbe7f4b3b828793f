"""ex09a · Rules of intervals

Is a tile hidden, mixed or whole? A mask is an expression; bound its value in the whole tile by a
rule for each operator, and no pairs are looked at. Write three rules, and use them.

An interval is a pair (low, high): all whole numbers from low to high, both included. A truth is a
pair (may be false, may be true) of bools: (False, True) is "always", (False, False) cannot be.

modulo(x, k)    the smallest interval that contains n % k for every n of the interval x; k >= 1
at_most(x, y)   the truth of a <= b, for all a of x and all b of y
both(p, q)      the truth of "p and q", by the truths of p and of q. Each may have any of the values
                that it may have, whatever the other one has
dilated(m, n, step)
                the class of the tile of queries m and keys n, two intervals, under the mask
                n <= m and (m - n) % step == 0: HIDDEN, MIXED or WHOLE. By the rules

All numbers are ints, negative ones too, up to 10^12; step >= 1. One to five lines each, without a
loop.
"""

HIDDEN, MIXED, WHOLE = 0, 1, 2


def modulo(x, k):
    """The smallest interval that contains n % k for all n of x."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: modulo")


def at_most(x, y):
    """(may be false, may be true) of a <= b, for a in x and b in y."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: at_most")


def both(p, q):
    """(may be false, may be true) of p and q."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: both")


def dilated(m, n, step):
    """HIDDEN, MIXED or WHOLE: the tile of queries m and keys n."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09a: dilated")


# Stub 755df4a5 of solutions/ex09a_interval_rules.py: `fa-numba reset ex09a` brings it back.
