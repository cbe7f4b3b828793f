"""Wrong and right answers of ex00e: see tests/wrong_answers/__init__.py."""

COUNT = "    return (n + threads - 1) // threads"
COL = "    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\n"
ROW = "    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y\n"
INSIDE = "    if row < out.shape[0] and col < out.shape[1]:\n"
BODY = "        out[row, col] = a[row, col] + b[row, col]"

WRONG = [
    ("rounded down", COUNT, "    return n // threads"),
    ("one too many", COUNT, "    return n // threads + 1"),
    ("a float", COUNT, "    return n / threads"),
    ("through a float", COUNT, "    return -int(-n / threads // 1)"),
    ("no return", COUNT, "    (n + threads - 1) // threads"),
    ("gridDim for blockDim", COL, COL.replace("blockDim", "gridDim")),
    ("strided", COL, "    col = cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x\n"),
    ("32 taken for granted", COL, COL.replace("cuda.blockDim.x", "32")),
    ("x for both", ROW, ROW.replace(".y", ".x")),
    ("blockDim of the other axis", ROW, ROW.replace("blockDim.y", "blockDim.x")),
    ("x down the columns", [(COL, ROW.replace("row", "col")), (ROW, COL.replace("col", "row"))]),
    ("a square matrix taken for granted", INSIDE, INSIDE.replace("[1]", "[0]")),
    ("added to what was there", BODY, BODY.replace("= a", "= out[row, col] + a")),
    ("a twice", BODY, "        out[row, col] = a[row, col] + a[row, col]"),
    ("in place", BODY, "        b[row, col] += a[row, col]\n        out[row, col] = b[row, col]"),
    ("256 rows at most", INSIDE, INSIDE.replace("out.shape[0]", "min(256, out.shape[0])")),
    ("8 thread blocks along x", INSIDE, INSIDE.replace("    if ", "    if cuda.blockIdx.x < 8 and ")),
]  # fmt: skip

RIGHT = [
    ("math.ceil of whole numbers, cuda.grid", [(COUNT, "    return -(-n // threads)"), (COL + ROW, "    col, row = cuda.grid(2)\n")]),
    ("divmod, early return", [
        (COUNT, "    whole, part = divmod(n, threads)\n    return whole + (part > 0)"),
        (INSIDE + BODY, "    rows, cols = a.shape\n    if row >= rows or col >= cols:\n"
                        "        return\n    out[row, col] = b[row, col] + a[row, col]")]),
]  # fmt: skip

EQUIVALENT = []
