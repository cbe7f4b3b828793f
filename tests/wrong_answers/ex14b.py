"""ex14b: e4m3 with a scale for each block of rows."""

FIRST = "first = block * block_rows"
STOP = "stop = min(first + block_rows, x.shape[0])"
ABS = "largest = max(largest, abs(x[first + i // columns, i % columns]))"
REDUCE = "largest = largest_of(part, largest)"
SCALE = "scale = largest / float32(E4M3_MAX) if largest > 0 else float32(1.0)"
PLACE = "row, column = first + i // columns, i % columns"
STORE = "x8[row, column] = round_e4m3(x[row, column] / scale)"
LAST = "    if tx == 0:\n        scales[block] = scale"

WRONG = [
    ("no absolute value", ABS, ABS.replace("abs(", "(")),
    ("the sum", ABS, ABS.replace("max(largest, ", "largest + (")),
    ("the last number", ABS, ABS.replace("max(largest, ", "(")),
    ("each thread's own largest", REDUCE, "largest_of(part, largest)"),
    ("zeros are divided by 0", SCALE, "scale = largest / float32(E4M3_MAX)"),
    ("scale 0 for zeros", SCALE, SCALE.replace("float32(1.0)", "float32(0.0)")),
    ("480", SCALE, SCALE.replace("float32(E4M3_MAX)", "float32(480.0)")),
    ("a smallest scale", SCALE, "scale = max(largest, float32(1e-12)) / float32(E4M3_MAX) if largest > 0 else float32(1.0)"),
    ("not rounded", STORE, "x8[row, column] = x[row, column] / scale"),
    ("rounded before the scale", STORE, "x8[row, column] = round_e4m3(x[row, column]) / scale"),
    ("scaled back", STORE, "x8[row, column] = round_e4m3(x[row, column] / scale) * scale"),
    ("the last block is whole", STOP, "stop = first + block_rows"),
    ("one scale for all", STOP, "stop = x.shape[0]"),
    ("columns before rows", PLACE, "row, column = first + i % (stop - first), i // (stop - first)"),
    ("every thread stores the scale", LAST, "    scales[block] = scale"),
    ("no scale is stored", LAST, "    if tx == 0 and block > 0:\n        scales[block] = scale"),
    ("64 numbers of a block at most", ABS, "if i < 64:\n            " + ABS),
    ("512 columns at most", ABS, "if i % columns < 512:\n            " + ABS),
    ("256 blocks at most", STORE, "if row < 256:\n            " + STORE),
    ("x is loaded again", STORE, "if x[row, column] > 0:\n            x8[row, column] = round_e4m3(x[row, column] / scale)\n        else:\n            x8[row, column] = -round_e4m3(-x[row, column] / scale)"),
    ("float64", SCALE, "scale = largest / E4M3_MAX * 1.1 / 1.1 if largest > 0 else 1.0"),
    ("x is divided in place", STORE, "x[row, column] /= scale\n        x8[row, column] = round_e4m3(x[row, column])"),
    ("multiplied by the scale", "round_e4m3(x[row, column] / scale)", "round_e4m3(x[row, column] * scale)"),
    ("240", "largest / float32(E4M3_MAX)", "largest / float32(240.0)"),
]  # fmt: skip

RIGHT = [
    ("loops over rows", [
        ("for i in range(tx, (stop - first) * columns, NUM_THREADS):\n        largest", "for n in range(first * columns + tx, stop * columns, NUM_THREADS):\n        largest"),
        (ABS, "largest = max(largest, math.fabs(x[n // columns, n % columns]))"),
    ]),
    ("the scale stored first", [(REDUCE, REDUCE + "\n    if tx == 0:\n        scales[block] = largest / float32(448.0) if largest > 0 else float32(1.0)"), ("\n" + LAST, "\n")]),
]  # fmt: skip

EQUIVALENT = [("if tx == 0: -> if tx == 1:", "any one thread may store the scale")]
