"""ex23a: the numbers of a step."""

# Lines of broken_kernel, too, are named with a neighbour that is not.
POSITION = "positions[starts[b] + i] = t"
SLOT = (
    "slots[starts[b] + i] = block_table[b, t // page_size] * page_size + t % page_size\n        "
    + POSITION
)
LENGTH = "seq_lens[b] = num_cached[b] + num_new"
LOOP = "num_new = starts[b + 1] - starts[b]\n    for i in range(tx, num_new, NUM_THREADS):"
T = LOOP + "\n        t = num_cached[b] + i"
END = POSITION + "\n    if tx == 0:\n        " + LENGTH

WRONG = [
    ("as it was", POSITION, "positions[starts[b] + i] = num_new + t if num_cached[b] > 0 else i"),
    ("from the end, for one token", POSITION, "positions[starts[b] + i] = (num_cached[b] + num_new - 1 if num_cached[b] > 0 else 0) + i"),
    ("from 0 each time", POSITION, "positions[starts[b] + i] = i"),
    ("the flat number", POSITION, "positions[starts[b] + i] = starts[b] + i"),
    ("from 1", POSITION, "positions[starts[b] + i] = t + 1"),
    ("the last position for all", POSITION, "positions[starts[b] + i] = num_cached[b] + num_new - 1"),
    ("the cached of sequence 0", POSITION, "positions[starts[b] + i] = num_cached[0] + i"),
    ("slots of the positions that were", SLOT, SLOT.replace("t // page_size", "i // page_size").replace("t % page_size", "i % page_size")),
    ("the slot is the token", SLOT, SLOT.replace("block_table[b, t // page_size] * page_size + t % page_size", "t")),
    ("the table of sequence 0", SLOT, SLOT.replace("[b, t //", "[0, t //")),
    ("page and offset exchanged", SLOT, SLOT.replace("block_table[b, t // page_size] * page_size + t % page_size", "block_table[b, t // page_size] + t % page_size * page_size")),
    ("16 slots a page", SLOT, SLOT.replace("* page_size +", "* 16 +")),
    ("seq_len by the last index", LENGTH, "seq_lens[b] = num_cached[b] + num_new - 1"),
    ("every thread stores seq_len", END, END.replace("tx == 0", "tx >= 0")),
    ("seq_len of sequences with new tokens alone", END, END.replace("tx == 0", "tx == 0 and num_new > 0")),
    ("one new token", LOOP, LOOP.replace("range(tx, num_new", "range(tx, min(1, num_new)")),
    ("64 new tokens at most", LOOP, LOOP.replace("range(tx, num_new", "range(tx, min(64, num_new)")),
    ("512 new tokens at most", LOOP, LOOP.replace("range(tx, num_new", "range(tx, min(512, num_new)")),
    ("every thread does all", LOOP, LOOP.replace("range(tx, num_new, NUM_THREADS)", "range(num_new)")),
    ("the next sequence's too", LOOP, LOOP.replace("num_new = starts[b + 1]", "num_new = starts[min(b + 2, num_cached.shape[0])]")),
    ("256 sequences at most", END, END.replace("tx == 0", "tx == 0 and b < 256")),
    ("num_cached is counted up", END, END + "\n        num_cached[b] = seq_lens[b]"),
]  # fmt: skip

RIGHT = [
    ("first mended", [(LOOP, LOOP.replace("    for", "    first = num_cached[b]\n    for")), (POSITION, "positions[starts[b] + i] = first + i")]),
    ("a loop over tokens", [(T, "num_new = starts[b + 1] - starts[b]\n    for t in range(num_cached[b] + tx, num_cached[b] + num_new, NUM_THREADS):\n        i = t - num_cached[b]")]),
]  # fmt: skip

EQUIVALENT = [("if tx == 0: -> if tx == 1:", "any one thread may store seq_lens")]
