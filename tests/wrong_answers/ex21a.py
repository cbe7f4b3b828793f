"""ex21a: one step of the ring."""

# fmt: off
OWNER = "return (rank - step) % world_size"
O = "o = owner(rank, step, world_size)"
M = "m_i = lse[i]"
L = "l_i = float32(1.0) if m_i > -math.inf else float32(0.0)"
ACC = "acc[d] = out[i, d]"
MASK = "if o * c + j <= rank * c + i:"
LOOP = "for j in range(c):"
ALPHA = "alpha, p = math.exp(m_i - m_new), math.exp(s - m_new)"
SUM = "l_i = alpha * l_i + p"
ADD = "acc[d] = alpha * acc[d] + p * v[j, d]"
IF = "if l_i > 0:"
OUT = "out[i, d] = acc[d] / l_i"
LSE = "lse[i] = m_i + math.log(l_i)"

WRONG = [
    ("one step late", OWNER, "return (rank - step + 1) % world_size"),
    ("step for owner", O, "o = step"),
    ("its own keys each time", O, "o = rank"),
    ("no mask", MASK, "if o * c + j >= 0:"),
    ("the mask of one part", MASK, "if j <= i:"),
    ("the mask by owners alone", MASK, "if o <= rank:"),
    ("striped positions", MASK, "if j * world_size + o <= i * world_size + rank:"),
    ("the state before is lost", [(M, "m_i = float32(-math.inf)")]),
    ("the state before weighs nothing", L, "l_i = float32(0.0)"),
    ("the state weighs its lse", L, "l_i = math.exp(m_i) if m_i > -math.inf else float32(0.0)"),
    ("out before is lost", ACC, "acc[d] = float32(0.0)"),
    ("-1e9 for the first maximum", M, "m_i = max(lse[i], float32(-1e9))"),
    ("base 2", ALPHA, "alpha, p = float32(2.0) ** (m_i - m_new), float32(2.0) ** (s - m_new)"),
    ("log2", LSE, LSE.replace("log(", "log2(")),
    ("256 keys at most", LOOP, "for j in range(min(c, 256)):"),
    ("128 columns", "dot += q[i, d] * k[j, d]", "dot += q[i, d] * k[j, d] if d < 128 else float32(0.0)"),
    ("one thread block", "i, c = cuda.grid(1), q.shape[0]", "i, c = cuda.threadIdx.x, q.shape[0]"),
    ("keys are loaded and not used", MASK, "x = k[j, 0]\n            if o * c + j <= rank * c + i and x == x:"),
    ("float64", L, "l_i = 1.0 if m_i > -math.inf else 0.0"),
    ("lse is stored in q", LSE, LSE + "\n            q[i, 0] = lse[i]"),
]

RIGHT = [
    ("an empty state weighs 1, times an alpha of 0", [(L, "l_i = float32(1.0)"), (IF, "if m_i > -math.inf:")]),
    ("keys up to the last that is seen", [(LOOP, "for j in range(min(c, (rank - o) * c + i + 1)):"), (MASK, "if j >= 0:")]),
    ("parts of later ranks left out at once", [(LOOP, "if o > rank:\n            return\n        for j in range(c):"), (MASK, "if o < rank or j <= i:")]),
    ("the state merged at the end", [(M, "m_i = float32(-math.inf)"), (L, "l_i = float32(0.0)"), (ACC, "acc[d] = float32(0.0)"),
        ("        " + IF + "\n            for d in range(HEAD_DIM):\n                " + OUT + "\n            " + LSE,
         "        before = lse[i]\n        if l_i > 0:\n            own = m_i + math.log(l_i)\n            top = max(before, own)\n            a, b = math.exp(before - top), math.exp(own - top)\n            for d in range(HEAD_DIM):\n                out[i, d] = (a * out[i, d] + b * (acc[d] / l_i)) / (a + b)\n            lse[i] = top + math.log(a + b)")]),
]

EQUIVALENT = [
    (f"{L} -> {L.replace('>', '>=')}", "of an empty state alpha is 0, or out is 0 and lse -inf"),
]
