"""ex11e: warps that fit on an SM."""

WARPS = "warps = math.ceil(threads / 32)"
BY_WARPS = "by_warps = 64 // warps"
BY_REGISTERS = "by_registers = 4 * (16384 // (32 * 8 * math.ceil(registers / 8))) // warps"
BY_SHARED = "by_shared = 233472 // (shared_bytes + 1024)"
RETURN = "return warps * min(by_warps, by_registers, by_shared, 32)"

WRONG = [
    ("threads rounded down", WARPS, "warps = max(1, threads // 32)"),
    ("a warp has 64 threads", WARPS, "warps = math.ceil(threads / 64)"),
    ("32 warps", BY_WARPS, "by_warps = 32 // warps"),
    ("2048 threads", BY_WARPS, "by_warps = 2048 // threads"),
    ("registers as they are", BY_REGISTERS, "by_registers = 4 * (16384 // (32 * registers)) // warps"),
    ("registers of the SM, not of quarters", BY_REGISTERS, "by_registers = 65536 // (32 * 8 * math.ceil(registers / 8)) // warps"),
    ("blocks of a quarter, times four", BY_REGISTERS, "by_registers = 4 * (16384 // (32 * 8 * math.ceil(registers / 8)) // warps)"),
    ("by threads", BY_REGISTERS, "by_registers = 65536 // (threads * 8 * math.ceil(registers / 8))"),
    ("no limit by registers", RETURN, "return warps * min(by_warps, by_shared, 32)"),
    ("no limit by shared memory", RETURN, "return warps * min(by_warps, by_registers, 32)"),
    ("no limit by warps", RETURN, "return warps * min(by_registers, by_shared, 32)"),
    ("no limit of thread blocks", RETURN, "return warps * min(by_warps, by_registers, by_shared)"),
    ("16 thread blocks", RETURN, RETURN.replace("32", "16")),
    ("without CUDA's KiB", BY_SHARED, "by_shared = 233472 // max(shared_bytes, 1)"),
    ("less shared memory", BY_SHARED, BY_SHARED.replace("233472", "232448")),
    ("threads", RETURN, RETURN.replace("warps * ", "32 * warps * ")),
    ("a share", RETURN, RETURN + " / 64"),
    ("at least one", RETURN, RETURN.replace("min(", "max(1, min(") + ")"),
]  # fmt: skip

RIGHT = [
    ("integers only", [(WARPS, "warps = -(-threads // 32)"), (BY_REGISTERS, "by_registers = 16384 // (256 * ((registers + 7) // 8)) * 4 // warps"),]),
    ("thread blocks are counted up", [
        (RETURN, "blocks = 0\n    while blocks < 32 and (blocks + 1) * warps <= min(64, 4 * (16384 // (32 * 8 * math.ceil(registers / 8)))):\n        if (blocks + 1) * (shared_bytes + 1024) > 233472:\n            break\n        blocks += 1\n    return blocks * warps"),
        (BY_WARPS, ""), (BY_REGISTERS, ""), (BY_SHARED, ""),
    ]),
]  # fmt: skip

EQUIVALENT = [
    (f"{BY_SHARED} -> {BY_SHARED.replace('233472', '233473')}", "the divisor is a multiple of 128"),
    (f"{BY_REGISTERS} -> {BY_REGISTERS.replace('16384', '16385')}", "the divisor is a multiple of 256",),
]  # fmt: skip
