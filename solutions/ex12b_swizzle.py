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

### KIND: beat a budget
### HINT 1: Row after row, chunk i of every row lies in banks 4 i .. 4 i + 3. So 8 rows meet in four
### HINT 1: banks. Where would you like chunk i of the next row to lie instead?
### HINT 2: The chunk's place within its row may depend on the row: a permutation of 0 .. 7 for each
### HINT 2: row, such that for one chunk 8 rows give 8 different places. Shift it, or xor it, by the
### HINT 2: row.
### HINT 3: word_of: 32 * row + 4 * ((word // 4) ^ (row % 8)) + word % 4. Kernel: rows ty, ty + 4,
### HINT 3: ... are stored by warp ty; barrier; then for task in range(ty, 32, 4): chunk, r = task
### HINT 3: // 4, 8 * (task % 4).
### DEBRIEF: xor is what the hardware does: TMA writes tiles so, and wgmma reads them so ("128-byte
### DEBRIEF: swizzle", the bits 4-6 of the address xor the bits 7-9), which is why a tile must begin
### DEBRIEF: at a multiple of 1024. Padding would help ldmatrix as well, as it did in lesson 05, but
### DEBRIEF: it costs memory and the copy engine does not know it.


@cuda.jit(device=True)
def word_of(row, word):
    """The word of the tile in which a word of a row lies."""
    ### BEGIN SOLUTION
    return 32 * row + 4 * ((word // 4) ^ (row % 8)) + word % 4
    ### END SOLUTION


@cuda.jit
def kernel(x, y):
    """Rows of x into a tile, and chunks of 8 rows out of it."""
    tile = cuda.shared.array(32 * 32, float32)
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    first = 32 * cuda.blockIdx.x
    ### BEGIN SOLUTION
    for row in range(warp, 32, 4):
        tile[word_of(row, lane)] = x[first + row, lane]
    cuda.syncthreads()  # the tile is complete: safe to read
    for task in range(warp, 32, 4):
        chunk, row = task // 4, 8 * (task % 4) + lane // 4
        y[chunk, first + row, lane % 4] = tile[word_of(row, 4 * chunk + lane % 4)]
    ### END SOLUTION
