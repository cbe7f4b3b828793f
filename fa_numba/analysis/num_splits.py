"""Into how many splits are the keys cut, so that a GPU has enough to do?

A decoding step has few queries, and so few thread blocks; each split multiplies them. More splits
than the GPU has room for only make more partial results to combine.
"""

from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.devices import DEFAULT, DEVICES

START_UP, COMBINE = 0.6, 7  # of `choose_quickest_splits`, in the time of a tile
BUSY = 0.5  # share of the places that keeps memory busy
BLOCKS_PER_SM = 4  # one thread block of an SM computes while the others wait for memory


def choose_num_splits(thread_blocks, num_n_tiles, num_sms=None):
    """The fewest splits that give every SM of the GPU `BLOCKS_PER_SM` thread blocks.

    But no more than there are tiles of keys, and at least one.

    Parameters
    ----------
    thread_blocks : int
        How many there are without splitting.
    num_n_tiles : int
        Tiles of keys in the longest sequence that there may be.
    num_sms : int, default=those of a T4

    Returns
    -------
    int
    """
    if num_sms is None:
        num_sms = DEVICES[DEFAULT].num_sms
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


def choose_quickest_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm):
    """The number of splits with which decoding that waits for memory alone ends soonest.

    To round up, as `choose_num_splits` does, may leave one thread block more than there is room
    for, and nearly all of the GPU idle while it runs. Here the time is estimated, in tiles: SMs
    half full keep memory busy, with less a thread block is as slow as it is alone; an SM with one
    thread block more than the others ends later; and where there are more thread blocks than
    places, memory is half idle while the last of them end. What it takes to begin, and to combine,
    was measured on an H200, with tiles of 64 keys of 128 numbers of 16 bits.

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

    def tiles_of_time(splits):
        blocks = thread_blocks * splits
        if blocks <= places:
            share = max(BUSY, ceil_div(blocks, num_sms) / blocks_per_sm)
        else:
            share = blocks / places + BUSY
        return share * (ceil_div(num_n_tiles, splits) + START_UP) + COMBINE * (splits > 1)

    most = max(1, min(num_n_tiles, ceil_div(4 * places, max(1, thread_blocks))))
    times = [tiles_of_time(splits) for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.02 * min(times))
