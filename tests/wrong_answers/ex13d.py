"""ex13d: tiles of persistent thread blocks."""

# fmt: off
NUMBER = "number = num_blocks - 1 - block if turn % 2 else block"
TILE = "tile = num_tiles - 1 - turn * num_blocks - number"
RETURN = "return max(tile, -1)"
FIRST = "turn = 0\n    tile = tile_of(cuda.blockIdx.x, cuda.gridDim.x, num_tiles, turn)"
WHILE = "while tile >= 0:"
MEAN = "mean_of_tile(v, out, tile)\n"
NEXT = "turn += 1\n        tile = tile_of(cuda.blockIdx.x, cuda.gridDim.x, num_tiles, turn)"

WRONG = [
    ("like cards, longest first", NUMBER, "number = block"),
    ("like cards, shortest first", [(NUMBER, "number = block"), (TILE, "tile = turn * num_blocks + number if turn * num_blocks + number < num_tiles else -1")]),
    ("snake, shortest first", TILE, "tile = turn * num_blocks + number if turn * num_blocks + number < num_tiles else -1"),
    ("neighbours", [(NUMBER, "number = (num_tiles + num_blocks - 1) // num_blocks"), (TILE, "tile = block * number + turn if turn < number and block * number + turn < num_tiles else -1")]),
    ("all tiles to block 0", [(NUMBER, "number = 0"), (TILE, "tile = num_tiles - 1 - turn if block == 0 else -1")]),
    ("round 0 backwards, too", NUMBER, "number = num_blocks - 1 - block if turn % 2 or turn == 0 else block"),
    ("every third round backwards", NUMBER, NUMBER.replace("turn % 2", "turn % 3 == 1")),
    ("backwards after the first round", NUMBER, NUMBER.replace("turn % 2", "turn > 0")),
    ("tile 0 is left out", RETURN, "return tile if tile > 0 else -1"),
    ("tile 0 twice and more", RETURN, "return max(tile, 0)"),
    ("negative numbers go on", RETURN, "return tile"),
    ("256 tiles at most", RETURN, "return max(tile, -1) if turn * num_blocks < 256 else -1"),
    ("128 blocks at most", NUMBER, "number = num_blocks - 1 - block % 128 if turn % 2 else block % 128"),
    ("kernel: one tile", NEXT, "tile = -1"),
    ("kernel: every tile twice", MEAN, "mean_of_tile(v, out, tile)\n        mean_of_tile(v, out, tile)\n"),
    ("kernel: as if there were one block", [(FIRST, FIRST.replace("cuda.gridDim.x", "1").replace("cuda.blockIdx.x", "0")), (NEXT, NEXT.replace("cuda.gridDim.x", "1").replace("cuda.blockIdx.x", "0"))]),
    ("kernel: 4 turns at most", WHILE, "while tile >= 0 and turn < 4:"),
    ("kernel: the block for the tile", MEAN, "mean_of_tile(v, out, cuda.blockIdx.x)\n"),
    ("kernel: v is changed", MEAN, "mean_of_tile(v, out, tile)\n        if tile == 0 and cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:\n            v[0, 0] = float32(0.0)\n"),
]

RIGHT = [
    ("a loop over turns", [("    turn = 0\n    tile = tile_of(cuda.blockIdx.x, cuda.gridDim.x, num_tiles, turn)\n    while tile >= 0:\n        mean_of_tile(v, out, tile)\n        " + NEXT,
      "    for turn in range((num_tiles + cuda.gridDim.x - 1) // cuda.gridDim.x):\n        tile = tile_of(cuda.blockIdx.x, cuda.gridDim.x, num_tiles, turn)\n        if tile >= 0:\n            mean_of_tile(v, out, tile)")]),
    ("from both ends of two rounds", [(NUMBER, "number = block"), (TILE, "first = turn // 2 * 2 * num_blocks\n    tile = num_tiles - 1 - first - (2 * num_blocks - 1 - number if turn % 2 else number)")]),
]

EQUIVALENT = [
    (f"{NUMBER} -> number = block if turn % 2 else num_blocks - 1 - block", "the snake may begin at either end"),
    (f"{NUMBER} -> {NUMBER.replace('% 2', '% 3')}", "within the budget, too"),
]
