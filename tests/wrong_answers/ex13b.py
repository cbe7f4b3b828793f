"""ex13b: who waits for whom."""

# fmt: off
P_WAIT = 'steps.append(("wait", "empty", stage, (turn + 1) % 2))'
P_LOAD = 'steps.append(("load", stage, tile))'
C_WAIT = 'steps.append(("wait", "full", stage, turn % 2))'
C_READ = 'steps.append(("read", stage, tile))'
C_ARRIVE = 'steps.append(("arrive", stage))'

WRONG = [
    ("the producer begins with parity 0", P_WAIT, P_WAIT.replace("(turn + 1)", "turn")),
    ("the consumer begins with parity 1", C_WAIT, C_WAIT.replace("turn % 2", "(turn + 1) % 2")),
    ("the producer never waits", P_WAIT, "pass"),
    ("the consumer never waits", C_WAIT, "pass"),
    ("the first turn alone is free", P_WAIT, "if turn:\n            steps.append((\"wait\", \"empty\", stage, 0))"),
    ("parity of the tile", C_WAIT, C_WAIT.replace("turn % 2", "tile % 2")),
    ("parity of the turn, not kept to 0 and 1", C_WAIT, C_WAIT.replace("turn % 2", "turn")),
    ("nobody arrives", C_ARRIVE, "pass"),
    ("arrives before it has read", [(C_READ, C_ARRIVE), ("        " + C_ARRIVE + "\n", "        " + C_READ + "\n")]),
    ("arrives at the next stage", C_ARRIVE, 'steps.append(("arrive", (stage + 1) % num_stages))'),
    ("loads before it waits", [(P_WAIT, P_LOAD), ("        " + P_LOAD + "\n", "        " + P_WAIT + "\n")]),
    ("waits for full before the next copy", P_LOAD, P_LOAD + "\n        steps.append((\"wait\", \"full\", stage, turn % 2))"),
    ("tiles in the wrong order", C_READ, 'steps.append(("read", stage, num_tiles - 1 - tile))'),
    ("tile and stage changed over", P_LOAD, 'steps.append(("load", tile, stage))'),
    ("300 tiles at most", [(P_LOAD, "if tile < 300:\n            " + P_LOAD)]),
    ("lists for tuples", C_READ, 'steps.append(["read", stage, tile])'),
    ("one stage is left free", P_WAIT, "if tile >= num_stages - 1 and num_stages > 1:\n            last = tile - num_stages + 1\n            steps.append((\"wait\", \"empty\", last % num_stages, last // num_stages % 2))\n        " + P_WAIT),
]
WRONG[8] = ("arrives before it has read", [("        " + C_READ + "\n        " + C_ARRIVE, "        " + C_ARRIVE + "\n        " + C_READ)])
WRONG[10] = ("loads before it waits", [("        " + P_WAIT + "\n        " + P_LOAD, "        " + P_LOAD + "\n        " + P_WAIT)])

RIGHT = [
    ("a parity that flips", "    for tile in range(num_tiles):\n        turn, stage = divmod(tile, num_stages)\n        " + P_WAIT,
     "    stage, parity = 0, 1\n    for tile in range(num_tiles):\n        if tile and tile % num_stages == 0:\n            parity ^= 1\n        stage = tile % num_stages\n        steps.append((\"wait\", \"empty\", stage, parity))"),
    ("no wait in the first turn", P_WAIT, "if turn:\n            steps.append((\"wait\", \"empty\", stage, (turn - 1) % 2))"),
]

EQUIVALENT = [("steps.append(('wait', 'empty', stage, (turn + 1) % 2)) -> steps.append(('wait', 'empty', stage, (turn - 1) % 2))", "the same parity")]
