"""ex23c: admission."""

FREE = "free = num_free - sum(n % page_size == 0 for n in running)"
LOOP = "for n in waiting:"
TAKE = "free -= n // page_size + 1"
STOP = "if free < 0:\n            break"

WRONG = [
    ("a page for each that runs", FREE, "free = num_free - len(running)"),
    ("the running ones hold free pages", FREE, "free = num_free - sum(-(-n // page_size) for n in running)"),
    ("their next step is counted twice", FREE, FREE.replace("sum(", "2 * sum(")),
    ("no room for one more token", TAKE, "free -= -(-n // page_size)"),
    ("a page too many", TAKE, "free -= -(-n // page_size) + 1"),
    ("overtaking", STOP, "if free < 0:\n            free += n // page_size + 1\n            continue"),
    ("the one that does not fit is counted", STOP, "if free < 0:\n            entered += 1\n            break"),
    ("one at a time", LOOP, "for n in waiting[:1]:"),
    ("the youngest first", LOOP, "for n in waiting[::-1]:"),
    ("the shortest first", LOOP, "for n in sorted(waiting):"),
    ("all are looked at in the end", STOP, "if free < 0:\n            return 0"),
    ("the queue is emptied", LOOP, "while waiting:\n        n = waiting.pop(0)"),
    ("100 requests at most", LOOP, "for n in waiting[:100]:"),
    ("256 sequences at most", FREE, FREE.replace("in running", "in running[:256]")),
    ("256 free pages at most", FREE, "num_free = min(num_free, 256)\n    " + FREE),
    ("tokens for pages", "free -= n // page_size + 1", "free -= n + 1"),
    ("pages in use are not free", "sum(n % page_size == 0 for n in running)", "sum(-(-n // page_size) for n in running)"),
]  # fmt: skip

RIGHT = [
    ("a sum from the start", [(FREE, "needed = sum(n % page_size == 0 for n in running)"), (TAKE, "needed += -(-(n + 1) // page_size)"), (STOP, "if needed > num_free:\n            return entered"),]),
    ("page by page", [(TAKE, "free -= sum(t % page_size == 0 for t in range(n + 1))"),]),
]  # fmt: skip

EQUIVALENT = []
