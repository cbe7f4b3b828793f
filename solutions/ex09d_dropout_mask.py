"""ex09d · Dropout that nobody stores

Dropout sets each entry of P to 0 with probability p. The backward pass needs the same entries at 0
again. Instead of storing which ones, both passes draw them: a counter-based generator makes random
bits from a number (the counter) and a key, with no state in between. Here the counter is the
position of an entry and the key is the seed, so any thread can draw any entry, in any order.

The generator is Philox4x32-10: a counter c0, c1, c2, c3 and a key k0, k1, all uint32, go through
ten rounds. With hi(x) the upper and lo(x) the lower 32 bits of a product of 64 bits, one round is

    c0, c1, c2, c3  <-  hi(M2 * c2) ^ c1 ^ k0,   lo(M2 * c2),   hi(M0 * c0) ^ c3 ^ k1,   lo(M0 * c0)

and between two rounds the key grows: k0 <- k0 + W0, k1 <- k1 + W1, modulo 2**32. After the tenth
round c0, c1, c2, c3 are four words of 32 random bits. Write two device functions.

philox_round(c0, c1, c2, c3, k0, k1) -> (c0, c1, c2, c3)
    one round. uint32 in, uint32 out.
keeps(seed, b, head, m, n, threshold) -> bool
    whether the entry of batch b, head, query m, key n is kept. The counter is
    (n // 4, m, head, b), the key is (lower half of seed, upper half of seed). Of the four words
    n % 4 picks one; the entry is kept if that word is at least `threshold`, which is p * 2**32.

types     seed is uint64, threshold uint32; b, head, m, n are int64, not negative, and
          n // 4, m, head, b are below 2**32
Numba     computes with uint32 in uint64, so M0 * c0 of two unsigned numbers has all its 64 bits;
          uint32(x) takes the lower 32 bits of any integer
memory    registers only: no shared memory, no local arrays, no floating-point operation

About 5 lines and 10 lines.
"""

import numpy as np
from numba import cuda, uint32

M0, M2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)

### HINT 1: The upper half of a product x is x >> np.uint64(32). All four new words come from the
### HINT 1: old ones, so compute both products before you overwrite anything.
### HINT 2: keeps: cast the counter and the key to uint32, call philox_round ten times in a loop,
### HINT 2: and let the key grow in between; uint32(k0 + W0) wraps around. The first round uses the
### HINT 2: key as it is.
### HINT 3: product_0 = M0 * c0; product_2 = M2 * c2; return uint32((product_2 >> np.uint64(32)) ^
### HINT 3: c1 ^ k0), uint32(product_2), and the same with product_0, c3, k1. At the end of keeps:
### HINT 3: low = c1 if n % 2 == 1 else c0; high = c3 if n % 2 == 1 else c2; word = high if n % 4
### HINT 3: >= 2 else low; return word >= threshold.
### DEBRIEF: Ten rounds are twenty multiplications. The paper finds that seven rounds pass all
### DEBRIEF: BigCrush tests; ten leave a margin. You compared integers: no random float, nothing
### DEBRIEF: rounded: the mask is the same on every machine. All four words of a call are good: a
### DEBRIEF: thread that holds four neighbouring keys needs one call for them. What has to be handed
### DEBRIEF: from the forward to the backward pass is the seed: 8 bytes, whatever N is.


@cuda.jit(device=True)
def philox_round(c0, c1, c2, c3, k0, k1):
    """Return the counter's four words after one round with the key k0, k1."""
    ### BEGIN SOLUTION
    product_0 = M0 * c0  # both before a word is overwritten
    product_2 = M2 * c2
    c0 = uint32((product_2 >> np.uint64(32)) ^ c1 ^ k0)
    c2 = uint32((product_0 >> np.uint64(32)) ^ c3 ^ k1)
    return c0, uint32(product_2), c2, uint32(product_0)
    ### END SOLUTION


@cuda.jit(device=True)
def keeps(seed, b, head, m, n, threshold):
    """Return whether dropout keeps entry (m, n) of P in this batch and head."""
    ### BEGIN SOLUTION
    c0, c1, c2, c3 = uint32(n // 4), uint32(m), uint32(head), uint32(b)
    k0, k1 = uint32(seed), uint32(seed >> np.uint64(32))
    for _ in range(10):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = uint32(k0 + W0)
        k1 = uint32(k1 + W1)
    low = c1 if n % 2 == 1 else c0
    high = c3 if n % 2 == 1 else c2
    word = high if n % 4 >= 2 else low
    return word >= threshold
    ### END SOLUTION
