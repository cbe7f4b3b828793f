"""ex09a: keys, tiles and masked tiles of a sliding window."""

# fmt: off
FIRST = "return max(0, position - left) if left >= 0 else 0"
END = "return min(seqlen_k, position + right + 1) if right >= 0 else seqlen_k"
FIRST_OF_TILE = "first = first_key(first_m, seqlen_q, seqlen_k, left)"
END_OF_TILE = "end = end_key(last_m, seqlen_q, seqlen_k, right)"
RANGE = "return first // BLOCK_N, (end + BLOCK_N - 1) // BLOCK_N"
LATE = "starts_late = first_key(last_m, seqlen_q, seqlen_k, left) > n_start"
EARLY = "ends_early = end_key(first_m, seqlen_q, seqlen_k, right) < n_start + BLOCK_N"
OR = "return starts_late or ends_early"

WRONG = [
    ("left does not count the query's own key", FIRST, FIRST.replace("position - left", "position - left + 1")),
    ("one key too many on the left", FIRST, FIRST.replace("position - left", "position - left - 1")),
    ("left of 0 is no limit", FIRST, FIRST.replace("left >= 0", "left > 0")),
    ("-1 on the left is a window", FIRST, "return max(0, position - left)"),
    ("negative keys", FIRST, FIRST.replace("max(0, position - left)", "position - left")),
    ("right without the last key", END, END.replace("position + right + 1", "position + right")),
    ("right of 0 is no limit", END, END.replace("right >= 0", "right > 0")),
    ("-1 on the right is a window", END, "return min(seqlen_k, position + right + 1)"),
    ("keys beyond the last one", END, END.replace("min(seqlen_k, position + right + 1)", "position + right + 1")),
    ("float32 in tiles", RANGE, "return int(float32(first) / float32(BLOCK_N)), (end + BLOCK_N - 1) // BLOCK_N"),
    ("starts with the last query", FIRST_OF_TILE, FIRST_OF_TILE.replace("first_m", "last_m")),
    ("ends with the first query", END_OF_TILE, END_OF_TILE.replace("last_m", "first_m")),
    ("always from tile 0", RANGE, "return 0, (end + BLOCK_N - 1) // BLOCK_N"),
    ("the last tile rounded down", RANGE, "return first // BLOCK_N, end // BLOCK_N"),
    ("the first tile rounded up", RANGE, "return (first + BLOCK_N - 1) // BLOCK_N, (end + BLOCK_N - 1) // BLOCK_N"),
    ("one tile too many", RANGE, "return first // BLOCK_N, end // BLOCK_N + 1"),
    ("tiles found by a loop", RANGE, "tile = 0\n    while (tile + 1) * BLOCK_N <= first:\n        tile += 1\n    return tile, (end + BLOCK_N - 1) // BLOCK_N"),
    ("mask by the first query on the left", LATE, LATE.replace("last_m", "first_m")),
    ("mask by the last query on the right", EARLY, EARLY.replace("first_m", "last_m")),
    ("mask one key early", LATE, LATE.replace("> n_start", ">= n_start")),
    ("mask one key late", EARLY, EARLY.replace("+ BLOCK_N", "+ BLOCK_N - 1")),
    ("both sides must cut", OR, "return starts_late and ends_early"),
    ("the left side alone", OR, "return starts_late"),
    ("the right side alone", OR, "return ends_early"),
    ("always masked", OR, "return True"),
    ("ragged keys forgotten", EARLY, "ends_early = end_key(first_m, seqlen_q, seqlen_k, right) < min(seqlen_k, n_start + BLOCK_N)"),
    ("float32 in the mask", LATE, "starts_late = float32(first_key(last_m, seqlen_q, seqlen_k, left)) > float32(n_start)"),
    ("m_tile * BLOCK_N", "first = first_key(first_m,", "first = first_key(m_tile * BLOCK_N,"),
    ("tiles of 64 keys at most", RANGE, RANGE.replace("first // BLOCK_N", "first // min(BLOCK_N, 64)")),
    ("tiles of 64 queries at most", "first = first_key(first_m,", "first = first_key(m_tile * min(BLOCK_M, 64),"),
    ("the mask of 64 keys at most", EARLY, EARLY.replace("+ BLOCK_N", "+ min(BLOCK_N, 64)")),
]
IMPORT = ("from numba import cuda\n", "from numba import cuda, float32\n")
WRONG = [(name, [IMPORT] * ("float32(" in new) + [(old, new)]) for name, old, new in WRONG]
TOP_LEFT = "    position = m + seqlen_k - seqlen_q\n    " + FIRST
LAST_M = "    last_m = min(first_m + BLOCK_M, seqlen_q) - 1\n    first"
WRONG += [
    ("aligned top-left", TOP_LEFT, "    position = m\n    " + FIRST),
    ("queries that do not exist count for the mask", "    last_m = min(first_m + BLOCK_M, seqlen_q) - 1\n    n_start", "    last_m = first_m + BLOCK_M - 1\n    n_start"),
]

RIGHT = [
    ("the end of a tile is that of the sequence at most", LAST_M, "    last_m = first_m + BLOCK_M - 1\n    first"),
    ("if by if", [(FIRST, "if left < 0 or position < left:\n        return 0\n    return position - left"),
        (END, "if right < 0 or position + right >= seqlen_k:\n        return seqlen_k\n    return position + right + 1")]),
    ("the last key's tile, and empty ranges as (0, 0)", RANGE, "if end <= first:\n        return 0, 0\n    return first // BLOCK_N, (end - 1) // BLOCK_N + 1"),
    ("needs_mask as a number", OR, "return 1 if starts_late or ends_early else 0"),
]

EQUIVALENT = []
