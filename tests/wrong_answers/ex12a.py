"""ex12a: the fragments of mma.m16n8k16."""

# fmt: off
ROW = "row = lane // 4 + 8 * (register % 2)"
COL = "col = 2 * (lane % 4) + 8 * (register // 2) + half"
B = "return 2 * (lane % 4) + 8 * register + half, lane // 4"
D = "return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2"
IN_A = "return lane, row // 8 + 2 * (col // 8), col % 2"
IN_B = "return 4 * col + row % 8 // 2, row // 8, row % 2"
IN_D = "return 4 * (row % 8) + col // 2, 2 * (row // 8) + col % 2"

WRONG = [
    ("a1 and a2 changed over", [(ROW, ROW.replace("register % 2", "register // 2")), (COL, COL.replace("register // 2", "register % 2"))]),
    ("a lane's columns apart", COL, "col = lane % 4 + 4 * half + 8 * (register // 2)"),
    ("lanes down the rows", ROW, "row = lane % 8 + 8 * (register % 2)"),
    ("the high half is the left one", COL, "col = 2 * (lane % 4) + 8 * (register // 2) + 1 - half"),
    ("B by rows", B, "return lane // 4, 2 * (lane % 4) + 8 * register + half"),
    ("B's registers interleaved", B, "return 4 * (lane % 4) + 2 * register + half, lane // 4"),
    ("D as A", D, "return lane // 4 + 8 * (register % 2), 2 * (lane % 4) + register // 2"),
    ("D as floats", D, "return lane / 4 // 1 + 8 * (register // 2), 2 * (lane % 4) + register % 2"),
    ("the owner's registers changed over", IN_A, "return lane, 2 * (row // 8) + col // 8, col % 2"),
    ("the owner's half from the row", IN_B, "return 4 * col + row % 8 // 2, row // 8, col % 2"),
    ("the owner in D with a half", IN_D, "return 4 * (row % 8) + col // 2, 2 * (row // 8) + col % 2, 0"),
    ("a list", IN_D, "return [4 * (row % 8) + col // 2, 2 * (row // 8) + col % 2]"),
]

RIGHT = [
    ("divmod", [(ROW, "g, c = divmod(lane, 4)\n    right, low = divmod(register, 2)\n    row = g + 8 * low"), (COL, "col = 2 * c + 8 * right + half")]),
    ("bits", [(IN_B, "return (col << 2) | (row & 7) >> 1, row >> 3, row & 1"), (IN_D, "return (row & 7) * 4 + (col >> 1), (row >> 3) * 2 + (col & 1)")]),
    ("the inverse by a search", IN_D, "found = [(lane, r) for lane in range(32) for r in range(4) if element_of_d(lane, r) == (row, col)]\n    return found[0]"),
]

EQUIVALENT = []
