"""ex25b: the largest score that a page's bounds allow."""

# fmt: off
BEST = "best = float32(-math.inf)"
IF = "if i * page_size < seq_lens[b]:"
PAGE = "page = block_table[b, i]"
HEADS = "for head in range(kv_head * group_size, (kv_head + 1) * group_size):"
ZERO = "s = float32(0.0)"
COLUMNS = "for d in range(tx, q.shape[2], 32):"
X = "x = q[b, head, d]"
SUM = "s += max(x * k_min[page, kv_head, d], x * k_max[page, kv_head, d])"
STEPS = "for step in range(5):"
SHUFFLE = "s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)"
KEEP = "best = max(best, s)"
LANE = "if tx == 0:"
STORE = "scores[b, kv_head, i] = best"

WRONG = [
    ("k_max alone", SUM, "s += x * k_max[page, kv_head, d]"),
    ("k_min alone", SUM, "s += x * k_min[page, kv_head, d]"),
    ("absolute numbers", SUM, "s += abs(x) * max(abs(k_min[page, kv_head, d]), abs(k_max[page, kv_head, d]))"),
    ("the middle of the box", SUM, "s += x * (k_min[page, kv_head, d] + k_max[page, kv_head, d]) / float32(2)"),
    ("the maximum after the sum", [(ZERO, "s = float32(0.0)\n            t = float32(0.0)"), (SUM, "s += x * k_min[page, kv_head, d]\n                t += x * k_max[page, kv_head, d]"),
        (SHUFFLE, SHUFFLE + "\n                t += cuda.shfl_xor_sync(FULL_MASK, t, 16 >> step)"), (KEEP, "best = max(best, max(s, t))")]),
    ("from 0", BEST, "best = float32(0.0)"),
    ("-1e9 for no page", BEST, "best = float32(-1e9)"),
    ("heads are added", [(BEST, "best = float32(0.0)"), (KEEP, "best += s")]),
    ("the last head of the group", KEEP, "best = s"),
    ("the first head of the group", HEADS, "for head in range(kv_head * group_size, kv_head * group_size + 1):"),
    ("heads in turn", HEADS, "for head in range(kv_head, q.shape[1], k_min.shape[1]):"),
    ("page i, the table is not looked at", PAGE, "page = i"),
    ("the table of sequence 0", PAGE, "page = block_table[0, i]"),
    ("the length of sequence 0", IF, IF.replace("[b]", "[0]")),
    ("full pages alone", IF, "if (i + 1) * page_size <= seq_lens[b]:"),
    ("the query of sequence 0", X, "x = q[0, head, d]"),
    ("scaled", KEEP, "best = max(best, s / math.sqrt(float32(q.shape[2])))"),
    ("32 columns at most", COLUMNS, "for d in range(tx, min(q.shape[2], 32), 32):"),
    ("256 columns at most", COLUMNS, "for d in range(tx, min(q.shape[2], 256), 32):"),
    ("no butterfly", STEPS, "for step in range(0):"),
    ("four steps", STEPS, "for step in range(4):"),
    ("every lane sums the whole row", [(COLUMNS, "for d in range(q.shape[2]):"), (STEPS, "for step in range(0):")]),
    ("every lane stores", LANE, "if tx >= 0:"),
    ("pages that are not there get nothing", LANE, "if tx == 0 and best > -math.inf:"),
    ("float64", ZERO, "s = 0.0"),
    ("a barrier", PAGE, PAGE + "\n        cuda.syncthreads()"),
    ("64 heads at most", HEADS, HEADS.replace("(kv_head + 1) * group_size", "min((kv_head + 1) * group_size, 64)")),
]

RIGHT = [
    ("the end by the sign of q", SUM, "s += x * (k_max[page, kv_head, d] if x > 0 else k_min[page, kv_head, d])"),
    ("shuffles down, the maximum in lane 0", [(SHUFFLE, "s += cuda.shfl_down_sync(FULL_MASK, s, 16 >> step)"), (KEEP, "best = s if s > best else best")]),
]

EQUIVALENT = [
    ("s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step) -> s += cuda.shfl_xor_sync(FULL_MASK, s, 17 >> step)", "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well"),
    ("if tx == 0: -> if tx == 1:", "after the butterfly every lane has the same sum, so any one of them may store"),
]
