"""ex12b: a swizzled tile."""

# fmt: off
WORDS = "words = {start // 4 + i for start in starts for i in range(4)}"
BANK = "in_bank[word % 32] += 1"
MAX = "return max(in_bank)"
PLACE = "place = (col // 8) ^ (row % 8)"
BYTE = "return 128 * row + 16 * place + 2 * (col % 8)"
CHUNK = "chunk = (rest // 16) ^ (row % 8)"
BACK = "return row, 8 * chunk + rest % 16 // 2"

WRONG = [
    ("the same words are counted twice", WORDS, "words = [start // 4 + i for start in starts for i in range(4)]"),
    ("16 banks", BANK, "in_bank[word % 16] += 1"),
    ("accesses, not words", MAX, "return len(set(starts))"),
    ("words of all banks", MAX, "return -(-sum(in_bank) // 32)"),
    ("16 wavefronts at most", MAX, "return min(16, max(in_bank))"),
    ("conflicts, not wavefronts", MAX, "return max(in_bank) - 1"),
    ("no swizzle", [(PLACE, "place = col // 8"), (CHUNK, "chunk = rest // 16")]),
    ("xor by half the row", [(PLACE, "place = (col // 8) ^ (row // 2 % 8)"), (CHUNK, "chunk = (rest // 16) ^ (row // 2 % 8)")]),
    ("four places", [(PLACE, "place = (col // 8) ^ (row % 4)"), (CHUNK, "chunk = (rest // 16) ^ (row % 4)")]),
    ("padded rows", [(PLACE, "place = col // 8"), (BYTE, "return 144 * row + 16 * place + 2 * (col % 8)"), ("row, rest = divmod(byte, 128)", "row, rest = divmod(byte, 144)"), (CHUNK, "chunk = rest // 16")]),
    ("elements swizzled, chunks torn", [(BYTE, "return 128 * row + 16 * place + 2 * (col % 8 ^ row % 8)"), (BACK, "return row, 8 * chunk + (rest % 16 // 2 ^ row % 8)")]),
    ("right for 24 rows", [(PLACE, "place = (col // 8) ^ (row % 8 if row < 24 else 0)"), (CHUNK, "chunk = (rest // 16) ^ (row % 8 if row < 24 else 0)")]),
    ("right from multiples of 8 on alone", [(PLACE, "place = (col // 8) ^ (row % 8 ^ (row // 8 % 2))"), (CHUNK, "chunk = (rest // 16) ^ (row % 8 ^ (row // 8 % 2))")]),
    ("rows are floats", BACK, "return byte / 128 // 1, 8 * chunk + rest % 16 // 2"),
    ("starts is sorted", WORDS, "starts.sort()\n    " + WORDS),
    ("128 addresses at most", WORDS, WORDS.replace("in starts", "in starts[:128]")),
]

RIGHT = [
    ("shifted by the row", [(PLACE, "place = (col // 8 + row) % 8"), (CHUNK, "chunk = (rest // 16 - row) % 8")]),
    ("chunks of 16 bytes counted", [(WORDS, "chunks = {start // 16 for start in starts}"), ("    in_bank = [0] * 32\n    for word in words:\n        in_bank[word % 32] += 1\n", "    in_bank = [sum(chunk % 8 == group for chunk in chunks) for group in range(8)]\n")]),
    ("shifted backwards", [(PLACE, "place = (col // 8 - 3 * row) % 8"), (CHUNK, "chunk = (rest // 16 + 3 * row) % 8")]),
]

ALIGNED = "a start is a multiple of 16, so its four words share their banks with no others"
EQUIVALENT = [
    ("words = {start // 4 + i for start in starts for i in range(4)} -> words = {start // 4 - i for start in starts for i in range(4)}", ALIGNED),
    ("words = {start // 4 + i for start in starts for i in range(4)} -> words = {start // 4 for start in starts for i in range(4)}", ALIGNED),
    ("words = {start // 4 + i for start in starts for i in range(4)} -> words = {start // 4 + i for start in starts for i in range(4 - 1)}", ALIGNED),
    ("in_bank = [0] * 32 -> in_bank = [0] * 33", "a bank that no word is in"),
]
