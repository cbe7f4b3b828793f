"""ex19b: the waste of a request."""

# fmt: off
POWER = "return prompt + 2 ** (final - prompt - 1).bit_length()"
PAGED = "return -(-n // page_size) * page_size"
STEPS = "for n in range(prompt + 1, final + 1):"
SLOTS = "slots = held(prompt, n, final)"
LATER = "later += min(slots, final) - n"
NEVER = "never += slots - min(slots, final)"
WASTE = "return (later + never) / (tokens + later + never)"

WRONG = [
    ("the power above", POWER, "return prompt + 2 ** (final - prompt).bit_length()"),
    ("the whole rounded up", POWER, "return 2 ** (final - 1).bit_length()"),
    ("the answer alone", POWER, "return 2 ** (final - prompt - 1).bit_length()"),
    ("the power below", POWER, "return prompt + 2 ** ((final - prompt).bit_length() - 1)"),
    ("at least two", POWER, "return prompt + 2 ** max(1, (final - prompt - 1).bit_length())"),
    ("logarithm in float64", POWER, "import math\n    return prompt + 2 ** math.ceil(math.log2(final - prompt))"),
    ("prompt counted twice", POWER, "return 2 * prompt + 2 ** (final - prompt - 1).bit_length()"),
    ("pages rounded down", PAGED, "return n // page_size * page_size"),
    ("pages, not slots", PAGED, "return -(-n // page_size)"),
    ("a page more where full", PAGED, "return (n // page_size + 1) * page_size"),
    ("pages in float64", PAGED, "import math\n    return math.ceil(n / page_size) * page_size"),
    ("at least one page", PAGED, "return max(1, -(-n // page_size)) * page_size"),
    ("the prompt is a step", STEPS, "for n in range(prompt, final + 1):"),
    ("the last step is missing", STEPS, "for n in range(prompt + 1, final):"),
    ("the last step alone", STEPS, "for n in range(final, final + 1):"),
    ("held asked with the prompt", SLOTS, "slots = held(prompt, prompt + 1, final)"),
    ("held asked with the end", SLOTS, "slots = held(prompt, final, final)"),
    ("later up to the end of the answer", LATER, "later += final - n"),
    ("later is all that is held", LATER, "later += slots - n"),
    ("never is all that is empty", NEVER, "never += slots - n"),
    ("never may be negative", NEVER, "never += slots - final"),
    ("tokens of the answer", "tokens += n", "tokens += n - prompt"),
    ("one token for each step", "tokens += n", "tokens += 1"),
    ("the share with a token", WASTE, "return tokens / (tokens + later + never)"),
    ("never alone is waste", WASTE, "return never / (tokens + later + never)"),
    ("waste for each token", WASTE, "return (later + never) / tokens"),
    ("a mean of shares", WASTE, "shares = [usage([request], held) for request in trace]\n    return sum((b + c) / (a + b + c) for a, b, c in shares) / len(shares)"),
    ("the trace is emptied", "    for prompt, final in trace:\n", "    for prompt, final in [trace.pop() for _ in range(len(trace))]:\n"),
    ("floats", "tokens = later = never = 0", "tokens = later = never = 0.0"),
]

RIGHT = [
    ("a loop for the power", POWER, "power = 1\n    while power < final - prompt:\n        power *= 2\n    return prompt + power"),
    ("sums of lists", [("    tokens = later = never = 0\n", "    kinds = []\n"), ("            tokens += n\n", ""), (LATER, "used = min(slots, final)"), (NEVER, "kinds.append((n, used - n, slots - used))"),
        ("    return tokens, later, never\n", "    return tuple(sum(x[i] for x in kinds) for i in range(3))\n")]),
]

EQUIVALENT = [("return prompt + 2 ** (final - prompt - 1).bit_length() -> return prompt + 2 ** (1 - (final - prompt)).bit_length()", "bit_length is that of the magnitude")]
