"""Tile scheduler of the persistent kernels: assigns query tiles to a thread block.

`tiling.persistent_tiling` divides each head into work slices (groups of query tiles), which are
assigned in snake order (0 … n−1, n−1 … 0); here a thread block computes its own. Each producer
thread does so for itself. Q's thread then describes the query tile in each slot of Q to the
consumers, in `work` in shared memory. With a queue it alone takes query tiles, and the threads of K
and V read `work`, too.
"""

from numba import cuda, int32, uint32

# A slot of `work` describes a query tile: its first row, head, batch; 1, or 0 if there are no more.
M_START, HEAD, BATCH, MORE = range(4)
WORK_LENGTH = 4
SECTION_BYTES = 24 << 20  # of K and V that are read at a time: two fifths of an H200's L2


@cuda.jit(device=True, forceinline=True)
def m_tile_of(step, work_slice, num_slices, num_m_tiles):
    """Index of the step-th query tile of a head's work slice; negative after the last one."""
    index = num_slices - 1 - work_slice if step & 1 else work_slice
    return int32(num_m_tiles - 1 - step * num_slices - index)


@cuda.jit(device=True, forceinline=True)
def divided(a, b):
    """Quotient and remainder of integers from 0 on, in 32 bits: far faster than in 64.

    Unlike `decode_problem.divide`, computes the remainder as a − q·b: fewer instructions here.
    """
    quotient = uint32(uint32(a) // uint32(b))
    return int32(quotient), int32(uint32(a) - quotient * uint32(b))


@cuda.jit(device=True, forceinline=True)
def sort_sequences(cu_seqlens, batch, order, thread, num_threads):
    """Write the indices of the sequences to order, those with the most keys first."""
    for b in range(thread, batch, num_threads):
        num_keys = cu_seqlens[b + 1] - cu_seqlens[b]
        rank, start = 0, cu_seqlens[0]
        for other in range(batch):  # how many come before it?
            end = cu_seqlens[other + 1]
            longer = end - start - num_keys
            if longer > 0 or (longer == 0 and other < b):
                rank += 1
            start = end
        order[rank] = b


@cuda.jit(device=True, forceinline=True)
def head_and_tile(unit, num_m_tiles, num_heads, section):
    """Head and query tile of a sequence's unit: the last query tiles of all heads come first.

    The order is that for `section` heads at a time, so that their K and V stay in L2.
    """
    unit, num_m_tiles, section = uint32(unit), uint32(num_m_tiles), uint32(section)
    first_head = uint32(unit // uint32(section * num_m_tiles) * section)  # divisions of 32 bits
    remainder = uint32(unit - first_head * num_m_tiles)
    heads = uint32(min(section, uint32(num_heads - first_head)))
    rank = uint32(remainder // heads)
    return int32(first_head + remainder - rank * heads), int32(num_m_tiles - 1 - rank)


def make_for_each_tile(BLOCK_M, visit):
    """for_each_tile(state, lse_shape, group_size, num_slices, args): returns the last state.

    Calls ``visit(state, m_start, head, b, kv_head, args)``, a device function that returns the next
    state, for each query tile of this thread block; num_slices is the number of work slices of a
    head.
    """

    @cuda.jit(device=True, forceinline=True)
    def for_each_tile(state, lse_shape, group_size, num_slices, args):
        batch, num_heads, seqlen_q = lse_shape
        num_m_tiles = int32((int32(seqlen_q) + BLOCK_M - 1) // BLOCK_M)
        num_units = int32(num_slices * num_heads * batch)  # work slices of all heads
        # Slices assigned in earlier rounds; this thread block's index in the round (snake order).
        assigned, index = int32(0), int32(cuda.blockIdx.x)
        while assigned + index < num_units:
            head_index, work_slice = divided(assigned + index, num_slices)
            b, head = divided(head_index, num_heads)
            kv_head, _ = divided(head, group_size)
            assigned = int32(assigned + cuda.gridDim.x)
            index = int32(cuda.gridDim.x - 1 - index)
            step = int32(0)
            m_tile = m_tile_of(step, work_slice, num_slices, num_m_tiles)
            while m_tile >= 0:
                state = visit(state, int32(m_tile * BLOCK_M), head, b, kv_head, args)
                step = int32(step + 1)
                m_tile = m_tile_of(step, work_slice, num_slices, num_m_tiles)
        return state

    return for_each_tile


def make_for_each_taken(BLOCK_M, visit):
    """`make_for_each_tile` for a mask whose work the CPU does not know: a queue of query tiles.

    for_each_taken(state, lse_shape, section, order, counter, args): order and counter are those of
    `run_tables.queue_of`. A thread block takes the next query tile when it is ready for one, of
    `section` heads at a time, whose K and V stay in L2. It visits without a kv_head.
    """

    @cuda.jit(device=True, forceinline=True)
    def for_each_taken(state, lse_shape, section, order, counter, args):
        batch, num_heads, seqlen_q = lse_shape
        num_m_tiles = int32((int32(seqlen_q) + BLOCK_M - 1) // BLOCK_M)
        num_units = int32(num_m_tiles * num_heads * batch)
        unit = cuda.atomic.add(counter, 0, int32(1))
        while unit < num_units:
            index, from_end = head_and_tile(unit, num_m_tiles, num_heads * batch, section)
            unit = cuda.atomic.add(counter, 0, int32(1))  # arrives while the slot is waited for
            b, head = divided(index, num_heads)
            of_b, of_head = min(b, int32(order.shape[0] - 1)), min(head, int32(order.shape[1] - 1))
            m_tile = order[of_b, of_head, num_m_tiles - 1 - from_end]
            state = visit(state, int32(m_tile * BLOCK_M), head, b, int32(0), args)
        return state

    return for_each_taken
