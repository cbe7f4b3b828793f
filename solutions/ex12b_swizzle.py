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

### KIND: beat a budget
### HINT 1: Row after row, chunk i of every row lies in banks 4 i .. 4 i + 3. So 8 rows meet in four
### banks. Where would you like chunk i of the next row to lie instead?
### HINT 2: The chunk's place within its row may depend on the row: a permutation of 0 .. 7 for each
### row, such that for one chunk 8 rows give 8 different places. Shift it, or xor it, by the row.
### HINT 3: place = (col // 8) ^ (row % 8); byte = 128 * row + 16 * place + 2 * (col % 8). xor
### undoes itself: chunk = place ^ (row % 8). For wavefronts: make the set of all
### words start // 4 + 0 .. 3, count them by word % 32, return the greatest count.
### DEBRIEF: xor is what the hardware does: TMA writes tiles so, and wgmma reads them so ("128-byte
### swizzle", the bits 4-6 of the address xor the bits 7-9), which is why a tile must begin at a
### multiple of 1024. Padding would help ldmatrix as well, as it did in lesson 05, but it costs
### memory and the copy engine does not know it.


def wavefronts(starts):
    """Wavefronts that shared memory needs for accesses of 16 bytes at these addresses."""
    ### BEGIN SOLUTION
    words = {start // 4 + i for start in starts for i in range(4)}
    in_bank = [0] * 32
    for word in words:
        in_bank[word % 32] += 1
    return max(in_bank)
    ### END SOLUTION


def byte_of(row, col):
    """Byte at which element [row, col] begins."""
    ### BEGIN SOLUTION
    place = (col // 8) ^ (row % 8)
    return 128 * row + 16 * place + 2 * (col % 8)
    ### END SOLUTION


def element_at(byte):
    """(row, col) of the element that begins at this byte."""
    ### BEGIN SOLUTION
    row, rest = divmod(byte, 128)
    chunk = (rest // 16) ^ (row % 8)
    return row, 8 * chunk + rest % 16 // 2
    ### END SOLUTION
