"""Wrong and right answers of ex05e: see tests/wrong_answers/__init__.py."""

TILES = "    q, k, v = block_m * d, block_n * (d | 1), block_n * d\n"
BYTES = "    return 4 * (q + k + v + 2 * block_m * block_n)\n"
ACCUMULATORS = "    return -(-d // block_n)\n"
POWERS = "    powers = [2**i for i in range(max_threads.bit_length())]\n"
THREADS = "        if m * n <= max_threads\n"
FITS = "        and shared_bytes(m, n, d) <= sram_bytes\n"
OWN = "        and accumulators(n, d) <= max_accumulators\n"
NONE = "    if not fitting:\n        raise ValueError("
KEY = "key=lambda pair: (pair[0] * pair[1], min(pair), pair[0])"
DEFAULTS = "(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64)"

WRONG = [
    ("k_tile is not padded", TILES, TILES.replace("(d | 1)", "d")),
    ("k_tile is always padded", TILES, TILES.replace("(d | 1)", "(d + 1)")),
    ("v_tile is padded too", TILES, TILES.replace("block_n * d\n", "block_n * (d | 1)\n")),
    ("q_tile is padded too", TILES, TILES.replace("block_m * d,", "block_m * (d | 1),")),
    ("one of s_tile and p_tile", BYTES, BYTES.replace("2 * block_m", "block_m")),
    ("fp16", BYTES, BYTES.replace("4 *", "2 *")),
    ("elements", BYTES, BYTES.replace("4 *", "1 *")),
    ("q_tile has block_n rows", TILES, TILES.replace("block_m * d", "block_n * d")),
    ("rounded down", ACCUMULATORS, "    return d // block_n\n"),
    ("one too many", ACCUMULATORS, "    return d // block_n + 1\n"),
    ("not rounded", ACCUMULATORS, "    return d / block_n\n"),
    ("one column each", ACCUMULATORS, "    return max(1, d // block_n)\n"),
    ("powers up to 256", POWERS, "    powers = [1, 2, 4, 8, 16, 32, 64, 128, 256]\n"),
    ("powers up to 1024", POWERS, "    powers = [2**i for i in range(11)]\n"),
    ("powers from 2", POWERS, POWERS.replace("range(max", "range(1, max")),
    ("any sizes", POWERS, "    powers = range(1, 65)\n"),
    ("fewer threads than the limit", THREADS, THREADS.replace("<=", "<")),
    ("256 threads taken for granted", THREADS, THREADS.replace("max_threads", "256")),
    ("threads are not limited", THREADS, "        if m <= max_threads and n <= max_threads\n"),
    ("less than the budget", FITS, FITS.replace("<=", "<")),
    ("the constraint of ex05d", FITS,
     "        and 4 * (m * d + 2 * n * d + m * n) <= sram_bytes\n"),
    ("accumulators are not limited", OWN, ""),
    ("fewer accumulators than the limit", OWN, OWN.replace("<=", "<")),
    ("m and n of accumulators swapped", OWN, OWN.replace("(n, d)", "(m, d)")),
    ("the first of equal products", KEY, "key=lambda pair: pair[0] * pair[1]"),
    ("not the squarest", KEY, "key=lambda pair: (pair[0] * pair[1], pair[0])"),
    ("the larger block_n of equals", KEY, KEY.replace(", pair[0])", ", pair[1])")),
    ("None where nothing fits", NONE, "    if not fitting:\n        return None\n"
     "    if False:\n        raise ValueError("),
    ("another error", NONE, NONE.replace("ValueError", "RuntimeError")),
    ("512 threads by default", DEFAULTS, DEFAULTS.replace("256", "512")),
    ("64 KiB by default", DEFAULTS, DEFAULTS.replace("48", "64")),
    ("32 accumulators by default", DEFAULTS, DEFAULTS.replace("=64", "=32")),
]  # fmt: skip

RIGHT = [
    ("while loops, other order", """
def shared_bytes(block_m, block_n, d):
    padded = d + 1 if d % 2 == 0 else d
    tiles = [(block_m, d), (block_n, padded), (block_n, d)] + 2 * [(block_m, block_n)]
    return sum(rows * cols * 4 for rows, cols in tiles)


def accumulators(block_n, d):
    return len(range(0, d, block_n))


def honest_block_sizes(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64):
    best = None
    block_m = 1
    while block_m <= max_threads:
        block_n = 1
        while block_m * block_n <= max_threads:
            if shared_bytes(block_m, block_n, d) <= sram_bytes:
                if accumulators(block_n, d) <= max_accumulators:
                    rank = block_m * block_n, min(block_m, block_n), block_m
                    if best is None or rank > best[0]:
                        best = rank, (block_m, block_n)
            block_n *= 2
        block_m *= 2
    if best is None:
        raise ValueError("no pair of tiles fits")
    return best[1]
"""),
    ("the squarest, then the largest: never another pair", KEY,
     "key=lambda pair: (min(pair), pair[0] * pair[1], pair[0])"),
    ("an error by max of nothing", NONE, "    if False:\n        raise ValueError("),
    ("sorted", "    return max(fitting, " + KEY + ")\n",
     "    return sorted(fitting, " + KEY + ")[-1]\n"),
]  # fmt: skip

EQUIVALENT = []
