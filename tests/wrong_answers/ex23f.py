"""ex23f: the words of a tree of guesses, and the path that stays."""

WORD = "word |= uint64(1) << uint64(at)"
TEST = "if 0 < t < n and tokens[b, t] != following[b, parents[b, t]]:"
UP = "at = parents[b, at]"
WHILE = "while t < n and at >= 0:"
STAYS = "if wrong[at]:\n            stays = False"
STORE = "if t < n:\n        words[b, t] = word"
MAX = "if stays:\n        cuda.atomic.max(last, 0, t)"
END = "if t == last[0]:"
PATH = "path[b] = word"
TOKEN = "token[b] = following[b, t]"
FIRST = "cuda.syncthreads()  # wrong and last are complete: safe to read"
SECOND = "cuda.syncthreads()  # last is the largest of all"

WRONG = [
    ("without the node itself", WORD, "if at != t:\n            " + WORD),
    ("without node 0", WORD, "if at > 0:\n            " + WORD),
    ("32 bits", WORD, "word |= uint64((1 << at) & 0xFFFFFFFF)"),
    ("the parent alone", UP, "at = parents[b, at] if at == t else -1"),
    ("all earlier nodes", UP, "at -= 1"),
    ("the parents of request 0", UP, "at = parents[0, at]"),
    ("compared with the node before", TEST, TEST.replace("following[b, parents[b, t]]", "following[b, t - 1]")),
    ("compared with what follows itself", TEST, TEST.replace("following[b, parents[b, t]]", "following[b, t]")),
    ("compared with the parent's token", TEST, TEST.replace("following[b, parents", "tokens[b, parents")),
    ("tokens of request 0", TEST, TEST.replace("tokens[b", "tokens[0")),
    ("its own guess alone", STAYS, "if wrong[t]:\n            stays = False"),
    ("its parent's guess alone", STAYS, "if at != t and wrong[at]:\n            stays = False"),
    ("a wrong guess is passed over", STAYS, "stays = wrong[at] == 0"),
    ("no barrier after wrong", FIRST, "pass"),
    ("no barrier after last", SECOND, "pass"),
    ("the words of threads without a node", STORE, "if t < words.shape[1]:\n        words[b, t] = word"),
    ("node 63 has none", STORE, STORE.replace("t < n", "t < min(n, 63)")),
    ("the smallest", MAX, "if stays and t < 2:\n        cuda.atomic.max(last, 0, t)"),
    ("the last thread wins", MAX, "if stays:\n        last[0] = t"),
    ("path is the last node", PATH, "path[b] = uint64(1) << uint64(t)"),
    ("path without bit 0", PATH, "path[b] = word & ~uint64(1)"),
    ("path is the node's number", PATH, "path[b] = t"),
    ("what follows node 0", TOKEN, "token[b] = following[b, 0]"),
    ("the last node's own token", TOKEN, "token[b] = tokens[b, t]"),
    ("what follows the last node of all", TOKEN, "token[b] = following[b, n - 1]"),
    ("every thread that stays stores", END, "if stays:"),
    ("256 requests at most", END, "if t == last[0] and b < 256:"),
    ("following is changed", TOKEN, TOKEN + "\n        following[b, 0] = token[b]"),
    ("a loop without the guard of n", WHILE, "while at > 0:"),
]  # fmt: skip

RIGHT = [
    ("words by a loop over all earlier nodes", [
        ("    while t < n and at >= 0:\n        " + WORD + "\n        " + STAYS + "\n        " + UP,
         "    for u in range(63, -1, -1):\n        if t < n and u == at:\n            word |= uint64(1) << uint64(u)\n            stays = stays and wrong[u] == 0\n            at = parents[b, u]"),
    ]),
    ("wrong as a word of bits", [
        ("        if wrong[at]:\n            stays = False\n", ""),
        (STORE, STORE + "\n    for u in range(1, NODES):\n        if wrong[u] and word >> uint64(u) & uint64(1):\n            stays = False"),
    ]),
]  # fmt: skip

EQUIVALENT = [
    ("if t == 0: -> if t == 1:", "any one thread may store 0"),
    ("if t == 0: -> if t != 0:", "any threads may store 0"),
    ("wrong[t] = 1 -> wrong[t] = 2", "any number but 0 says that a guess is wrong"),
    ("word, stays, at = (uint64(0), t < n, t) -> word, stays, at = (uint64(1), t < n, t)", "each node sees node 0 anyway",),
]  # fmt: skip
