"""ex04d · HBM traffic of FlashAttention, and what it buys

The same attention, but S and P never leave the chip. One kernel; thread block i owns a tile of B_r
query rows: it loads them once, walks over K and V in tiles of B_c rows, and writes its rows of O.

flash_traffic(N, d, B_r, B_c, dtype_bytes=2) -> dict of int, by a formula
    num_blocks           thread blocks, which is tiles of Q
    num_kv_tiles         tiles of K, each with its tile of V, that a thread block walks over
    q_reads_per_block    bytes of Q that the first thread block loads
    kv_reads_per_block   bytes of K and V that a thread block loads, all its tiles together
    q_reads, k_reads, v_reads, out_writes    bytes of all thread blocks together
    total                the sum of these last four
memory_speedup(N, d, B_r, B_c, dtype_bytes=2) -> float
    standard attention's bytes (ex04c, every matrix moved once per use) over flash_traffic's total:
    the speed-up if both ran at the full bandwidth of HBM and did nothing else

Q, K, V, O  (N, d), dtype_bytes bytes an element. N need not be a multiple of B_r or B_c: the last
            tile is smaller, and what does not exist is neither loaded nor stored
lse         the row statistics that FlashAttention also stores are left out, as in source 004

With N=4096, d=128, fp16 and 128 x 128 tiles this is b) and c) of source 004's exercise 3. Your
numbers are compared with the engine's meter on fa_numba.flash_attn_v2.

About 15 lines and 3 lines.
"""


def flash_traffic(N, d, B_r, B_c, dtype_bytes=2):
    """Tiles, and bytes loaded and stored in HBM, of FlashAttention's forward pass."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04d: flash_traffic")


def memory_speedup(N, d, B_r, B_c, dtype_bytes=2):
    """How many times fewer bytes FlashAttention moves than standard attention."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04d: memory_speedup")


# Stub c7ab85e0 of solutions/ex04d_flash_traffic.py: `fa-numba reset ex04d` brings it back.
