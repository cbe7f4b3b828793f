"""ex04d · HBM traffic of FlashAttention, and the gain

The same attention, but S and P never leave the chip. One kernel; thread block i owns a tile of B_r
query rows: it loads them once, walks over K and V in tiles of B_c rows, and writes its rows of O.

elements_moved(N, d, num_blocks)    elements of Q, K and V that all thread blocks together load, and
    of O that they store: four ints
flash_traffic(N, d, B_r, B_c, dtype_bytes=2)    given: the same in bytes, and the total
memory_speedup(N, d, B_r, B_c, dtype_bytes=2)    standard attention's bytes (ex04c, every matrix
    moved once per use) over flash_traffic's total: the speed-up, a float, if both ran at the full
    bandwidth of HBM and did nothing else

Q, K, V, O  (N, d), dtype_bytes bytes per element. N need not be a multiple of B_r or B_c: the last
            tile is smaller, and what does not exist is neither loaded nor stored
lse         the row statistics that FlashAttention also stores are left out, as in the tutorial

With N=4096, d=128, fp16 and 128 x 128 tiles this is b) and c) of the tutorial's exercise 3. Your
numbers are compared with the engine's meter on fa_numba.flash_attn_v2.

Before you write: how many times less is it?   2 lines and 2 lines.
"""

### KIND: predict
### HINT 1: How often is each matrix loaded from beginning to end? Q: each row belongs to one thread
### block. K and V: every thread block needs all of them.
### HINT 2: A thread block loads its B_r rows of Q, the last one fewer, then all N rows of K and of
### V, however they are cut. Which of B_r and B_c is missing from the total?
### HINT 3: N * d of Q and of O, num_blocks * N * d of K and of V. The standard pipeline moves 4 N^2
### + 4 N d elements, of dtype_bytes bytes.
### DEBRIEF: 69 MB against 138 MB, and not linear in N: each of the N / B_r thread blocks reads all
### of K and V, so the traffic grows as N^2 d / B_r, and B_r is what shared memory and registers
### allow. With B_r = d the ratio is 2 at every N; in general it tends to 2 B_r / d.
### B_c does not enter at all. What is linear is the memory that must be allocated.


def elements_moved(N, d, num_blocks):
    """Elements of Q, K and V that are loaded, and of O that are stored: four numbers."""
    ### BEGIN SOLUTION
    matrix = N * d
    return matrix, num_blocks * matrix, num_blocks * matrix, matrix
    ### END SOLUTION


def flash_traffic(N, d, B_r, B_c, dtype_bytes=2):
    """Thread blocks, and bytes loaded and stored in HBM, of FlashAttention's forward pass."""
    num_blocks = -(-N // B_r)
    keys = "q_reads", "k_reads", "v_reads", "out_writes"
    elements = elements_moved(N, d, num_blocks)
    traffic = {key: count * dtype_bytes for key, count in zip(keys, elements, strict=True)}
    return {"num_blocks": num_blocks, **traffic, "total": sum(traffic.values())}


def memory_speedup(N, d, B_r, B_c, dtype_bytes=2):
    """How many times fewer bytes FlashAttention moves than standard attention."""
    ### BEGIN SOLUTION
    standard = (4 * N * N + 4 * N * d) * dtype_bytes  # S, P out and back; Q, K, V in, O out
    return standard / flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"]
    ### END SOLUTION
