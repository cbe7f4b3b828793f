"""ex09d: the gradient of a sink."""

# fmt: off
LOOP = "for m in range(tid, lse.shape[1], cuda.blockDim.x):"
TERM = "total -= math.exp(sinks[head] - lse[head, m]) * delta[head, m]  # dS = P (0 - delta)"
SUM = "total = block_sum(total)"
STORE = "if tid == 0:\n        dsinks[head] = total"

WRONG = [
    ("the sign", TERM, TERM.replace("-=", "+=")),
    ("dP is 1", TERM, "total += math.exp(sinks[head] - lse[head, m]) * (float32(1.0) - delta[head, m])"),
    ("without the sink", TERM, TERM.replace("sinks[head] - lse", "-lse")),
    ("a quotient of exponentials", TERM, "total -= math.exp(sinks[head]) / math.exp(lse[head, m]) * delta[head, m]"),
    ("the sink of head 0", TERM, TERM.replace("sinks[head]", "sinks[0]")),
    ("the rows of head 0", TERM, TERM.replace("lse[head, m]", "lse[0, m]")),
    ("128 queries at most", LOOP, "for m in range(tid, min(lse.shape[1], 128), cuda.blockDim.x):"),
    ("1024 queries at most", LOOP, "for m in range(tid, min(lse.shape[1], 1024), cuda.blockDim.x):"),
    ("every thread all queries", LOOP, "for m in range(lse.shape[1]):"),
    ("a stretch for each thread", LOOP, "width = (lse.shape[1] + 127) // 128\n    for m in range(tid * width, min(lse.shape[1], (tid + 1) * width)):"),
    ("one warp", LOOP, "for m in range(tid % 32, lse.shape[1] if tid < 32 else 0, 128):"),
    ("no sum over the thread block", SUM, "pass"),
    ("the sum is not kept", SUM, "block_sum(total)"),
    ("summed by one thread", SUM, "if tid == 0:\n        total = block_sum(total)"),
    ("every thread stores", STORE, "dsinks[head] = total"),
    ("added to what is there", STORE, STORE.replace("= total", "+= total")),
    ("the mean", STORE, STORE.replace("= total", "= total / lse.shape[1]")),
    ("64 heads at most", STORE, STORE.replace("dsinks[head]", "dsinks[head % 64]")),
    ("lse is loaded twice", TERM, "if lse[head, m] > float32(-1e30):\n            " + TERM),
    ("float64", "total = float32(0.0)\n    for m", "total = 0.0\n    for m"),
    ("weights below 1e-6 are dropped", TERM, "weight = math.exp(sinks[head] - lse[head, m])\n        if weight > float32(0.05):\n            total -= weight * delta[head, m]"),
    ("writes delta", TERM, TERM.partition("  #")[0] + "\n        delta[head, m] = total"),
]

RIGHT = [
    ("the sink in a register, the sign at the end", [
        (TERM, "total += math.exp(sink - lse[head, m]) * delta[head, m]"),
        ("total = float32(0.0)\n    for m", "sink = sinks[head]\n    total = float32(0.0)\n    for m"),
        ("dsinks[head] = total", "dsinks[head] = -total"),
    ]),
    ("a while loop, the last thread stores", [
        (LOOP, "m = tid\n    while m < lse.shape[1]:"), (TERM, TERM + "\n        m += 128"), ("if tid == 0:\n        dsinks", "if tid == 127:\n        dsinks"),
    ]),
]

EQUIVALENT = [
    ("if tid == 0: -> if tid == 1:", "every thread has the sum of the thread block"),
]
