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

### HINT 1: modulo: draw n % 5 for n from 7 to 9, and for n from 8 to 12. When does it fall back to
### HINT 1: 0 within the interval?
### HINT 2: If low // k == high // k no multiple of k is crossed, and the ends are the ends. Else
### HINT 2: both 0 and k - 1 occur. a <= b may be true if the smallest a is at most the largest b,
### HINT 2: and may be false if the largest a is above the smallest b.
### HINT 3: both: may be false if p or q may be; may be true if both may be. dilated: m - n lies in
### HINT 3: (m[0] - n[1], m[1] - n[0]); r = modulo of it; r == 0 may be false if r[1] > 0, may be
### HINT 3: true if r[0] == 0. A tile is hidden if the mask cannot be true, whole if not false.
### DEBRIEF: These are rows of the table in docs/masks.md. The package walks the whole expression of
### DEBRIEF: your function this way, for all tiles at once: N = 65536 has 262,144 tiles of 128 x 128
### DEBRIEF: and 4,294,967,296 pairs. `both` may be wrong in one direction only: it takes p and q
### DEBRIEF: for independent, so that it says "mixed" of x and not x, which is never true.


def modulo(x, k):
    """The smallest interval that contains n % k for all n of x."""
    ### BEGIN SOLUTION
    low, high = x
    if low // k == high // k:
        return low % k, high % k
    return 0, k - 1
    ### END SOLUTION


def at_most(x, y):
    """(may be false, may be true) of a <= b, for a in x and b in y."""
    ### BEGIN SOLUTION
    return x[1] > y[0], x[0] <= y[1]
    ### END SOLUTION


def both(p, q):
    """(may be false, may be true) of p and q."""
    ### BEGIN SOLUTION
    return p[0] or q[0], p[1] and q[1]
    ### END SOLUTION


def dilated(m, n, step):
    """HIDDEN, MIXED or WHOLE: the tile of queries m and keys n."""
    ### BEGIN SOLUTION
    remainder = modulo((m[0] - n[1], m[1] - n[0]), step)
    divides = remainder[1] > 0, remainder[0] == 0
    may_be_false, may_be_true = both(at_most(n, m), divides)
    if not may_be_true:
        return HIDDEN
    return MIXED if may_be_false else WHOLE
    ### END SOLUTION
