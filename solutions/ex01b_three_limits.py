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

### KIND: predict
### HINT 1: Put the three times into a dict by name; the limit is the name with the largest value:
###   max(times, key=times.get).
### HINT 2: On paper: three vectors of 2**26 floats are 0.8 GB, which the T4 moves in 2.5 ms and
###   the H200 in 0.17 ms; 0.07 GFLOP and 11 us are nothing beside that. For `token`, 34 MB of
###   weights take 105 us on the T4. And on the H200?
### HINT 3: Compare with 11 us, with 55 us for five kernels, with 1650 us for 150. token: 105, 22, 7
###   us of memory. softmax: 42 MB. step: 248 MB. batch: 67 MB against 1.07 GFLOP in float32.
### DEBRIEF: Read the table by columns. From the T4 to the H200 the peak of the tensor cores grew 15
###   times, the bandwidth 15 times, and the launch not at all: on the fastest GPU half of these six
###   wait for the CPU. That is why kernels are **fused**, and why a step of many kernels is
###   recorded once as a **CUDA graph** and launched as a whole. Each of the three is a lower bound:
###   only a measurement says how long a kernel really takes.


def limit(flops, num_bytes, kernels, peak, bandwidth):
    """The limit of a computation: "arithmetic", "memory" or "overhead"."""
    ### BEGIN SOLUTION
    times = {
        "arithmetic": flops / peak,
        "memory": num_bytes / bandwidth,
        "overhead": kernels * LAUNCH,
    }
    return max(times, key=times.get)
    ### END SOLUTION


def predictions():
    """The limits of the six computations on the T4, the A100 and the H200."""
    ### BEGIN SOLUTION
    return {
        "add": ("memory", "memory", "memory"),
        "product": ("arithmetic", "arithmetic", "arithmetic"),
        "token": ("memory", "memory", "overhead"),
        "batch": ("memory", "arithmetic", "arithmetic"),
        "softmax": ("memory", "overhead", "overhead"),
        "step": ("overhead", "overhead", "overhead"),
    }
    ### END SOLUTION
