"""ex09d · The gradient of a sink

gpt-oss learns its sinks, one number for each head. A sink is a further score of every row of its
head, with a value of zeros, so that the rule of the backward pass holds for it as for any score:
dS = P (dP - delta). Derive dsink from that, on paper; then write the loop and the store.

lse, delta     (num_heads, seqlen_q), float32: lse of the forward pass, with the sink in it; delta
               = rowsum(dout * out), ex08a
sinks, dsinks  (num_heads,), float32. dsinks[h] is the derivative of the loss by sinks[h]
launch         sink_grad_kernel[num_heads, 128](lse, delta, sinks, dsinks): a thread block of 4
               warps for each head; any num_heads, seqlen_q >= 1
given          block_sum(x): the sum of x over the thread block, in every thread
HBM            lse and delta are loaded once, neighbouring threads load neighbouring queries;
               dsinks is stored once
scores         sinks and lse up to 1e4 in size; lse[h, m] >= sinks[h]

About 6 lines, in float32 throughout. Write float32(0.0), not 0.0.
"""

import math

from numba import cuda, float32

NUM_WARPS = 4
FULL_WARP = 0xFFFFFFFF


@cuda.jit(device=True)
def block_sum(x):
    """The sum of x over the thread block, the same in every thread."""
    of_warps = cuda.shared.array(NUM_WARPS, float32)
    for distance in (16, 8, 4, 2, 1):
        x += cuda.shfl_xor_sync(FULL_WARP, x, distance)
    if cuda.threadIdx.x % 32 == 0:
        of_warps[cuda.threadIdx.x // 32] = x
    cuda.syncthreads()  # of_warps is complete: safe to read
    total = float32(0.0)
    for warp in range(NUM_WARPS):
        total += of_warps[warp]
    return total


@cuda.jit
def sink_grad_kernel(lse, delta, sinks, dsinks):
    """dsinks, a thread block per head.

    grid     (num_heads,); threads (128,)
    private  total, the thread's part of the sum
    HBM      lse, delta, dsinks once
    """
    head, tid = cuda.blockIdx.x, cuda.threadIdx.x
    # YOUR CODE HERE
    raise NotImplementedError("ex09d: sink_grad_kernel")


# Stub f642e1ff of solutions/ex09d_sink_gradient.py: `fa-numba reset ex09d` brings it back.
