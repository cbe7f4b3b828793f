"""ex13a: wgmma's descriptors."""

# fmt: off
SWIZZLE = "swizzle = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]"
OFFSETS = "offsets = (leading_bytes >> 4 << 16) | (stride_bytes >> 4 << 32)"
RETURN = "return (address >> 4) | offsets | (swizzle << 62)"
OF_K = "return descriptor(address, 16, 8 * ROW_BYTES, 128)"
OF_V = "return descriptor(address, BLOCK_N * ROW_BYTES, 8 * ROW_BYTES, 128)"
K_BYTES = "num_bytes = d // 64 * num_rows * ROW_BYTES + d % 64 * 2"
V_STEP = "return desc + (n * ROW_BYTES >> 4)"

WRONG = [
    ("swizzle codes in order", [(SWIZZLE, "swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle_bytes]")]),
    ("offsets changed over", OFFSETS, "offsets = (stride_bytes >> 4 << 16) | (leading_bytes >> 4 << 32)"),
    ("offsets whole", OFFSETS, "offsets = (leading_bytes << 16) | (stride_bytes << 32)"),
    ("swizzle at bit 61", [(RETURN, RETURN.replace("62", "61"))]),
    ("added in float64", RETURN, "return int(float(address >> 4) + offsets + swizzle * 2.0**62)"),
    ("K's leading offset of a block", OF_K, "return descriptor(address, 64 * ROW_BYTES, 8 * ROW_BYTES, 128)"),
    ("K without swizzle", OF_K, OF_K.replace(", 128)", ", 0)")),
    ("V's leading offset of K", OF_V, "return descriptor(address, 16, 8 * ROW_BYTES, 128)"),
    ("V's offsets changed over", OF_V, "return descriptor(address, 8 * ROW_BYTES, BLOCK_N * ROW_BYTES, 128)"),
    ("K's steps without blocks", K_BYTES, "num_bytes = d * 2"),
    ("K's blocks of 64 rows", K_BYTES, K_BYTES.replace("num_rows", "64")),
    ("V's steps of columns", V_STEP, "return desc + (n * 2 >> 4)"),
    ("V's steps from the beginning", V_STEP, "return desc // 2**14 * 2**14 + ((desc & 0x3FFF) * 0 + 0x840 + (n * ROW_BYTES >> 4))"),
    ("K's blocks of 128 rows at most", K_BYTES, K_BYTES.replace("num_rows", "min(num_rows, 128)")),
    ("V's blocks of 256 rows at most", OF_V, OF_V.replace("BLOCK_N", "min(BLOCK_N, 256)")),
]

RIGHT = [
    ("arithmetic for bits", [(OFFSETS, "offsets = leading_bytes // 16 * 2**16 + stride_bytes // 16 * 2**32"), (RETURN, "return address // 16 + offsets + swizzle * 2**62")]),
    ("steps through fields", [(V_STEP, "return desc + n * (ROW_BYTES // 16)"), (K_BYTES, "block, col = divmod(d, 64)\n    num_bytes = (block * num_rows * 64 + col) * 2")]),
]

EQUIVALENT = [("return descriptor(address, 16, 8 * ROW_BYTES, 128) -> return descriptor(address, 17, 8 * ROW_BYTES, 128)", "17 >> 4 is 1 as well")]
