"""ex15c: sums of rows by neighbouring lanes."""

# Only this line differs from broken_kernel.
FOR = "for col in range(lane, x.shape[1], 32):"

WRONG = [
    ("as it was", FOR, "part = (x.shape[1] + 31) // 32\n        for col in range(lane * part, min(lane * part + part, x.shape[1])):"),
    ("every lane the whole row", FOR, "for col in range(x.shape[1]):"),
    ("lane 0 the whole row", FOR, "for col in range(x.shape[1] if lane == 0 else 0):"),
    ("32 columns", FOR, "for col in range(lane, min(32, x.shape[1]), 32):"),
    ("whole parts of 32", FOR, "for col in range(lane, x.shape[1] // 32 * 32, 32):"),
    ("strides of 31", FOR, "for col in range(lane, x.shape[1], 31):"),
    ("strides of 64", FOR, "for col in range(lane, x.shape[1], 64):"),
    ("two neighbours in each lane", FOR, "for at in range(2 * lane, 2 * x.shape[1], 64):\n          for col in range(at, min(at + 2, x.shape[1])):"),
    ("one off", FOR, "for col in range(lane + 1, x.shape[1], 32):"),
    ("by rows of the block", FOR, "for col in range(cuda.threadIdx.y, x.shape[1], 4):"),
    ("past the end", FOR, "for col in range(lane, x.shape[1] + 1, 32):"),
    ("every second column", FOR, "for col in range(2 * lane, x.shape[1], 64):"),
    ("shifted by the row", FOR, "for i in range((x.shape[1] + 31) // 32):\n          col = (i * 32 + 2 * lane) % max(x.shape[1], 1)\n          if col < x.shape[1]:"),
    ("4096 columns at most", FOR, "for col in range(lane, min(x.shape[1], 4096), 32):"),
    ("256 rows at most", FOR, "for col in range(lane, x.shape[1] if row < 256 else 0, 32):"),
    ("the first warp alone", FOR, "for col in range(lane, x.shape[1] if row % 4 == 0 else 0, 32):"),
]  # fmt: skip

RIGHT = [
    ("from the end", FOR, "for i in range(x.shape[1] // 32 + 1):\n          col = x.shape[1] // 32 * 32 - 32 * i + lane\n          if 0 <= col < x.shape[1]:"),
    ("lanes in the reverse order", FOR, "for col in range(31 - lane, x.shape[1], 32):"),
]  # fmt: skip

EQUIVALENT = [
    (
        "acc += cuda.shfl_xor_sync(FULL_WARP, acc, 16 >> step) -> "
        "acc += cuda.shfl_xor_sync(FULL_WARP, acc, 17 >> step)",
        "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well: each lane meets all",
    ),
    ("if lane == 0: -> if lane == 1:", "every lane of a warp holds the same sum: any may store it"),
]
