"""ex23b: steps of static and of continuous batching."""

STATIC = "return sum(max(answers[i : i + batch]) for i in range(0, len(answers), batch))"
ENDS = "ends = [0] * batch"
PLACE = "place = ends.index(min(ends))"
ADD = "ends[place] += n"
RETURN = "return max(ends)"

WRONG = [
    ("static: the sum of all", STATIC, "return sum(answers)"),
    ("static: batches times the longest of all", STATIC, "return -(-len(answers) // batch) * max(answers, default=0)"),
    ("static: the mean of each batch", STATIC, "return sum(-(-sum(answers[i : i + batch]) // batch) for i in range(0, len(answers), batch))"),
    ("static: without the last batch", STATIC, STATIC.replace("len(answers), batch))", "len(answers) - batch + 1, batch))")),
    ("static: batches overlap", STATIC, STATIC.replace("len(answers), batch))", "len(answers)))")),
    ("static: sorted first", STATIC, "answers = sorted(answers)\n    " + STATIC),
    ("static: as continuous", STATIC, "return continuous_steps(answers, batch)"),
    ("static: no requests is an error", STATIC, "assert answers\n    " + STATIC),
    ("continuous: as static", RETURN, "return static_steps(answers, batch)"),
    ("continuous: tokens over places", RETURN, "return -(-sum(answers) // batch)"),
    ("continuous: the places in turn", [(ENDS, "ends, place = [0] * batch, -1"), (PLACE, "place = (place + 1) % batch")]),
    ("continuous: a step between two answers", ADD, "ends[place] += n + (ends[place] > 0)"),
    ("continuous: the longest first", ENDS, "answers = sorted(answers, reverse=True)\n    ends = [0] * batch"),
    ("continuous: the list is sorted in place", ENDS, "answers.sort()\n    ends = [0] * batch"),
    ("continuous: a float", RETURN, "return max(ends) * 1.0"),
    ("continuous: 64 places at most", ENDS, "ends = [0] * min(batch, 64)"),
    ("static: 256 answers at most", STATIC, STATIC.replace("len(answers), batch", "min(256, len(answers)), batch")),
    ("static: one after the other", "return sum(max(answers[i : i + batch]) for i in range(0, len(answers), batch))", "return sum(answers)"),
    ("static: the shortest answer", "sum(max(", "sum(min("),
    ("continuous: the first free place", "return max(ends)", "return min(ends)"),
]  # fmt: skip

RIGHT = [
    ("a heap", [(ENDS, "import heapq\n    ends = [0] * batch"), (PLACE, "place = heapq.heappop(ends)"), (ADD, "heapq.heappush(ends, place + n)"),]),
    ("a clock", [
        (ENDS, "queue, running, steps = list(answers), [], 0"),
        ("for n in answers:", "while queue or running:"),
        (PLACE, "while queue and len(running) < batch:\n            running.append(queue.pop(0))"),
        (ADD, "running, steps = [n - 1 for n in running if n > 1], steps + 1"),
        (RETURN, "return steps"),
    ]),
    ("static: a loop", STATIC, "steps = 0\n    while answers:\n        steps += max(answers[:batch])\n        answers = answers[batch:]\n    return steps"),
]  # fmt: skip

EQUIVALENT = []
