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

### HINT 1: How many bytes are 8 rows? How many are one block of a tile of BLOCK_N rows? Shift what
### you found right by 4, then left to where its field begins.
### HINT 2: (address >> 4) | (leading_bytes >> 4) << 16 | ... The steps: a block of 64 columns is
### num_rows * 128 bytes; inside of a block 16 columns are 32 bytes. 16 rows of V are 2048 bytes.
### HINT 3: The address is in the lowest bits, divided by 16: so a step is descriptor + (bytes >>
### 4). For K bytes = d // 64 * num_rows * 128 + d % 64 * 2, for V n * 128. To read a field back:
### (descriptor >> first & 0x3FFF) << 4.
### DEBRIEF: Two numbers in registers describe what a whole warpgroup multiplies: no thread computes
### an address in the inner loop, and no element of K or V passes through a register. A wrong
### descriptor raises nothing: the instruction reads something else. Hence the test on a GPU,
### instruction by instruction, before any kernel (tests/test_tensor_core_gpu.py).


def descriptor(address, leading_bytes, stride_bytes, swizzle_bytes):
    """The 64 bits."""
    ### BEGIN SOLUTION
    swizzle = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]
    offsets = (leading_bytes >> 4 << 16) | (stride_bytes >> 4 << 32)
    return (address >> 4) | offsets | (swizzle << 62)
    ### END SOLUTION


def fields(descriptor):
    """(address, leading_bytes, stride_bytes, swizzle_bytes) of a descriptor."""
    ### BEGIN SOLUTION
    address, leading, stride = (((descriptor >> bit) & 0x3FFF) << 4 for bit in (0, 16, 32))
    return address, leading, stride, (0, 128, 64, 32)[descriptor >> 62]
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


def k_step(descriptor, d, num_rows):
    """Descriptor of the columns d .. d + 15 of a tile of Q or K."""
    ### BEGIN SOLUTION
    num_bytes = d // 64 * num_rows * ROW_BYTES + d % 64 * 2
    return descriptor + (num_bytes >> 4)
    ### END SOLUTION


def v_step(descriptor, n):
    """Descriptor of the rows n .. n + 15 of a tile of V."""
    ### BEGIN SOLUTION
    return descriptor + (n * ROW_BYTES >> 4)
    ### END SOLUTION
