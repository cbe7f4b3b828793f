"""Wrong and right answers of ex01b: see tests/wrong_answers/__init__.py."""

ARITHMETIC = '        "arithmetic": flops / peak,\n'
MEMORY = '        "memory": num_bytes / bandwidth,\n'
OVERHEAD = '        "overhead": kernels * LAUNCH,\n'
RETURN = "    return max(times, key=times.get)"

WRONG = [
    ("the last name", RETURN, "    return max(times)"),
    ("the time", RETURN, "    return max(times.values())"),
    ("no return", RETURN, "    max(times, key=times.get)"),
    ("another launch", OVERHEAD, OVERHEAD.replace("LAUNCH", "1e-6")),
    ("no overhead", OVERHEAD, ""),
    ("rates exchanged", [(ARITHMETIC, ARITHMETIC.replace("peak", "bandwidth")), (MEMORY, MEMORY.replace("bandwidth", "peak"))]),
    ("intensity against the ridge alone", RETURN, '    return "memory" if flops / num_bytes < peak / bandwidth else "arithmetic"'),
    ("add waits for arithmetic", '"add": ("memory"', '"add": ("arithmetic"'),
    ("product waits for memory", '"product": ("arithmetic"', '"product": ("memory"'),
    ("token: memory everywhere", '"token": ("memory", "memory", "overhead")', '"token": ("memory", "memory", "memory")'),
    ("batch: memory everywhere", '"batch": ("memory", "arithmetic", "arithmetic")', '"batch": ("memory", "memory", "memory")'),
    ("softmax: memory everywhere", '"softmax": ("memory", "overhead", "overhead")', '"softmax": ("memory", "memory", "memory")'),
    ("step: memory", '"step": ("overhead", "overhead", "overhead")', '"step": ("memory", "memory", "overhead")'),
    ("a fourth word", '"add": ("memory"', '"add": ("latency"'),
    ("two GPUs", '"add": ("memory", "memory", "memory")', '"add": ("memory", "memory")'),
    ("a seventh", '        "add"', '        "more": ("memory",) * 3,\n        "add"'),
    ("a launch of 10 us", "LAUNCH = 11e-6", "LAUNCH = 10e-6"),
    ("a launch of 12 us", "LAUNCH = 11e-6", "LAUNCH = 12e-6"),
]  # fmt: skip

RIGHT = [
    ("by ifs, and by pencil in lists", [
        (RETURN, "    best = \"memory\"\n    for name in times:\n        if times[name] > times[best]:\n"
                 "            best = name\n    return best"),
        ('"add": ("memory", "memory", "memory")', '"add": ["memory"] * 3'),
    ]),
    ("pairs", RETURN, "    return max((time, name) for name, time in times.items())[1]"),
]  # fmt: skip

EQUIVALENT = []
