"""ex19d: equal pages, unequal keys."""

# Lines that the broken ones have, too, are named with a neighbour.
START = "        h = uint64(START)\n        for i in range(lengths[b] // page_size):\n            for t in range(i * page_size, (i + 1) * page_size):\n"
FIND = "        if h not in known:\n            break\n        pages.append(known[h])"
GUARD = "    b = cuda.grid(1)\n    if b < tokens.shape[0]:\n" + START

WRONG = [
    ("as they were", [(START, START.replace("        h = uint64(START)\n", "").replace("            for t", "            h = uint64(START + 0)\n            for t")), (FIND, "        if h in known :\n            pages.append(known[h])")]),
    ("a page's own tokens", START, START.replace("        h = uint64(START)\n", "").replace("            for t", "            h = uint64(START + 0)\n            for t")),
    ("a page's own tokens and its number", START, START.replace("        h = uint64(START)\n", "").replace("            for t", "            h = mix(uint64(START), i)\n            for t")),
    ("the first page, and the page's own", START, START.replace("            for t", "            if i == 1:\n                first = h\n            if i > 1:\n                h = first\n            for t").replace("        h = uint64(START)\n", "        h = uint64(START)\n        first = h\n")),
    ("goes on behind a gap", FIND, "        if h in known :\n            pages.append(known[h])"),
    ("one page at most", FIND, "        if h not in known or pages:\n            break\n        pages.append(known[h])"),
    ("all or nothing", FIND, "        if h not in known:\n            return []\n        pages.append(known[h])"),
    ("the last page is left out", FIND, "        if h not in known or h == hashes[-1]:\n            break\n        pages.append(known[h])"),
    ("taken pages are forgotten", FIND, FIND.replace("known[h])", "known.pop(h))")),
    ("hashes in place of pages", FIND, FIND.replace("known[h]", "h")),
    ("the last tokens of a page", START, START.replace("range(i * page_size,", "range((i + 1) * page_size - 1,")),
    ("part-filled pages are hashed", START, START.replace("lengths[b] // page_size", "(lengths[b] + page_size - 1) // page_size")),
    ("whole rows", START, START.replace("lengths[b] // page_size", "tokens.shape[1] // page_size")),
    ("from the beginning each time", START, START.replace("        h = uint64(START)\n", "").replace("            for t in range(i * page_size,", "            h = uint64(START + 0)\n            for t in range(")),
    ("the length of prompt 0", START, START.replace("lengths[b]", "lengths[0]")),
    ("one prompt for each thread block", GUARD, GUARD.replace("cuda.grid(1)", "cuda.blockIdx.x")),
    ("64 prompts at most", GUARD, GUARD.replace("tokens.shape[0]", "min(64, tokens.shape[0])")),
    ("256 prompts at most", GUARD, GUARD.replace("tokens.shape[0]", "min(256, tokens.shape[0])")),
    ("no guard", GUARD, GUARD.replace("b < tokens.shape[0]", "b >= 0")),
    ("32 tokens of a page", START, START.replace("(i + 1) * page_size)", "i * page_size + min(32, page_size))")),
    ("a hash without order", [(START, START.replace("                h = mix(h, tokens[b, t])", "")), ("    return (h ^ uint64(token)) * uint64(PRIME)", "    return h + uint64(token) * uint64(PRIME)")]),
]  # fmt: skip

RIGHT = [
    ("a return without a prompt", GUARD, GUARD.replace("    if b < tokens.shape[0]:\n", "    if b >= tokens.shape[0]:\n        return\n    if True:\n")),
    ("taken while known", "    pages = []\n    for h in hashes:\n" + FIND + "\n    return pages", "    n = 0\n    while n < len(hashes) and hashes[n] in known:\n        n += 1\n    return [known[h] for h in hashes[:n]]"),
]  # fmt: skip

EQUIVALENT = []
