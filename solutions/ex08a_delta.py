"""ex08a · delta = rowsum(dO ∘ O)

The backward pass needs one number per query row, delta = sum over d of dout[m, d] * out[m, d]. It
stands for rowsum(dP ∘ P), a sum over all keys, and costs only a pass over head_dim (lesson 08 says
why the two are equal). A warp owns a row; its row and its lane are given.

shapes    dout, out (seqlen_q, head_dim);  delta (seqlen_q,). All float32; any lengths >= 1.
launch    delta_kernel[ceil(seqlen_q / ROWS), (32, ROWS)](dout, out, delta), with ROWS below
HBM       loads dout and out once, stores delta once. Neighbouring lanes load neighbouring columns.
shared    none, and no barrier: the lanes of a warp add up by shuffles (lesson 03).

About 7 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

from numba import cuda, float32

ROWS = 4  # rows, and warps, of a thread block
FULL_WARP = 0xFFFFFFFF

### KIND: fill a loop
### HINT 1: Lane tx takes the columns tx, tx + 32, ... and sums its own products. Then the 32 sums
### HINT 1: of the warp must be added.
### HINT 2: Five shuffles, distances 16, 8, 4, 2, 1, give every lane the sum of all 32. All lanes
### HINT 2: of a warp have the same row, so that none is missing.
### HINT 3: for distance in (16, 8, 4, 2, 1): total += cuda.shfl_xor_sync(FULL_WARP, total,
### HINT 3: distance). Then lane 0 stores delta[m].
### DEBRIEF: N d products replace the N^2 of rowsum(dP ∘ P), and nothing quadratic is needed at
### DEBRIEF: once: this is what makes the backward pass work tile by tile.


@cuda.jit
def delta_kernel(dout, out, delta):
    """delta = rowsum(dout * out), a warp per row.

    grid     (ceil(seqlen_q / ROWS),); threads (32, ROWS), a warp per row
    private  total, the lane's part of the sum
    HBM      dout, out, delta once
    paper    FlashAttention-2, arXiv:2307.08691, Algorithm 2, line 4
    """
    m = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
    lane = cuda.threadIdx.x
    if m >= out.shape[0]:
        return  # the whole warp: its lanes have one row
    ### BEGIN SOLUTION
    total = float32(0.0)
    for d in range(lane, out.shape[1], 32):
        total += dout[m, d] * out[m, d]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if lane == 0:
        delta[m] = total
    ### END SOLUTION
