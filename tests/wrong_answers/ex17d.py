"""ex17d: the combine kernel."""

# fmt: off
START = "x, merged = float32(0.0), float32(-math.inf)"
SPLITS = "for split in range(lse_partial.shape[0]):"
MERGE = "w_a, w_b, merged = merge_weights(merged, lse_partial[split, b, head])"
MIX = "x = mix(w_a, x, w_b, out_partial[split, b, head, d])"
OUT = "out[b, head, d] = x"
LSE = "lse[b, head] = merged"
LOOP = "for d in range(cuda.threadIdx.x, HEAD_DIM, 32):"
BODY = f'''        {LOOP}
            {START}
            {SPLITS}
                {MERGE}
                {MIX}
            {OUT}
            if d == 0:
                {LSE}
'''
TWO_LOOPS = '''        tx = cuda.threadIdx.x
        top = float32(-math.inf)
        for split in range(lse_partial.shape[0]):
            top = max(top, lse_partial[split, b, head])
        base = top if top > -math.inf else float32(0.0)
        total = float32(0.0)
        for split in range(lse_partial.shape[0]):
            total += math.exp(lse_partial[split, b, head] - base)
        merged = base + math.log(total)
        for d in range(tx, HEAD_DIM, 32):
            x = float32(0.0)
            for split in range(lse_partial.shape[0]):
                if lse_partial[split, b, head] > -math.inf:
                    x += math.exp(lse_partial[split, b, head] - merged) * out_partial[split, b, head, d]
            out[b, head, d] = x
        if tx == 0:
            lse[b, head] = merged
'''
AT_ONCE = '''        acc = cuda.local.array(NUM_COLS, float32)
        tx = cuda.threadIdx.x
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)
        merged = float32(-math.inf)
        for split in range(lse_partial.shape[0]):
            w_a, w_b, merged = merge_weights(merged, lse_partial[split, b, head])
            for d in range(tx, HEAD_DIM, 32):
                acc[d // 32] = mix(w_a, acc[d // 32], w_b, out_partial[split, b, head, d])
        for d in range(tx, HEAD_DIM, 32):
            out[b, head, d] = acc[d // 32]
        if tx == 0:
            lse[b, head] = merged
'''

WRONG = [
    ("the first state weighs 1", START, START.replace("-math.inf", "0.0")),
    ("-1e3 for no keys", START, START.replace("-math.inf", "-1e3")),
    ("the state goes on to the next column", [(LOOP, START + "\n        " + LOOP), ("            " + START + "\n            for split", "            for split")]),
    ("what was merged is not weighted", MIX, MIX.replace("w_a, x", "float32(1.0), x")),
    ("the split is not weighted", MIX, MIX.replace("w_b, out", "float32(1.0), out")),
    ("weights changed over", MERGE, MERGE.replace("w_a, w_b, merged =", "w_b, w_a, merged =")),
    ("merged into the first split", MERGE, MERGE.replace("merge_weights(merged,", "merge_weights(lse_partial[0, b, head],")),
    ("lse is not kept", MERGE, MERGE.replace("merged =", "_ =")),
    ("the first split twice", START, "x, merged = out_partial[0, b, head, d], lse_partial[0, b, head]"),
    ("divided by the number of splits", OUT, "out[b, head, d] = x / lse_partial.shape[0]"),
    ("divided by merged", OUT, "out[b, head, d] = x / merged"),
    ("empty rows are not written", OUT, "if merged > -math.inf:\n                out[b, head, d] = x"),
    ("lse of empty rows is 0", LSE, "lse[b, head] = merged if merged > -math.inf else float32(0.0)"),
    ("log2", LSE, "lse[b, head] = merged / float32(math.log(2))"),
    ("every thread stores lse", "if d == 0:", "if d >= 0:"),
    ("32 splits at most", SPLITS, "for split in range(min(32, lse_partial.shape[0])):"),
    ("128 splits at most", SPLITS, "for split in range(min(128, lse_partial.shape[0])):"),
    ("1024 splits at most", SPLITS, "for split in range(min(1024, lse_partial.shape[0])):"),
    ("64 sequences at most", "        head, b = cuda.blockIdx.x, cuda.blockIdx.y\n", "        head, b = cuda.blockIdx.x, cuda.blockIdx.y % 64\n"),
    ("head and sequence changed over", MERGE, MERGE.replace("[split, b, head]", "[split, head % lse_partial.shape[1], b % lse_partial.shape[2]]")),
    ("neighbouring columns to one thread", LOOP, "for d in range(cuda.threadIdx.x * ((HEAD_DIM + 31) // 32), min(HEAD_DIM, (cuda.threadIdx.x + 1) * ((HEAD_DIM + 31) // 32))):"),
    ("one column for each thread", LOOP, "for d in range(cuda.threadIdx.x, min(32, HEAD_DIM), 32):"),
    ("every thread all columns", LOOP, "for d in range(HEAD_DIM):"),
    ("out_partial is loaded twice", MIX, MIX + "\n                x += float32(0.0) * out_partial[split, b, head, d]"),
    ("out is summed in HBM", OUT, "out[b, head, d] = float32(0.0)\n            out[b, head, d] += x"),
    ("weights in a local array", LOOP, "w = cuda.local.array(2048, float32)\n        w[0] = float32(0.0)\n        " + LOOP),
    ("weights in shared memory", LOOP, "w = cuda.shared.array(2048, float32)\n        w[cuda.threadIdx.x] = float32(0.0)\n        " + LOOP),
    ("a barrier", LOOP, "cuda.syncthreads()\n        " + LOOP),
    ("lse_partial is changed", LSE, "lse[b, head] = merged\n                lse_partial[0, b, head] = merged"),
    ("float64", START, "x, merged = 0.0, float32(-math.inf)"),
    ("256 columns at most", LOOP, "for d in range(cuda.threadIdx.x, min(HEAD_DIM, 256), 32):"),
    ("weights up to 1e-3 are left out", "if w_b > 0 else a", "if w_b > float32(1e-3) else a"),
    ("weights up to 1e-5 are left out", "if w_b > 0 else a", "if w_b > float32(1e-5) else a"),
    ("weights up to 1e-3 of what was merged are left out", "if w_a > 0 else", "if w_a > float32(1e-3) else"),
]

RIGHT = [
    ("the statement's formula, the lse first", [(BODY, TWO_LOOPS)]),
    ("all columns of a thread at once", [(BODY, AT_ONCE), ("a compile-time constant.\"\"\"\n", "a compile-time constant.\"\"\"\n    NUM_COLS = math.ceil(HEAD_DIM / 32)\n")]),
    ("other names", [("def kernel(out_partial, lse_partial, out, lse):", "def kernel(O_part, L_part, O, L):"), (SPLITS, "for split in range(L_part.shape[0]):"),
        (MERGE, MERGE.replace("lse_partial", "L_part")), (MIX, MIX.replace("out_partial", "O_part")), (OUT, "O[b, head, d] = x"), (LSE, "L[b, head] = merged")]),
    ("empty splits are passed over", MERGE, "if lse_partial[split, b, head] == -math.inf:\n                    continue\n                " + MERGE),
]

EQUIVALENT = [
    ("a = w_a * x_a if w_a > 0 else float32(0.0) -> a = w_a * x_a if w_a >= 0 else float32(0.0)", "a split without keys has out_partial 0"),
    ("return a + w_b * x_b if w_b > 0 else a -> return a + w_b * x_b if w_b >= 0 else a", "a split without keys has out_partial 0"),
]
