"""Into how many splits are the keys cut, so that a GPU has enough to do?

A decoding step has few queries, and so few thread blocks; each split multiplies them. More splits
than the GPU has room for only make more partial results to combine.
"""

from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.devices import DEFAULT, DEVICES

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


def choose_whole_waves(thread_blocks, num_n_tiles, places, start_up=2):
    """The number of splits with which all thread blocks end soonest, the fewest of equally good.

    A GPU with room for `places` thread blocks runs them in waves. One more block than there is room
    for is another wave, in which all but one place are idle: to round up, as `choose_num_splits`
    does, may cost half of the time.

    Parameters
    ----------
    thread_blocks : int
        How many there are without splitting.
    num_n_tiles : int
        Tiles of keys in the longest sequence that there may be.
    places : int
        Thread blocks that are on the GPU at a time.
    start_up : int, default=2
        What beginning and ending a thread block takes, in the time of a tile.

    Returns
    -------
    int
    """
    most = max(1, min(num_n_tiles, ceil_div(4 * places, max(1, thread_blocks))))
    return min(
        range(1, most + 1),
        key=lambda splits: (
            ceil_div(thread_blocks * splits, places) * (ceil_div(num_n_tiles, splits) + start_up)
        ),
    )
