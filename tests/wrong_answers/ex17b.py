"""ex17b: the number of splits."""

# fmt: off
WAVES = "return -(-num_splits * thread_blocks // (num_sms * blocks_per_sm))"
TILES = "tiles = -(-num_n_tiles // num_splits)"
TIME = "return num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm) * (tiles + overhead)"
CHOOSE = "return min(range(1, max(1, num_n_tiles) + 1), key=lambda splits: step_time(splits, *sizes))"
DEFAULTS = "def choose_num_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm, overhead=1):"

WRONG = [
    ("waves rounded down", WAVES, "return num_splits * thread_blocks // (num_sms * blocks_per_sm)"),
    ("one wave too many", WAVES, "return num_splits * thread_blocks // (num_sms * blocks_per_sm) + 1"),
    ("at least one wave", WAVES, "return max(1, -(-num_splits * thread_blocks // (num_sms * blocks_per_sm)))"),
    ("waves that are not whole", WAVES, "return num_splits * thread_blocks / (num_sms * blocks_per_sm)"),
    ("waves in float64", WAVES, "import math\n    return math.ceil(num_splits * thread_blocks / (num_sms * blocks_per_sm))"),
    ("the mean share", TILES, "tiles = num_n_tiles / num_splits"),
    ("the smallest share", TILES, "tiles = num_n_tiles // num_splits"),
    ("shares in float64", TILES, "import math\n    tiles = math.ceil(num_n_tiles / num_splits)"),
    ("overhead once for a step", TIME, "return num_waves(num_splits, thread_blocks, num_sms, blocks_per_sm) * tiles + overhead"),
    ("overhead once for a split", TIME, TIME.replace("+ overhead", "+ overhead * num_splits")),
    ("overhead of 1 always", TIME, TIME.replace("overhead)", "1)")),
    ("another default", DEFAULTS, DEFAULTS.replace("overhead=1", "overhead=2")),
    ("the largest of equals", CHOOSE, CHOOSE.replace("range(1, max(1, num_n_tiles) + 1)", "range(max(1, num_n_tiles), 0, -1)")),
    ("128 splits at most", CHOOSE, CHOOSE.replace("max(1, num_n_tiles) + 1", "min(128, max(1, num_n_tiles)) + 1")),
    ("powers of two", CHOOSE, CHOOSE.replace("range(1, max(1, num_n_tiles) + 1)", "[2**i for i in range(12) if 2**i <= max(1, num_n_tiles)]")),
    ("one split too few", CHOOSE, CHOOSE.replace("max(1, num_n_tiles) + 1", "max(2, num_n_tiles)")),
    ("never one split", CHOOSE, CHOOSE.replace("range(1, max(1, num_n_tiles) + 1)", "range(min(2, max(1, num_n_tiles)), max(1, num_n_tiles) + 1)")),
    ("nothing to do is an error", CHOOSE, CHOOSE.replace("max(1, num_n_tiles)", "num_n_tiles")),
    ("fills one wave", CHOOSE, "return max(1, min(num_n_tiles, num_sms * blocks_per_sm // max(1, thread_blocks)))"),
    ("fewest waves", CHOOSE, CHOOSE.replace("step_time(splits, *sizes)", "num_waves(splits, thread_blocks, num_sms, blocks_per_sm)")),
    ("overhead not handed on", CHOOSE, CHOOSE.replace("*sizes)", "*sizes[:-1])")),
    ("a float", TIME, TIME.replace("return ", "return 1.0 * ")),
    ("512 splits at most", CHOOSE, CHOOSE.replace("max(1, num_n_tiles) + 1", "min(512, max(1, num_n_tiles)) + 1")),
    ("1024 splits at most", CHOOSE, CHOOSE.replace("max(1, num_n_tiles) + 1", "min(1024, max(1, num_n_tiles)) + 1")),
    ("shares of 1024 splits at most", TILES, TILES.replace("// num_splits", "// min(1024, num_splits)")),
]

RIGHT = [
    ("a loop, and ceilings by adding", [
        (WAVES, "places = num_sms * blocks_per_sm\n    return (num_splits * thread_blocks + places - 1) // places"),
        (CHOOSE, "best = 1\n    for splits in range(2, num_n_tiles + 1):\n        if step_time(splits, *sizes) < step_time(best, *sizes):\n            best = splits\n    return best")]),
    ("pairs of time and splits", CHOOSE, "return min((step_time(s, *sizes), s) for s in range(1, max(1, num_n_tiles) + 1))[1]"),
]

EQUIVALENT = [
    ("return min(range(1, max(1, num_n_tiles) + 1), key=lambda splits: step_time(splits, *sizes)) -> return min(range(1, max(1, num_n_tiles) + 2), key=lambda splits: step_time(splits, *sizes))", "a split more than tiles is never quicker, and of equals the first is taken"),
    ("return min(range(1, max(1, num_n_tiles) + 1), key=lambda splits: step_time(splits, *sizes)) -> return min(range(1, max(2, num_n_tiles) + 1), key=lambda splits: step_time(splits, *sizes))", "a split more than tiles is never quicker, and of equals the first is taken"),
]
