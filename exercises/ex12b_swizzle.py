"""ex12b · A tile in shared memory without bank conflicts

Place a tile of float16 so that ldmatrix and cp.async both read and write it without a bank
conflict, and without a byte of padding. Any map will do: the banks decide.

A row has 64 columns: 8 chunks of 16 bytes. The word at byte x is in bank x // 4 % 32. In one
wavefront each bank serves one word, to any number of lanes.

    reading   ldmatrix: the same chunk of 8 rows, r .. r + 7, for any chunk and any r
    writing   cp.async: the 8 chunks of one row
    budget    one wavefront for each of them, 8 lanes with 16 bytes each; par is the same

wavefronts(starts)   starts: a list of byte addresses, multiples of 16, at which some lanes access
                     16 bytes each. An int: the greatest number of different words in any bank.
byte_of(row, col)    byte at which element [row, col] of the tile begins; col is 0 .. 63
element_at(byte)     (row, col) of the element that begins there: the inverse; byte is even

The first n rows fill the bytes 0 .. 128 n - 1, for every n. The columns 8 i .. 8 i + 7 of a row lie
side by side, in order, and begin at a multiple of 16. All numbers are ints. About 4, 2, 3 lines.
"""


def wavefronts(starts):
    """Wavefronts that shared memory needs for accesses of 16 bytes at these addresses."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: wavefronts")


def byte_of(row, col):
    """Byte at which element [row, col] begins."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: byte_of")


def element_at(byte):
    """(row, col) of the element that begins at this byte."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: element_at")


# Stub e7258890 of solutions/ex12b_swizzle.py: `fa-numba reset ex12b` brings it back.
