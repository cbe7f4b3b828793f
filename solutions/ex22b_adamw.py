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

### KIND: write
### HINT 1: Let all gradients be 1. What is `averages` after step 1? After step 2? Write it with
### HINT 1: beta1, and see what is missing to 1.
### HINT 2: After t steps with gradients of 1, averages = 1 - beta1^t: a share beta1^t still comes
### HINT 2: from the 0 of the beginning.
### HINT 3: c1 = 1 - BETA1**t, c2 = 1 - BETA2**t. The decay takes the weights before this step. In
### HINT 3: place: averages += (1 - BETA1) * (grads - averages); weights -= ...
### DEBRIEF: Without c1 and c2 the first step has the right size by chance here: 0.1 / sqrt(0.01) =
### DEBRIEF: 1. Then the square root lags behind, and steps grow to more than twice the learning
### DEBRIEF: rate. With beta2 = 0.999 the first step is already 3.2 times too large, and the tenth
### DEBRIEF: 6.5 times. Warm-up hides a missing correction; so the mistake lives long. Decay in
### DEBRIEF: AdamW stands beside the quotient, not inside of the gradient: that is the W.


def step(weights, averages, squares, grads, t, rate):
    """One step of AdamW, in place."""
    ### BEGIN SOLUTION
    averages += (1 - BETA1) * (grads - averages)
    squares += (1 - BETA2) * (grads * grads - squares)
    m = averages / (1 - BETA1**t)
    s = squares / (1 - BETA2**t)
    weights -= rate * (m / (np.sqrt(s) + EPSILON) + WEIGHT_DECAY * weights)
    ### END SOLUTION
