"""ex18b: the paged lookup."""

# fmt: off
IF = "if t < seq_lens[b]:"
PAGE = "        page = block_table[b, t // page_size]\n"
FIRST_LOOP = "        offset = t % page_size\n        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):\n            h, d = i // head_dim, i % head_dim\n            k_out[b, t, h, d] = k_cache"
SECOND_LOOP = "        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):\n            h, d = i // head_dim, i % head_dim\n            k_out[b, t, h, d] = 0"
OFFSET = "        offset = t % page_size\n"
COUNT = "count = num_kv_heads * head_dim"
K = "k_out[b, t, h, d] = k_cache[page, offset, h, d]"
V = "v_out[b, t, h, d] = v_cache[page, offset, h, d]"


def loops(old, new):
    """The same change in both loops."""
    return [(FIRST_LOOP, FIRST_LOOP.replace(old, new)), (SECOND_LOOP, SECOND_LOOP.replace(old, new))]


WRONG = [
    ("heads side by side", loops("h, d = i // head_dim, i % head_dim", "h, d = i % num_kv_heads, i // num_kv_heads")),
    ("heads side by side in the padding", SECOND_LOOP, SECOND_LOOP.replace("h, d = i // head_dim, i % head_dim", "h, d = i % num_kv_heads, i // num_kv_heads")),
    ("neighbouring floats to one thread", FIRST_LOOP, FIRST_LOOP.replace("range(cuda.threadIdx.x, count, cuda.blockDim.x)", "range(cuda.threadIdx.x * ((count + cuda.blockDim.x - 1) // cuda.blockDim.x), min(count, (cuda.threadIdx.x + 1) * ((count + cuda.blockDim.x - 1) // cuda.blockDim.x)))")),
    ("no stride", loops("count, cuda", "min(count, cuda.blockDim.x), cuda")),
    ("a stride of 32", loops("count, cuda.blockDim.x", "count, 32")),
    ("4096 floats at most", COUNT, "count = min(4096, num_kv_heads * head_dim)"),
    ("one token too many", IF, "if t <= seq_lens[b] and t // page_size < block_table.shape[1] and block_table[b, t // page_size] >= 0:"),
    ("the rest of the page", IF, "if t // page_size < block_table.shape[1] and block_table[b, t // page_size] >= 0:"),
    ("length of sequence 0", IF, "if t < seq_lens[0]:"),
    ("padding is 0 times what is there", SECOND_LOOP, SECOND_LOOP.replace("= 0", "*= 0")),
    ("row of sequence 0", PAGE, PAGE.replace("[b, ", "[0, ")),
    ("pages in order", PAGE, "        page = t // page_size\n"),
    ("no offset", OFFSET, "        offset = 0\n"),
    ("pages of 16", [(PAGE, PAGE.replace("page_size", "16")), (OFFSET, OFFSET.replace("page_size", "16"))]),
    ("keys for values", V, V.replace("v_cache", "k_cache")),
    ("values for keys", K, K.replace("k_cache", "v_cache")),
    ("looked up for each element", K, K.replace("page,", "block_table[b, t // page_size],")),
    ("looked up for padding too", "    if t < seq_lens[b]:\n" + PAGE, "    page = block_table[b, min(t // page_size, block_table.shape[1] - 1)]\n    if t < seq_lens[b]:\n"),
    ("loaded for padding too", SECOND_LOOP, SECOND_LOOP.replace("= 0", "= 0 if k_cache[0, 0, h, d] < 1 else 0")),
    ("loaded twice", K, K + "\n            k_out[b, t, h, d] = k_cache[page, offset, h, d]"),
    ("added to what is there", K, K.replace(" = ", " += ")),
    ("finite numbers only", K, "k_out[b, t, h, d] = max(k_cache[page, offset, h, d], float32(-3.4028234e38))"),
    ("0 plus the key", K, K.replace("= k", "= float32(0.0) + k")),
    ("256 tokens at most", IF, "if t < min(256, seq_lens[b]):"),
    ("64 sequences at most", "t, b = cuda.blockIdx.x, cuda.blockIdx.y", "t, b = cuda.blockIdx.x, cuda.blockIdx.y % 64"),
    ("through shared memory", PAGE, PAGE + "        spare = cuda.shared.array(8, 'float32')\n        spare[0] = 0\n"),
    ("a barrier", PAGE, "        cuda.syncthreads()\n" + PAGE),
    ("through a local array", PAGE, PAGE + "        spare = cuda.local.array(8, 'float32')\n        spare[0] = 0\n"),
    ("the cache is changed", K, K + "\n            k_cache[page, offset, h, d] = 0"),
    ("64 heads at most", COUNT, "count = min(64, num_kv_heads) * head_dim"),
    ("256 numbers of a head at most", COUNT, "count = num_kv_heads * min(256, head_dim)"),
    ("the first warp alone", IF, "if cuda.threadIdx.x >= 32:\n        return\n    if t < seq_lens[b]:"),
    ("256 threads at most", IF, "if cuda.threadIdx.x >= 256:\n        return\n    if t < seq_lens[b]:"),
    ("256 sequences at most", "t, b = cuda.blockIdx.x, cuda.blockIdx.y", "t, b = cuda.blockIdx.x, cuda.blockIdx.y % 256"),
    ("pages of 256 slots at most", OFFSET, "        offset = t % min(page_size, 256)\n"),
    ("256 pages of a sequence at most", PAGE, PAGE.replace("t // page_size]", "min(t // page_size, 255)]")),
]
IMPORT = ("from numba import cuda\n", "from numba import cuda, float32\n")
WRONG = [(name, *change) if isinstance(change[0], list) else (name, [change]) for name, *change in WRONG]
WRONG = [(name, [IMPORT, *pairs] if "float32(" in str(pairs) else pairs) for name, pairs in WRONG]

RIGHT = [
    ("other names", [("def kernel(k_cache, v_cache, block_table, seq_lens, k_out, v_out):", "def kernel(K, V, table, n, k, v):"),
        ("page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]", "page_size, num_kv_heads, head_dim = K.shape[1], K.shape[2], K.shape[3]"),
        (IF, "if t < n[b]:"), (PAGE, PAGE.replace("block_table", "table")), (FIRST_LOOP, FIRST_LOOP.replace("k_out", "k").replace("k_cache", "K")), (V, "v[b, t, h, d] = V[page, offset, h, d]"),
        (SECOND_LOOP, SECOND_LOOP.replace("k_out", "k")), ("            v_out[b, t, h, d] = 0", "            v[b, t, h, d] = 0")]),
    ("rows as views", FIRST_LOOP, OFFSET + "        row = k_cache[page, offset]\n        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):\n            h, d = i // head_dim, i % head_dim\n            k_out[b, t, h, d] = row[h, d] if True else k_cache"),
    ("a while loop", FIRST_LOOP, OFFSET + "        i = cuda.threadIdx.x - cuda.blockDim.x\n        while i + cuda.blockDim.x < count:\n            i += cuda.blockDim.x\n            h, d = i // head_dim, i % head_dim\n            k_out[b, t, h, d] = k_cache"),
]

EQUIVALENT = []
