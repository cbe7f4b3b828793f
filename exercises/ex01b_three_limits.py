"""ex01b · Predict: which of three limits?

Write the rule, then predict with pencil and paper what six computations wait for on three GPUs.

limit(flops, num_bytes, kernels, peak, bandwidth)
    the longest of these times, by its name:
    "arithmetic"    flops / peak             seconds
    "memory"        num_bytes / bandwidth    seconds
    "overhead"      kernels * LAUNCH         seconds that the CPU takes to launch the kernels

predictions()    for each computation the limits on the T4, A100 and H200

           peak, FLOP/s                      bandwidth, B/s
           float32    float16, tensor cores
T4          8.1e12       65e12                0.32e12
A100       19.5e12      312e12                1.555e12
H200       66.9e12      989e12                4.8e12

A launch takes LAUNCH = 11e-6 s; 10 to 11 µs were recorded on the H200's host. The computations, HBM
traffic in brackets:

add        sum of two vectors of 2**26 float32, one kernel (three vectors)
product    of two 4096 x 4096 matrices in float16, one kernel (three matrices)
token      a linear layer of 4096 x 4096 in float16 for one token, one kernel (the weights)
batch      the same layer in float32 for 32 tokens, one kernel (the weights)
softmax    of 1024 x 1024 float32 by five kernels (each reads and writes the matrix); 5 FLOPs an
           element
step       a model of 124e6 float16 weights writes one token by 150 kernels (the weights); 2 FLOPs a
           weight

About 9 lines.
"""

LAUNCH = 11e-6  # seconds


def limit(flops, num_bytes, kernels, peak, bandwidth):
    """The limit of a computation: "arithmetic", "memory" or "overhead"."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01b: limit")


def predictions():
    """The limits of the six computations on the T4, the A100 and the H200."""
    # YOUR CODE HERE
    raise NotImplementedError("ex01b: predictions")


# Stub 075cdd34 of solutions/ex01b_three_limits.py: `fa-numba reset ex01b` brings it back.
