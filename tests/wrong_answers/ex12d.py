"""ex12d: two TF32 for one float32."""

# fmt: off
BIG = "big = to_tf32(x)"
RETURN = "return big, to_tf32(x - big)"
SPLIT_A = "a_big[i], a_small[i] = split(a[i])"
SPLIT_B = "b_big[i], b_small[i] = split(b[i])"
SMALL_BIG = "    mma_tf32(d, a_small, b_big)\n"
BIG_SMALL = "    mma_tf32(d, a_big, b_small)\n"
BIG_BIG = "    mma_tf32(d, a_big, b_big)\n"

WRONG = [
    ("one product", [(SMALL_BIG, ""), (BIG_SMALL, "")]),
    ("two products, without a_small", SMALL_BIG, ""),
    ("two products, without b_small", BIG_SMALL, ""),
    ("without the large term", BIG_BIG, ""),
    ("small b_small in place of a mixed one", SMALL_BIG, "    mma_tf32(d, a_small, b_small)\n"),
    ("four products", SMALL_BIG, "    mma_tf32(d, a_small, b_small)\n" + SMALL_BIG),
    ("the large term twice", BIG_BIG, BIG_BIG + BIG_BIG),
    ("float32 itself", BIG, "big = x"),
    ("small is not rounded", RETURN, "return big, x - big"),
    ("small is 0", RETURN, "return big, float32(0.0)"),
    ("small of small", RETURN, "return big, to_tf32(x - big) * float32(0.5)"),
    ("small first", RETURN, "return to_tf32(x - big), big"),
    ("half of x", BIG, "big = to_tf32(x * float32(0.5))"),
    ("b's small from a", SPLIT_B, "b_big[i], b_small[i] = split(b[i])\n        b_small[i] = a_small[i]"),
    ("a is split in place", SPLIT_A, "a_big[i], a_small[i] = split(a[i])\n        a[i] = a_big[i]"),
    ("the first register only", SPLIT_A, "a_big[i], a_small[i] = split(a[i])\n        if i > 0:\n            a_small[i] = float32(0.0)"),
    ("half of the lanes", BIG_SMALL, "    if cuda.laneid < 16:\n        mma_tf32(d, a_big, b_small)\n"),
    ("d is set to 0", SMALL_BIG, "    for i in range(4):\n        d[i] = float32(0.0)\n" + SMALL_BIG),
    ("float64", RETURN, "return big, to_tf32((x - big) * 1.0000001)"),
]

RIGHT = [
    ("mixed terms exchanged", SMALL_BIG + BIG_SMALL, BIG_SMALL + SMALL_BIG),
    ("small first, then subtracted", RETURN, "small = x - big\n    return big, to_tf32(small)"),
    ("large term first", SMALL_BIG + BIG_SMALL + BIG_BIG, BIG_BIG + SMALL_BIG + BIG_SMALL),
]

EQUIVALENT = []
