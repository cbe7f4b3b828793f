"""ex23d: preemption."""

NEW = "return sum(n % page_size == 0 for n in lengths)"
WHILE = "while new_pages(lengths[:stay], page_size) > num_free:"
FREED = "num_free += -(-lengths[stay] // page_size)"
GONE = "gone.append(stay)"
RETURN = "return gone"

WRONG = [
    ("a page for each sequence", NEW, "return len(lengths)"),
    ("one token before", NEW, NEW.replace("n %", "(n + 1) %")),
    ("those that leave still need a page", WHILE, WHILE.replace("lengths[:stay]", "lengths")),
    ("one at most", WHILE, "if new_pages(lengths[:stay], page_size) > num_free:"),
    ("one more than must", WHILE, WHILE.replace("> num_free", ">= num_free and stay")),
    ("nobody leaves while a page is free", WHILE, WHILE.replace("> num_free", "> num_free == 0")),
    ("one page becomes free", FREED, "num_free += 1"),
    ("no page becomes free", FREED, "num_free += 0 if stay else 10**6"),
    ("full pages become free, not the last one", FREED, "num_free += lengths[stay] // page_size"),
    ("slots become free", FREED, "num_free += lengths[stay]"),
    ("a page too many becomes free", FREED, "num_free += lengths[stay] // page_size + 1"),
    ("the other order", RETURN, "return gone[::-1]"),
    ("how many, not which", RETURN, "return [len(gone)] if gone else []"),
    ("lengths, not indices", GONE, "gone.append(lengths[stay])"),
    ("the oldest leaves", [(WHILE, WHILE.replace("lengths[:stay]", "lengths[len(gone) :]")), (GONE, "gone.append(len(gone))"), (FREED, "num_free += -(-lengths[gone[-1]] // page_size)")]),
    ("the list is emptied", GONE, "gone.append(stay)\n        lengths.append(lengths[stay])"),
    ("256 sequences at most", NEW, NEW.replace("in lengths", "in lengths[:256]")),
    ("pages of 64 at most", FREED, "num_free += -(-lengths[stay] // min(page_size, 64))"),
]  # fmt: skip

RIGHT = [
    ("a copy that is popped", [
        ("stay, gone = len(lengths), []", "left, gone = list(lengths), []"),
        (WHILE, "while new_pages(left, page_size) > num_free:"),
        ("stay -= 1", "n = left.pop()"),
        (GONE, "gone.append(len(left))"),
        (FREED, "num_free += (n + page_size - 1) // page_size"),
    ]),
    ("the pages needed by all, in advance", [(NEW, "return len([n for n in lengths if not n % page_size])"),]),
]  # fmt: skip

EQUIVALENT = []
