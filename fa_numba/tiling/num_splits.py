"""Number of splits of the keys, for every decoder.

A decoding step has few queries and therefore few thread blocks; splitting the keys multiplies them.
More splits than the GPU has room for only add partial results to combine.
"""

from fa_numba.tiling.block_sizes import ceil_div

# Times in the model of `choose_quickest_splits`, fitted to timings of flash_decode_mma on an H200.
# The unit is the time of an SM for a tile of 64 keys of 128 16-bit numbers: one microsecond.
START_UP = 0.6  # start of a thread block
COMBINE = 30  # the second kernel, and the losses that splitting causes
BUSY = 2.2  # thread blocks that keep an SM busy
LAST = 1.5  # the tail, in thread blocks per SM: memory is not busy while the last ones finish
# Times in the model of `choose_even_splits`: estimates. The unit is the time for 128 such keys: two
# microseconds.
NEXT_PART, COMBINE_PARTS = 0.2, 2.5  # start and end of a part; the second kernel
BLOCKS_PER_SM = 4  # one thread block of an SM computes while the others wait for memory


def choose_num_splits(thread_blocks, num_n_tiles, num_sms):
    """The fewest splits that give every SM of the GPU `BLOCKS_PER_SM` thread blocks.

    At least 1, and at most one split per tile of keys.

    Parameters
    ----------
    thread_blocks : int
        Thread blocks without splitting.
    num_n_tiles : int
        Tiles of keys in the longest possible sequence.
    num_sms : int
    """
    enough = ceil_div(BLOCKS_PER_SM * num_sms, max(1, thread_blocks))
    return max(1, min(enough, num_n_tiles))


def most_key_tiles(max_len, seqlen_q, window_size, block_n):
    """The largest number of tiles of keys that a tile of queries can see.

    Parameters
    ----------
    max_len : int
        Keys in the longest possible sequence.
    seqlen_q : int
    window_size : (left, right)
        With left >= 0 the queries together see at most the last left + seqlen_q keys.
    block_n : int
    """
    left, _ = window_size
    whole = ceil_div(max_len, block_n)
    if left < 0:
        return whole
    return min(whole, ceil_div(left + seqlen_q + block_n - 1, block_n))  # at any offset in a tile


def choose_even_splits(work, num_n_tiles, num_sms):
    """The number of splits for which a persistent decoder, one thread block per SM, is fastest.

    A persistent thread block processes parts of the keys one after the other and keeps memory busy
    from the first to the last. The time depends on how evenly the tiles are divided.

    Parameters
    ----------
    work : int
        Parts without splitting.
    num_n_tiles : int
        Tiles of keys in the longest possible sequence.
    num_sms : int

    Returns
    -------
    int
        The smallest number whose time is within 2 % of the best.
    """

    def time_of(splits):
        rounds = ceil_div(work * splits, num_sms)
        return rounds * (ceil_div(num_n_tiles, splits) + NEXT_PART) + COMBINE_PARTS * (splits > 1)

    return _fewest_near_best(time_of, num_n_tiles, num_sms, work)


def choose_quickest_splits(thread_blocks, num_n_tiles, num_sms, blocks_per_sm):
    """The number of splits for which memory-bound decoding is fastest.

    Rounding up, as `choose_num_splits` does, may launch one thread block more than fit at once;
    nearly all of the GPU is then idle while that one runs. This function estimates the time
    instead. An SM with fewer thread blocks than it needs is no faster. One SM with one thread block
    more than the others makes all of them wait. With more thread blocks than fit at once, memory is
    not busy while the last ones finish.

    Parameters
    ----------
    thread_blocks : int
        Thread blocks without splitting.
    num_n_tiles : int
        Tiles of keys in the longest possible sequence.
    num_sms, blocks_per_sm : int
        SMs of the GPU, and thread blocks that fit in one SM.

    Returns
    -------
    int
        The smallest number whose time is within 2 % of the best.
    """
    resident = num_sms * blocks_per_sm  # thread blocks that run at once

    def time_of(splits):
        blocks = thread_blocks * splits
        if blocks <= resident:
            blocks_of_sm = max(BUSY, ceil_div(blocks, num_sms))
        else:
            blocks_of_sm = blocks / num_sms + LAST
        return blocks_of_sm * (ceil_div(num_n_tiles, splits) + START_UP) + COMBINE * (splits > 1)

    return _fewest_near_best(time_of, num_n_tiles, resident, thread_blocks)


def _fewest_near_best(time_of, num_n_tiles, at_once, without):
    """The smallest number within 2 % of the best; at most four parts for each that runs at once.

    `without` is the number of parts without splitting.
    """
    most = max(1, min(num_n_tiles, ceil_div(4 * at_once, max(1, without))))
    times = [time_of(splits) for splits in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.02 * min(times))
