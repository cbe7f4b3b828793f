"""ex23e: speculation."""

TEST = "if uniform[i] * q[i, x] >= p[i, x]:"
LEAVE = "return i\n"
ALL = "return len(drafted)"
LAST = "if kept == len(q):"
REST = "rest = np.maximum(p[kept] - q[kept], 0)"
RETURN = "return rest / rest.sum()"

WRONG = [
    ("upside down", TEST, "if uniform[i] * p[i, x] >= q[i, x]:"),
    ("kept where it must be dropped", TEST, "if uniform[i] * q[i, x] < p[i, x]:"),
    ("greedy: kept where p >= q", TEST, "if q[i, x] > p[i, x]:"),
    ("the most likely one or none", TEST, "if x != p[i].argmax():"),
    ("the next row", TEST, TEST.replace("p[i, x]", "p[i + 1, x]")),
    ("the first row of p", TEST, TEST.replace("p[i, x]", "p[0, x]")),
    ("the first random number", TEST, TEST.replace("uniform[i]", "uniform[0]")),
    ("the rejected one is counted", LEAVE, "return i + 1\n"),
    ("all or none", LEAVE, "return 0\n"),
    ("those after a rejection are counted", [("for i, x in enumerate(drafted):", "dropped = 0\n    for i, x in enumerate(drafted):"), (LEAVE, "dropped += 1\n"), (ALL, "return len(drafted) - dropped")]),
    ("p after a rejection", REST, "rest = p[kept]"),
    ("the absolute difference", REST, "rest = np.abs(p[kept] - q[kept])"),
    ("the difference with its sign", REST, "rest = p[kept] - q[kept] + 1e-300"),
    ("the next row after a rejection", REST, "rest = np.maximum(p[kept + 1] - q[kept], 0)"),
    ("all kept: the row before", LAST, "if kept == len(q) and kept:\n        return p[kept - 1]\n    " + LAST),
    ("p is written", REST, "p[kept] -= q[kept]\n    rest = np.maximum(p[kept], 0)"),
    ("softmax", RETURN, "return np.exp(rest) / np.exp(rest).sum()"),
    ("without the forbidden ones, as p", REST, "rest = np.where(p[kept] > q[kept], p[kept], 0)"),
    ("64 drafted tokens at most", "enumerate(drafted):", "enumerate(drafted[:64]):"),
    ("uniform is written", TEST, "uniform[i] *= q[i, x]\n        if uniform[i] >= p[i, x]:"),
    ("q is written", RETURN, "q[kept] = 0\n    return rest / rest.sum()"),
    ("p is written where all are kept", LAST, "if kept == len(q):\n        p[:kept] = 0\n    " + LAST),
]  # fmt: skip

RIGHT = [
    ("a quotient", TEST, "if not uniform[i] < min(1, p[i, x] / q[i, x]):"),
    ("without a loop", [
        ("for i, x in enumerate(drafted):", "x = np.array(drafted, int)"),
        ("        " + TEST + "\n            return i\n", "    i = np.arange(len(x))\n    dropped = uniform[: len(x)] * q[i, x] >= p[i, x]\n"),
        (ALL, "return int(np.argmax(np.append(dropped, True)))"),
    ]),
    ("what min leaves", REST, "rest = p[kept] - np.minimum(p[kept], q[kept])"),
]  # fmt: skip

EQUIVALENT = []
