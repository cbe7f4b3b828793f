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

### KIND: fill a line
### HINT 1: How many bytes are 8 rows? How many are one panel of a tile of BLOCK_N rows? Shift what
### HINT 1: you found right by 4, then left to where its field begins.
### HINT 2: (address >> 4) | (leading_bytes >> 4) << 16 | ... The steps: a panel of 64 columns is
### HINT 2: num_rows * 128 bytes; inside of a panel 16 columns are 32 bytes. 16 rows of V are 2048
### HINT 2: bytes.
### HINT 3: The address is in the lowest bits, divided by 16: so a step is desc + (bytes >> 4). For
### HINT 3: K bytes = d // 64 * num_rows * 128 + d % 64 * 2, for V n * 128.
### DEBRIEF: Two numbers in registers describe what a whole warpgroup multiplies: no thread computes
### DEBRIEF: an address in the inner loop, and no element of K or V passes through a register. A
### DEBRIEF: wrong descriptor raises nothing: the instruction reads something else. Hence the test
### DEBRIEF: on a GPU, instruction by instruction, before any kernel
### DEBRIEF: (tests/test_tensor_core_gpu.py).


def descriptor(address, leading_bytes, stride_bytes, swizzle_bytes):
    """The 64 bits."""
    ### BEGIN SOLUTION
    swizzle = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]
    offsets = (leading_bytes >> 4 << 16) | (stride_bytes >> 4 << 32)
    return (address >> 4) | offsets | (swizzle << 62)
    ### END SOLUTION


def of_k(address):
    """Descriptor of a tile of Q or K."""
    ### BEGIN SOLUTION
    return descriptor(address, 16, 8 * ROW_BYTES, 128)
    ### END SOLUTION


def of_v(address, BLOCK_N):
    """Descriptor of a tile of V with BLOCK_N rows."""
    ### BEGIN SOLUTION
    return descriptor(address, BLOCK_N * ROW_BYTES, 8 * ROW_BYTES, 128)
    ### END SOLUTION


def k_step(desc, d, num_rows):
    """Descriptor of the columns d .. d + 15 of a tile of Q or K."""
    ### BEGIN SOLUTION
    num_bytes = d // 64 * num_rows * ROW_BYTES + d % 64 * 2
    return desc + (num_bytes >> 4)
    ### END SOLUTION


def v_step(desc, n):
    """Descriptor of the rows n .. n + 15 of a tile of V."""
    ### BEGIN SOLUTION
    return desc + (n * ROW_BYTES >> 4)
    ### END SOLUTION
