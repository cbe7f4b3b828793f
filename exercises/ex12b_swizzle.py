"""ex12b · A tile in shared memory without bank conflicts

A tile of 64 columns of float16 has rows of 128 bytes: 8 chunks of 16 bytes, 8 columns each. Shared
memory has 32 banks of 4 bytes; the word at byte x lies in bank x // 4 % 32. In one turn each bank
gives one word (to any number of lanes); words of the same bank need a turn each.

Two kinds of access must take one turn each, 8 lanes at a time, 16 bytes a lane:

    reading    ldmatrix: the same chunk of 8 rows, r .. r + 7, for any chunk and any r
    writing    cp.async: the 8 chunks of one row

turns(starts)            starts: byte addresses, multiples of 16, at which some lanes access 16
                         bytes each; different lanes may ask for the same. The turns it takes: an
                         int, the greatest number of different words in any bank.
byte_of(row, col)        byte at which element [row, col] of the tile begins; col is 0 .. 63
element_at(byte)         (row, col) of the element that begins there: the inverse; byte is even

byte_of must be such that
  - the first n rows of the tile fill the bytes 0 .. 128 n - 1, for every n: nothing is padded;
  - chunks stay whole: the columns 8 i .. 8 i + 7 of a row lie side by side, in order, and begin at
    a multiple of 16;
  - both kinds of access take one turn.

There is more than one such map; any will do. All arguments and results are ints (starts: a list of
ints). About 4, 3 and 3 lines.
"""


def turns(starts):
    """Turns that shared memory needs for accesses of 16 bytes at these addresses."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: turns")


def byte_of(row, col):
    """Byte at which element [row, col] begins."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: byte_of")


def element_at(byte):
    """(row, col) of the element that begins at this byte."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: element_at")


# Stub dc95c85a of solutions/ex12b_swizzle.py: `fa-numba reset ex12b` brings it back.
