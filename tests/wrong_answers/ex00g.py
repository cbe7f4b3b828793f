"""Wrong and right answers of ex00g: see tests/wrong_answers/__init__.py."""

LOOP = "    for first in range(0, len(sides), 32):\n"
WARP = "        warp = sides[first : first + 32]\n"
ADD = "        total += sum(lengths[side] for side in set(warp))\n"
RETURN = "    return total"

WRONG = [
    ("every thread by itself", ADD, ADD.replace("set(warp)", "warp")),
    ("one warp", LOOP, "    for first in range(0, len(sides), len(sides)):\n"),
    ("64 threads", LOOP + WARP, (LOOP + WARP).replace("32", "64")),
    ("warps overlap", LOOP, LOOP.replace("32", "16")),
    ("gaps", WARP, WARP.replace("32", "31")),
    ("whole warps only", LOOP, LOOP.replace("len(sides)", "len(sides) - 31")),
    ("all sides", ADD, "        total += sum(lengths)\n"),
    ("the longest side", ADD, ADD.replace("sum(", "max(")),
    ("the shortest side", ADD, ADD.replace("sum(", "min(")),
    ("the first thread's side", ADD, "        total += lengths[warp[0]]\n"),
    ("the last thread's side", ADD, "        total += lengths[warp[-1]]\n"),
    ("sides, not instructions", ADD, "        total += len(set(warp))\n"),
    ("times its threads", ADD, "        total += sum(lengths[side] for side in set(warp)) * len(warp)\n"),
    ("an average", RETURN, "    return total / len(sides)"),
    ("a float", RETURN, "    return total * 1.0"),
    ("no return", RETURN, "    total"),
    ("two sides only", ADD, ADD.replace("set(warp)", "set(warp) & {0, 1}")),
    ("lengths sorted", ADD, "        lengths.sort()\n" + ADD),
    ("returns early", RETURN, "        return total"),
]  # fmt: skip

RIGHT = [
    ("sides outside", LOOP + WARP + ADD,
     "    warps = [sides[i * 32 : i * 32 + 32] for i in range((len(sides) + 31) // 32)]\n"
     "    for side, length in enumerate(lengths):\n"
     "        total += length * sum(side in warp for warp in warps)\n"),
    ("a set of pairs", LOOP + WARP + ADD, "    for _, side in {(t // 32, side) for t, side in enumerate(sides)}:\n        total += lengths[side]\n"),
]  # fmt: skip

EQUIVALENT = []
