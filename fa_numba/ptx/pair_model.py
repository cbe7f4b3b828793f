"""Two thread blocks that share the copies of K and V, as the CPU engine can judge it.

The functions do what those of `cluster`, `mbarrier` and `tma` do, for a cluster of two. The engine
runs one thread block after the other, so the cluster is one block of it: threadIdx.y is the rank.
All threads are in step, so a wait that does not return at once never does, and raises; so do bytes
that no full has announced, a read before the wait that must precede it, and a copy over a tile that
a thread of either block may still read.

`tiles` is shared memory, (2, stages, 2, TILE) int32: of each block the tiles of K and of V in each
stage. `bars` is (2, 6 + 3 · TILE, stages) int32: of each block the phases of full that have ended;
the phases of empty; those of them in which all threads of both blocks have arrived; the arrivals in
the phase of empty, and those by block 0; the bytes that full still waits for; what each thread
knows of full and of empty by its waits, and how often it has arrived.
"""

from numba import cuda, int32

FULL, EMPTY, READ, ARRIVED, OF_BLOCK_0, MISSING, SEEN = 0, 1, 2, 3, 4, 5, 6
NUMBER_BYTES = 4


@cuda.jit(device=True)
def init(tiles, bars):
    """Make the barriers of both blocks, in phase 0. All threads call it; `cluster_sync` follows."""
    rank, tx = cuda.threadIdx.y, cuda.threadIdx.x
    for stage in range(tiles.shape[1]):
        tiles[rank, stage, 0, tx] = tiles[rank, stage, 1, tx] = -1
    if tx == 0:
        for row in range(bars.shape[1]):
            for stage in range(bars.shape[2]):
                bars[rank, row, stage] = 0


@cuda.jit(device=True)
def cluster_sync():
    """Until all threads of both blocks are here."""
    cuda.syncthreads()


@cuda.jit(device=True)
def announce(bars, stage, num_bytes):
    """full[stage] of this block waits for so many bytes more. One thread of it does this."""
    cuda.atomic.add(bars, (cuda.threadIdx.y, MISSING, stage), num_bytes)


@cuda.jit(device=True)
def copy_to_both(tiles, bars, stage, which, row):
    """Start to copy a row of K (which = 0) or V (1) into a stage of both blocks.

    One thread does this. full[stage] of each block counts the bytes; its phase ends with the last.
    """
    rank, tx, num_bytes = cuda.threadIdx.y, cuda.threadIdx.x, NUMBER_BYTES * tiles.shape[3]
    copied = cuda.atomic.add(bars, (rank, FULL, stage), 0)  # the tiles that were in this stage
    for block in range(2):
        missing = cuda.atomic.add(bars, (block, MISSING, stage), -num_bytes) - num_bytes
        if missing < 0:
            raise RuntimeError("more bytes arrive at full than its block has announced")
        if missing == 0:
            cuda.atomic.add(bars, (block, FULL, stage), 1)
    if bars[rank, SEEN + cuda.blockDim.x + tx, stage] < copied:
        raise RuntimeError("copies over a tile that a thread of the two blocks may still read")
    for i in range(tiles.shape[3]):
        number = row[i]  # from L2, once
        cuda.atomic.exch(tiles, (0, stage, which, i), number)
        cuda.atomic.exch(tiles, (1, stage, which, i), number)


@cuda.jit(device=True)
def _wait(bars, barrier, stage, parity, counted):
    """Whether a phase of this parity has ended; then this thread knows as much as `counted`."""
    rank, tx = cuda.threadIdx.y, cuda.threadIdx.x
    ended = cuda.atomic.add(bars, (rank, barrier, stage), 0)
    if (ended + 1) % 2 != parity:  # parity of the phase that ended last; -1 before phase 0
        return False
    known = cuda.atomic.add(bars, (rank, counted, stage), 0)
    bars[rank, SEEN + barrier * cuda.blockDim.x + tx, stage] = known
    return True


@cuda.jit(device=True)
def wait_full(bars, stage, parity):
    """Until a phase of this block's full[stage] with this parity has ended: its bytes are there."""
    if not _wait(bars, FULL, stage, parity, FULL):
        raise RuntimeError("waits for ever for full: its phase of this parity never ends")


@cuda.jit(device=True)
def wait_empty(bars, stage, parity):
    """Until a phase of this block's empty[stage] with this parity has ended."""
    if not _wait(bars, EMPTY, stage, parity, READ):
        raise RuntimeError("waits for ever for empty: its phase of this parity never ends")


@cuda.jit(device=True)
def arrive(bars, stage, block):
    """Arrive at empty[stage] of block 0 or 1. As many arrivals as both have threads end a phase."""
    rank, tx, threads = cuda.threadIdx.y, cuda.threadIdx.x, cuda.blockDim.x
    bars[rank, SEEN + 2 * threads + tx, stage] += 1
    cuda.atomic.add(bars, (block, OF_BLOCK_0, stage), 1 - rank)
    if cuda.atomic.add(bars, (block, ARRIVED, stage), 1) == 2 * threads - 1:
        cuda.atomic.exch(bars, (block, ARRIVED, stage), 0)
        if cuda.atomic.exch(bars, (block, OF_BLOCK_0, stage), 0) == threads:
            cuda.atomic.add(bars, (block, READ, stage), 1)
        cuda.atomic.add(bars, (block, EMPTY, stage), 1)


@cuda.jit(device=True)
def read(tiles, bars, stage, which, i):
    """Number i of K's tile (which = 0) or V's (1) in a stage of this block."""
    rank, tx, threads = cuda.threadIdx.y, cuda.threadIdx.x, cuda.blockDim.x
    known = bars[rank, SEEN + tx, stage]
    if bars[rank, SEEN + 2 * threads + tx, stage] > 2 * (known - 1):
        raise RuntimeError("reads a stage after it has arrived: it may be copied over")
    if known == 0 or known < cuda.atomic.add(bars, (rank, FULL, stage), 0):
        raise RuntimeError("reads a stage without having waited for its copy")
    if i < 0 or i >= tiles.shape[3]:
        raise RuntimeError("reads a number of a tile that has not so many")
    return int32(cuda.atomic.add(tiles, (rank, stage, which, i), 0))
