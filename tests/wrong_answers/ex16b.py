"""ex16b: appending to a rolling cache."""

# fmt: off
OLD = "if t < end - window:  # a later token has, or will have, its place"
RING = "return num_sinks + (t - num_sinks) % window"
PAD = "if i >= num_new[b]:"
N = "n = place(lengths[b] + i, lengths[b] + num_new[b], num_sinks, window)"
LOOP = "for e in range(cuda.threadIdx.x, num_kv_heads * head_dim, cuda.blockDim.x):"
HD = "h, d = e // head_dim, e % head_dim"
K = "k_cache[b, n, h, d] = k_new[b, i, h, d]"

WRONG = [
    ("the clock starts with token 0", RING, "return num_sinks + t % window"),
    ("the ring covers the sinks", RING, "return (t - num_sinks) % (num_sinks + window)"),
    ("no sinks", "if t < num_sinks:", "if t < 0:"),
    ("one sink too many", "if t < num_sinks:", "if t <= num_sinks:"),
    ("one token too few is kept", OLD, "if t <= end - window:"),
    ("one token too many is kept", OLD, "if t < end - window - 1:"),
    ("old tokens are written too", OLD, "if t < 0:"),
    ("float32 clock", RING, "return num_sinks + int(float32(t - num_sinks) % float32(window))"),
    ("float32 age", OLD, "if float32(t) < float32(end - window):"),
    ("clock by loops", RING, "while t >= num_sinks + window:\n        t -= window\n    return t"),
    ("padding is written", PAD, "if i >= k_new.shape[1]:"),
    ("one token of padding", PAD, "if i > num_new[b]:"),
    ("the last token is missing", PAD, "if i >= num_new[b] - 1 and i > 0:"),
    ("end without the new tokens", N, "n = place(lengths[b] + i, lengths[b] + i + 1, num_sinks, window)"),
    ("end of the longest call", N, "n = place(lengths[b] + i, lengths[b] + k_new.shape[1], num_sinks, window)"),
    ("lengths of sequence 0", N, N.replace("lengths[b]", "lengths[0]")),
    ("token number of the call", N, "n = place(i, num_new[b], num_sinks, window)"),
    ("heads side by side", HD, "h, d = e % num_kv_heads, e // num_kv_heads"),
    ("neighbouring floats to one thread", [(LOOP, "width = (num_kv_heads * head_dim + cuda.blockDim.x - 1) // cuda.blockDim.x\n    for e in range(cuda.threadIdx.x * width, min(num_kv_heads * head_dim, (cuda.threadIdx.x + 1) * width)):")]),
    ("no stride", LOOP, "for e in range(cuda.threadIdx.x, min(num_kv_heads * head_dim, cuda.blockDim.x)):"),
    ("a stride of 32", LOOP, LOOP.replace("cuda.blockDim.x)", "32)")),
    ("4096 floats at most", LOOP, LOOP.replace("num_kv_heads * head_dim", "min(4096, num_kv_heads * head_dim)")),
    ("256 tokens at most", PAD, "if i >= min(num_new[b], 256):"),
    ("64 sequences at most", PAD, "if b >= 64 or i >= num_new[b]:"),
    ("values forgotten", "        v_cache[b, n, h, d] = v_new[b, i, h, d]", "        pass"),
    ("keys for values", "v_cache[b, n, h, d] = v_new[b, i, h, d]", "v_cache[b, n, h, d] = k_new[b, i, h, d]"),
    ("row of sequence 0", K, "k_cache[0, n, h, d] = k_new[b, i, h, d]"),
    ("added", K, K.replace(" = ", " += ")),
    ("the ring is cleared first", "    for e in", "    for e in range(cuda.threadIdx.x, num_kv_heads * head_dim, cuda.blockDim.x):\n        k_cache[b, (n + 1) % k_cache.shape[1], e // head_dim, e % head_dim] = 0\n    for e in"),
    ("loaded before it is known where to", "    if n < 0:\n", "    x = k_new[b, i, 0, 0]\n    if n < 0 or x != x:\n"),
    ("lengths moved on", "    if n < 0:\n", "    if cuda.threadIdx.x == 0 and i == num_new[b] - 1:\n        lengths[b] += num_new[b]\n    if n < 0:\n"),
    ("shared memory", "    if n < 0:\n", "    spare = cuda.shared.array(8, 'float32')\n    spare[0] = 0\n    if n < 0:\n"),
    ("a barrier", "    if n < 0:\n", "    cuda.syncthreads()\n    if n < 0:\n"),
]
WRONG = [(name, change if isinstance(change, list) else [(change, *rest)]) for name, change, *rest in WRONG]
IMPORT = ("from numba import cuda\n", "from numba import cuda, float32\n")
WRONG = [(name, [IMPORT, *pairs] if "float32(" in str(pairs) else pairs) for name, pairs in WRONG]

RIGHT = [
    ("other names, a loop of its own for heads", [
        ("def kernel(k_new, v_new, lengths, num_new, num_sinks, k_cache, v_cache):", "def kernel(k, v, begin, count, num_sinks, K, V):"),
        (PAD, "if i >= count[b]:"), ("= k_new.shape[2], k_new.shape[3]", "= k.shape[2], k.shape[3]"), ("window = k_cache.shape[1] - num_sinks", "window = K.shape[1] - num_sinks"),
        (N, "n = place(begin[b] + i, begin[b] + count[b], num_sinks, window)"), (K, "K[b, n, h, d] = k[b, i, h, d]"),
        ("v_cache[b, n, h, d] = v_new[b, i, h, d]", "V[b, n, h, d] = v[b, i, h, d]")]),
    ("one condition around everything", [
        ("        return  # padding\n", "        n = -1\n    else:\n        n = 0\n"),
        ("    " + N, "    if n == 0:\n        " + N)]),
    ("place with one return", [("        return t\n", "        n = t\n"), ("        return -1\n", "        n = -1\n"), ("    if t < end", "    elif t < end"), ("    " + RING, "    else:\n        n = num_sinks + (t - num_sinks) % window\n    return n")]),
]

EQUIVALENT = []
