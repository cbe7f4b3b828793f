"""ex22a · The loss, and the gradient that it sends back, in one kernel

A model gives a score to each symbol of its vocabulary, the logits. Softmax makes probabilities p of
them. The loss of a token is -log of the probability of its target, the symbol that really followed;
the loss of a batch is the mean over its rows. The backward pass begins with the gradient of that
mean with respect to the logits, (p - y) / rows, where y is 1 for the target and 0 elsewhere.

Write the kernel that computes both; p never exists in HBM.

launch    kernel[rows, NUM_THREADS](logits, targets, loss, dlogits): a thread block for each row
arrays    logits (rows, vocabulary) float32: any finite numbers, also 1e4 and -1e4
          targets (rows,) int32: the column of each row's target
          loss (rows,) float32: of each row, in nats; the caller takes the mean
          dlogits (rows, vocabulary) float32: of the mean loss
HBM       a logit is loaded at most three times, and once more that of the target; dlogits is stored
          once. Neighbouring threads take neighbouring columns

reduce(part, x, largest) is given. The loss must be right where p of the target is too small for
float32: do not take the log of p. About 14 lines.
"""

import math

from numba import cuda, float32

NUM_THREADS = 64


@cuda.jit(device=True)
def reduce(part, x, largest):
    """The largest x of the thread block, or the sum of all, in every thread.

    part (NUM_THREADS,) is shared. All threads call it.
    """
    tx = cuda.threadIdx.x
    cuda.syncthreads()  # part has been read by those that still needed it: safe to overwrite
    part[tx] = x
    step = NUM_THREADS // 2
    while step > 0:
        cuda.syncthreads()  # part is complete up to 2 * step
        if tx < step:
            part[tx] = max(part[tx], part[tx + step]) if largest else part[tx] + part[tx + step]
        step //= 2
    cuda.syncthreads()  # part[0] is complete
    return part[0]


@cuda.jit
def kernel(logits, targets, loss, dlogits):
    """Loss of each row, and the gradient of the mean loss."""
    part = cuda.shared.array(NUM_THREADS, float32)
    row, tx = cuda.blockIdx.x, cuda.threadIdx.x
    # YOUR CODE HERE
    raise NotImplementedError("ex22a: kernel")


# Stub 9c2ab383 of solutions/ex22a_cross_entropy.py: `fa-numba reset ex22a` brings it back.
