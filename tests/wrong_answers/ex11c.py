"""ex11c: a column of a tile without bank conflicts."""

TILE = "k_tile = cuda.shared.array((32, 65), float32)"
HEAD = '    """s = q k^T, each thread in a bank of its own."""\n    ' + TILE + "\n"
BODY = """    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for n in range(ty, 32, 8):
        for d in range(tx, 64, 32):
            k_tile[n, d] = k[n, d]
    cuda.syncthreads()  # k_tile is complete: safe to read
    acc = float32(0)
    for d in range(64):
        acc += q[ty, d] * k_tile[tx, d]
    s[ty, tx] = acc
"""
ALL = HEAD + BODY


def changed(*pairs):
    """The whole body changed: its lines stand in broken_kernel, too."""
    text = ALL
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return ALL, text


READ, WRITE, BARRIER = (
    "k_tile[tx, d]",
    "k_tile[n, d] =",
    "    cuda.syncthreads()  # k_tile is complete: safe to read\n",
)
SHAPE = "(32, 65)"

WRONG = [
    ("as it was", TILE, TILE.replace("65", "64")),
    ("padded to 96", TILE, TILE.replace("65", "96")),
    ("padded to 97", TILE, TILE.replace("65", "97")),
    ("one row more", TILE, TILE.replace("(32, 65)", "(33, 64)")),
    ("transposed, not padded", *changed((SHAPE, "(64, 32)"), (WRITE, "k_tile[d, n] ="), (READ, "k_tile[d, tx]"))),
    ("a warp barrier", *changed(("syncthreads", "syncwarp"))),
    ("no tile", *changed((READ, "k[tx, d]"))),
    ("the row of another thread", *changed((READ, "k_tile[ty, d]"))),
    ("a shift of the start, that skips", *changed((READ, "k_tile[tx, (d + tx) % 64]"))),
    ("swizzled reads only", *changed((SHAPE, "(32, 64)"), (READ, "k_tile[tx, d ^ tx]"))),
    ("half of d", *changed(("range(64)", "range(32)"))),
    ("float64", *changed(("float32(0)", "0.0"))),
    ("each thread loads its own row", *changed(("range(ty, 32, 8)", "range(tx, 32, 32)"), ("range(tx, 64, 32)", "range(ty, 64, 8)"))),
    ("loaded by each warp", *changed(("range(ty, 32, 8)", "range(32)"))),
    ("16 keys", *changed(("range(ty, 32, 8)", "range(ty, 16, 8)"))),
    ("a second tile, of q", *changed((TILE, TILE + "\n    q_tile = cuda.shared.array((8, 64), float32)\n    q_tile[cuda.threadIdx.y, cuda.threadIdx.x] = float32(0)"))),
    ("the first 32 values of d twice", *changed((READ, "k_tile[tx, d % 32]"))),
]  # fmt: skip

RIGHT = [
    ("transposed and padded", *changed((SHAPE, "(64, 33)"), (WRITE, "k_tile[d, n] ="), (READ, "k_tile[d, tx]"))),
    ("a swizzle", *changed((SHAPE, "(32, 64)"), (WRITE, "k_tile[n, d ^ n] ="), (READ, "k_tile[tx, d ^ tx]"))),
    ("each thread begins elsewhere", *changed((SHAPE, "(32, 64)"), (READ, "k_tile[tx, (d + tx) % 64]"), ("q[ty, d]", "q[ty, (d + tx) % 64]"))),
]  # fmt: skip

EQUIVALENT = []
