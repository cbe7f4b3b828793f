"""ex18a: slots of tokens, and writing into them."""

PAGE = "page = block_table[b, t // page_size]"
TEST = "    if page < 0:\n        return -1\n"
SLOT = "return page * page_size + t % page_size"
SEQUENCE = "if sequence[i] >= 0:"
OWNED = "if slot >= 0:"
PLACE = "page, offset = slot // page_size, slot % page_size"
LOOP = "for j in range(cuda.threadIdx.x, num_kv_heads * head_dim, cuda.blockDim.x):"
HEAD = "h, d = j // head_dim, j % head_dim"
K = "k_cache[page, offset, h, d] = k[i, h, d]"
V = "v_cache[page, offset, h, d] = v[i, h, d]"

WRONG = [
    ("no test of the page", TEST, ""),
    ("0 for no page", TEST, TEST.replace("return -1", "return 0")),
    ("the table's columns from 1", PAGE, "page = block_table[b, t // page_size + 1]"),
    ("rounded up", PAGE, "page = block_table[b, (t + page_size - 1) // page_size]"),
    ("no table", PAGE, "page = t // page_size"),
    ("the table of sequence 0", PAGE, PAGE.replace("[b,", "[0,")),
    ("the page by the offset", PAGE, PAGE.replace("//", "%")),
    ("the offset counted from the end", SLOT, "return page * page_size + page_size - 1 - t % page_size"),
    ("32 bits", [("from numba import cuda", "from numba import cuda, int32"), (SLOT, "return int32(page * page_size + t % page_size)")]),
    ("16 slots", SLOT, SLOT.replace("page_size + t", "16 + t")),
    ("padding is written", SEQUENCE, "if i >= 0:"),
    ("tokens without a page are written", OWNED, "if slot >= -1:"),
    ("the new token's number for its position", "sequence[i], position[i], page_size", "sequence[i], i, page_size"),
    ("offset in place of page", PLACE, "offset, page = slot // page_size, slot % page_size"),
    ("one head", HEAD, "h, d = 0, j % head_dim"),
    ("d before head", HEAD, "h, d = j % num_kv_heads, j // num_kv_heads"),
    ("keys twice", V, "v_cache[page, offset, h, d] = k[i, h, d]"),
    ("values alone", K, "d += 0"),
    ("token 0 for all", K, K.replace("k[i,", "k[0,")),
    ("one thread for everything", LOOP, "for j in range(num_kv_heads * head_dim if cuda.threadIdx.x == 0 else 0):"),
    ("every thread writes everything", LOOP, "for j in range(num_kv_heads * head_dim):"),
    ("as many floats as threads", LOOP, "for j in range(cuda.threadIdx.x, min(num_kv_heads * head_dim, cuda.blockDim.x), cuda.blockDim.x):"),
    ("256 floats at most", LOOP, LOOP.replace("num_kv_heads * head_dim", "min(256, num_kv_heads * head_dim)")),
    ("256 tokens at most", OWNED, "if slot >= 0 and i < 256:"),
    ("256 pages at most", OWNED, "if slot >= 0 and position[i] // page_size < 256:"),
    ("written twice", K, K + "\n                k_cache[page, offset, h, d] = k[i, h, d]"),
    ("a step of 32", LOOP, LOOP.replace("cuda.blockDim.x", "32")),
    ("the page without its size", SLOT, "return page + t % page_size"),
    ("slot 0 is none", OWNED, "if slot > 0:"),
    ("sequence 0 is padding", SEQUENCE, "if sequence[i] > 0:"),
]  # fmt: skip

RIGHT = [
    ("page and offset from divmod", [(PAGE, "i, offset = divmod(t, page_size)\n    page = block_table[b, i]"), (SLOT, "return page * page_size + offset")]),
    ("returns for padding", [("    if sequence[i] >= 0:\n        slot", "    if sequence[i] < 0:\n        return\n    if True:\n        slot")]),
    ("a loop over heads", [
        (LOOP + "\n                " + HEAD, "for h in range(num_kv_heads):\n                for d in range(cuda.threadIdx.x, head_dim, cuda.blockDim.x):"),
        (K + "\n                " + V, "    " + K + "\n                    " + V),
    ]),
]  # fmt: skip

EQUIVALENT = []
