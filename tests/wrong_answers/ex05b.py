"""Wrong and right answers of ex05b: see tests/wrong_answers/__init__.py."""

A_TILE = "        a_tile = cuda.shared.array((TILE, TILE), float32)\n"
B_TILE = "        b_tile = cuda.shared.array((TILE, TILE), float32)\n"
ROW = "        row = cuda.blockIdx.y * TILE + ty  # of a and c\n"
COL = "        col = cuda.blockIdx.x * TILE + tx  # of b and c\n"
ACC = "        acc = float32(0)\n"
LOOP = "        for k_start in range(0, a.shape[1], TILE):\n"
A_TEST = "            inside = row < a.shape[0] and k_start + tx < a.shape[1]\n"
A_LOAD = "            a_tile[ty, tx] = a[row, k_start + tx] if inside else float32(0)\n"
B_TEST = "            inside = k_start + ty < b.shape[0] and col < b.shape[1]\n"
B_LOAD = "            b_tile[ty, tx] = b[k_start + ty, col] if inside else float32(0)\n"
DOT = "                acc += a_tile[ty, k] * b_tile[k, tx]\n"
BEFORE = "            cuda.syncthreads()  # both tiles are complete: safe to read\n"
AFTER = "            cuda.syncthreads()  # every thread is done reading: safe to overwrite\n"
STORE_TEST = "        if row < c.shape[0] and col < c.shape[1]:\n"
STORE = "            c[row, col] = acc\n"

WRONG = [
    ("a early return", ROW, ROW + "        if row >= c.shape[0]:\n            return\n"),
    ("x down the rows", [(ROW, ROW.replace("Idx.y", "Idx.x")), (COL, COL.replace("Idx.x", "Idx.y"))]),
    ("tx down the rows", [(ROW, ROW.replace("+ ty", "+ tx")), (COL, COL.replace("+ tx", "+ ty")),
                          (A_TEST, A_TEST.replace("+ tx", "+ ty")),
                          (A_LOAD, A_LOAD.replace("[ty, tx]", "[tx, ty]").replace("+ tx", "+ ty")),
                          (B_TEST, B_TEST.replace("+ ty", "+ tx")),
                          (B_LOAD, B_LOAD.replace("[ty, tx]", "[tx, ty]").replace("+ ty", "+ tx")),
                          (DOT, DOT.replace("[ty, k]", "[tx, k]").replace("[k, tx]", "[k, ty]"))]),
    ("b_tile transposed", [(B_LOAD, B_LOAD.replace("[ty, tx]", "[tx, ty]")), (DOT, DOT.replace("b_tile[k, tx]", "b_tile[tx, k]"))]),
    ("a_tile transposed", [(A_LOAD, A_LOAD.replace("[ty, tx]", "[tx, ty]")), (DOT, DOT.replace("a_tile[ty, k]", "a_tile[k, ty]"))]),
    ("whole tiles only", LOOP, LOOP.replace("a.shape[1], TILE", "a.shape[1] // TILE * TILE, TILE")),
    ("128 tiles at most", LOOP, LOOP.replace("a.shape[1],", "min(a.shape[1], 128 * TILE),")),
    ("K taken from c", LOOP, LOOP.replace("a.shape[1]", "c.shape[1]")),
    ("a clamped index, not 0", A_LOAD, "            a_tile[ty, tx] = a[min(row, a.shape[0] - 1), min(k_start + tx, a.shape[1] - 1)]\n"),
    ("1 outside", [(A_LOAD, A_LOAD.replace("float32(0)", "float32(1)")), (B_LOAD, B_LOAD.replace("float32(0)", "float32(1)"))]),
    ("nothing outside", [(A_LOAD, "            if inside:\n                a_tile[ty, tx] = a[row, k_start + tx]\n")]),
    ("no store test", STORE_TEST, "        if True:\n"),
    ("a warp barrier", BEFORE, BEFORE.replace("syncthreads", "syncwarp")),
    ("the sum in c", [(ACC, "        if row < c.shape[0] and col < c.shape[1]:\n"
                            "            c[row, col] = float32(0)\n"),
                      (DOT, "                if row < c.shape[0] and col < c.shape[1]:\n"
                            "                    c[row, col] += a_tile[ty, k] * b_tile[k, tx]\n"),
                      (STORE, "            pass\n")]),
    ("the sum starts from c", STORE, STORE.replace("= acc", "+= acc")),
    ("stored in every step", AFTER, AFTER + "            if row < c.shape[0] and col < c.shape[1]:\n    " + STORE),
    ("b from HBM", [(B_LOAD, "            b_tile[ty, tx] = float32(0)\n"),
                    (DOT, "                if k_start + k < b.shape[0] and col < b.shape[1]:\n"
                          "                    acc += a_tile[ty, k] * b[k_start + k, col]\n")]),
    ("no tiles", [(DOT, "                if k_start + k < b.shape[0] and row < c.shape[0] and col < c.shape[1]:\n                    acc += a[row, k_start + k] * b[k_start + k, col]\n")]),
    ("a third tile", A_TILE, A_TILE + "        c_tile = cuda.shared.array((TILE, TILE), float32)\n        c_tile[cuda.threadIdx.y, cuda.threadIdx.x] = float32(0)\n"),
    ("padded tiles", A_TILE, A_TILE.replace("TILE, TILE)", "TILE, TILE + 1)")),
    ("two tiles in flight", B_TILE, B_TILE.replace("TILE, TILE)", "2 * TILE, TILE)")),
    ("products in a local array", [(ACC, ACC + "        kept = cuda.local.array(TILE, float32)\n"),
                                   (DOT, "                kept[k] = a_tile[ty, k] * b_tile[k, tx]\n"
                                         "                acc += kept[k]\n")]),
    ("a scaled in place", A_LOAD, A_LOAD + "            if row < a.shape[0] and k_start + tx < a.shape[1] and col < TILE:\n                a[row, k_start + tx] = float32(0)\n"),
    ("float64", ACC, "        acc = 0.0\n"),
    ("float16", DOT, "                acc += float32(int(a_tile[ty, k] * 2048) / float32(2048)) * b_tile[k, tx]\n"),
    ("256 rows at most", STORE_TEST, STORE_TEST.replace("c.shape[0]", "min(256, c.shape[0])")),
    ("256 columns at most", STORE_TEST, STORE_TEST.replace("c.shape[1]", "min(256, c.shape[1])")),
    ("the first warp alone", STORE_TEST, STORE_TEST.replace("if ", "if ty * TILE + tx < 32 and ")),
]  # fmt: skip

RIGHT = [
    ("a while loop, other names, ifs", """
import functools

from numba import cuda, float32


@functools.cache
def make_tiled_matmul(TILE):
    @cuda.jit
    def product(left, right, result):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        y, x = TILE * cuda.blockIdx.y + i, TILE * cuda.blockIdx.x + j
        rows, inner = left.shape
        cols = right.shape[1]
        left_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
        right_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
        total = float32(0)
        step = 0
        while step * TILE < inner:
            left_tile[i, j] = float32(0)
            if y < rows and step * TILE + j < inner:
                left_tile[i, j] = left[y, step * TILE + j]
            right_tile[i, j] = float32(0)
            if step * TILE + i < inner:
                if x < cols:
                    right_tile[i, j] = right[step * TILE + i, x]
            cuda.syncthreads()
            n = TILE - 1
            while n >= 0:
                total = total + right_tile[n, j] * left_tile[i, n]
                n -= 1
            cuda.syncthreads()
            step += 1
        if y < rows:
            if x < cols:
                result[y, x] = total

    return product
"""),
    ("cuda.grid and a helper", [
        (ROW + COL, "        col, row = cuda.grid(2)\n"),
        (A_TEST + A_LOAD, "            a_tile[ty, tx] = element(a, row, k_start + tx)\n"),
        (B_TEST + B_LOAD, "            b_tile[ty, tx] = element(b, k_start + ty, col)\n"),
        ("@functools.cache\ndef make", "@cuda.jit(device=True)\ndef element(x, i, j):\n"
         "    if i < x.shape[0] and j < x.shape[1]:\n        return x[i, j]\n"
         "    return float32(0)\n\n\n@functools.cache\ndef make"),
    ]),
]  # fmt: skip

OUTSIDE = "the other tile holds 0 for this k, or this row or column of c is not stored"
EQUIVALENT = [
    (f"{load.strip()} -> {load.strip().replace('float32(0)', 'float32(1)')}", OUTSIDE)
    for load in (A_LOAD, B_LOAD)
]
