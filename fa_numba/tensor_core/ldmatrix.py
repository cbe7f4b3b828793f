"""ldmatrix, stmatrix: a warp moves four 8×8 matrices of 16-bit elements (sm_75 on, sm_90).

ldmatrix loads them from shared memory, stmatrix stores them there.

Lane i gives the address of one row of 16 bytes: lanes 0 to 7 the rows of the first matrix, lanes 8
to 15 those of the second, and so on. Register j of lane i receives from matrix j

    plain         elements 2 (i % 4) and 2 (i % 4) + 1 of row i // 4: the layout of mma's A, and of
                  its B where the shared tile holds B's columns as rows, as K's rows for Q Kᵀ
    transposed    element i // 4 of rows 2 (i % 4) and 2 (i % 4) + 1: B where the tile holds B's
                  rows, as V's for P V

Eight rows of 16 bytes are 128 bytes, each of the 32 banks once, if the eight lie in different
sixteenths of 128 bytes: `layouts.swizzle` sees to that.

PTX ISA: "Warp-level matrix load instruction: ldmatrix", "... store instruction: stmatrix".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.tensor_core.ptx import read, statement, written


@intrinsic
def ldmatrix_x4(typingctx, fragment, address):
    """Load four 8×8 matrices.

    Parameters
    ----------
    fragment : local array of 4 uint32
        Receives this lane's two elements of each matrix.
    address : uint32
        In shared memory, of the row that this lane stands for; a multiple of 16.
    """
    return _ldmatrix("", fragment, address)


@intrinsic
def ldmatrix_x4_trans(typingctx, fragment, address):
    """Load four 8×8 matrices, each transposed on the way.

    Parameters are those of `ldmatrix_x4`.
    """
    return _ldmatrix(".trans", fragment, address)


@intrinsic
def stmatrix_x4(typingctx, address, fragment):
    """Store four 8×8 matrices, as `ldmatrix_x4` loads them.

    Parameters
    ----------
    address : uint32
        In shared memory, of the row that this lane stands for; a multiple of 16.
    fragment : local array of 4 uint32
    """
    return statement(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [<address>], <fragment>;",
        address=types.uint32,
        fragment=read(fragment, 4),
    )


def _ldmatrix(trans, fragment, address):
    return statement(
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 <fragment>, [<address>];",
        fragment=written(fragment, 4),
        address=types.uint32,
    )
