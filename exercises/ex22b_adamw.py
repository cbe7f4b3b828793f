"""ex22b · AdamW, and why its first steps need a correction

AdamW keeps two numbers beside each weight: an average of its gradients and an average of their
squares. Both begin at 0, so in the first steps both are too small, the first one less than the
second. The correction divides each by the share of it that does not come from that 0.

step(weights, averages, squares, grads, t, rate) changes three arrays in place, returns nothing:

    averages <- beta1 averages + (1 - beta1) grads
    squares  <- beta2 squares  + (1 - beta2) grads^2
    weights  <- weights - rate (averages / c1 / (sqrt(squares / c2) + EPSILON)
                                + WEIGHT_DECAY weights)

    weights, averages, squares, grads   (number,) float32; grads is not changed
    t          the number of this step, from 1
    rate       the learning rate, a float
    c1, c2     for you to find: with them, constant gradients give averages / c1 = grads and
               squares / c2 = grads^2 in every step

About 6 lines.
"""

import numpy as np

BETA1, BETA2 = 0.9, 0.99
EPSILON, WEIGHT_DECAY = 1e-8, 0.1


def step(weights, averages, squares, grads, t, rate):
    """One step of AdamW, in place."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22b: step")


# Stub f6f21de3 of solutions/ex22b_adamw.py: `fa-numba reset ex22b` brings it back.
