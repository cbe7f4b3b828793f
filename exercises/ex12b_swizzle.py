"""ex12b · A tile in shared memory without bank conflicts

A row of a tile has 64 columns of float16: 32 words of 4 bytes, 8 chunks of 4 words. cp.async writes
a whole row at a time, ldmatrix reads the same chunk of 8 rows. Write a kernel that does both, 32
lanes with a word each, and a map that keeps either from conflicts, without a byte of padding. Any
map will do: the banks decide.

word_of(row, word)   device function: where word `word` (0 .. 31) of row `row` lies in the tile, an
                     int. The first n rows fill the words 0 .. 32 n - 1, for every n. The four words
                     of a chunk lie side by side, in order, and begin at a multiple of 4
kernel(x, y)         y[chunk, row, i] = x[row, 4 * chunk + i], through the tile

launch    kernel[rows / 32, (32, 4)]: a thread block has 32 rows
arrays    x (rows, 32), y (8, rows, 4), float32 words; rows is a multiple of 32
writing   a warp stores a row of the tile at a time, lane l its word l
reading   a warp loads a chunk of 8 rows at a time, r, ..., r + 7: lane l loads word 4 * chunk +
          l % 4 of row r + l // 4. That is one of the four matrices of ldmatrix
Budget    no bank conflict; par is the same
          4096 bytes of shared memory, the tile

x is loaded once and y stored once. One barrier. 1 line and about 12.
"""

from numba import cuda, float32


@cuda.jit(device=True)
def word_of(row, word):
    """The word of the tile in which a word of a row lies."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: word_of")


@cuda.jit
def kernel(x, y):
    """Rows of x into a tile, and chunks of 8 rows out of it."""
    tile = cuda.shared.array(32 * 32, float32)
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    first = 32 * cuda.blockIdx.x
    # YOUR CODE HERE
    raise NotImplementedError("ex12b: kernel")


# Stub d173b17b of solutions/ex12b_swizzle.py: `fa-numba reset ex12b` brings it back.
