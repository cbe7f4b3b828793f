"""ex15d: places of elements in large arrays."""

ROW = "row = token * num_heads + head\n"
RETURN = "return row * head_dim + d\n"

WRONG = [
    ("the row in 32 bits", ROW, "row = int32(token * num_heads + head)  # 32\n"),
    ("the place in 32 bits", RETURN, "return int32(row * head_dim + d)  # 32\n"),
    ("widened too late", RETURN, "return int64(int32(row * head_dim + d))\n"),
    ("without a sign", RETURN, "return uint32(row * head_dim + d)\n"),
    ("the row without a sign", ROW, "row = uint32(token * num_heads + head)\n"),
    ("through float64", RETURN, "return int64(float64(row) * head_dim + d)\n"),
    ("through float32", RETURN, "return int64(float32(row) * float32(head_dim) + float32(d))\n"),
    ("a float", RETURN, "return float64(row * head_dim + d)\n"),
    ("the token in 32 bits", ROW, "row = int32(token) * num_heads + head\n"),
    ("the last two axes exchanged", [(ROW, "row = token * head_dim + d\n"), (RETURN, "return row * num_heads + head\n")]),
    ("heads first", ROW, "row = head * num_heads + token\n"),
    ("without the head", ROW, "row = token * num_heads\n"),
    ("without d", RETURN, "return row * head_dim\n"),
    ("modulo 2^31", RETURN, "return (row * head_dim + d) % 2147483648\n"),
    ("never negative", RETURN, "return abs(int32(row * head_dim + d))\n"),
    ("at most 2^31", RETURN, "return min(row * head_dim + d, 2147483647)\n"),
    ("512 heads at most", ROW, "row = token * min(num_heads, 512) + head\n"),
]  # fmt: skip
IMPORT = (
    "from numba import cuda, int32",
    "from numba import cuda, float32, float64, int32, int64, uint32",
)
WRONG = [
    (name, [IMPORT, *(old[0] if isinstance(old[0], list) else [tuple(old)])])
    for name, *old in WRONG
]

RIGHT = [
    ("int64 in words", [IMPORT, (ROW, "row = int64(token) * int64(num_heads) + int64(head)\n"), (RETURN, "return row * int64(head_dim) + int64(d)\n")]),
    ("one line", [("    " + ROW, ""), (RETURN, "return (token * num_heads + head) * head_dim + d\n")]),
]  # fmt: skip

EQUIVALENT = []
