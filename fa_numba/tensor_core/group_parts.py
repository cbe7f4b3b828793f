"""Divide a group of query heads into parts, so that every SM has work in the backward pass.

A group is the query heads that share a head of K and V. A thread block of
`flash_attn_bwd_persistent` computes dK and dV of a tile of keys, in a loop over the queries of the
whole group. With 8 heads of K and V and 2048 tokens there are 128 tiles of keys. Under a causal
mask a thread block takes two of them: many queries see the one, and few see the other, so that all
thread blocks have the same work. Then there are 64 thread blocks, and an H200 has 132 SMs.

If a group has parts, a thread block loops over the queries of one part. Each part has its own dK
and dV, in float32, and `add` sums them in a fixed order. This costs memory and traffic: for each
part, two float32 arrays of the shape of K.
"""

import functools

from numba import cuda, float32

from fa_numba.constants import WARP_SIZE
from fa_numba.runtime import arrays
from fa_numba.tensor_core.dq_parts import BLOCK_N
from fa_numba.tiling.block_sizes import ceil_div

PARTS = 2, 4, 8
ROWS = 8  # of a thread block of `add_parts_kernel`: a warp for each
# Of an H200, roughly: they only weigh the time saved against the traffic added.
FLOPS_OF_SM = 4.2e12  # per second, in the products of the backward pass
BYTES_PER_SECOND = 3.5e12
LAUNCH_SECONDS = 5e-6  # of `add_parts_kernel`, for dK and dV
LARGEST_SHARE = 0.9  # of the time with one part: a smaller gain is not worth the memory


def fastest(q, k, mask, num_sms) -> int:
    """The number of parts with which the backward pass takes the least time, by a model.

    Parameters
    ----------
    q, k : arrays of shape (batch, seqlen, heads, head_dim)
    mask : Mask
        Of `checks.check_mask`.
    num_sms : int

    Returns
    -------
    int
        1, or one of PARTS that divides the query heads of a group.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    group_size = num_heads // num_kv_heads
    left, right = mask.window_size
    if left >= 0 or right >= 0 or 0 in (seqlen_q, seqlen_k):
        return 1  # the model does not know the work under a window
    return _fastest(
        batch * num_kv_heads, group_size, seqlen_q, seqlen_k, head_dim, mask.causal, num_sms
    )


@functools.cache
def _fastest(heads, group_size, seqlen_q, seqlen_k, head_dim, causal, num_sms):
    pairs = ceil_div(ceil_div(seqlen_k, BLOCK_N), 2)
    tiles = pairs if causal else ceil_div(seqlen_k, BLOCK_N)
    # Five products of a tile of keys and a query head. Under the mask a pair has as much work.
    flops = 10 * BLOCK_N * seqlen_q * head_dim

    def seconds(parts):
        rounds = ceil_div(heads * parts * tiles, num_sms)
        compute = rounds * (group_size // parts) * flops / FLOPS_OF_SM
        if parts == 1:
            return compute
        # dK and dV of each part: written, and read.
        traffic = 2 * 2 * 4 * heads * parts * seqlen_k * head_dim
        return compute + traffic / BYTES_PER_SECOND + LAUNCH_SECONDS

    best = min((1, *(p for p in PARTS if group_size % p == 0)), key=seconds)
    return best if seconds(best) < LARGEST_SHARE * seconds(1) else 1


def empty(gradient, parts):
    """An array for dK or dV of all parts: (batch, seqlen_k, num_kv_heads · parts, head_dim)."""
    batch, seqlen_k, num_kv_heads, head_dim = gradient.shape
    return arrays.empty(gradient, (batch, seqlen_k, num_kv_heads * parts, head_dim))


def add(of_parts, gradients):
    """Sum the parts of dK, and of dV, to the arrays in `gradients`."""
    for x, y in zip(of_parts, gradients, strict=True):
        head_dim = y.shape[3]
        rows = y.shape[0] * y.shape[1] * y.shape[2]
        x, y = x.reshape(rows, -1, head_dim), y.reshape(rows, head_dim)
        arrays.launch(add_parts_kernel, (ceil_div(rows, ROWS),), (WARP_SIZE, ROWS), x, y)


@cuda.jit
def add_parts_kernel(x, y):
    """A warp adds the parts of a row of dK or dV: one token, one head of K and V.

    grid      (⌈rows / ROWS⌉,); threads (32, ROWS): thread tx adds columns tx, tx + 32, ...
    shared    none
    private   total
    HBM       x (rows, parts, head_dim), y (rows, head_dim) once
    budget    48 registers, 0 bytes shared
    """
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
    if row < y.shape[0]:
        for d in range(cuda.threadIdx.x, y.shape[1], WARP_SIZE):
            total = float32(0)
            for part in range(x.shape[1]):
                total += x[row, part, d]
            y[row, d] = total
