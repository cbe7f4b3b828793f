"""Which tiles of queries a thread block has that stays: `persistent_tiling`, on the GPU."""

from numba import cuda, int32, uint32


@cuda.jit(device=True, forceinline=True)
def m_tile_of(step, share, num_shares, num_m_tiles):
    """The step-th tile of queries of a share of a head, as `slice_of` has it; or below 0."""
    place = num_shares - 1 - share if step & 1 else share
    return int32(num_m_tiles - 1 - step * num_shares - place)


@cuda.jit(device=True, forceinline=True)
def divided(a, b):
    """Quotient and rest of numbers from 0 on: in 32 bits, which is far quicker than in 64.

    With `decode_problem.divide`, which has the rest by %, kernels here are longer.
    """
    quotient = uint32(uint32(a) // uint32(b))
    return int32(quotient), int32(uint32(a) - quotient * uint32(b))
