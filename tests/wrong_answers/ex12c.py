"""ex12c: from the accumulators to an operand."""

# fmt: off
JR = "j, r = 2 * k + i // 2, 2 * (i % 2)"
SOURCES = "return (j, r), (j, r + 1)"
LOOP = "for k in range(len(registers)):"
STORE = "registers[k, i] = pack(p[low], p[high])"

WRONG = [
    ("a1 and a2 changed over", JR, "j, r = 2 * k + i % 2, 2 * (i // 2)"),
    ("halves changed over", SOURCES, "return (j, r + 1), (j, r)"),
    ("lists", SOURCES, "return [j, r], [j, r + 1]"),
    ("high in the low half", STORE, "registers[k, i] = pack(p[high], p[low])"),
    ("one float twice", STORE, "registers[k, i] = pack(p[low], p[low])"),
    ("not packed", STORE, "registers[k, i] = p[low]"),
    ("half of the registers", LOOP, "for k in range(len(registers) // 2 or 1):"),
    ("16 products at most", LOOP, "for k in range(min(len(registers), 16)):"),
    ("the first A alone", "low, high = sources(k, i)", "low, high = sources(0, i)"),
    ("p rounded in place", LOOP, "p[...] = p.astype(np.float16)\n    " + LOOP),
    ("two registers alone", "for i in range(4):", "for i in range(2):"),
    ("128 operands at most", LOOP, "for k in range(min(len(registers), 128)):"),
]

RIGHT = [
    ("all registers at once", "    for k in range(len(registers)):\n        for i in range(4):\n            low, high = sources(k, i)\n            registers[k, i] = pack(p[low], p[high])\n",
     "    pairs = p.reshape(len(p) // 2, 2, 2, 2)  # k, left or right half, row g or g + 8, the two columns\n    registers[...] = pack(pairs[..., 0], pairs[..., 1]).reshape(-1, 4)\n"),
    ("bits of i", JR, "j, r = (k << 1) | (i >> 1), (i & 1) << 1"),
]

EQUIVALENT = []
