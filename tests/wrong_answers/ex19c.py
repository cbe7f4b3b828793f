"""ex19c: one more token."""

# fmt: off
SHARED = "shared = offset > 0 and self.references[row[-1]] > 1"
IF_OUT = "if (offset == 0 or shared) and self.num_free == 0:"
COPY = "copy = row[-1], self.take()"
SLOT = "return row[-1] * self.page_size + offset, copy"

PAGES = "source, target = copies[i, 0], copies[i, 1]"
LOOP = "for j in range(cuda.threadIdx.x, filled[i] * num_kv_heads * head_dim, cuda.blockDim.x):"
PLACE = "t, h, d = j // (num_kv_heads * head_dim), j // head_dim % num_kv_heads, j % head_dim"
K = "k_cache[target, t, h, d] = k_cache[source, t, h, d]"
V = "v_cache[target, t, h, d] = v_cache[source, t, h, d]"

WRONG = [
    ("kernel: the other way round", PAGES, "target, source = copies[i, 0], copies[i, 1]"),
    ("kernel: the first copy only", PAGES, "source, target = copies[0, 0], copies[0, 1]"),
    ("kernel: whole pages", LOOP, LOOP.replace("filled[i]", "k_cache.shape[1]")),
    ("kernel: one slot", LOOP, LOOP.replace("filled[i]", "1")),
    ("kernel: every thread copies all", LOOP, LOOP.replace("range(cuda.threadIdx.x, ", "range(").replace(", cuda.blockDim.x)", ")")),
    ("kernel: 64 threads", LOOP, LOOP.replace("cuda.blockDim.x)", "64)")),
    ("kernel: as many numbers as threads", LOOP, LOOP.replace("filled[i] * num_kv_heads * head_dim", "min(cuda.blockDim.x, filled[i] * num_kv_heads * head_dim)")),
    ("kernel: one head", PLACE, PLACE.replace("j // head_dim % num_kv_heads", "0")),
    ("kernel: slots last", PLACE, "t, h, d = j % filled[i], j // filled[i] % num_kv_heads, j // (filled[i] * num_kv_heads)"),
    ("kernel: keys alone", V, "t += 0"),
    ("kernel: values from the keys", V, V.replace("= v_cache", "= k_cache")),
    ("kernel: 256 copies at most", LOOP, LOOP.replace("filled[i]", "(filled[i] if i < 256 else 0)")),
    ("kernel: exchanged, not copied", K, "x = k_cache[target, t, h, d]\n        " + K + "\n        k_cache[source, t, h, d] = x"),
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
    ("a row of a page as an array", [(K, "k_cache[target][t, h, d] = k_cache[source][t, h, d]"), (PLACE, "row, d = j // head_dim, j % head_dim\n        t, h = row // num_kv_heads, row % num_kv_heads")]),
    ("pages counted by owners", SHARED, "shared = bool(offset) and sum(row[-1] in other for other in self.rows.values()) > 1"),
    ("the length first read", "        self.lengths[seq] += 1\n        return row[-1] * self.page_size + offset, copy", "        self.lengths[seq] = self.lengths[seq] + 1\n        return offset + self.page_size * self.rows[seq][-1], copy"),
]

EQUIVALENT = []
