"""Numbers that many kernels use; in a kernel each is a compile-time constant."""

import math

import numpy as np

WARP_SIZE = 32  # threads
FULL_WARP = 0xFFFFFFFF  # mask of a shuffle or a vote in which every lane takes part
ZERO, ONE = np.float32(0), np.float32(1)
NEG_INF = np.float32(-np.inf)  # the maximum of an empty set of scores
LOG2_E = np.float32(math.log2(math.e))  # e^x = 2^(x · log2 e); the GPU has an instruction for 2^x
LN2 = np.float32(math.log(2))  # ln x = log2 x · ln 2
