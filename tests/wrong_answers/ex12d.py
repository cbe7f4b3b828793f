"""ex12d: float32 out of TF32."""

# fmt: off
BIG = "big = to_tf32(x)"
SMALL = "return big, to_tf32(x - big)"
MIXED = "mixed = tensor_core(a_small, b_big) + tensor_core(a_big, b_small)"
RETURN = "return mixed + tensor_core(a_big, b_big)"
CUT = "(np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)"

WRONG = [
    ("cut off, not rounded", BIG, "big = " + CUT),
    ("nothing small", SMALL, "return big, to_tf32(big - big)"),
    ("the rest not rounded", SMALL, "return big, x - big"),
    ("float16", BIG, "big = x.astype(np.float16).astype(np.float32)"),
    ("float64 parts", SMALL, "return big, to_tf32(x - big).astype(np.float64)"),
    ("a list", SMALL, "return [big, to_tf32(x - big)]"),
    ("changed over", SMALL, "return to_tf32(x - big), big"),
    ("the same twice", SMALL, "return big, big"),
    ("small by small", MIXED, "mixed = tensor_core(a_small, b_big) + tensor_core(a_small, b_small)"),
    ("all four", MIXED, "mixed = tensor_core(a_small, b_small) + tensor_core(a_small, b_big) + tensor_core(a_big, b_small)"),
    ("float32", RETURN, "return a @ b"),
    ("float64", RETURN, "return (a.astype(np.float64) @ b).astype(np.float32)"),
    ("the large one first", [(MIXED, "mixed = tensor_core(a_big, b_big) + tensor_core(a_small, b_big)"), (RETURN, "return mixed + tensor_core(a_big, b_small)")]),
    ("256 columns at most", RETURN, "out = mixed + tensor_core(a_big, b_big)\n    out[:, 256:] = 0\n    return out"),
]

RIGHT = [
    ("the other order of the mixed terms", MIXED, "mixed = tensor_core(a_big, b_small) + tensor_core(a_small, b_big)"),
    ("the rest in float64", SMALL, "return big, to_tf32((x.astype(np.float64) - big).astype(np.float32))"),
    ("a loop over the terms", [(MIXED, "out = np.zeros((len(a), b.shape[1]), np.float32)\n    for x, y in ((a_small, b_big), (a_big, b_small), (a_big, b_big)):\n        out += tensor_core(x, y)"), (RETURN, "return out")]),
]

EQUIVALENT = []
