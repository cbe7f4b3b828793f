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

### KIND: write
### HINT 1: Lesson 02: softmax does not change if the same number is subtracted from all scores of a
### HINT 1: row. With the row's maximum subtracted no exp overflows. So there are three loops over
### HINT 1: the columns: maximum, sum, gradient.
### HINT 2: A thread has the columns tx, tx + NUM_THREADS, ... After the first loop m = reduce(part,
### HINT 2: m, True), after the second l = reduce(part, l, False): now every thread knows both. log
### HINT 2: p = (score - m) - log(l): moderate numbers, whatever p is.
### HINT 3: y = float32(1) if c == target else float32(0); dlogits[row, c] = (math.exp(logits[row,
### HINT 3: c] - m) / l - y) / float32(logits.shape[0]). Thread 0 stores loss[row] = math.log(l) -
### HINT 3: (logits[row, target] - m).
### DEBRIEF: Each row of dlogits sums to 0: probability that one symbol gains, the others lose. At
### DEBRIEF: first the model knows nothing, and the loss is log(vocabulary). For a vocabulary of
### DEBRIEF: 128,000 and 8,192 rows, p in float32 would be 4 GB, and so would log p: training
### DEBRIEF: libraries fuse the loss for that reason, and write dlogits over the logits. With lesson
### DEBRIEF: 03's running maximum two loads are enough.


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
    ### BEGIN SOLUTION
    num_cols = logits.shape[1]
    m = float32(-math.inf)
    for c in range(tx, num_cols, NUM_THREADS):
        m = max(m, logits[row, c])
    m = reduce(part, m, True)
    l = float32(0.0)
    for c in range(tx, num_cols, NUM_THREADS):
        l += math.exp(logits[row, c] - m)
    l = reduce(part, l, False)
    target = targets[row]
    for c in range(tx, num_cols, NUM_THREADS):
        y = float32(1.0) if c == target else float32(0.0)
        dlogits[row, c] = (math.exp(logits[row, c] - m) / l - y) / float32(logits.shape[0])
    if tx == 0:
        loss[row] = math.log(l) - (logits[row, target] - m)
    ### END SOLUTION
