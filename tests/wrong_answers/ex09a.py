"""ex09a: rules of intervals."""

# fmt: off
SAME = "if low // k == high // k:"
ENDS = "return low % k, high % k"
AT_MOST = "return x[1] > y[0], x[0] <= y[1]"
BOTH = "return p[0] or q[0], p[1] and q[1]"
DISTANCE = "modulo((m[0] - n[1], m[1] - n[0]), step)"
DIVIDES = "divides = remainder[1] > 0, remainder[0] == 0"

WRONG = [
    ("always all remainders", SAME, "if False:"),
    ("always the ends", SAME, "if True:"),
    ("short intervals never cross", SAME, "if high - low < k:"),
    ("sorted ends", [(SAME, "if True:"), (ENDS, "return min(low % k, high % k), max(low % k, high % k)")]),
    ("truncated division", SAME, "if int(low / k) == int(high / k):"),
    ("a loop", SAME, "found = [n % k for n in range(low, high + 1)]\n    return min(found), max(found)\n    if False:"),
    ("the order of a truth", AT_MOST, "return x[0] <= y[1], x[1] > y[0]"),
    ("strictly less", AT_MOST, "return x[1] >= y[0], x[0] < y[1]"),
    ("only the low ends", AT_MOST, "return x[0] > y[0], x[0] <= y[0]"),
    ("only the high ends", AT_MOST, "return x[1] > y[1], x[1] <= y[1]"),
    ("false is not true", AT_MOST, "return not x[0] <= y[1], x[0] <= y[1]"),
    ("or", BOTH, "return p[0] and q[0], p[1] or q[1]"),
    ("n - m", DISTANCE, "modulo((n[0] - m[1], n[1] - m[0]), step + 1)"),
    ("ends of m - n from equal ends", DISTANCE, "modulo((m[0] - n[0], m[1] - n[1]), step)"),
    ("whole if 0 may be", DIVIDES, "divides = remainder[0] > 0, remainder[0] == 0"),
    ("never whole", DIVIDES, "divides = True, remainder[0] == 0"),
    ("m <= n", "both(at_most(n, m), divides)", "both(at_most(m, n), divides)"),
    ("without causal", "both(at_most(n, m), divides)", "divides"),
    ("without the step", "both(at_most(n, m), divides)", "at_most(n, m)"),
    ("never hidden", "return HIDDEN", "return MIXED"),
    ("at_most of like ends", "return x[1] > y[0], x[0] <= y[1]", "return x[0] > y[0], x[1] <= y[1]"),
    ("both: or", "return p[0] or q[0], p[1] and q[1]", "return p[0] or q[0], p[1] or q[1]"),
    ("dilated: the mask is missing", "both(at_most(n, m), divides)", "divides"),
]

RIGHT = [
    ("a multiple of k in (low, high]", SAME, "if high - high % k <= low:"),
    ("a list", BOTH, "return [p[0] or q[0], p[1] and q[1]]"),
    ("min and max by De Morgan", BOTH, "return not (not p[0] and not q[0]), not (not p[1] or not q[1])"),
]

EQUIVALENT = []
