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

### HINT 1: Row after row, chunk i of every row lies in banks 4 i .. 4 i + 3. So 8 rows meet in four
### banks. Where would you like chunk i of the next row to lie instead?
### HINT 2: The chunk's place within its row may depend on the row: a permutation of 0 .. 7 for each
### row, such that for one chunk 8 rows give 8 different places. Shift it, or xor it, by the row.
### HINT 3: place = (col // 8) ^ (row % 8); byte = 128 * row + 16 * place + 2 * (col % 8). xor
### undoes itself: chunk = place ^ (row % 8). For turns: make the set of all words start // 4 + 0 ..
### 3, count them by word % 32, return the greatest count.
### DEBRIEF: xor is what the hardware does: TMA writes tiles so, and wgmma reads them so ("128-byte
### swizzle", the bits 4-6 of the address xor the bits 7-9), which is why a tile must begin at a
### multiple of 1024. Padding would help ldmatrix as well, as it did in lesson 05, but it costs
### memory and the copy engine does not know it.


def turns(starts):
    """Turns that shared memory needs for accesses of 16 bytes at these addresses."""
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
