"""ex19a: the waste of a request."""

# fmt: off
PAGED = "return -(-n // page_size) * page_size"
STEPS = "for n in range(prompt + 1, final + 1):"
SLOTS = "slots = held(prompt, n, final)"
LATER = "later += min(slots, final) - n"
NEVER = "never += slots - min(slots, final)"

WRONG = [
    ("pages rounded down", PAGED, "return n // page_size * page_size"),
    ("a page more where full", PAGED, "return (n // page_size + 1) * page_size"),
    ("pages in float64", PAGED, "import math\n    return math.ceil(n / page_size) * page_size"),
    ("at least one page", PAGED, "return max(1, -(-n // page_size)) * page_size"),
    ("the last step alone", STEPS, "for n in range(final, final + 1):"),
    ("held asked with the prompt", SLOTS, "slots = held(prompt, prompt + 1, final)"),
    ("held asked with the end", SLOTS, "slots = held(prompt, final, final)"),
    ("later up to the end of the answer", LATER, "later += final - n"),
    ("later is all that is held", LATER, "later += slots - n"),
    ("never is all that is empty", NEVER, "never += slots - n"),
    ("never may be negative", NEVER, "never += slots - final"),
    ("tokens of the answer", "tokens += n", "tokens += n - prompt"),
    ("one token for each step", "tokens += n", "tokens += 1"),
    ("the trace is emptied", "    for prompt, final in trace:\n", "    for prompt, final in [trace.pop() for _ in range(len(trace))]:\n"),
    ("floats", "tokens = later = never = 0", "tokens = later = never = 0.0"),
    ("256 requests at most", "for prompt, final in trace:", "for prompt, final in trace[:256]:"),
    ("pages of 256 at most", PAGED, "page_size = min(page_size, 256)\n    " + PAGED),
]

RIGHT = [
    ("pages by divmod", PAGED, "whole, more = divmod(n, page_size)\n    return (whole + (more > 0)) * page_size"),
    ("sums of lists", [("    tokens = later = never = 0\n", "    kinds = []\n"), ("            tokens += n\n", ""), (LATER, "used = min(slots, final)"), (NEVER, "kinds.append((n, used - n, slots - used))"),
        ("    return tokens, later, never\n", "    return tuple(sum(x[i] for x in kinds) for i in range(3))\n")]),
]

EQUIVALENT = []
