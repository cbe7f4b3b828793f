"""ex10b: the starts of packed sequences."""

STARTS = "return np.cumsum([0, *lengths]).astype(np.int32)"
TOKEN = "of_token = np.repeat(starts[:-1], np.diff(starts))"
POSITIONS = "return np.arange(starts[-1]) - of_token"

WRONG = [
    ("the ends", STARTS, "return np.cumsum(lengths).astype(np.int32)"),
    ("without the last end", STARTS, "return np.cumsum([0, *lengths])[:-1].astype(np.int32)"),
    ("the lengths", STARTS, "return np.array(lengths, np.int32)"),
    ("int64", STARTS, "return np.cumsum([0, *lengths])"),
    ("a list", STARTS, "return np.cumsum([0, *lengths]).tolist()"),
    ("float32", STARTS, "return np.cumsum([0, *lengths]).astype(np.float32)"),
    ("int16", STARTS, "return np.cumsum([0, *lengths]).astype(np.int16)"),
    ("without empty sequences", STARTS, "return np.cumsum([0, *(n for n in lengths if n)]).astype(np.int32)"),
    ("padded to the longest", STARTS, "return np.arange(len(lengths) + 1, dtype=np.int32) * max(lengths, default=0)"),
    ("from one, positions", POSITIONS, "return np.arange(starts[-1]) - of_token + 1"),
    ("to the end", TOKEN, "of_token = np.repeat(starts[1:], np.diff(starts))"),
    ("the number of the sequence", POSITIONS, "return np.repeat(np.arange(len(starts) - 1), np.diff(starts))"),
    ("floats", POSITIONS, "return (np.arange(starts[-1]) - of_token).astype(float)"),
    ("the sequence before", TOKEN, "of_token = np.repeat(np.roll(starts[:-1], 1), np.diff(starts))"),
    ("the length is subtracted", TOKEN, "of_token = np.repeat(np.diff(starts), np.diff(starts))"),
    ("64 sequences at most", STARTS, "return np.cumsum([0, *lengths[:64]]).astype(np.int32)"),
    ("the 0 behind the lengths", "np.cumsum([0, *lengths])", "np.cumsum([*lengths, 0])"),
    ("the ends are subtracted", "np.repeat(starts[:-1], np.diff(starts))", "np.repeat(starts[1:], np.diff(starts))"),
    ("positions from 1", "np.arange(starts[-1]) - of_token", "np.arange(1, starts[-1] + 1) - of_token"),
]  # fmt: skip

RIGHT = [
    ("a loop", [
        (STARTS, "starts = np.zeros(len(lengths) + 1, np.int32)\n    for b, n in enumerate(lengths):\n        starts[b + 1] = starts[b] + n\n    return starts"),
        (TOKEN, "parts = [np.arange(n) for n in np.diff(starts)]"),
        (POSITIONS, "return np.concatenate([*parts, np.zeros(0, int)]).astype(int)"),
    ]),
    ("a search", TOKEN, "of_token = starts[np.searchsorted(starts, np.arange(starts[-1]), side='right') - 1]"),
]  # fmt: skip

EQUIVALENT = []
