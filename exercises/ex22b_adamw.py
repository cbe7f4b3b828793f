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


def corrections(t):
    """c1 and c2 of step t, which counts from 1."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22b: corrections")


@cuda.jit
def kernel(weights, averages, squares, grads, c1, c2, rate):
    """One step of AdamW, in place, a thread for each weight."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22b: kernel")


# Stub 0f9fa4be of solutions/ex22b_adamw.py: `fa-numba reset ex22b` brings it back.
