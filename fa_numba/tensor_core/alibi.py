"""ALiBi by tensor cores: one more step of Q Kᵀ, in place of a multiply-add for each score.

Where all keys of a tile lie to one side of a row, what ALiBi adds to its scores is a straight line.
With slope' = slope · log2 e / scale, which counts as s does, and toward = slope' for keys before
the row's own position, −slope' for those behind it,

    −slope' |position − key| = toward · (n_start − position) + toward · j         key = n_start + j

The first part is one number for a row and a tile, the `offset` of `fragments`. The second is the
same for all rows: a column times a row, so that 16 more columns of Q and K do it, in which Q has

    high  middle  low  0 … 0         in each of its 64 rows,          high + middle + low = slope'
    j     j       j    anything      for key j of the tile: K         (`write_ramp`)

Where toward is −slope', the signs of Q's columns are flipped.

These are bfloat16, whatever Q and K are: it has the range of float32, three times its 8 bits are
the 24 of one, and whole numbers up to 256 are exact. Those of Q stay in registers (`tilt`), for
which a lane keeps one (`slope_pieces`). Those of K, the ramp, each thread block writes once into
shared memory, as rows of the sum, unswizzled: a descriptor then says how far 8 columns are from the
next 8, and 8 rows of them follow each other. Of the 8 that are read three are there, and behind
them those of the next columns, which meet zeros:

    chunk of 16 bytes     0      1      2      3       4       5       6
    column                0–7    0–7    0–7    8–15    8–15    8–15    16–23   ...

PTX ISA: "Shared memory matrix layout" of wgmma. Paper: Press et al. 2022, Train short, test long,
arXiv:2108.12409.
"""

from numba import cuda, float32, uint32

from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.convert import pack_bf16x2
from fa_numba.ptx.vectors import store_shared_b32, unpack_bf16x2
from fa_numba.tensor_core.fragments import fragment_function

PIECES = 3
CHUNK = 16  # bytes: 8 columns of a row
# Of the descriptor: from 8 columns to the next; no swizzle. The leading offset is 0: rows 8 to 15
# of the sum are the first eight read once more, which meet zeros.
RAMP_BITS = PIECES * CHUNK >> 4 << 32
SIGNS = 0x80008000  # of the two numbers in a register


def tilted_and_one_sided(CAUSAL, WINDOW, SOFTCAP, ALIBI):
    """Is ALiBi added so, as no softcap follows? Is no key behind a row's own position seen?"""
    return ALIBI and SOFTCAP == 0, CAUSAL or WINDOW[1] == 0


def ramp_bytes(BLOCK_N):
    """Shared memory of the ramp for tiles of BLOCK_N keys; the last 8 columns have 8 rows, too."""
    return ((BLOCK_N // 8 - 1) * PIECES + 8) * CHUNK


@cuda.jit(device=True, forceinline=True)
def write_ramp(ramp, num_bytes, thread, num_threads):
    """Write a ramp, thread by thread; a barrier stands between this and the products.

    Parameters
    ----------
    ramp : uint32
        Address in shared memory, a multiple of 16.
    num_bytes, thread, num_threads : int32
        From `ramp_bytes`; the thread's number, and how many there are.
    """
    word = thread
    while word < num_bytes // 4:
        column = word // (4 * PIECES) * 8 + word % 4 * 2
        store_shared_b32(ramp + 4 * word, pack_bf16x2(float32(column), float32(column + 1)))
        word += num_threads
    fence_async_proxy()


@fragment_function()
def slope_pieces(slope, lane):
    """The register in which this lane has two of the columns of Q: high, middle; low, 0; 0, 0.

    Of slope, which is slope' of the module's head.
    """
    part = cuda.local.array(2, float32)
    unpack_bf16x2(part, pack_bf16x2(slope, slope))
    rest = slope - part[0]
    unpack_bf16x2(part, pack_bf16x2(rest, rest))
    column = lane & 3
    if column == 0:
        return pack_bf16x2(slope, rest)
    return pack_bf16x2(rest - part[0], float32(0)) if column == 1 else uint32(0)


@fragment_function()
def tilt(a, offset, pieces, slope, n_start, position, behind):
    """The columns of Q for a tile whose first key is n_start, and the offsets of a lane's rows.

    Parameters
    ----------
    a : local array of 4 uint32
        Receives the columns, for a product with A in registers.
    offset : local array of 2 float32
    pieces, slope : uint32, float32
        `slope_pieces` of slope', and slope'.
    n_start, position : int32
        The tile's first key, and where the lane's first row stands among the keys (`masks`).
    behind : bool
        Are the keys behind all rows' positions, and not before?
    """
    toward = -slope if behind else slope
    ahead = float32(n_start - position)
    for h in range(2):
        a[h] = pieces ^ uint32(SIGNS) if behind else pieces
        a[2 + h] = uint32(0)
        offset[h] = toward * (ahead - float32(8 * h))
