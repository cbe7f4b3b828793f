"""ex13b: who waits for whom."""

# fmt: off
PRODUCER = 'return [("wait", "empty", stage, (use + 1) % 2), ("load", stage, tile)]'
CONSUMER = 'return [("wait", "full", stage, use % 2), ("read", stage, tile), ("arrive", stage)]'

WRONG = [
    ("the consumer begins with parity 1", CONSUMER, CONSUMER.replace("use % 2", "(use + 1) % 2")),
    ("the producer never waits", PRODUCER, 'return [("load", stage, tile)]'),
    ("the consumer never waits", CONSUMER, 'return [("read", stage, tile), ("arrive", stage)]'),
    ("the first use alone is free", PRODUCER, 'return [("wait", "empty", stage, 0)] * bool(use) + [("load", stage, tile)]'),
    ("parity of the tile", CONSUMER, CONSUMER.replace("use % 2", "tile % 2")),
    ("nobody arrives", CONSUMER, 'return [("wait", "full", stage, use % 2), ("read", stage, tile)]'),
    ("arrives before it has read", CONSUMER, 'return [("wait", "full", stage, use % 2), ("arrive", stage), ("read", stage, tile)]'),
    ("arrives at the next stage", CONSUMER, CONSUMER.replace('("arrive", stage)', '("arrive", stage ^ 1)')),
    ("loads before it waits", PRODUCER, 'return [("load", stage, tile), ("wait", "empty", stage, (use + 1) % 2)]'),
    ("waits for full before the next copy", PRODUCER, PRODUCER.replace("tile)]", 'tile), ("wait", "full", stage, use % 2)]')),
    ("waits for full, not for empty", PRODUCER, PRODUCER.replace("empty", "full")),
    ("the next tile", CONSUMER, CONSUMER.replace('stage, tile)', 'stage, tile + 1)')),
    ("tile and stage changed over", PRODUCER, PRODUCER.replace('"load", stage, tile', '"load", tile, stage')),
    ("300 tiles at most", PRODUCER, 'return [("wait", "empty", stage, (use + 1) % 2), ("load", stage, tile)] if tile < 300 else []'),
    ("lists for tuples", CONSUMER, 'return [("wait", "full", stage, use % 2), ["read", stage, tile], ("arrive", stage)]'),
    ("one tuple", PRODUCER, 'return ("load", stage, tile)'),
    ("arrives twice", CONSUMER, CONSUMER.replace('("arrive", stage)', '("arrive", stage), ("arrive", stage)')),
    ("8 stages at most", PRODUCER, PRODUCER.replace('"load", stage', '"load", stage % 8')),
]

RIGHT = [
    ("a bit that flips", CONSUMER, CONSUMER.replace("use % 2", "use & 1")),
    ("no wait in the first use", PRODUCER, 'steps = [("load", stage, tile)]\n    if use:\n        steps.insert(0, ("wait", "empty", stage, (use - 1) % 2))\n    return steps'),
    ("1 minus the parity", PRODUCER, 'return [("wait", "empty", stage, 1 - use % 2), ("load", stage, tile)]'),
]

EQUIVALENT = [("return [('wait', 'empty', stage, (use + 1) % 2), ('load', stage, tile)] -> return [('wait', 'empty', stage, (use - 1) % 2), ('load', stage, tile)]", "the same parity")]
