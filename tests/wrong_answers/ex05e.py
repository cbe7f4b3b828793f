"""Wrong and right answers of ex05e: see tests/wrong_answers/__init__.py."""

BYTES = "    return 4 * (block_m * d + block_n * (d | 1) + block_n * d + 2 * block_m * block_n)\n"
TILES = BYTES
ACCUMULATORS = "    return -(-d // block_n)\n"
FEW = (
    "    few = block_m * block_n <= max_threads and accumulators(block_n, d) <= max_accumulators\n"
)
FITS = "    return few and shared_bytes(block_m, block_n, d) <= sram_bytes\n"
DEFAULTS = "(d, sram_bytes=48 * 1024, max_threads=256, max_accumulators=64)"

WRONG = [
    ("k_tile is always padded", TILES, TILES.replace("(d | 1)", "(d + 1)")),
    ("v_tile is padded too", TILES, TILES.replace("block_n * d +", "block_n * (d | 1) +")),
    ("q_tile is padded too", TILES, TILES.replace("block_m * d +", "block_m * (d | 1) +")),
    ("fp16", BYTES, BYTES.replace("4 *", "2 *")),
    ("elements", BYTES, BYTES.replace("4 *", "1 *")),
    ("q_tile has block_n rows", TILES, TILES.replace("block_m * d", "block_n * d")),
    ("rounded down", ACCUMULATORS, "    return d // block_n\n"),
    ("one too many", ACCUMULATORS, "    return d // block_n + 1\n"),
    ("not rounded", ACCUMULATORS, "    return d / block_n\n"),
    ("one column each", ACCUMULATORS, "    return max(1, d // block_n)\n"),
    ("256 threads taken for granted", FEW, FEW.replace("max_threads", "256")),
    ("48 KiB taken for granted", FITS, FITS.replace("sram_bytes", "48 * 1024")),
    ("the constraint of ex05d", FITS, "    tiles = block_m * d + 2 * block_n * d + block_m * block_n\n    return few and 4 * tiles <= sram_bytes\n"),
    ("m and n of accumulators swapped", FEW, FEW.replace("(block_n, d)", "(block_m, d)")),
    ("no return", FITS, "    few and shared_bytes(block_m, block_n, d) <= sram_bytes\n"),
    ("512 threads by default", DEFAULTS, DEFAULTS.replace("256", "512")),
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
    ("all of the three", FEW + FITS, """    used = block_m * block_n, shared_bytes(block_m, block_n, d), accumulators(block_n, d)
    limits = max_threads, sram_bytes, max_accumulators
    return all(x <= most for x, most in zip(used, limits, strict=True))
"""),
]  # fmt: skip

EQUIVALENT = []
