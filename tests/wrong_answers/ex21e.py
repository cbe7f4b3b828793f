"""ex21e: states of a kernel in powers of two."""

PARTS = "parts = [fast_attn(q, kv) for kv in kvs]"
STATES = "states = [(out, lse * np.float32(math.log(2))) for out, lse in parts]"
RETURN = "return functools.reduce(merge, states)"

WRONG = [
    ("as published", STATES, "states = parts"),
    ("times log2(e)", STATES, STATES.replace("math.log(2)", "math.log2(math.e)")),
    ("the first state alone", STATES, STATES + "\n    states[1:] = parts[1:]"),
    ("all but the first", STATES, STATES + "\n    states[0] = parts[0]"),
    ("after the merge", [(STATES, "states = parts"), (RETURN, "out, lse = functools.reduce(merge, states)\n    return out, lse * np.float32(math.log(2))")]),
    ("log2 again at the end", RETURN, "out, lse = functools.reduce(merge, states)\n    return out, lse / np.float32(math.log(2))"),
    ("out is changed, not lse", STATES, "states = [(out * np.float32(math.log(2)), lse) for out, lse in parts]"),
    ("the mean of the parts", RETURN, "return np.mean([s[0] for s in states], axis=0), functools.reduce(merge, states)[1]"),
    ("weights by length", RETURN, "return (sum(kv.shape[1] * s[0] for kv, s in zip(kvs, states)) / np.float32(sum(kv.shape[1] for kv in kvs))).astype(np.float32), functools.reduce(merge, states)[1]"),
    ("the last part", RETURN, "return states[-1]"),
    ("the first two parts", RETURN, "return functools.reduce(merge, states[:2])"),
    ("float64", STATES, STATES.replace("np.float32(math.log(2))", "np.float64(math.log(2))")),
    ("rounded", STATES, STATES.replace("math.log(2)", "0.7")),
    ("out without lse", RETURN, "return functools.reduce(merge, states)[0]"),
    ("in place of q", PARTS, "q *= 1.5\n    parts = [fast_attn(q, kv) for kv in kvs]"),
    ("four ranks at most", RETURN, "return functools.reduce(merge, states[:4])"),
    ("256 rows at most", RETURN, "out, lse = functools.reduce(merge, states)\n    out[256:] = 0\n    return out, lse"),
]  # fmt: skip

RIGHT = [
    ("a loop", [
        (PARTS, "state = None"),
        (STATES, "for kv in kvs:\n        out, lse = fast_attn(q, kv)\n        part = out, lse / np.float32(math.log2(math.e))\n        state = part if state is None else merge(state, part)"),
        (RETURN, "return state"),
    ]),
    ("a merge in powers of two", [
        (STATES, "lse = np.logaddexp2.reduce([lse for _, lse in parts])"),
        (RETURN, "out = sum(np.exp2(l - lse)[:, None] * o for o, l in parts)\n    return out, lse * np.float32(math.log(2))"),
    ]),
    ("one rank with all keys", [
        (PARTS, "parts = [fast_attn(q, np.concatenate(kvs, axis=1))]"),
    ]),
]  # fmt: skip

EQUIVALENT = []
