"""ex13c · Find the bug: the last tile

`published` below is attention over tiles that TMA brings. Where seqlen_k is a multiple of BLOCK_N
it is right. Elsewhere it waits for ever, and once that is mended its result is wrong: there are
two bugs. Read the message of the first, then think about the second.

`Copies` is a model of TMA with one mbarrier, and has no bug: a copy always brings a whole box of
BLOCK_N rows. Rows that the array does not have arrive as zeros, and count as bytes all the same.

Copy published to `mended`, and change what has to change. 2 lines differ.

q, k, v, out     q and out (seqlen_q, head_dim), k and v (seqlen_k, head_dim), any seqlen_k >= 1
out              softmax(q k^T / sqrt(head_dim)) v; float64 here, as in any model
"""

import numpy as np

### KIND: find the bug
### HINT 1: Run `published` with 5 keys and BLOCK_N = 4. How many bytes are announced for the last
### HINT 1: tile, how many arrive?
### HINT 2: Announce what arrives: two boxes of BLOCK_N rows. Then: what is the score of a query and
### HINT 2: a key of zeros, and which weight does softmax give to it?
### HINT 3: expect(2 * BLOCK_N * k.shape[1] * k.itemsize), and below the scores
### HINT 3: s[:, there:] = -np.inf.
### DEBRIEF: "TMA needs no bounds checks" is true of the loads. The zeros of V add nothing to P V,
### DEBRIEF: but a key of zeros has the score 0, and its weight is in l. So every kernel masks its
### DEBRIEF: last tile. The bytes are a trap of their own: a barrier that waits for fewer bytes than
### DEBRIEF: arrive never ends its phase, and the kernel hangs. flash_attn_wgmma announces
### DEBRIEF: 2 * KV_BYTES for every tile. And in a packed batch there are no zeros at all: behind
### DEBRIEF: the last key of a sequence lies the first key of the next.


class Copies:
    """TMA and an mbarrier: boxes of whole tiles, and the bytes that are still missing."""

    def __init__(self):
        self.announced = self.arrived = 0

    def expect(self, num_bytes):
        """Announce so many bytes."""
        self.announced += num_bytes

    def load(self, x, first, rows):
        """The rows first .. first + rows - 1 of x; zeros where x has none."""
        box = np.zeros((rows, x.shape[1]), x.dtype)
        there = x[first : first + rows]
        box[: len(there)] = there
        self.arrived += box.nbytes
        return box

    def wait(self):
        """Until all announced bytes have arrived, and no others."""
        if self.arrived != self.announced:
            raise RuntimeError(
                f"waits for ever: {self.announced} bytes announced, {self.arrived} arrived"
            )


def published(q, k, v, BLOCK_N):
    """The program with the two bugs, to read and to run. Leave it as it is."""
    m_i, l_i, acc = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1)), np.zeros(q.shape)
    copies = Copies()
    for n_start in range(0, len(k), BLOCK_N):
        there = min(BLOCK_N, len(k) - n_start)  # keys that exist
        copies.expect(2 * there * k.shape[1] * k.itemsize)
        k_tile = copies.load(k, n_start, BLOCK_N)
        v_tile = copies.load(v, n_start, BLOCK_N)
        copies.wait()
        s = q @ k_tile.T / np.sqrt(q.shape[1])
        m_new = np.maximum(m_i, s.max(axis=1, keepdims=True))
        alpha, p = np.exp(m_i - m_new), np.exp(s - m_new)
        l_i = alpha * l_i + p.sum(axis=1, keepdims=True)
        acc = alpha * acc + p @ v_tile
        m_i = m_new
    return acc / l_i


def mended(q, k, v, BLOCK_N):
    """Attention for any number of keys."""
    ### BEGIN SOLUTION
    m_i, l_i, acc = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1)), np.zeros(q.shape)
    copies = Copies()
    for n_start in range(0, len(k), BLOCK_N):
        there = min(BLOCK_N, len(k) - n_start)  # keys that exist
        copies.expect(2 * BLOCK_N * k.shape[1] * k.itemsize)
        k_tile = copies.load(k, n_start, BLOCK_N)
        v_tile = copies.load(v, n_start, BLOCK_N)
        copies.wait()
        s = q @ k_tile.T / np.sqrt(q.shape[1])
        s[:, there:] = -np.inf
        m_new = np.maximum(m_i, s.max(axis=1, keepdims=True))
        alpha, p = np.exp(m_i - m_new), np.exp(s - m_new)
        l_i = alpha * l_i + p.sum(axis=1, keepdims=True)
        acc = alpha * acc + p @ v_tile
        m_i = m_new
    return acc / l_i
    ### END SOLUTION
