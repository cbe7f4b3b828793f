"""ex13d: tiles for persistent thread blocks."""

# fmt: off
LOOP = "for first in range(0, num_tiles, num_blocks):"
BACK = "backwards = first // num_blocks % 2"
ADD = "tiles += [tile] if tile >= 0 else []"
BODY = """    tiles = []
    for first in range(0, num_tiles, num_blocks):
        backwards = first // num_blocks % 2
        tile = num_tiles - 1 - first - (num_blocks - 1 - block if backwards else block)
        tiles += [tile] if tile >= 0 else []
    return tiles
"""

WRONG = [
    ("round robin", BODY, "    return list(range(block, num_tiles, num_blocks))\n"),
    ("round robin, longest first", BACK, "backwards = 0"),
    ("neighbours", BODY, "    each = -(-num_tiles // num_blocks)\n    return list(range(num_tiles))[block * each:(block + 1) * each]\n"),
    ("one block has all", BODY, "    return list(range(num_tiles)) if block == 0 else []\n"),
    ("the first tile negative", ADD, "tiles += [tile]"),
    ("a tuple", "return tiles", "return tuple(tiles)"),
    ("floats", BODY, BODY.replace("[tile] if", "[float(tile)] if")),
    ("full rounds alone", LOOP, "for first in range(0, num_tiles - num_blocks + 1, num_blocks):"),
    ("shortest first, snake", BODY, BODY.replace("num_tiles - 1 - first - (num_blocks - 1 - block if backwards else block)", "first + (num_blocks - 1 - block if backwards else block)").replace("tile >= 0", "tile < num_tiles")),
    ("the first and the last", BODY, "    low = list(range(block, num_tiles // 2, num_blocks))\n    return low + [num_tiles - 1 - tile for tile in low]\n"),
    ("16 rounds at most", LOOP, "for first in range(0, min(num_tiles, 16 * num_blocks), num_blocks):"),
]

GREEDY = """    work, mine = [0] * num_blocks, []
    for tile in reversed(range(num_tiles)):
        least = work.index(min(work))
        work[least] += tile + 1
        if least == block:
            mine.append(tile)
    return mine
"""
RIGHT = [
    ("the block with the least work takes the longest tile", BODY, GREEDY),
    ("by the place of each tile", BODY, """    def owner(place):
        turn, index = divmod(place, num_blocks)
        return num_blocks - 1 - index if turn % 2 else index

    return [num_tiles - 1 - place for place in range(num_tiles) if owner(place) == block]
"""),
]

SNAKE = "another order within the budget"
EQUIVALENT = [
    ("backwards = first // num_blocks % 2 -> backwards = first // num_blocks % 3", SNAKE),
    ("tile = num_tiles - 1 - first - (num_blocks - 1 - block if backwards else block) -> tile = num_tiles - 1 - first - (block if backwards else num_blocks - 1 - block)", SNAKE),
]
