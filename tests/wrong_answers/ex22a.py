"""ex22a: cross-entropy and its gradient."""

MAXIMUM = "m = reduce(part, m, True)"
SUM = "l = reduce(part, l, False)"
Y = "y = float32(1.0) if c == target else float32(0.0)"
GRADIENT = "dlogits[row, c] = (math.exp(logits[row, c] - m) / l - y) / float32(logits.shape[0])"
LOSS = "loss[row] = math.log(l) - (logits[row, target] - m)"
LOOP = "for c in range(tx, num_cols, NUM_THREADS):\n        y ="
FIRST = "m = max(m, logits[row, c])"

WRONG = [
    ("the maximum of each thread", MAXIMUM, "reduce(part, m, True)"),
    ("no maximum", MAXIMUM, "m = reduce(part, m, True) * float32(0.0)"),
    ("0 for the first maximum", "m = float32(-math.inf)", "m = float32(0.0)"),
    ("the sum of each thread", SUM, "reduce(part, l, False)"),
    ("the largest for the sum", SUM, "l = reduce(part, l, True)"),
    ("log of p", LOSS, "loss[row] = -math.log(math.exp(logits[row, target] - m) / l)"),
    ("log of p plus a bit", LOSS, "loss[row] = -math.log(math.exp(logits[row, target] - m) / l + float32(1e-9))"),
    ("the mean over rows in the kernel", LOSS, LOSS.replace("math.log(l) - (logits[row, target] - m)", "(math.log(l) - (logits[row, target] - m)) / float32(logits.shape[0])")),
    ("bits", LOSS, LOSS.replace("math.log(l) - (logits[row, target] - m)", "(math.log(l) - (logits[row, target] - m)) * float32(1.4426950)")),
    ("without the log of the sum", LOSS, "loss[row] = m - logits[row, target]"),
    ("every thread stores the loss", "if tx == 0:", "if tx >= 0:"),
    ("the target of row 0", "target = targets[row]", "target = targets[0]"),
    ("p alone", Y, "y = float32(0.0) if c == target else float32(0.0)"),
    ("divided by all numbers", GRADIENT, GRADIENT.replace("float32(logits.shape[0])", "float32(logits.size)")),
    ("float64", GRADIENT, GRADIENT.replace("float32(logits.shape[0])", "logits.shape[0]")),
    ("64 columns at most", LOOP, LOOP.replace("num_cols", "min(num_cols, 64)")),
    ("512 columns at most", LOOP, LOOP.replace("num_cols", "min(num_cols, 512)")),
    ("256 rows at most", "if tx == 0:", "if tx == 0 and row < 256:"),
    ("columns in pieces", LOOP, LOOP.replace("range(tx, num_cols, NUM_THREADS)", "range(tx * ((num_cols + 63) // 64), min(num_cols, (tx + 1) * ((num_cols + 63) // 64)))")),
    ("exp kept in dlogits", GRADIENT, "dlogits[row, c] = math.exp(logits[row, c] - m) / l\n        dlogits[row, c] = (dlogits[row, c] - y) / float32(logits.shape[0])"),
    ("the maximum twice", FIRST, "m = max(m, logits[row, c])\n    for c in range(tx, num_cols, NUM_THREADS):\n        m = max(m, logits[row, c])"),
    ("the logits are shifted in place", "target = targets[row]", "target = targets[row]\n    for c in range(tx, num_cols, NUM_THREADS):\n        logits[row, c] -= float32(0.5)"),
]  # fmt: skip

RIGHT = [
    ("lse first", [
        (GRADIENT, "dlogits[row, c] = (math.exp(logits[row, c] - m - lse) - y) / float32(logits.shape[0])"),
        ("    target = targets[row]\n", "    lse = math.log(l)\n    target = targets[row]\n"),
        (LOSS, "loss[row] = lse - (logits[row, target] - m)"),
    ]),
    ("the thread of the target stores the loss", [
        ("    if tx == 0:\n        " + LOSS + "\n", ""),
        (GRADIENT, GRADIENT + "\n        if c == target:\n            loss[row] = math.log(l) + (m - logits[row, c])"),
    ]),
    ("a running maximum and sum", [
        ("    " + MAXIMUM + "\n    l = float32(0.0)\n    for c in range(tx, num_cols, NUM_THREADS):\n        l += math.exp(logits[row, c] - m)\n",
         "    own = m\n    m = reduce(part, m, True)\n    l = l * math.exp(own - m) if l > 0 else float32(0.0)\n"),
        ("m = float32(-math.inf)", "m = float32(-math.inf)\n    l = float32(0.0)"),
        (FIRST, "x = logits[row, c]\n        if x > m:\n            l = l * math.exp(m - x)\n            m = x\n        l += math.exp(x - m)"),
    ]),
]  # fmt: skip

EQUIVALENT = [("if tx == 0: -> if tx == 1:", "any one thread may store the loss")]
