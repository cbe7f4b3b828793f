"""ex23a: the position of a cached token."""

POSITIONS = "positions = np.arange(num_cached, len(tokens))"
SLOTS = "slots = pages[positions // page_size] * page_size + positions % page_size"
RETURN = "return positions, slots, len(tokens)"

WRONG = [
    ("as published", RETURN, "return published(tokens, num_cached, pages, page_size)"),
    ("one too large in decoding", RETURN, "return positions + (num_cached > 0), slots, len(tokens)"),
    ("one too small", RETURN, "return positions - (num_cached > 0), slots, len(tokens)"),
    ("from 0 in each step", RETURN, "return positions - num_cached, slots, len(tokens)"),
    ("the last position for all", RETURN, "return np.full_like(positions, len(tokens) - 1), slots, len(tokens)"),
    ("right for one new token alone", RETURN, "return (np.array([len(tokens) - 1]) if num_cached else positions), slots, len(tokens)"),
    ("slots follow the wrong positions", SLOTS, SLOTS.replace("positions", "(positions + (num_cached > 0))")),
    ("slots without pages", SLOTS, "slots = positions"),
    ("the new token does not see itself", RETURN, "return positions, slots, len(tokens) - 1"),
    ("the keys from before", RETURN, "return positions, slots, num_cached"),
    ("one key too many", RETURN, "return positions, slots, len(tokens) + 1"),
    ("only the last new token", RETURN, "return positions[-1:], slots[-1:], len(tokens)"),
    ("positions of all tokens", POSITIONS, "positions = np.arange(len(tokens))"),
    ("floats", RETURN, "return positions.astype(float), slots, len(tokens)"),
    ("pages of 4", SLOTS, SLOTS.replace("page_size", "4")),
    ("256 pages at most", SLOTS, SLOTS.replace("pages[positions // page_size]", "pages[np.minimum(positions // page_size, 255)]")),
    ("pages of 64 at most", SLOTS, SLOTS.replace("page_size", "min(page_size, 64)")),
]  # fmt: skip

RIGHT = [
    ("the published program with another start", [
        (POSITIONS, "positions, slots, seq_len = published(tokens, num_cached, pages, page_size)"),
        (SLOTS, "positions = np.arange(num_cached, seq_len)"),
        (RETURN, "return positions, slots, seq_len"),
    ]),
    ("a list, token by token", [
        (SLOTS, "slots = np.array([int(pages[t // page_size]) * page_size + t % page_size for t in positions])"),
    ]),
]  # fmt: skip

EQUIVALENT = []
