"""ex12c: from the accumulators to an operand."""

# fmt: off
JR = "j, r = 2 * k + i // 2, 2 * (i % 2)"
SOURCES = "return (j, r), (j, r + 1)"
BITS = "np.asarray(x, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)"
PACK = "return (high << np.uint32(16)) | low"
EMPTY = "registers = np.empty((len(p) // 2, 4), np.uint32)"
STORE = "registers[k, i] = pack(p[low], p[high])"

WRONG = [
    ("a1 and a2 changed over", JR, "j, r = 2 * k + i % 2, 2 * (i // 2)"),
    ("products far apart", JR, "j, r = k + i // 2, 2 * (i % 2)"),
    ("halves changed over", SOURCES, "return (j, r + 1), (j, r)"),
    ("the same row twice", SOURCES, "return (j, r), (j, r + 2)"),
    ("lists", SOURCES, "return [j, r], [j, r + 1]"),
    ("high in the low half", PACK, "return (low << np.uint32(16)) | high"),
    ("added, not joined", PACK, "return high + low"),
    ("64 bits", PACK, "return (high.astype(np.uint64) << np.uint64(16)) | low"),
    ("cut, not rounded", BITS, "((np.asarray(x, np.float32).view(np.uint32) >> np.uint32(13) << np.uint32(13)).view(np.float32)).astype(np.float16).view(np.uint16).astype(np.uint32)"),
    ("float32's upper half", BITS, "(np.asarray(x, np.float32).view(np.uint32) >> np.uint32(16))"),
    ("subnormal numbers become 0", BITS, "np.where(np.abs(np.asarray(x, np.float32)) < 6.1e-5, np.float32(0), x).astype(np.float16).view(np.uint16).astype(np.uint32)"),
    ("large numbers become 65504", BITS, "np.clip(np.asarray(x, np.float32), -65504, 65504).astype(np.float16).view(np.uint16).astype(np.uint32)"),
    ("half of the registers", EMPTY, "registers = np.empty((len(p) // 4 or 1, 4), np.uint32)"),
    ("32 products at most", EMPTY, "p = p[:32]\n    " + EMPTY),
    ("p rounded in place", EMPTY, "p[...] = p.astype(np.float16)\n    " + EMPTY),
    ("pack rounds in place", "    low, high = (\n        " + BITS, "    if np.ndim(low):\n        low[...] = np.asarray(low).astype(np.float16)\n    low, high = (\n        " + BITS),
]

RIGHT = [
    ("two float16 seen as one uint32", PACK, "pair = np.stack([low, high], axis=-1).astype(np.uint16)\n    return pair.view(np.uint32)[..., 0] if pair.ndim > 1 else pair.view(np.uint32)[0]"),
    ("all registers at once", "    for k in range(len(p) // 2):\n        for i in range(4):\n            low, high = sources(k, i)\n            registers[k, i] = pack(p[low], p[high])\n",
     "    pairs = p.reshape(len(p) // 2, 2, 2, 2)  # k, left or right half, row g or g + 8, the two columns\n    registers[...] = pack(pairs[..., 0], pairs[..., 1]).reshape(-1, 4)\n"),
]

EQUIVALENT = []
