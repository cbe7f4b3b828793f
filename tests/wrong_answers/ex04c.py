"""Wrong and right answers of ex04c: see tests/wrong_answers/__init__.py."""

ROWS = "    num_row_tiles = 1 if B_r is None else -(-N // B_r)\n"
COLS = "    num_col_tiles = 1 if B_c is None else -(-N // B_c)\n"
Q = '        "q_reads": N * d * num_col_tiles,'
K = '        "k_reads": N * d * num_row_tiles,'
V = '        "v_reads": N * d * num_row_tiles,'
S_READS = '        "s_reads": N * N,\n'
OUT = '        "out_writes": N * d,\n'
TRAFFIC = "    traffic = {key: count * dtype_bytes for key, count in elements.items()}\n"
RETURN = '    return {**traffic, "total": sum(traffic.values())}\n'

WRONG = [
    ("tiles rounded down", ROWS, ROWS.replace("-(-N // B_r)", "N // B_r")),
    ("tiles not rounded", COLS, COLS.replace("-(-N // B_c)", "N / B_c")),
    ("tiles rounded by floats", ROWS, ROWS.replace("-(-N // B_r)", "round(N / B_r + 0.5)")),
    ("one tile more", COLS, COLS.replace("-(-N // B_c)", "N // B_c + 1")),
    ("tiles walked in a loop", ROWS,
     ROWS.replace("-(-N // B_r)", "sum(1 for _ in range(0, N, B_r))")),
    ("no default tile", ROWS, ROWS.replace("1 if", "N if")),
    ("B_r and B_c swapped", [(Q, Q.replace("col", "row")), (K, K.replace("row", "col"))]),
    ("K as often as Q", K, K.replace("row", "col")),
    ("Q loaded once", Q, Q.replace(" * num_col_tiles", "")),
    ("V loaded once", V, V.replace(" * num_row_tiles", "")),
    ("V per column of tiles", V, V.replace("row", "col")),
    ("whole tiles", Q, '        "q_reads": d * num_col_tiles * num_row_tiles * (B_r or N),'),
    ("S is not read back", S_READS, '        "s_reads": 0,\n'),
    ("S is read per tile", S_READS, '        "s_reads": N * N * num_col_tiles,\n'),
    ("out once per tile", OUT, '        "out_writes": N * d * num_col_tiles,\n'),
    ("float32 by default", "def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2):",
     "def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=4):"),
    ("elements, not bytes", TRAFFIC, TRAFFIC.replace(" * dtype_bytes", "")),
    ("bytes of 2 taken for granted", TRAFFIC, TRAFFIC.replace("dtype_bytes", "2")),
    ("floats", TRAFFIC, TRAFFIC.replace("count *", "float(count) *")),
    ("the total counts itself", RETURN,
     '    traffic["total"] = 0\n    return {**traffic, "total": 2 * sum(traffic.values())}\n'),
    ("the total leaves O out", RETURN,
     RETURN.replace("sum(traffic.values())", 'sum(traffic.values()) - traffic["out_writes"]')),
    ("no total", RETURN, "    return traffic\n"),
    ("a list", RETURN, "    return list(traffic.values())\n"),
    ("no return", RETURN, "    traffic.values()\n"),
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
    ("defaults by or", [
        (ROWS, "    B_r, B_c = B_r or N, B_c or N\n    num_row_tiles = (N + B_r - 1) // B_r\n"),
        (COLS, "    num_col_tiles = (N + B_c - 1) // B_c\n")]),
]  # fmt: skip

EQUIVALENT = []
