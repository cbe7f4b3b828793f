"""ex21a: who has whose keys."""

OWNER = "return (rank - step) % world_size"
STEP = "return (rank - owner) % world_size"

WRONG = [
    ("the wrap of C: negative numbers", OWNER, "import math\n    return int(math.fmod(rank - step, world_size))"),
    ("the next rank's keys", OWNER, "return (rank - step - 1) % world_size"),
    ("its own keys always", OWNER, "return rank"),
    ("a float", OWNER, "return (rank - step) % float(world_size)"),
    ("through float64", OWNER, "return int((rank - step) % float(world_size))"),
    ("absolute distance", OWNER, "return abs(rank - step) % world_size"),
    ("steps from 1", STEP, "return (rank - owner) % world_size + 1"),
    ("step by distance", STEP, "return abs(rank - owner)"),
    ("both the other way round", [(OWNER, "return (rank + step) % world_size"), (STEP, "return (owner - rank) % world_size")]),
    ("by bits, as for powers of two", OWNER, "return (rank - step) & (world_size - 1)"),
    ("four ranks", OWNER, "return (rank - step) % (world_size if world_size < 5 else 4)"),
]  # fmt: skip

RIGHT = [
    ("a case for the wrap", [
        (OWNER, "found = rank - step\n    return found + world_size if found < 0 else found"),
        (STEP, "return rank - owner if rank >= owner else rank - owner + world_size"),
    ]),
    ("never negative", [(OWNER, "return (rank + world_size - step) % world_size"), (STEP, "return (rank + world_size - owner) % world_size")]),
    ("step_of by search", STEP, "return (rank - owner + 5 * world_size) % world_size"),
]  # fmt: skip

EQUIVALENT = []
