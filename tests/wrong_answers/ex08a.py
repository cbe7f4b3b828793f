"""ex08a: delta = rowsum(dout * out)."""

# fmt: off
LOOP = "for d in range(lane, out.shape[1], 32):"
TERM = "total += dout[m, d] * out[m, d]"
SHUFFLE = "total += cuda.shfl_xor_sync(FULL_WARP, total, distance)"
DISTANCES = "for distance in (16, 8, 4, 2, 1):"
BODY = '''    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if lane == 0:
        delta[m] = total
'''
SHARED = '''    part = cuda.shared.array((ROWS, 32), float32)
    part[cuda.threadIdx.y, lane] = total
    cuda.syncwarp()
    if lane == 0:
        for other in range(1, 32):
            total += part[cuda.threadIdx.y, other]
        delta[m] = total
'''

WRONG = [
    ("no guard for rows", "if m >= out.shape[0]:", "if m < 0:"),
    ("one row too many", "if m >= out.shape[0]:", "if m > out.shape[0]:"),
    ("the last row is missing", "if m >= out.shape[0]:", "if m >= out.shape[0] - 1:"),
    ("columns beyond a warp are missing", LOOP, "for d in range(lane, min(out.shape[1], 32), 32):"),
    ("4096 columns at most", LOOP, "for d in range(lane, min(out.shape[1], 4096), 32):"),
    ("neighbouring columns to one lane", LOOP, "width = (out.shape[1] + 31) // 32\n    for d in range(lane * width, min(out.shape[1], (lane + 1) * width)):"),
    ("neighbouring columns of dout to one lane", TERM, "total += dout[m, lane * 2 + d // 32] * out[m, lane * 2 + d // 32] if out.shape[1] == 64 else dout[m, d] * out[m, d]"),
    ("every lane all columns", LOOP, "for d in range(out.shape[1]):"),
    ("squares of dout", TERM, "total += dout[m, d] * dout[m, d]"),
    ("squares of out", TERM, "total += out[m, d] * out[m, d]"),
    ("a sum, no product", TERM, "total += dout[m, d] + out[m, d]"),
    ("half the lanes", DISTANCES, "for distance in (8, 4, 2, 1):"),
    ("the last shuffle is missing", DISTANCES, "for distance in (16, 8, 4, 2):"),
    ("no shuffles", SHUFFLE, "pass"),
    ("every lane stores", "if lane == 0:", "if lane >= 0:"),
    ("shared memory", BODY, SHARED),
    ("a barrier", "    if lane == 0:", "    cuda.syncthreads()\n    if lane == 0:"),
    ("starts at the smallest positive number", "total = float32(0.0)", "total = float32(1e-12)"),
    ("clipped", "delta[m] = total", "delta[m] = min(max(total, float32(-1e9)), float32(1e9))"),
    ("added to what is there", "delta[m] = total", "delta[m] += total"),
    ("product left in out", TERM, "out[m, d] = dout[m, d] * out[m, d]\n        total += out[m, d]"),
    ("64 thread blocks at most", "m = cuda.blockIdx.x * ROWS", "m = cuda.blockIdx.x % 64 * ROWS"),
    ("float64", "total = float32(0.0)", "total = 0.0"),
    ("shuffles in the loop over columns", "    for distance in (16, 8, 4, 2, 1):\n        total +=", "        for distance in (16, 8, 4, 2, 1):\n            total +="),
    ("the first warp of a thread block alone", "if m >= out.shape[0]:", "if m >= out.shape[0] or cuda.threadIdx.y > 0:"),
    ("96 columns at most", LOOP, "for d in range(lane, min(out.shape[1], 96), 32):"),
]

RIGHT = [
    ("shfl_down and other names", [
        ("def delta_kernel(dout, out, delta):", "def delta_kernel(d_out, o, result):"),
        ("if m >= out.shape[0]:", "if m >= o.shape[0]:"), (LOOP, "for d in range(lane, o.shape[1], 32):"),
        (TERM, "total += d_out[m, d] * o[m, d]"), (SHUFFLE, "total += cuda.shfl_down_sync(FULL_WARP, total, distance)"),
        ("delta[m] = total", "result[m] = total"),
    ]),
    ("a while loop, distances upwards", [(DISTANCES, "distance = 1\n    while distance < 32:"), (SHUFFLE, SHUFFLE + "\n        distance *= 2"),]),
]

EQUIVALENT = [
    *((f"for distance in (16, 8, 4, 2, 1): -> for distance in ({numbers}):", f"{numbers} reach all 32 lanes as well")
      for numbers in ("17, 8, 4, 2, 1", "16, 9, 4, 2, 1", "16, 8, 5, 2, 1", "16, 8, 4, 3, 1")),
    ("if lane == 0: -> if lane == 1:", "after the shuffles every lane holds the sum"),
]
