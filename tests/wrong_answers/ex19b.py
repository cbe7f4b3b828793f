"""ex19b: forks and frees."""

# fmt: off
MORE = "        for page in self.rows[seq]:\n            self.references[page] += 1\n"
FORK = "return self.add(list(self.rows[seq]), self.lengths[seq])"
POP = "row = self.rows.pop(seq)"
DEL = "        del self.lengths[seq]\n"
LOSE = "            self.references[page] -= 1\n            if self.references[page] == 0:\n"

WRONG = [
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
    ("fork shares 256 pages at most", FORK, FORK.replace("list(self.rows[seq])", "self.rows[seq][:256]")),
    ("free frees 256 pages at most", "        for page in row:\n            self.references[page] -= 1\n", "        for page in row[:256]:\n            self.references[page] -= 1\n"),
]

RIGHT = [
    ("counted by owners", LOSE, "            self.references[page] -= 1\n            if not any(page in other for other in self.rows.values()):\n"),
    ("free pages at the front", "                self.free_pages.append(page)", "                self.free_pages.insert(0, page)"),
]

EQUIVALENT = []
