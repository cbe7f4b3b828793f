"""ex14b: a scale for each block of rows."""

# fmt: off
LARGEST = "largest = np.abs(block).max()"
SCALE = "return float(largest) / E4M3_MAX if largest > 0 else 1.0"
BACK = "return x8 * scales[np.arange(len(x8)) // block_rows, None]"

WRONG = [
    ("signs count", LARGEST, "largest = block.max()"),
    ("the mean", LARGEST, "largest = np.abs(block).mean()"),
    ("of the first row", LARGEST, "largest = np.abs(block[0]).max()"),
    ("a scale for each row", SCALE, "return np.abs(block).max(axis=1) / E4M3_MAX"),
    ("zeros have no scale", SCALE, "return float(largest) / E4M3_MAX"),
    ("zeros have a scale of 1 / 448", SCALE, "return float(largest or 1.0) / E4M3_MAX"),
    ("480", SCALE, "return float(largest) / 480 if largest > 0 else 1.0"),
    ("a lower bound that is too large", SCALE, "return float(max(largest, 1e-6)) / E4M3_MAX if largest > 0 else 1.0"),
    ("the first scale", BACK, "return x8 * scales[0]"),
    ("the last scale", BACK, "return x8 * scales[-1]"),
    ("scales in turn", BACK, "return x8 * scales[np.arange(len(x8)) % len(scales), None]"),
    ("whole blocks alone", BACK, "return x8 * np.repeat(scales, block_rows)[:, None]"),
    ("in place", BACK, "x8 *= scales[np.arange(len(x8)) // block_rows, None]\n    return x8"),
    ("the scales of columns", BACK, "return x8 * scales[np.arange(x8.shape[1]) // block_rows % len(scales)]"),
    ("of the first 64 columns", LARGEST, "largest = np.abs(block[:, :64]).max()"),
    ("of the first 128 rows", LARGEST, "largest = np.abs(block[:128]).max()"),
    ("256 rows at most", BACK, "out = x8 * scales[np.arange(len(x8)) // block_rows, None]\n    out[256:] = x8[256:]\n    return out"),
]

RIGHT = [
    ("repeat", BACK, "return x8 * np.repeat(scales, block_rows)[: len(x8), None]"),
    ("a loop", BACK, "out = np.array(x8)\n    for block, scale in enumerate(scales):\n        out[block * block_rows : (block + 1) * block_rows] *= scale\n    return out"),
    ("any, and maximum of both signs", [(LARGEST, "largest = max(block.max(), -block.min())"), (SCALE, "return float(largest / 448) if block.any() else 1.0")]),
]

EQUIVALENT = []
