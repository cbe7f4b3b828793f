"""ldmatrix, stmatrix: a warp moves four 8×8 matrices of 16-bit elements.

ldmatrix (from sm_75 on) loads them from shared memory, stmatrix (from sm_90 on) stores them there.

Lane i provides the address of one row of 16 bytes, 8 elements: lanes 0 to 7 the rows of the first
matrix, lanes 8 to 15 those of the second, and so on. The lane that provides a row's address is not
the one that receives the row. Register j of each lane receives two elements of matrix j, by lane
number:

              plain                       transposed
    row 0      0  0  1  1  2  2  3  3      0  4  8 12 16 20 24 28
    row 1      4  4  5  5  6  6  7  7      0  4  8 12 16 20 24 28
    row 2      8  8  9  9 10 10 11 11      1  5  9 13 17 21 25 29
    ...
    row 7     28 28 29 29 30 30 31 31      3  7 11 15 19 23 27 31

    plain         the layout of mma's A, and of its B if the rows of the shared tile are B's
                  columns: Q Kᵀ, where column n of Kᵀ is row n of K
    transposed    B if the rows of the tile are B's rows: P V

So four matrices are the four quarters of an A, or the B of two products. The addresses alone decide
which matrix is which quarter.

Eight rows of 16 bytes, 128 bytes, use each of the 32 banks once if no two of the rows begin in the
same bank: `layouts.swizzle` ensures that.

PTX ISA: "Warp-level matrix load instruction: ldmatrix", "... store instruction: stmatrix".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import read, statement, written


@intrinsic
def ldmatrix_x4(typingctx, fragment, address):
    """Load four 8×8 matrices: `fragment` receives this lane's two elements of each.

    `address` is that of the row that this lane provides, a multiple of 16.
    """
    return _ldmatrix("", fragment)


@intrinsic
def ldmatrix_x4_trans(typingctx, fragment, address):
    """Load four 8×8 matrices, each transposed."""
    return _ldmatrix(".trans", fragment)


@intrinsic
def stmatrix_x4(typingctx, address, fragment):
    """Store four 8×8 matrices, in the layout in which `ldmatrix_x4` loads them."""
    return statement(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [<address>], <fragment>;",
        address=types.uint32,
        fragment=read(fragment, 4),
    )


def _ldmatrix(trans, fragment):
    return statement(
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 <fragment>, [<address>];",
        fragment=written(fragment, 4),
        address=types.uint32,
    )
