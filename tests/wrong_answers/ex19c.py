"""ex19c: one more token."""

# fmt: off
SHARED = "shared = offset > 0 and self.references[row[-1]] > 1"
IF_OUT = "if (offset == 0 or shared) and self.num_free == 0:"
COPY = "copy = row[-1], self.take()"
SLOT = "return row[-1] * self.page_size + offset, copy"

WRONG = [
    ("never shared", SHARED, "shared = False"),
    ("shared although full", SHARED, "shared = len(row) > 0 and self.references[row[-1]] > 1"),
    ("copied although alone", SHARED, "shared = offset > 0 and self.references[row[-1]] > 0"),
    ("copy the other way round", COPY, "copy = (row[-1], self.take())[::-1]"),
    ("a new page for every token", "elif offset == 0:", "else:"),
    ("no test for a free page", IF_OUT, "if False:"),
    ("out of pages before the sequence is looked for", "        row, offset, copy = ", "        if self.num_free == 0:\n            offset = self.lengths.get(seq, 0) % self.page_size\n            if offset == 0:\n                raise OutOfPages('none free')\n        row, offset, copy = "),
    ("length grows before it runs out", IF_OUT, "self.lengths[seq] += 1\n        " + IF_OUT),
    ("slot of the sequence", SLOT, "return self.lengths[seq] - 1, copy"),
    ("slot of the first page", SLOT, SLOT.replace("row[-1]", "row[0]")),
    ("offset after the token", SLOT, "return row[-1] * self.page_size + self.lengths[seq] % self.page_size, copy"),
    ("rows of 256 pages at most are shared", SHARED, SHARED + " and len(row) <= 256"),
    ("pages of 64 at most", SLOT, "return row[-1] * self.page_size + offset % 64, copy"),
]

RIGHT = [
    ("pages counted by owners", SHARED, "shared = bool(offset) and sum(row[-1] in other for other in self.rows.values()) > 1"),
    ("the length first read", "        self.lengths[seq] += 1\n        return row[-1] * self.page_size + offset, copy", "        self.lengths[seq] = self.lengths[seq] + 1\n        return offset + self.page_size * self.rows[seq][-1], copy"),
]

EQUIVALENT = []
