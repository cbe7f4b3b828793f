"""Wrong and right answers of ex10f: see tests/wrong_answers/__init__.py."""

COUNTER = "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(head), uint32(b)\n"
KEY = "    k0, k1 = uint32(seed), uint32(seed >> np.uint64(32))\n"
WORDS = "    c0, c1, c2, c3 = philox(c0, c1, c2, c3, k0, k1)\n"
KEEP = "    return word_of(c0, c1, c2, c3, n % 4) >= threshold\n"

WRONG = [
    ("one round", WORDS, WORDS.replace("philox", "philox_round")),
    ("the words of the counter reversed", WORDS, WORDS.replace("(c0, c1, c2, c3", "(c3, c2, c1, c0")),
    ("the counter is (m, n // 4)", COUNTER, "    c0, c1, c2, c3 = uint32(m), uint32(n // 4), uint32(head), uint32(b)\n"),
    ("head and batch swapped", COUNTER, "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(b), uint32(head)\n"),
    ("batch and head in one word", COUNTER, "    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(head + 65536 * b), uint32(b)\n"),
    ("n, not n // 4", COUNTER, COUNTER.replace("n // 4", "n")),
    ("positions of 24 bits", COUNTER, COUNTER.replace("uint32(m)", "uint32(float32(m))")),
    ("positions of 31 bits", COUNTER, COUNTER.replace("uint32(m)", "uint32(m & 0x7FFFFFFF)")),
    ("keys of 32 bits", COUNTER, COUNTER.replace("n // 4", "uint32(n) // 4")),
    ("no batch", COUNTER, COUNTER.replace("uint32(b)", "uint32(0)")),
    ("the lower half of the seed twice", KEY, "    k0, k1 = uint32(seed), uint32(seed)\n"),
    ("the halves of the seed swapped", KEY, "    k0, k1 = uint32(seed >> np.uint64(32)), uint32(seed)\n"),
    ("the upper half of the seed is lost", KEY, "    k0, k1 = uint32(seed), uint32(0)\n"),
    ("one word for four keys", KEEP, KEEP.replace("n % 4", "0")),
    ("the words in reverse", KEEP, KEEP.replace("n % 4", "3 - n % 4")),
    ("the word by the query", KEEP, KEEP.replace("n % 4", "m % 4")),
    ("the word by n // 4", KEEP, KEEP.replace("n % 4", "n // 4 % 4")),
    ("dropped for kept", KEEP, KEEP.replace(">=", "<")),
    ("above the threshold", KEEP, KEEP.replace(">=", ">")),
    ("as floats", KEEP, "    return word_of(c0, c1, c2, c3, n % 4) / 4294967296.0 >= threshold / 4294967296.0\n"),
    ("as float32", KEEP, "    return float32(word_of(c0, c1, c2, c3, n % 4)) >= float32(threshold)\n"),
    ("as signed integers", KEEP, "    return int32(word_of(c0, c1, c2, c3, n % 4)) >= int32(threshold)\n"),
    ("the lower 31 bits", KEEP, "    return (word_of(c0, c1, c2, c3, n % 4) >> 1) >= (threshold >> 1)\n"),
    ("words in a local array", KEEP, "    four = cuda.local.array(4, uint32)\n    four[0], four[1], four[2], four[3] = c0, c1, c2, c3\n    return four[n % 4] >= threshold\n"),
    ("a seed of 63 bits", KEY, KEY.replace("seed >> np.uint64(32)", "(seed >> np.uint64(32)) & np.uint64(0x7FFFFFFF)")),
]  # fmt: skip
IMPORT = ("from numba import cuda, uint32\n", "from numba import cuda, float32, int32, uint32\n")
WRONG = [
    (name, [IMPORT, *([tuple(change)] if len(change) == 2 else change[0])])
    for name, *change in WRONG
]

RIGHT = [
    ("an if for each word, other names", [
        (COUNTER, ""), (KEY, ""),
        (WORDS, "    a, b_, c, d = philox(uint32(n >> 2), uint32(m), uint32(head), uint32(b), "
                "uint32(seed), uint32(seed >> np.uint64(32)))\n"),
        (KEEP, """\
    place = n & 3
    if place == 0:
        return a >= threshold
    if place == 1:
        return b_ >= threshold
    if place == 2:
        return c >= threshold
    return not d < threshold
"""),
    ]),
    ("a word by two choices", KEEP, """\
    low = c1 if n % 2 == 1 else c0
    high = c3 if n % 2 == 1 else c2
    word = high if n % 4 >= 2 else low
    return word >= threshold
"""),
]  # fmt: skip

EQUIVALENT = []
