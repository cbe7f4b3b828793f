"""ex10e: the order of thread blocks."""

BLOCKS = "blocks = [(b, t) for b, n in enumerate(lengths) for t in range(math.ceil(n / tile))]"
RETURN = "return sorted(blocks, key=lambda block: -key_tiles(lengths, *block, tile, causal))"

WRONG = [
    ("as they come", RETURN, "return blocks"),
    ("the reverse", RETURN, "return blocks[::-1]"),
    ("long sequences first", RETURN, "return sorted(blocks, key=lambda block: -lengths[block[0]])"),
    ("late tiles first", RETURN, "return sorted(blocks, key=lambda block: -block[1])"),
    ("as if causal", RETURN, RETURN.replace("causal)", "True)")),
    ("as if not causal", RETURN, RETURN.replace("causal)", "False)")),
    ("the longest at both ends", RETURN, "x = sorted(blocks, key=lambda block: -key_tiles(lengths, *block, tile, causal))\n    return x[::2] + x[1::2][::-1]"),
    ("whole tiles only", BLOCKS, BLOCKS.replace("math.ceil(n / tile)", "n // tile")),
    ("a tile too many", BLOCKS, BLOCKS.replace("math.ceil(n / tile)", "n // tile + 1")),
    ("twice", RETURN, "return 2 * " + RETURN.removeprefix("return ")),
    ("without the longest", RETURN, RETURN + "[1:]"),
    ("the tile first", BLOCKS, BLOCKS.replace("(b, t) for", "(t, b) for")),
    ("numbers of thread blocks", RETURN, "return list(range(len(blocks)))"),
    ("nothing", RETURN, "return None"),
    ("in place", RETURN, "lengths.sort(reverse=True)\n    return [(b, t) for b, n in enumerate(lengths) for t in reversed(range(math.ceil(n / tile)))]"),
]  # fmt: skip

RIGHT = [
    ("a heap", RETURN, "import heapq\n\n    heap = [(-key_tiles(lengths, *block, tile, causal), block) for block in blocks]\n    heapq.heapify(heap)\n    return [heapq.heappop(heap)[1] for _ in blocks]"),
    ("NumPy, as lists", RETURN, "import numpy as np\n\n    times = [key_tiles(lengths, *block, tile, causal) for block in blocks]\n    return [list(blocks[i]) for i in np.argsort(times, kind='stable')[::-1]]"),
]  # fmt: skip

EQUIVALENT = []
