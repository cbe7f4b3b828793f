"""Ranks as processes, one for each GPU: NCCL, through CuPy.

    # program.py                          $ python -m fa_numba.distributed.run -n 2 program.py
    from fa_numba.distributed import nccl, ring_attn
    with nccl.communicator(timeout=10) as comm:      # CuPy's current device is the rank's GPU
        out, lse = ring_attn(comm, q, k, v, causal=True)

`torchrun --nproc-per-node 2 program.py` starts the processes too.

Arrays travel on a stream of their own, while the rank computes on CuPy's current stream. An event
orders the two: the transfer begins when the current stream has computed what is sent, and the
current stream goes on when the transfer has ended. Every received array is new, so the keys of one
step are computed with while those of the next step arrive: K and V are double-buffered.

NCCL itself waits for ever, in a kernel on the GPU. Here a waiting rank watches the time, NCCL's own
errors, and notices of other ranks on a board (`fa_numba.distributed.board`):

    a rank raises an error     It notifies all ranks. They raise RankLostError, which names it.
    a rank stalls              A rank that has waited `timeout` seconds notifies all ranks. Every
                               waiting rank answers. The rank without an answer is lost.
    a process is killed        Its connection to the board closes, and the board notifies all.

Before an error is raised, the NCCL communicator is aborted: the kernel that waits for the lost rank
ends, and the process can end. Nothing that arrived is returned.

``pip install fa-numba[nccl]`` installs the NCCL library that CuPy loads.
"""

import contextlib
import ctypes
import importlib
import os
import sys
import threading
import time
from pathlib import Path

from fa_numba.checks import distributed as checks
from fa_numba.distributed.board import Board
from fa_numba.distributed.communicator import Communicator, RankLostError
from fa_numba.distributed.lost import GRACE, Notices
from fa_numba.runtime import arrays

START = 60.0  # seconds, at least, that ranks have to start: they import libraries
SPIN = 0.002  # seconds in which a wait tests without a nap: transfers are often shorter
NAP = 50e-6  # seconds between two tests
LOOK = 0.2  # seconds between two looks at the board


@contextlib.contextmanager
def communicator(timeout=300.0):
    """The communicator of this process, for a `with` block that holds all of the program.

    It reads the environment that `fa_numba.distributed.run` and torchrun set: RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT. GPU LOCAL_RANK becomes CuPy's current device. Rank 0
    opens its board at the port after MASTER_PORT, for those that know FA_NUMBA_BOARD_SECRET.
    `fa_numba.distributed.run` makes this secret. Under torchrun you set it, to the same text for
    all ranks; it may be missing where MASTER_ADDR is this machine's own address, 127.0.0.1.

    Parameters
    ----------
    timeout : float, default=300.0
        Longest time in seconds that a rank waits for another; for its start at least a minute.
        None is no limit.

    Raises
    ------
    ImportError
        CuPy is missing, or the NCCL library that it loads.
    ValueError
        A variable of the environment is missing, or the secret is not that of rank 0.
    RankLostError
        Another rank has died or stalled.
    """
    timeout = checks.check_timeout(timeout)
    rank, world_size, local_rank, address, secret = checks.check_rank_environment(os.environ)
    cupy, nccl = load()
    with cupy.cuda.Device(local_rank):
        start = None if timeout is None else max(timeout, START)
        board = Board(rank, world_size, address, start, secret)
        comm = None
        try:
            board.arrive("start")
            if rank == 0:
                board.put("nccl", list(nccl.get_unique_id()))
            comm = _NCCL(cupy, nccl, board, bytes(board.get("nccl")), timeout)
            yield comm
            comm.finish()
        except BaseException as error:
            _leave(board, comm, error)
            raise
        board.close()


def load():
    """CuPy, and its module for NCCL, with the NCCL library of the wheel nvidia-nccl loaded."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "fa_numba.distributed.nccl needs CuPy: pip install fa-numba[cuda13,nccl]"
        ) from error
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")  # finds the wheel's library by itself
        if not getattr(nccl, "available", True):
            _load_library()
            nccl = importlib.import_module("cupy_backends.cuda.libs.nccl")
    except ImportError as error:
        raise ImportError(
            f"fa_numba.distributed.nccl needs NCCL: pip install fa-numba[nccl] ({error})"
        ) from error
    return cupy, nccl


def _load_library():
    """Load libnccl.so.2 from a folder of Python packages: CuPy's module then finds it loaded."""
    for folder in sys.path:
        for path in sorted(Path(folder).glob("nvidia/*nccl*/lib/libnccl.so.2")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
    ctypes.CDLL("libnccl.so.2", mode=ctypes.RTLD_GLOBAL)


def _leave(board, comm, error):
    """After an error: notify all, and wait until they have read it; the board may be here."""
    with contextlib.suppress(RankLostError):  # the board is gone
        notices = Notices(board.rank, board.world_size, board.tell, board.notices, LOOK)
        notices.tell_error(error)
    if comm is not None:
        comm.abort()
    if board.rank == 0:
        time.sleep(2 * GRACE)
    board.close()


class _NCCL(Communicator):
    """The connection of one process; `unique_id` is NCCL's, the same on all ranks."""

    def __init__(self, cupy, nccl, board, unique_id, timeout):
        super().__init__(board.rank, board.world_size)
        self._cupy, self._nccl, self._board, self._timeout = cupy, nccl, board, timeout
        self._notices = Notices(self.rank, self.world_size, board.tell, board.notices, LOOK)
        self._looked = 0.0
        # A high priority: as soon as a thread block of a kernel ends, the transfer may take its SM.
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=-1)
        self._watchdog = _Watchdog(self.rank, timeout)
        with self._watchdog.over("ncclCommInitRank"):
            self._comm = nccl.NcclCommunicator(self.world_size, unique_id, self.rank)
        self._connect()

    def _connect(self):
        """Exchange a byte with every rank: NCCL makes connections when they are first used."""
        others = [r for r in range(self.world_size) if r != self.rank]
        if others:
            byte = self._cupy.zeros(1, "uint8")
            shapes = dict.fromkeys(others, (1,))
            self._start_exchange(dict.fromkeys(others, byte), shapes, byte)()

    def _start_exchange(self, outgoing, shapes, like):
        events = self._cupy.cuda
        arrived = {r: arrays.empty(like, shape, like.dtype) for r, shape in shapes.items()}
        ready = events.Event(disable_timing=True)
        ready.record(events.get_current_stream())
        self._stream.wait_event(ready)
        with self._watchdog.over("an exchange of NCCL"):
            self._nccl.groupStart()
            for rank, x in outgoing.items():
                self._comm.send(*self._message(x), rank, self._stream.ptr)
            for rank, x in arrived.items():
                self._comm.recv(*self._message(x), rank, self._stream.ptr)
            self._nccl.groupEnd()
        done = events.Event(disable_timing=True)
        done.record(self._stream)
        kept = list(outgoing.values())  # alive until they are sent
        ranks = sorted({*outgoing, *shapes})

        def wait():
            self._wait(done, ranks)
            events.get_current_stream().wait_event(done)
            kept.clear()
            return arrived

        return wait

    def _message(self, x):
        """Address, number of elements and type: NCCL takes bytes."""
        return arrays.facts(x).address, x.nbytes, self._nccl.NCCL_UINT8

    def _wait(self, done, ranks):
        """Wait on the CPU until an event has happened; raise RankLostError past the limit."""
        start = time.monotonic()
        while not done.done:
            waited = time.monotonic() - start
            if waited > SPIN:
                self._look(ranks, waited)
                time.sleep(NAP)

    def _look(self, ranks, waited):
        """Look for errors of NCCL, and from time to time for notices."""
        too_long = self._timeout is not None and waited > self._timeout
        if not too_long and time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        try:
            self._comm.check_async_error()
        except RuntimeError as error:
            self.abort()
            names = ", ".join(f"rank {r}" for r in ranks)
            raise RankLostError(f"NCCL reports {error}, waiting for {names}") from error
        try:
            if too_long or self._board.notices():
                self._notices.raise_lost(ranks, waited)
        except RankLostError:
            self.abort()
            raise

    def abort(self):
        """End all transfers, those in flight too."""
        with self._watchdog.over("ncclCommAbort"):
            self._comm.abort()
        self._watchdog.stopped = True

    def finish(self):
        """Wait for all others at the end, with the same limit."""
        self._cupy.cuda.get_current_stream().synchronize()
        self._stream.synchronize()
        self._board.arrive("end", self._timeout)
        with self._watchdog.over("ncclCommDestroy"):
            self._comm.destroy()
        self._watchdog.stopped = True


class _Watchdog:
    """Ends the process if a call of NCCL's does not return in time: no thread can end the call.

    `timeout` is in seconds; None is no limit.
    """

    def __init__(self, rank, timeout):
        self._rank, self._timeout, self._call = rank, timeout, None
        self.stopped = False
        if timeout is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def over(self, what):
        """Watch over a call that is named `what`."""
        if self._timeout is not None:
            self._call = what, time.monotonic() + self._timeout + 2 * GRACE
        try:
            yield
        finally:
            self._call = None

    def _watch(self):
        while not self.stopped:
            time.sleep(LOOK)
            what, end = self._call or (None, 0)
            if what and time.monotonic() > end:
                message = f"rank {self._rank}: {what} has not returned in time"
                print(message, file=sys.stderr, flush=True)
                os._exit(1)
