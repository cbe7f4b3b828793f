"""ALiBi on the tensor cores: one more step of Q Kᵀ replaces a multiply-add for each score.

If all keys of a tile lie on one side of a row's position, ALiBi adds a linear function of the key
to the row's scores. Let slope' = slope · log2 e / scale, in units of s = q·k, and toward = slope'
for keys before the row's position, −slope' for keys after it:

    −slope' |position − key| = toward · (n_start − position) + toward · j         key = n_start + j

The first term is one number for a row and a tile, the `offset` of `fragments`. The second term is
the same for all rows: the product of a column and a row. So Q and K get 16 more columns:

    high  middle  low  0 … 0         Q, in each of its 64 rows        high + middle + low = slope'
    j     j       j    anything      K, for key j of the tile         the ramp (`write_ramp`)

The ramp is the key columns 0, 1, 2, … that wgmma multiplies by the ALiBi slope.

If toward is −slope', Q's columns change their sign.

These columns are bfloat16, whatever the dtype of Q and K: bfloat16 has the range of float32, three
of its 8-bit significands hold the 24 bits of a float32, and integers up to 256 are exact. Q's
columns are in registers (`set_slope_columns`); a lane keeps one register of them
(`slope_pieces`). Each thread block writes K's columns, the ramp, once into shared memory, with a
row for each term of the sum, unswizzled. The descriptor gives the distance from 8 columns to the
next 8; their 8 rows follow each other. wgmma reads 8 rows, and only three are stored: the other
five are rows of the next columns, which zeros of Q multiply.

    chunk of 16 bytes     0      1      2      3       4       5       6
    column                0–7    0–7    0–7    8–15    8–15    8–15    16–23   ...

Where keys lie on both sides of a row, and after a softcap, `fragments.make_score_mod` adds ALiBi
with multiply-adds.

With a steep slope most keys hardly count. So, without a left window, a kernel starts at the
diagonal tile, which has the largest scores: the maximum seldom rises in later tiles. A warp that
finds all of a tile's P negligible skips its exponentials (`lazy_rescaling.make_softmax_steps`).

PTX ISA: "Shared memory matrix layout" of wgmma. Paper: Press et al. 2022, Train short, test long,
arXiv:2108.12409.
"""

from typing import NamedTuple

from numba import cuda, float32, uint32

from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.convert import pack_bf16x2
from fa_numba.ptx.vectors import store_shared_b32, unpack_bf16x2
from fa_numba.tensor_core.fragments import fragment_function

PIECES = 3
CHUNK = 16  # bytes: 8 columns of a row
# The descriptor's stride, from 8 columns to the next; no swizzle. The leading offset is 0: rows 8
# to 15 of the sum are the first eight again, and zeros of Q multiply them.
RAMP_BITS = PIECES * CHUNK >> 4 << 32
SIGNS = 0x80008000  # sign bits of the two numbers in a register


class AlibiFlags(NamedTuple):
    """Compile-time flags.

    Attributes
    ----------
    by_wgmma : bool
        wgmma adds ALiBi; not with softcap, which comes before ALiBi.
    one_sided : bool
        No row sees a key after its own position.
    """

    by_wgmma: bool
    one_sided: bool


def alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI):
    """The `AlibiFlags` of these options."""
    return AlibiFlags(ALIBI and SOFTCAP == 0, CAUSAL or WINDOW[1] == 0)


def ramp_bytes(BLOCK_N):
    """Shared memory of the ramp for tiles of BLOCK_N keys; wgmma reads 8 rows at the end, too."""
    return ((BLOCK_N // 8 - 1) * PIECES + 8) * CHUNK


@cuda.jit(device=True, forceinline=True)
def write_ramp(ramp, num_bytes, thread, num_threads):
    """Write the ramp, all threads together; a barrier must follow before wgmma reads it.

    Parameters
    ----------
    ramp : uint32
        Address in shared memory, a multiple of 16.
    num_bytes, thread, num_threads : int32
        Bytes from `ramp_bytes`; the thread's index; the number of threads.
    """
    word = thread
    while word < num_bytes // 4:
        column = word // (4 * PIECES) * 8 + word % 4 * 2
        store_shared_b32(ramp + 4 * word, pack_bf16x2(float32(column), float32(column + 1)))
        word += num_threads
    fence_async_proxy()


@fragment_function()
def slope_pieces(slope, lane):
    """This lane's register of Q's columns: (high, middle), (low, 0) or (0, 0).

    The argument slope is the slope' of this module's docstring.
    """
    part = cuda.local.array(2, float32)
    unpack_bf16x2(part, pack_bf16x2(slope, slope))
    remainder = slope - part[0]
    unpack_bf16x2(part, pack_bf16x2(remainder, remainder))
    column = lane & 3
    if column == 0:
        return pack_bf16x2(slope, remainder)
    return pack_bf16x2(remainder - part[0], float32(0)) if column == 1 else uint32(0)


@fragment_function()
def set_slope_columns(a, offset, pieces, slope, n_start, position, after):
    """Set Q's columns for a tile of keys, and the offsets of a lane's rows.

    Parameters
    ----------
    a : local array of 4 uint32
        Receives the columns, for a product with A in registers.
    offset : local array of 2 float32
        Receives the offsets.
    pieces, slope : uint32, float32
        `slope_pieces` of slope', and slope'.
    n_start, position : int32
        The tile's first key; the position of the lane's first row among the keys (`masks`).
    after : bool
        True if the keys come after all rows' positions, False if they come before.
    """
    toward = -slope if after else slope
    ahead = float32(n_start - position)
    for h in range(2):
        a[h] = pieces ^ uint32(SIGNS) if after else pieces
        a[2 + h] = uint32(0)
        offset[h] = toward * (ahead - float32(8 * h))
