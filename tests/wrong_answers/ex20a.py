"""ex20a: recurrent linear attention."""

# fmt: off
ONE = "v_n = v[n, c] if c < head_dim else float32(1.0)"
U = "u = state[f, c] + phi_k[n, f] * v_n"
KEEP = "        state[f, c] = u\n"
Y = "y += phi_q[n, f] * u"
OUT = "out[n, c] = y / l if l != float32(0.0) else float32(0.0)"
TOKENS = "for n in range(v.shape[0]):"
FEATURES = "for f in range(phi_k.shape[1]):"
LAST = "if c == head_dim:"

WRONG = [
    ("only positive sums", OUT, OUT.replace("!=", ">")),
    ("a small number for 0", OUT, "out[n, c] = y / (l + float32(1e-6))"),
    ("small sums are 0", OUT, OUT.replace("l != float32(0.0)", "abs(l) > float32(1e-8)")),
    ("no guard", OUT, "out[n, c] = y / l"),
    ("not divided", OUT, "out[n, c] = y"),
    ("a token does not see itself", Y, "y += phi_q[n, f] * (u - phi_k[n, f] * v_n)"),
    ("the state before is ignored", U, "u = (state[f, c] if n > 0 else float32(0.0)) + phi_k[n, f] * v_n"),
    ("queries for keys", U, U.replace("phi_k", "phi_q")),
    ("keys for queries", Y, Y.replace("phi_q", "phi_k")),
    ("the divisor's column of v", ONE, "v_n = v[n, min(c, head_dim - 1)]"),
    ("every thread stores the divisor", LAST, "if c <= head_dim:"),
    ("512 tokens at most", TOKENS, "for n in range(min(512, v.shape[0])):"),
    ("256 features at most", FEATURES, "for f in range(min(256, phi_k.shape[1])):"),
    ("the last token is missing", TOKENS, "for n in range(v.shape[0] - 1):"),
    ("the state loaded twice", Y, "y += phi_q[n, f] * state[f, c]"),
    ("out is summed in HBM", OUT, "out[n, c] = y\n            out[n, c] = out[n, c] / l if l != float32(0.0) else float32(0.0)"),
    ("all sums in shared memory", [("divisor = cuda.shared.array(1, float32)", "divisor = cuda.shared.array(257, float32)"), (LAST, "if c <= head_dim:"), ("divisor[0] = y", "divisor[c] = y"), ("l = divisor[0]", "l = divisor[head_dim]")]),
    ("a column of the state in a local array", "    head_dim = v.shape[1]\n", "    head_dim = v.shape[1]\n    column = cuda.local.array(512, float32)\n    column[0] = float32(0.0)\n"),
    ("features are changed", Y, Y + "\n        if c == 0 and n > 0:\n            phi_q[n - 1, f] = float32(0.0)"),
    ("NaN is let through from later tokens", TOKENS, "x = float32(0.0)\n    for n in range(v.shape[0]):\n        x += phi_k[n, 0] * float32(0.0)\n    if c == head_dim:\n        state[0, c] += x\n    for n in range(v.shape[0]):"),
    ("float64", "y = float32(0.0)", "y = 0.0"),
    ("a warp's barrier", "cuda.syncthreads()  # divisor is complete", "cuda.syncwarp()  # divisor is complete"),
    ("a warp's barrier at the end", "cuda.syncthreads()  # everyone is done", "cuda.syncwarp()  # everyone is done"),
    ("the first warp alone", U, U.replace(" * v_n", " * v_n * (c < 32)")),
    ("128 columns at most", KEEP, "        if c <= 128:\n            state[f, c] = u\n"),
    ("64 columns at most", KEEP, "        if c <= 64:\n            state[f, c] = u\n"),
    ("the result of phi(k)", "y += phi_q[n, f] * u", "y += phi_k[n, f] * u"),
    ("the sum of phi(q) v", "phi_k[n, f] * v_n", "phi_q[n, f] * v_n"),
]

RIGHT = [
    ("other names, the state updated in place of a variable's sum", [("def add_and_read(phi_q, phi_k, state, n, c, v_n):", "def add_and_read(Q, K, S, n, c, v_n):"), (FEATURES, "for f in range(K.shape[1]):"),
        (U, "u = S[f, c]\n        u += K[n, f] * v_n"), (KEEP, "        S[f, c] = u\n"), (Y, "y = y + Q[n, f] * u")]),
    ("two divisors in turn, one barrier a token", [("divisor = cuda.shared.array(1, float32)", "divisor = cuda.shared.array(2, float32)"), ("divisor[0] = y", "divisor[n % 2] = y"), ("l = divisor[0]", "l = divisor[n % 2]"),
        ("        cuda.syncthreads()  # everyone is done with divisor: safe to overwrite\n", "")]),
]

EQUIVALENT = []
