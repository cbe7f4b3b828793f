"""ex21d: the ring."""

NONE = "    state = None\n"
LOOP = "for step in range(world_size):"
BEGIN = "        comm.record.begin_step()\n"
START = "            arrival = comm.start_send_recv(kv, after, before)\n"
IF_START = "        if step + 1 < world_size:\n" + START
PART = "        part = attend(q, kv, rank, (rank - step) % world_size)\n"
MERGE = "state = part if state is None else merge(state, part)"
WAIT = "            kv = arrival.wait()\n"
IF_WAIT = "        if step + 1 < world_size:\n" + WAIT

WRONG = [
    ("the other way round", START, START.replace("after, before", "before, after")),
    ("sent to and fro between two", START, START.replace("after, before", "after, after")),
    ("one step too few", LOOP, "for step in range(max(1, world_size - 1)):"),
    ("a message too many", [(IF_START, IF_START.replace("        if step + 1 < world_size:\n    ", "")), (IF_WAIT, IF_WAIT.replace("        if step + 1 < world_size:\n    ", ""))]),
    ("waits before it attends", [(IF_START, IF_START + WAIT.replace("kv =", "arrived =")), (WAIT, WAIT.replace("arrival.wait()", "arrived"))]),
    ("starts after it has attended", [(IF_START, ""), (PART, PART + IF_START)]),
    ("never waits", IF_WAIT, ""),
    ("what arrives is lost", WAIT, WAIT.replace("kv = ", "")),
    ("its own positions always", PART, PART.replace("(rank - step) % world_size", "rank")),
    ("owner and rank exchanged", PART, PART.replace("rank, (rank - step) % world_size", "(rank - step) % world_size, rank")),
    ("the last part alone", MERGE, "state = part"),
    ("the first part twice", MERGE, "state = merge(state or part, part)"),
    ("steps are not counted", BEGIN, ""),
    ("one step for all", [(NONE, NONE + "    comm.record.begin_step()\n"), (BEGIN, "")]),
    ("a step begins after its message", [(BEGIN, ""), (PART, BEGIN + PART)]),
    ("out alone", "return state\n", "return state[0]\n"),
    ("kv is overwritten", WAIT, WAIT.replace("kv = ", "kv[:] = ")),
    ("float64 on the way", START, START.replace("(kv,", "(kv.astype('float64'),")),
    ("keys and values apart, values late", START, START.replace("(kv,", "(kv[::-1].copy(),")),
    ("four steps at most", LOOP, "for step in range(min(4, world_size)):"),
]  # fmt: skip

RIGHT = [
    ("the first step before the loop", [
        (NONE, "    comm.record.begin_step()\n    arrival = comm.start_send_recv(kv, after, before) if world_size > 1 else None\n    state = attend(q, kv, rank, rank)\n"),
        (LOOP, "for step in range(1, world_size):"),
        (BEGIN, "        kv = arrival.wait()\n" + BEGIN),
        (MERGE, "state = merge(state, part)"),
        (IF_WAIT, ""),
    ]),
    ("a list of parts, merged at the end", [
        (NONE, "    parts = []\n"),
        ("        " + MERGE + "\n", "        parts.append(part)\n"),
        ("return state\n", "import functools\n    return functools.reduce(merge, parts)\n"),
    ]),
    ("keys of the owner, not of the step", [
        (LOOP, "owner = rank\n    for step in range(world_size):"),
        (PART, "        part = attend(q, kv, rank, owner)\n        owner = (owner - 1) % world_size\n"),
    ]),
]  # fmt: skip

EQUIVALENT = []
