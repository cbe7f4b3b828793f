"""ex23e: verify drafted tokens, and draw one more."""

TEST = "if uniform[b, n] * q[b, n, x] >= p[b, n, x]:\n            break"
X = "x = drafted[b, n]"
WEIGHT = "weight = p[b, n, x]"
LESS = "weight = max(weight - q[b, n, x], float32(0.0))"
IF = "if n < k:\n            weight"
VALUE = "value = weight / noise[b, x]"
BEST = "best, at = float32(-1.0), int32(0)"
LARGER = "if value > best:"
LOOP = "for x in range(tx, vocabulary, NUM_THREADS):"
WINNER = "at = winner(values, places, best, at)"
WHILE = "while n < k:"

WRONG = [
    ("q / p", TEST, TEST.replace("uniform[b, n] * q[b, n, x] >= p[b, n, x]", "uniform[b, n] * p[b, n, x] >= q[b, n, x]")),
    ("kept and dropped exchanged", TEST, TEST.replace(">=", "<")),
    ("the row after the token", TEST, TEST.replace("p[b, n, x]", "p[b, n + 1, x]")),
    ("the first random number for all", TEST, TEST.replace("uniform[b, n]", "uniform[b, 0]")),
    ("the first token for all", X, "x = drafted[b, 0]"),
    ("the draft of request 0", X, "x = drafted[0, n]"),
    ("the rejected one is counted", TEST, TEST.replace("break", "n += 1\n            break")),
    ("one token at most", WHILE, "while n < min(k, 1):"),
    ("64 drafted at most", WHILE, "while n < min(k, 64):"),
    ("the absolute value", LESS, "weight = abs(weight - q[b, n, x])"),
    ("less q where all are kept, too", IF, "if k > 0:\n            n = min(n, k - 1)\n            weight"),
    ("the last row of p", WEIGHT, "weight = p[b, k, x]"),
    ("the first row of p", WEIGHT, "weight = p[b, 0, x]"),
    ("the noise of request 0", VALUE, VALUE.replace("noise[b,", "noise[0,")),
    ("minus noise", VALUE, "value = weight - noise[b, x]"),
    ("the smallest", LARGER, "if value < best or best < 0:"),
    ("the last", LARGER, "if value >= 0:"),
    ("thread 0's own", WINNER, "winner(values, places, best, at)"),
    ("the thread for the token", WINNER, "at = winner(values, places, best, tx)"),
    ("64 tokens at most", LOOP, LOOP.replace("vocabulary,", "min(64, vocabulary),")),
    ("512 tokens at most", LOOP, LOOP.replace("vocabulary,", "min(512, vocabulary),")),
    ("256 requests at most", "if tx == 0:", "if tx == 0 and b < 256:"),
    ("every thread loads everything", LOOP, "for x in range(vocabulary):"),
    ("tokens in pieces", LOOP, "part = (vocabulary + NUM_THREADS - 1) // NUM_THREADS\n    for x in range(tx * part, min(vocabulary, tx * part + part)):"),
    ("drafted is changed", "if tx == 0:", "if tx == 0 and n < k:\n        drafted[b, n] = at\n    if tx == 0:"),
]  # fmt: skip

RIGHT = [
    ("a loop with a flag", [
        ("    n = 0\n    while n < k:\n        x = drafted[b, n]\n        " + TEST + "\n        n += 1\n",
         "    n, going = 0, True\n    for i in range(k):\n        x = drafted[b, i]\n        going = going and uniform[b, i] * q[b, i, x] < p[b, i, x]\n        if going:\n            n += 1\n"),
    ]),
    ("one expression", [("if n < k:\n            " + LESS, "weight -= q[b, n, x] if n < k else float32(0.0)\n        weight = max(weight, float32(0.0))")]),
]  # fmt: skip

EQUIVALENT = [
    ("if tx == 0: -> if tx == 1:", "any one thread may store"),
    ("if value > best: -> if value >= best:", "of two equal values either may win"),
    ("best, at = (float32(-1.0), int32(0)) -> best, at = (float32(-1.0), int32(1))", "a thread without a token loses, with -1",),
]  # fmt: skip
