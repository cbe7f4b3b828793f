"""ex19d: a page is known by its whole prefix."""

KEY = "return tuple(tokens[: (i + 1) * page_size])"
IF = "        if key(tokens, i, page_size) not in known:\n            break\n"
APPEND = "pages.append(known[key(tokens, i, page_size)])"
RANGE = IF + "        " + APPEND

WRONG = [
    ("the page's own tokens", KEY, "return tuple(tokens[i * page_size : (i + 1) * page_size + 0])"),
    ("own tokens and the number of the page", KEY, "return i, tuple(tokens[i * page_size : (i + 1) * page_size + 0])"),
    ("own tokens and the page before", KEY, "return tuple(tokens[max(0, i - 1) * page_size : (i + 1) * page_size])"),
    ("own tokens and the first one", KEY, "return tokens[0], i, tuple(tokens[i * page_size : (i + 1) * page_size + 0])"),
    ("a sum of the prefix", KEY, "return i, sum(tokens[: (i + 1) * page_size])"),
    ("the prefix before the page", KEY, "return i, tuple(tokens[: i * page_size])"),
    ("a set of tokens", KEY, "return i, frozenset(tokens[: (i + 1) * page_size])"),
    ("the sorted prefix", KEY, "return tuple(sorted(tokens[: (i + 1) * page_size]))"),
    ("the whole prompt", KEY, "return i, tuple(tokens)"),
    ("skips what is not known", IF, "        if key(tokens, i, page_size) not in known:\n            continue\n"),
    ("None for what is not known", RANGE, "        pages.append(known.get(key(tokens, i, page_size)))"),
    ("the first page alone", RANGE, RANGE + "\n        break"),
    ("all or nothing", IF, "        if key(tokens, i, page_size) not in known:\n            return []\n"),
    ("backwards", RANGE, RANGE.replace("pages.append(known[key(tokens, i, page_size)])", "pages.insert(0, known[key(tokens, i, page_size)])")),
    ("the published search", RANGE, "        if published_key(tokens, i, page_size) in known:\n            pages.append(known[published_key(tokens, i, page_size)] )"),
    ("known pages are taken out", APPEND, "pages.append(known.pop(key(tokens, i, page_size)))"),
    ("32 pages at most", APPEND, "if i < 32:\n            " + APPEND),
    ("the last 512 tokens of the prefix", KEY, "return i, tuple(tokens[: (i + 1) * page_size][-512:])"),
]  # fmt: skip

RIGHT = [
    ("a chain of hashes", KEY, "before = hash(tuple(tokens[: i * page_size]))\n    return i, before, tuple(tokens[i * page_size : (i + 1) * page_size + 0])"),
    ("text", KEY, "return repr(list(tokens[: (i + 1) * page_size]))"),
    ("a test for membership first", RANGE, "        k = key(tokens, i, page_size)\n        if k in known:\n            pages.append(known[k])\n        else:\n            break"),
]  # fmt: skip

EQUIVALENT = []
