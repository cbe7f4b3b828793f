"""ex16e: the slot of a token in a rolling cache."""

# fmt: off
OLD = "if t < end - window:  # a later token has, or will have, its slot"
RING = "return num_sinks + (t - num_sinks) % window"

WRONG = [
    ("the ring covers the sinks", RING, "return (t - num_sinks) % (num_sinks + window)"),
    ("no sinks", "if t < num_sinks:", "if t < 0:"),
    ("one token too many is kept", OLD, "if t < end - window - 1:"),
    ("sinks are of the window", OLD, "if t < end - window - num_sinks:"),
    ("old tokens are written too", OLD, "if t < 0:"),
    ("old sinks go", [("if t < num_sinks:", "if t < num_sinks and t >= end - window - num_sinks:")]),
    ("float32 clock", [("from numba import cuda\n", "from numba import cuda, float32\n"), (RING, "return num_sinks + int(float32(t - num_sinks) % float32(window))")]),
    ("float32 age", [("from numba import cuda\n", "from numba import cuda, float32\n"), (OLD, "if float32(t) < float32(end - window):")]),
    ("clock by loops", RING, "while t >= num_sinks + window:\n        t -= window\n    return t"),
    ("256 sinks at most", "if t < num_sinks:", "if t < min(num_sinks, 256):"),
    ("a window of 4096 at most", OLD, "if t < end - min(window, 4096):"),
]
WRONG = [(name, change if isinstance(change, list) else [(change, *rest)]) for name, change, *rest in WRONG]

RIGHT = [
    ("one return", [("        return t\n", "        n = t\n"), ("        return -1\n", "        n = -1\n"), ("    if t < end", "    elif t < end"), ("    " + RING, "    else:\n        n = num_sinks + (t - num_sinks) % window\n    return n")]),
    ("old tokens first", [("    if t < num_sinks:\n        return t\n", ""), (OLD, "if num_sinks <= t < end - window:"), (RING, "return t if t < num_sinks else (t - num_sinks) % window + num_sinks")]),
]

EQUIVALENT = []
