"""ex13a · A matrix in one number

wgmma reads matrices straight from shared memory. What it needs to know of one is packed into a
descriptor of 64 bits; all other bits are 0:

    bits  0–13   address / 16
    bits 16–29   leading byte offset / 16
    bits 32–45   stride byte offset / 16
    bits 62–63   swizzle: 0 none, 1 in rows of 128 bytes, 2 of 64, 3 of 32

Addresses in shared memory and both offsets are multiples of 16 below 2^18. Our tiles consist of
blocks of 64 columns of float16; a block has all rows of the tile, 128 bytes each, swizzled, one
after the other, and the next block follows. Each element of a product is a sum. In Q Kᵀ it goes
over head_dim, so that a row of Q or K lies along the sum; in P V it goes over the keys, so that V
has a row for each term, and wgmma reads V by its columns:

               leading byte offset               stride byte offset
    Q, K       not looked at: put 16             from 8 rows to the next 8
    V          from a block to the next block    from 8 rows to the next 8

One instruction takes 16 terms of the sum, so a tile takes several, each with a descriptor whose
address is farther on. The hardware swizzles bits of the address itself, not places counted from
where the matrix begins, so adding bytes is all there is to it.

descriptor(address, leading_bytes, stride_bytes, swizzle_bytes)   the number; swizzle_bytes is 0,
                                             32, 64 or 128
fields(descriptor)                           back: the same four numbers, in this order
of_k(address)                                of a tile of Q or K
of_v(address, BLOCK_N)                       of a tile of V with BLOCK_N rows
k_step(descriptor, d, num_rows)              of the columns d .. d + 15 of a tile of Q or K with
                                             num_rows rows; d is a multiple of 16
v_step(descriptor, n)                        of the rows n .. n + 15 of a tile of V; n is a multiple
                                             of 16

All arguments and results are ints. One to four lines each.
"""

ROW_BYTES = 128


def descriptor(address, leading_bytes, stride_bytes, swizzle_bytes):
    """The 64 bits."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: descriptor")


def fields(descriptor):
    """(address, leading_bytes, stride_bytes, swizzle_bytes) of a descriptor."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: fields")


def of_k(address):
    """Descriptor of a tile of Q or K."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: of_k")


def of_v(address, BLOCK_N):
    """Descriptor of a tile of V with BLOCK_N rows."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: of_v")


def k_step(descriptor, d, num_rows):
    """Descriptor of the columns d .. d + 15 of a tile of Q or K."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: k_step")


def v_step(descriptor, n):
    """Descriptor of the rows n .. n + 15 of a tile of V."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13a: v_step")


# Stub 34d28bab of solutions/ex13a_descriptor_bits.py: `fa-numba reset ex13a` brings it back.
