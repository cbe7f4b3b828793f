"""Wrong and right answers of ex09d: see tests/wrong_answers/__init__.py."""

P0 = "    product_0 = M0 * c0  # both before a word is overwritten\n"
P2 = "    product_2 = M2 * c2\n"
C0 = "    c0 = uint32((product_2 >> np.uint64(32)) ^ c1 ^ k0)\n"
C2 = "    c2 = uint32((product_0 >> np.uint64(32)) ^ c3 ^ k1)\n"
RETURN = "    return c0, uint32(product_2), c2, uint32(product_0)\n"
COUNTER = "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(head), uint32(b)\n"
KEY = "    k0, k1 = uint32(seed), uint32(seed >> np.uint64(32))\n"
LOOP = "    for _ in range(10):\n"
ROUND = "        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)\n"
GROW = "        k0 = uint32(k0 + W0)\n        k1 = uint32(k1 + W1)\n"
LOW = "    low = c1 if n % 2 == 1 else c0\n"
HIGH = "    high = c3 if n % 2 == 1 else c2\n"
WORD = "    word = high if n % 4 >= 2 else low\n"
KEEP = "    return word >= threshold\n"

WRONG = [
    ("the lower halves", C0, C0.replace("(product_2 >> np.uint64(32))", "product_2")),
    ("M0 and M2 swapped", [(P0, P0.replace("M0", "M2")), (P2, P2.replace("M2", "M0"))]),
    ("the products swapped", [(C0, C0.replace("product_2", "product_0")),
                              (C2, C2.replace("product_0", "product_2"))]),
    ("the keys swapped", [(C0, C0.replace("k0", "k1")), (C2, C2.replace("k1", "k0"))]),
    ("c1 and c3 swapped", [(C0, C0.replace("c1", "c3")), (C2, C2.replace("c3", "c1"))]),
    ("a word is overwritten too early", P2 + C0 + C2, C0.replace("product_2", "(M2 * c2)") + P2 + C2
     .replace("product_0", "(M0 * c0)")),
    ("32-bit products", [(P0, "    product_0 = uint32(M0 * c0)\n")]),
    ("no key", C0, C0.replace(" ^ k0", "")),
    ("and for xor", C0, C0.replace("^ c1", "& c1")),
    ("or for xor", C2, C2.replace("^ k1", "| k1")),
    ("words of 64 bits", RETURN, "    return c0, product_2, c2, product_0\n"),
    ("words in another order", RETURN, "    return uint32(product_2), c0, uint32(product_0), c2\n"),
    ("no return", RETURN, "    c0 = c0\n"),
    ("nine rounds", LOOP, LOOP.replace("10", "9")),
    ("seven rounds", LOOP, LOOP.replace("10", "7")),
    ("the key never grows", GROW, ""),
    ("the key grows before the first round", ROUND + GROW, GROW + ROUND),
    ("one half of the key grows", GROW, GROW.split("\n")[0] + "\n"),
    ("W0 and W1 swapped", GROW, GROW.replace("W0", "W").replace("W1", "W0").replace("W\n", "W1\n")
     .replace("W)", "W1)")),
    ("the counter is (m, n // 4)", COUNTER,
     "    c0, c1, c2, c3 = uint32(m), uint32(n // 4), uint32(head), uint32(b)\n"),
    ("head and batch swapped", COUNTER,
     "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(b), uint32(head)\n"),
    ("batch and head in one word", COUNTER,
     "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(head + 65536 * b), uint32(b)\n"),
    ("n, not n // 4", COUNTER, COUNTER.replace("n // 4", "n")),
    ("positions of 24 bits", COUNTER, COUNTER.replace("uint32(m)", "uint32(float32(m))")),
    ("positions of 31 bits", COUNTER, COUNTER.replace("uint32(m)", "uint32(m & 0x7FFFFFFF)")),
    ("keys of 32 bits", COUNTER, COUNTER.replace("n // 4", "uint32(n) // 4")),
    ("no batch", COUNTER, COUNTER.replace("uint32(b)", "uint32(0)")),
    ("the lower half of the seed twice", KEY, "    k0, k1 = uint32(seed), uint32(seed)\n"),
    ("the halves of the seed swapped", KEY,
     "    k0, k1 = uint32(seed >> np.uint64(32)), uint32(seed)\n"),
    ("the upper half of the seed is lost", KEY, "    k0, k1 = uint32(seed), uint32(0)\n"),
    ("one word for four keys", WORD, "    word = c0\n"),
    ("the words in reverse", WORD, "    word = low if n % 4 >= 2 else high\n"),
    ("words 1 and 2 swapped", [(LOW, "    low = c2 if n % 2 == 1 else c0\n"),
                               (HIGH, "    high = c3 if n % 2 == 1 else c1\n")]),
    ("the word by the query", WORD, "    word = high if m % 4 >= 2 else low\n"),
    ("dropped for kept", KEEP, "    return word < threshold\n"),
    ("above the threshold", KEEP, "    return word > threshold\n"),
    ("as floats", KEEP, "    return word / 4294967296.0 >= threshold / 4294967296.0\n"),
    ("as float32", KEEP, "    return float32(word) >= float32(threshold)\n"),
    ("as signed integers", KEEP, "    return int32(word) >= int32(threshold)\n"),
    ("the lower 31 bits", KEEP, "    return (word >> 1) >= (threshold >> 1)\n"),
    ("words in a local array", WORD, "    words = cuda.local.array(4, uint32)\n"
     "    words[0], words[1], words[2], words[3] = c0, c1, c2, c3\n    word = words[n % 4]\n"),
]  # fmt: skip
IMPORT = ("from numba import cuda, uint32\n", "from numba import cuda, float32, int32, uint32\n")
WRONG = [
    (name, [IMPORT, *([tuple(change)] if len(change) == 2 else change[0])])
    for name, *change in WRONG
]

RIGHT = [
    ("an if for each word, masks for casts, other names", """
import numpy as np
from numba import cuda, uint32, uint64

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@cuda.jit(device=True)
def upper(x):
    return uint32(x >> np.uint64(32))


@cuda.jit(device=True)
def philox_round(w, x, y, z, key_a, key_b):
    even = uint64(w) * M0
    odd = uint64(y) * M2
    return upper(odd) ^ key_a ^ x, uint32(odd), key_b ^ upper(even) ^ z, uint32(even)


@cuda.jit(device=True)
def keeps(seed, batch, head, query, key, threshold):
    w, x, y, z = uint32(key >> 2), uint32(query), uint32(head), uint32(batch)
    key_a, key_b = uint32(seed), upper(seed)
    turn = 0
    while turn < 10:
        if turn > 0:
            key_a = uint32(key_a + W0)
            key_b = uint32(key_b + W1)
        w, x, y, z = philox_round(w, x, y, z, key_a, key_b)
        turn += 1
    place = key & 3
    if place == 0:
        return w >= threshold
    if place == 1:
        return x >= threshold
    if place == 2:
        return y >= threshold
    return not z < threshold
"""),
    ("the keys of all rounds by multiplication", [
        (LOOP + ROUND + GROW, "    for turn in range(10):\n"
         "        a = uint32(k0 + uint32(turn) * W0)\n        b_ = uint32(k1 + uint32(turn) * W1)\n"
         "        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, a, b_)\n")]),
]  # fmt: skip

EQUIVALENT = []
