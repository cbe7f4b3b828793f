"""ex21b: the zigzag layout and the pairs of a rank."""

CHUNKS = "chunks = np.arange(seqlen).reshape(2 * world_size, -1)"
JOIN = "return np.concatenate([chunks[rank], chunks[-1 - rank]])"
PAIRS = "return int(np.sum(tokens + 1))"

WRONG = [
    ("chunks across", CHUNKS, "chunks = np.arange(seqlen).reshape(-1, 2 * world_size).T"),
    ("two neighbours", JOIN, "return np.concatenate([chunks[2 * rank], chunks[2 * rank + 1]])"),
    ("a second part W later", JOIN, "return np.concatenate([chunks[rank], chunks[rank + world_size]])"),
    ("off by one from the end", JOIN, "return np.concatenate([chunks[rank], chunks[-rank]])"),
    ("the late chunk first", JOIN, "return np.concatenate([chunks[-1 - rank], chunks[rank]])"),
    ("the late chunk backwards", JOIN, "return np.concatenate([chunks[rank], chunks[-1 - rank][::-1]])"),
    ("one chunk", JOIN, "return chunks[rank]"),
    ("a list", JOIN, "return [*chunks[rank].tolist(), *chunks[-1 - rank].tolist()]"),
    ("two rows", JOIN, "return np.stack([chunks[rank], chunks[-1 - rank]])"),
    ("floats", CHUNKS, "chunks = np.arange(float(seqlen)).reshape(2 * world_size, -1)"),
    ("striped", JOIN, "return np.arange(rank, seqlen, world_size)"),
    ("pairs with its own keys alone", PAIRS, "return len(tokens) * (len(tokens) + 1) // 2"),
    ("the mean of all ranks", PAIRS, "return int(len(tokens) * (np.max(tokens) + 1) / 2)"),
    ("a NumPy integer", PAIRS, "return np.sum(tokens + 1)"),
    ("32 bits", PAIRS, "return int(np.sum((tokens + 1).astype(np.int32), dtype=np.int32))"),
    ("from first and last", PAIRS, "return int((tokens[0] + tokens[-1] + 2) * len(tokens)) // 2"),
    ("a power of two of ranks", CHUNKS, "chunks = np.arange(seqlen).reshape(2 * world_size if world_size & (world_size - 1) == 0 else world_size, -1)"),
    ("256 tokens at most", PAIRS, "return int(np.sum(np.minimum(tokens, 256) + 1))"),
    ("chunk r + W", "chunks[-1 - rank]", "chunks[rank + world_size]"),
    ("keys of its rank alone", "int(np.sum(tokens + 1))", "len(tokens) * (len(tokens) + 1) // 2"),
    ("keys of the last token for all", "int(np.sum(tokens + 1))", "len(tokens) * int(np.max(tokens) + 1)"),
]  # fmt: skip

RIGHT = [
    ("two ranges", [(CHUNKS, "chunk = seqlen // (2 * world_size)\n    end = seqlen - rank * chunk"), (JOIN, "return np.r_[rank * chunk : (rank + 1) * chunk, end - chunk : end]"),]),
    ("counted in Python", PAIRS, "return sum(range(len(tokens), len(tokens))) + int(tokens.sum()) + len(tokens)"),
    ("np.split", [(CHUNKS, "chunks = np.split(np.arange(seqlen), 2 * world_size)")]),
]  # fmt: skip

EQUIVALENT = [
    ("chunks = np.arange(seqlen).reshape(2 * world_size, -1) -> chunks = np.arange(seqlen).reshape(2 * world_size, -2)", "any negative number stands for the length that is left",),
]  # fmt: skip
