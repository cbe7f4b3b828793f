"""A ring of tiles with mbarriers and asynchronous copies, as the CPU engine can judge it.

The functions do what the instructions of `mbarrier` and `tma` do, for a thread block whose first
warp produces: one thread of it starts the copies. All other threads consume: each reads every tile.
The engine runs all threads in step, and the kernel lets the producer copy a tile as soon as its
stage is free. So a wait that does not return at once never does, and raises; and so do a read
before the wait that must precede it, a read after the arrival, and a copy into a stage that others
may still read. A copy is made when it starts.

`bars` is shared memory, (4 + 3 · threads, stages) int32: the phases of full and of empty that have
ended, the arrivals in the phase of empty, the copies; and for each thread what it knows of full and
empty by its waits, and which phase of full it has given back. Elements of `ring`, (stages,
elements) int32, go through atomics, since a barrier of the thread block does not order them.
"""

from numba import cuda, int32

PRODUCERS = 32  # threads of the first warp
FULL, EMPTY, ARRIVED, COPIES, SEEN = 0, 1, 2, 3, 4
GIVEN = 2  # of a thread's own rows: full, empty, given back


@cuda.jit(device=True)
def init(ring, bars):
    """Make the barriers of all stages, in phase 0. All threads call it, and a barrier follows."""
    for stage in range(ring.shape[0]):
        for i in range(cuda.threadIdx.x, ring.shape[1], cuda.blockDim.x):
            ring[stage, i] = -1
    if cuda.threadIdx.x == 0:
        for row in range(bars.shape[0]):
            for stage in range(bars.shape[1]):
                bars[row, stage] = 0


@cuda.jit(device=True)
def _wait(bars, barrier, stage, parity):
    ended = cuda.atomic.add(bars, (barrier, stage), 0)
    if (ended + 1) % 2 != parity:  # parity of the phase that ended last; -1 before phase 0
        return False
    bars[SEEN + barrier * cuda.blockDim.x + cuda.threadIdx.x, stage] = ended
    return True


@cuda.jit(device=True)
def wait_full(bars, stage, parity):
    """Until a phase of full[stage] with this parity has ended: its copy is complete."""
    if not _wait(bars, FULL, stage, parity):
        raise RuntimeError("waits for ever for full: its phase of this parity never ends")


@cuda.jit(device=True)
def wait_empty(bars, stage, parity):
    """Until a phase of empty[stage] with this parity has ended: all consumers have arrived."""
    if not _wait(bars, EMPTY, stage, parity):
        raise RuntimeError("waits for ever for empty: its phase of this parity never ends")


@cuda.jit(device=True)
def arrive(bars, stage):
    """This consumer is done with the tile in this stage. All of them together end the phase."""
    thread = SEEN + cuda.threadIdx.x
    known, given = bars[thread, stage], thread + GIVEN * cuda.blockDim.x
    if cuda.threadIdx.x < PRODUCERS or bars[given, stage] == known:
        raise RuntimeError("arrives too often: empty would end before all consumers have read")
    bars[given, stage] = known
    if cuda.atomic.add(bars, (ARRIVED, stage), 1) == cuda.blockDim.x - PRODUCERS - 1:
        cuda.atomic.exch(bars, (ARRIVED, stage), 0)
        cuda.atomic.add(bars, (EMPTY, stage), 1)


@cuda.jit(device=True)
def start_copy(ring, bars, stage, x, tile, log):
    """Start to copy x[tile] into a stage; one thread does. It ends a phase of full[stage].

    log[tile] gets the number of tiles that have been read by all consumers.
    """
    copies = cuda.atomic.add(bars, (COPIES, stage), 1)
    if bars[SEEN + EMPTY * cuda.blockDim.x + cuda.threadIdx.x, stage] < copies:
        raise RuntimeError("copies over a tile that a consumer may still read")
    for i in range(ring.shape[1]):
        cuda.atomic.exch(ring, (stage, i), x[tile, i])
    done = 0
    for other in range(bars.shape[1]):
        done += cuda.atomic.add(bars, (EMPTY, other), 0)
    log[tile] = int32(done)
    cuda.atomic.add(bars, (FULL, stage), 1)


@cuda.jit(device=True)
def read(ring, bars, stage, i):
    """Element i of the tile in a stage."""
    thread = SEEN + cuda.threadIdx.x
    known = bars[thread, stage]
    if known < cuda.atomic.add(bars, (COPIES, stage), 0) or known == 0:
        raise RuntimeError("reads a stage without having waited for its copy")
    if bars[thread + GIVEN * cuda.blockDim.x, stage] == known:
        raise RuntimeError("reads a stage after its arrival: another tile may be there")
    if i < 0 or i >= ring.shape[1]:
        raise RuntimeError("reads an element of a tile that has not so many")
    return cuda.atomic.add(ring, (stage, i), 0)
