"""Into how many splits are the keys cut, so that a GPU has enough to do?

A decoding step has few queries, and so few thread blocks; each split multiplies them. More splits
than the GPU has room for only make more partial results to combine.
"""

from fa_numba.tiling.block_sizes import ceil_div

# Of `choose_quickest_splits`, fitted to timings of flash_decode_mma on an H200. The unit is what an
# SM takes for a tile of 64 keys of 128 numbers of 16 bits: one microsecond.
START_UP, COMBINE = 0.6, 30  # of a thread block; of a second kernel, and of what splits disturb
BUSY, LAST = 2.2, 1.5  # thread blocks that an SM needs to be busy; what ends when all have begun
# Of `choose_even_splits`: estimates, in the time that 128 such keys take, two microseconds.
NEXT_PART, COMBINE_PARTS = 0.2, 2.5  # a part's own begin and end; a second kernel
BLOCKS_PER_SM = 4  # one thread block of an SM computes while the others wait for memory


def choose_num_splits(thread_blocks, num_n_tiles, num_sms):
    """The fewest splits that give every SM of the GPU `BLOCKS_PER_SM` thread blocks.

    But no more than there are tiles of keys, and at least one.

    Parameters
    ----------
    thread_blocks : int
        How many there are without splitting.
    num_n_tiles : int
        Tiles of keys in the longest sequence that there may be.
    num_sms : int

    Returns
    -------
    int
    """
    enough = ceil_div(BLOCKS_PER_SM * num_sms, max(1, thread_blocks))
    return max(1, min(enough, num_n_tiles))


def most_key_tiles(max_len, seqlen_q, window_size, block_n):
    """The most tiles of keys that a tile of queries may see.

    Parameters
    ----------
    max_len : int
        Keys in the longest sequence that there may be.
    seqlen_q : int
    window_size : (left, right)
        With a left side the first query sees the last left + seqlen_q keys and no others.
    block_n : int

    Returns
    -------
    int
    """
    left, _ = window_size
    whole = ceil_div(max_len, block_n)
    if left < 0:
        return whole
    return min(whole, ceil_div(left + seqlen_q + block_n - 1, block_n))  # wherever they begin


def choose_even_splits(work, num_n_tiles, num_sms):
    """The number of splits with which one thread block per SM, that stays, ends soonest.

    A thread block that goes through parts of the keys one after the other has memory busy from the
    first to the last: what counts is that all of them have as many tiles.

    Parameters
    ----------
    work : int
        Parts that there are without splitting.
    num_n_tiles : int
        Tiles of keys in the longest sequence that there may be.
    num_sms : int

    Returns
    -------
    int
        The fewest that are within 2 % of the best.
    """

    def time_of(splits):
        rounds = ceil_div(work * splits, num_sms)
        return rounds * (ceil_div(num_n_tiles, splits) + NEXT_PART) + COMBINE_PARTS * (splits > 1)

    most = max(1, min(num_n_tiles, ceil_div(4 * num_sms, max(1, work))))
    times = [time_of(splits) for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.02 * min(times))


def choose_quickest_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm):
    """The number of splits with which decoding that waits for memory alone ends soonest.

    To round up, as `choose_num_splits` does, may leave one thread block more than there is room
    for, and nearly all of the GPU idle while it runs. Here the time is estimated: SMs with fewer
    thread blocks than they need are no faster for it; one SM with a thread block more than the
    others makes all wait; and where there are more than places, memory is not busy while the last
    of them end.

    Parameters
    ----------
    thread_blocks : int
        How many there are without splitting.
    num_n_tiles : int
        Tiles of keys in the longest sequence that there may be.
    num_sms, blocks_per_sm : int
        Of the GPU, and the thread blocks that one has room for.

    Returns
    -------
    int
        The fewest that are within 2 % of the best.
    """
    places = num_sms * blocks_per_sm

    def time_of(splits):
        blocks = thread_blocks * splits
        if blocks <= places:
            of_an_sm = max(BUSY, ceil_div(blocks, num_sms))
        else:
            of_an_sm = blocks / num_sms + LAST
        return of_an_sm * (ceil_div(num_n_tiles, splits) + START_UP) + COMBINE * (splits > 1)

    most = max(1, min(num_n_tiles, ceil_div(4 * places, max(1, thread_blocks))))
    times = [time_of(splits) for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.02 * min(times))
