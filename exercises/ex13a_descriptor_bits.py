"""ex13a · A matrix in one number

wgmma reads matrices straight from shared memory. Pack into 64 bits what it needs to know of one.
All other bits are 0:

    bits  0–13   address / 16
    bits 16–29   leading byte offset / 16         both offsets and the address are
    bits 32–45   stride byte offset / 16          multiples of 16 below 2^18
    bits 62–63   swizzle: 0 none, 1 in rows of 128 bytes, 2 of 64, 3 of 32

A tile consists of panels of 64 columns of float16. A panel has all rows of the tile, 128 bytes
each, swizzled; the next panel follows.

               leading byte offset               stride byte offset
    Q, K       not looked at: put 16             from 8 rows to the next 8
    V          from a panel to the next panel    from 8 rows to the next 8

One instruction takes 16 columns of K, or 16 rows of V. For the next 16 the address is farther on;
nothing else changes, since the hardware swizzles bits of the address itself.

descriptor(address, leading_bytes, stride_bytes, swizzle_bytes)   swizzle_bytes: 0, 32, 64 or 128
of_k(address)                 of a tile of Q or K
of_v(address, BLOCK_N)        of a tile of V with BLOCK_N rows
k_step(desc, d, num_rows)     of the columns d .. d + 15 of a tile of Q or K with num_rows rows
v_step(desc, n)               of the rows n .. n + 15 of a tile of V; d, n: multiples of 16

All numbers are ints; one to three lines each.
"""

ROW_BYTES = 128


def descriptor(address, leading_bytes, stride_bytes, swizzle_bytes):
    """The 64 bits."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: descriptor")


def of_k(address):
    """Descriptor of a tile of Q or K."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: of_k")


def of_v(address, BLOCK_N):
    """Descriptor of a tile of V with BLOCK_N rows."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: of_v")


def k_step(desc, d, num_rows):
    """Descriptor of the columns d .. d + 15 of a tile of Q or K."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: k_step")


def v_step(desc, n):
    """Descriptor of the rows n .. n + 15 of a tile of V."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: v_step")


# Stub ff6eb11a of solutions/ex13a_descriptor_bits.py: `fa-numba reset ex13a` brings it back.
