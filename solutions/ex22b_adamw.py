"""ex22b · AdamW, and why its first steps need a correction

AdamW keeps two numbers beside each weight: an average of its gradients and an average of their
squares. Both begin at 0, so in the first steps both are too small, the first one less than the
second. The correction divides each by the share of it that does not come from that 0.

    averages <- beta1 averages + (1 - beta1) grads
    squares  <- beta2 squares  + (1 - beta2) grads^2
    weights  <- weights - rate (averages / c1 / (sqrt(squares / c2) + EPSILON)
                                + WEIGHT_DECAY weights)

corrections(t)   c1 and c2 of step t, from 1, two floats: with them, constant gradients give
                 averages / c1 = grads and squares / c2 = grads^2 in every step. A CPU computes them
kernel           the step, with a thread for each weight

launch    kernel[ceil(number / 64), 64](weights, averages, squares, grads, c1, c2, rate)
arrays    weights, averages, squares, grads (number,) float32; c1, c2, rate float32 numbers
HBM       four arrays are loaded once, three stored once: 28 bytes for each weight

In float32 throughout. 1 line and about 10.
"""

import math

from numba import cuda, float32

BETA1, BETA2 = 0.9, 0.99
EPSILON, WEIGHT_DECAY = 1e-8, 0.1

### KIND: write
### HINT 1: Let all gradients be 1. What is `averages` after step 1? After step 2? Write it with
### HINT 1: beta1, and see what is missing to 1. In the kernel each number is loaded into a
### HINT 1: variable, and computed with there.
### HINT 2: After t steps with gradients of 1, averages = 1 - beta1^t: a share beta1^t still comes
### HINT 2: from the 0 of the beginning. In the kernel the new average is m + (1 - beta1) (g - m).
### HINT 3: return 1 - BETA1**t, 1 - BETA2**t. Kernel: i = cuda.grid(1); if i < weights.shape[0]: g,
### HINT 3: w = grads[i], weights[i]; m = averages[i]; m += float32(1 - BETA1) * (g - m); and so on.
### HINT 3: Store m, s, and w - rate * (m / c1 / (math.sqrt(s / c2) + float32(EPSILON)) + ...).
### DEBRIEF: Without c1 and c2 the first step has the right size by chance here: 0.1 / sqrt(0.01) =
### DEBRIEF: 1. Then the square root lags behind, and steps grow to more than twice the learning
### DEBRIEF: rate. With beta2 = 0.999 the first step is already 3.2 times too large, and the tenth
### DEBRIEF: 6.5 times. Warm-up hides a missing correction; so the mistake lives long. And the
### DEBRIEF: kernel is limited by HBM: in NumPy the same step makes ten passes over the arrays. Done
### DEBRIEF: in one kernel, and for all tensors in one launch, it is called a fused optimiser.


def corrections(t):
    """c1 and c2 of step t, which counts from 1."""
    ### BEGIN SOLUTION
    return 1 - BETA1**t, 1 - BETA2**t
    ### END SOLUTION


@cuda.jit
def kernel(weights, averages, squares, grads, c1, c2, rate):
    """One step of AdamW, in place, a thread for each weight."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < weights.shape[0]:
        g, w = grads[i], weights[i]
        m, s = averages[i], squares[i]
        m += float32(1 - BETA1) * (g - m)
        s += float32(1 - BETA2) * (g * g - s)
        averages[i] = m
        squares[i] = s
        quotient = m / c1 / (math.sqrt(s / c2) + float32(EPSILON))
        weights[i] = w - rate * (quotient + float32(WEIGHT_DECAY) * w)
    ### END SOLUTION
