"""ex20c · Find the bugs: three feature maps

Linear attention weighs by phi(q) . phi(k). Here are three maps phi as device functions: each
returns one feature, number f, of the map of a row x. relu is right. broken_elu1 lets weights be
negative. broken_taylor2 has the features as an article printed them, and its products are not the
series below. Write elu1 and taylor2: copy the broken ones, then change what has to change.

    elu1(x, f)      f = 0 ... d - 1       x[f] + 1 where x[f] > 0, else e^x[f]
    relu(x, f)      f = 0 ... d - 1       x[f] where x[f] > 0, else 0
    taylor2(x, f)   f = 0 ... d + d * d   the products of phi(q) and phi(k), summed over f, are
                                          1 + s + s^2 / 2   with s = q . k / sqrt(d):
                                          the Taylor series of e^s up to its second degree

x is a row of d = x.shape[0] numbers, float32, d >= 1; f is an int. The result is float32. Which
feature of taylor2 comes where is yours to choose; queries and keys have the same map. All three are
finite for numbers of x between -1e4 and 1e4 (taylor2 may then be large).

memory    registers only; x is read, never written. In whole: no array of all features.

Three lines differ: one in elu1, two in taylor2. Write float32(1.0), not 1.0: a bare literal is
float64 to Numba.
"""

import math

from numba import cuda, float32

### KIND: find the bug
### HINT 1: (q . k)^2 is a sum over i and over j of q_i k_i q_j k_j. Regroup it as products of
### HINT 1: something of q alone and the same thing of k alone: there are d * d of them.
### HINT 2: 1 = 1 * 1. s: d features x_i, each with the fourth root of d below it, for q and k bring
### HINT 2: it once each. s^2 / 2: the features x_i x_j, divided by what, squared, is 2 d?
### HINT 3: if f == 0: return float32(1.0). if f <= d: return x[f - 1] / sqrt(sqrt(float32(d))).
### HINT 3: i, j = (f - 1 - d) // d, (f - 1 - d) % d; return x[i] * x[j] / sqrt(float32(2 * d))
### DEBRIEF: elu + 1 is nowhere 0 and nowhere flat, so that every feature learns; relu is 0 and flat
### DEBRIEF: for half of the line. taylor2 comes close to e^s, for |s| < 1, and pays with d^2
### DEBRIEF: features. As x_i x_j = x_j x_i, half of them would do: 1 + d + d (d + 1) / 2, those
### DEBRIEF: with i < j times sqrt(2). Below s = -1 it grows again, where e^s goes on falling.


@cuda.jit(device=True)
def broken_elu1(x, f):
    """Feature f of a map that can be negative."""
    return x[f] if x[f] > float32(0.0) else math.exp(x[f]) - float32(1.0)


@cuda.jit(device=True)
def broken_taylor2(x, f):
    """Feature f of [1, x_i, x_i x_j], as printed."""
    d = x.shape[0]
    if f == 0:
        return float32(1.0)
    if f <= d:
        return x[f - 1]
    i, j = (f - 1 - d) // d, (f - 1 - d) % d
    return x[i] * x[j]


@cuda.jit(device=True)
def relu(x, f):
    """Feature f of max(x, 0), which is right."""
    return max(x[f], float32(0.0))


@cuda.jit(device=True)
def elu1(x, f):
    """Feature f of elu(x) + 1."""
    ### BEGIN SOLUTION
    return x[f] + float32(1.0) if x[f] > float32(0.0) else math.exp(x[f])
    ### END SOLUTION


@cuda.jit(device=True)
def taylor2(x, f):
    """Feature f of the map whose products are 1 + s + s^2 / 2, with s = q . k / sqrt(d)."""
    ### BEGIN SOLUTION
    d = x.shape[0]
    if f == 0:
        return float32(1.0)
    if f <= d:
        return x[f - 1] / math.sqrt(math.sqrt(float32(d)))
    i, j = (f - 1 - d) // d, (f - 1 - d) % d
    return x[i] * x[j] / math.sqrt(float32(2 * d))
    ### END SOLUTION
