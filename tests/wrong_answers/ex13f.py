"""ex13f: two thread blocks that load K and V once."""

# fmt: off
EMPTY = "                wait_empty(bars, stage, (use + 1) % 2)\n                announce(bars, stage, 2"
ANNOUNCE = "announce(bars, stage, 2 * NUMBER_BYTES * TILE)"
COPIES = """if rank == 0:
                    copy_to_both(tiles, bars, stage, 0, k[tile + 1])
                else:
                    copy_to_both(tiles, bars, stage, 1, v[tile + 1])
            if tile >= 0:
                done = tile % STAGES
                wait_full(bars, done, tile // STAGES % 2)
                left = read(tiles, bars, done, 0, tx)
                total += left * read(tiles, bars, done, 1, (tx + 1) % TILE)
                arrive(bars, done, rank)
                arrive(bars, done, 1 - rank)
"""
OWN, OTHER = "                arrive(bars, done, rank)\n                arrive(bars, done, 1 - rank)\n", "arrive(bars, done, 1 - rank)"


def change(*pairs):
    """The end of the loop, the first text that the broken kernel does not have, changed."""
    text = COPIES
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return COPIES, text


WRONG = [
    ("no arrival at the other block", OTHER, "pass"),
    ("only at the other block", *change(("                arrive(bars, done, rank)\n", ""))),
    ("thread 0 alone arrives at the other", OTHER, "if tx == 0:\n                    " + OTHER),
    ("only block 0 arrives at the other", OTHER, "if rank == 0:\n                    " + OTHER),
    ("arrives before it reads", *change((OWN, ""), ("                left =", OWN + "                left ="))),
    ("announces what both get", ANNOUNCE, "announce(bars, stage, 4 * NUMBER_BYTES * TILE)"),
    ("block 0 announces", ANNOUNCE, "if rank == 0:\n                    " + ANNOUNCE),
    ("empty: not awaited", EMPTY, EMPTY.replace("wait_empty(bars, stage, (use + 1) % 2)", "pass")),
    ("empty: always parity 1", EMPTY, EMPTY.replace("(use + 1) % 2", "1")),
    ("empty: awaited by block 0", EMPTY, EMPTY.replace("wait_empty", "if rank == 0:\n                    wait_empty")),
    ("full: not awaited", *change(("wait_full(bars, done, tile // STAGES % 2)", "pass"))),
    ("full: the other parity", *change(("tile // STAGES % 2", "(tile // STAGES + 1) % 2"))),
    ("full: awaited by thread 0", *change(("wait_full", "if tx == 0:\n                    wait_full"))),
    ("each block copies both", *change(("if rank == 0:\n", "if rank >= 0:\n"), ("                else:\n", "                if rank >= 0:\n"))),
    ("K in the place of V", *change(("v[tile + 1]", "k[tile + 1]"))),
    ("this tile, not the next", *change(("k[tile + 1]", "k[max(tile, 0)]"))),
    ("the last tile is not read", *change(("if tile >= 0:", "if 0 <= tile < max(num_tiles - 1, 1):"))),
    ("no neighbour", *change(("(tx + 1) % TILE", "tx"))),
    ("a barrier in the loop", OTHER, OTHER + "\n                cluster_sync()"),
]

RIGHT = [
    ("block 0 copies both", [change(("                else:\n                    copy", "                    copy"))]),
    ("arrives at both in a loop", [change((OWN, "                for block in range(2):\n                    arrive(bars, done, block)\n"))]),
    ("announced in two parts", [(ANNOUNCE, "for _ in range(2):\n                    announce(bars, stage, NUMBER_BYTES * TILE)")]),
]

EQUIVALENT = [
    ("if rank == 0: -> if rank != 0:", "either block may copy either tile"),
    ("if rank == 0: -> if rank == 1:", "either block may copy either tile"),
    ("use, stage = ((tile + 1) // STAGES, (tile + 1) % STAGES) -> use, stage = ((tile + 1) // STAGES, (tile - 1) % STAGES)", "the same stage"),
    ("wait_empty(bars, stage, (use + 1) % 2) -> wait_empty(bars, stage, (use - 1) % 2)", "the same parity"),
]
