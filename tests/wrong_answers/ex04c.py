"""Wrong and right answers of ex04c: see tests/wrong_answers/__init__.py."""

Q = "    q_reads = N * d * num_col_tiles  #"
KV = "    k_reads = v_reads = N * d * num_row_tiles\n"
SQUARE = "    square = N * N\n"
MOVED = "    return q_reads, k_reads, square, square, square, square, v_reads, N * d\n"

WRONG = [
    ("B_r and B_c swapped", [(Q, Q.replace("col", "row")), (KV, KV.replace("row", "col"))]),
    ("K and V as often as Q", KV, KV.replace("row", "col")),
    ("Q as often as K", Q, Q.replace("col", "row")),
    ("V loaded once", KV, KV + "    v_reads = N * d\n"),
    ("V per column of tiles", KV, KV + "    v_reads = N * d * num_col_tiles\n"),
    ("S is not read back", MOVED, MOVED.replace("square, square", "square, 0", 1)),
    ("P is not read back", MOVED, MOVED.replace("square, v", "0, v")),
    ("S is read per tile", MOVED, MOVED.replace("square, square", "square, square * num_col_tiles", 1)),
    ("S and P are N d", SQUARE, "    square = N * d\n"),
    ("S and P are rows of tiles", SQUARE, "    square = N * num_col_tiles\n"),
    ("V before P", MOVED, MOVED.replace("square, v_reads", "v_reads, square")),
    ("seven numbers", MOVED, MOVED.replace(", N * d", "")),
    ("out once per tile", MOVED, MOVED.replace("N * d", "N * d * num_col_tiles")),
    ("out is not written", MOVED, MOVED.replace("N * d", "0")),
    ("floats", MOVED, MOVED.replace("N * d", "float(N * d)")),
    ("the whole in float32", SQUARE, "    square = int(float(N) * N)\n"),
    ("a bare number", MOVED, "    return q_reads + k_reads + v_reads + 4 * square + N * d\n"),
]  # fmt: skip

RIGHT = [
    ("math.ceil of a fraction, one dict", """
from fractions import Fraction
from math import ceil


def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2):
    above, beside = (ceil(Fraction(N, b)) if b else 1 for b in (B_r, B_c))
    whole, square = N * d * dtype_bytes, N * N * dtype_bytes
    result = dict.fromkeys(("s_writes", "s_reads", "p_writes", "p_reads"), square)
    result.update(q_reads=whole * beside, k_reads=whole * above, v_reads=whole * above)
    result["out_writes"] = whole
    result["total"] = sum(result.values())
    return result
"""),
    ("another order of thought", Q, "    of_k, of_out = num_row_tiles * d * N, d * N\n    return num_col_tiles * of_out, of_k, *(N**2,) * 4, of_k, of_out\n    q_reads = N * d * num_col_tiles  #"),
]  # fmt: skip

EQUIVALENT = []
