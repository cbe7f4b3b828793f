"""ex19a: a page pool."""

# fmt: off
NEEDED = "needed = -(-length // self.page_size)"
IF_NEEDED = '        if needed > self.num_free:\n            raise OutOfPages(f"{needed} pages needed, {self.num_free} free")\n'
ADD = "return self.add([self.take() for _ in range(needed)], length)"
SHARED = "shared = offset > 0 and self.references[row[-1]] > 1"
IF_OUT = "if (offset == 0 or shared) and self.num_free == 0:"
LESS = "            self.references[row[-1]] -= 1\n            row[-1] = copy[1]\n"
COPY = "copy = row[-1], self.take()"
SLOT = "return row[-1] * self.page_size + offset, copy"
MORE = "        for page in self.rows[seq]:\n            self.references[page] += 1\n"
FORK = "return self.add(list(self.rows[seq]), self.lengths[seq])"
POP = "row = self.rows.pop(seq)"
DEL = "        del self.lengths[seq]\n"
LOSE = "            self.references[page] -= 1\n            if self.references[page] == 0:\n"

WRONG = [
    ("rounded down", NEEDED, "needed = length // self.page_size"),
    ("a page more where full", NEEDED, "needed = length // self.page_size + 1"),
    ("at least one page", NEEDED, "needed = max(1, -(-length // self.page_size))"),
    ("one page must stay free", IF_NEEDED, IF_NEEDED.replace("> self", ">= self")),
    ("running out after some were taken", [(IF_NEEDED, ""), (ADD, "row = []\n        for _ in range(needed):\n            if self.num_free == 0:\n                raise OutOfPages('none free')\n            row.append(self.take())\n        return self.add(row, length)")]),
    ("a number is used up though it runs out", IF_NEEDED, IF_NEEDED.replace("            raise", "            self.free_pages.append(self.num_pages)\n            raise")),
    ("never shared", SHARED, "shared = False"),
    ("shared although full", SHARED, "shared = len(row) > 0 and self.references[row[-1]] > 1"),
    ("copied although alone", SHARED, "shared = offset > 0 and self.references[row[-1]] > 0"),
    ("the last one copies too", LESS, "            row[-1] = copy[1]\n"),
    ("the copy is not in the row", LESS, "            self.references[row[-1]] -= 1\n"),
    ("copy the other way round", COPY, "copy = (row[-1], self.take())[::-1]"),
    ("a new page for every token", "elif offset == 0:", "else:"),
    ("no test for a free page", IF_OUT, "if False:"),
    ("no test for a copy's page", IF_OUT, "if offset == 0 and self.num_free == 0:"),
    ("a free page is always asked for", IF_OUT, "if self.num_free == 0:"),
    ("out of pages before the sequence is looked for", "        row, offset, copy = ", "        if self.num_free == 0:\n            offset = self.lengths.get(seq, 0) % self.page_size\n            if offset == 0:\n                raise OutOfPages('none free')\n        row, offset, copy = "),
    ("length grows before it runs out", IF_OUT, "self.lengths[seq] += 1\n        " + IF_OUT),
    ("length does not grow", "        self.lengths[seq] += 1\n", ""),
    ("slot of the sequence", SLOT, "return self.lengths[seq] - 1, copy"),
    ("slot of the first page", SLOT, SLOT.replace("row[-1]", "row[0]")),
    ("offset after the token", SLOT, "return row[-1] * self.page_size + self.lengths[seq] % self.page_size, copy"),
    ("fork with the same list", FORK, FORK.replace("list(self.rows[seq])", "self.rows[seq]")),
    ("fork counts no reference", MORE, ""),
    ("fork counts the last page alone", MORE, "        for page in self.rows[seq][-1:]:\n            self.references[page] += 1\n"),
    ("fork copies the last page", FORK, "row = list(self.rows[seq])\n        if row and self.num_free:\n            row[-1] = self.take()\n        return self.add(row, self.lengths[seq])"),
    ("fork without tokens", FORK, FORK.replace("self.lengths[seq]", "0")),
    ("fork gives the number back", FORK, "self.add(list(self.rows[seq]), self.lengths[seq])\n        return seq"),
    ("free of a number that is not there", [(POP, "row = self.rows.pop(seq, [])"), (DEL, "        self.lengths.pop(seq, None)\n")]),
    ("free keeps the row", POP, "row = self.rows[seq]"),
    ("free keeps the length", DEL, ""),
    ("free does not free", LOSE, LOSE.replace("== 0", "< 0")),
    ("free frees shared pages", LOSE, "            self.references[page] -= 1\n            if True:\n"),
    ("free takes the first page alone", "        for page in row:\n            self.references[page] -= 1\n", "        for page in row[:1]:\n            self.references[page] -= 1\n"),
    ("numbers are given again", DEL, DEL + "        if seq == self.next_seq - 1:\n            self.next_seq -= 1\n"),
]

RIGHT = [
    ("pages counted by owners", [(SHARED, "shared = bool(offset) and sum(row[-1] in other for other in self.rows.values()) > 1"),
        (LOSE, "            self.references[page] -= 1\n            if not any(page in other for other in self.rows.values()):\n")]),
    ("free pages from the front, deliberately by pop(0)", [(ADD, "row = []\n        while len(row) < needed:\n            row.append(self.take())\n        return self.add(row, length)"),
        ("                self.free_pages.append(page)", "                self.free_pages.insert(0, page)")]),
]

EQUIVALENT = []
