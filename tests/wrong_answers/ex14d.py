"""ex14d: a rotation that spreads outliers."""

# fmt: off
SIZE = "shape, d = x.shape, x.shape[-1]"
PAIRS = "pairs = x.reshape(*shape[:-1], d // (2 * h), 2, h)"
STACK = "x = np.stack([a + b, a - b], axis=-2).reshape(shape)"
RETURN = "return x / x.dtype.type(np.sqrt(d))"
ROTATE = "return hadamard(x * signs.astype(x.dtype))"
BACK = "return hadamard(y) * signs.astype(y.dtype)"
WRITTEN = '''    d = x.shape[-1]
    H = np.ones((1, 1), x.dtype)
    while len(H) < d:
        H = np.block([[H, H], [H, -H]])
    return x @ H / x.dtype.type(np.sqrt(d))
'''
BODY = '''    shape, d = x.shape, x.shape[-1]
    h = 1
    while h < d:
        pairs = x.reshape(*shape[:-1], d // (2 * h), 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(shape)
        h *= 2
    return x / x.dtype.type(np.sqrt(d))
'''
BY_SUMS = '''    d = x.shape[-1]
    out = np.empty_like(x)
    j = np.arange(d)
    for i in range(d):
        bits = i & j
        for half in (16, 8, 4, 2, 1):
            bits = bits ^ bits >> half
        out[..., i] = (x * np.where(bits & 1, -1, 1)).sum(axis=-1)
    return out / x.dtype.type(np.sqrt(d))
'''
IN_PLACE = BODY.replace("x = np.stack([a + b, a - b], axis=-2).reshape(shape)", "x[...] = np.stack([a + b, a - b], axis=-2).reshape(shape)")
RECURSIVE = '''    d = x.shape[-1]
    if d == 1:
        return x.copy()
    left, right = hadamard(x[..., : d // 2]), hadamard(x[..., d // 2 :])
    half = x.dtype.type(np.sqrt(0.5))
    return np.concatenate([left + right, left - right], axis=-1) * half
'''

WRONG = [
    ("divided by d", RETURN, "return x / x.dtype.type(d)"),
    ("float64 comes back", RETURN, "return x / np.sqrt(np.float64(d))"),
    ("float32 comes back", RETURN, "return (x / x.dtype.type(np.sqrt(d))).astype(np.float32)"),

    ("the last size is missing", "while h < d:", "while h < d // 2:"),
    ("the matrix written down", BODY, WRITTEN),
    ("d^2 additions", BODY, BY_SUMS),
    ("in place", BODY, IN_PLACE),
    ("signs after", ROTATE, "return hadamard(x) * signs.astype(x.dtype)"),
    ("signs decide the dtype", ROTATE, "return hadamard(x * signs.astype(np.float64))"),
    ("signs before, back too", BACK, "return hadamard(y * signs.astype(y.dtype))"),
    ("in float16 on the way", ROTATE, "return hadamard((x * signs.astype(x.dtype)).astype(np.float16).astype(x.dtype))"),
    ("rotated in place", ROTATE, "x *= signs.astype(x.dtype)\n    return hadamard(x)"),
    ("256 columns at most", SIZE, "shape, d = x.shape, x.shape[-1]\n    if d > 256:\n        return np.concatenate([hadamard(part) for part in np.split(x, d // 256, axis=-1)], axis=-1)"),
    ("256 rows at most", SIZE, SIZE + "\n    if x.ndim == 2 and len(x) > 256:\n        return np.concatenate([hadamard(x[:256]), x[256:]])"),
]


RIGHT = [
    ("rows of a matrix, whatever the shape", PAIRS, "pairs = x.reshape(-1, d // (2 * h), 2, h)"),
    ("recursive", BODY, RECURSIVE),
    ("each step divided by the root of 2, signs multiplied otherwise", [(STACK, "half = x.dtype.type(np.sqrt(0.5))\n        x = np.stack([a * half + b * half, a * half - b * half], axis=-2).reshape(shape)"), (RETURN, "return x.copy()"), (ROTATE, "return hadamard(np.where(signs > 0, x, -x))")]),
]

EQUIVALENT = [
    ("return hadamard(y) * signs.astype(y.dtype) -> return hadamard(y) / signs.astype(y.dtype)", "signs are 1 and -1"),
    ("return hadamard(x * signs.astype(x.dtype)) -> return hadamard(x / signs.astype(x.dtype))", "signs are 1 and -1"),
]
