"""Ranks as processes, on one machine or many: MPI, through mpi4py.

    # program.py                                          $ mpiexec -n 4 python program.py
    from fa_numba.distributed import mpi, ring_attn
    with mpi.communicator(timeout=10) as comm:
        out, lse = ring_attn(comm, q, k, v, causal=True)

MPI itself waits for ever. Here a waiting rank watches the time, and a second MPI communicator on
which ranks send notices of failure:

    a rank raises an error     It notifies all ranks. They raise RankLostError, which names it.
    a rank stalls              A rank that has waited `timeout` seconds notifies all ranks. Every
                               waiting rank answers. The rank without an answer is lost.
    a process is killed        MPI reports it to a rank that exchanges arrays with it, or it is
                               found like a stalled rank. Often mpiexec ends all ranks before.
    ranks differ               RanksDifferError: see `Communicator.agree`. A later call that sends
                               more or fewer bytes than a rank expects is this error too.

After an error the `with` block prints it, gives the other ranks time to print theirs, and aborts. A
normal exit would wait in MPI_Finalize for the lost rank.

NumPy arrays of any dtype are sent as bytes. `mpiexec` is part of the wheel mpich:
``pip install fa-numba[mpi]``.
"""

import contextlib
import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import (
    HOW_TO_COMPARE,
    Communicator,
    RankLostError,
    RanksDifferError,
)
from fa_numba.distributed.lost import GRACE, Notices

NAP = 20e-6  # seconds between two tests of requests; there may be more ranks than cores


@contextlib.contextmanager
def communicator(timeout=300.0):
    """The communicator of this process, for a `with` block that holds all of the program.

    Parameters
    ----------
    timeout : float, default=300.0
        Longest time in seconds that a rank waits for another. None is no limit.

    Raises
    ------
    ImportError
        mpi4py is missing, or the MPI library that it loads.
    """
    timeout = checks.check_timeout(timeout)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no mpi4py; no MPI library
        raise ImportError(
            "fa_numba.distributed.mpi needs mpi4py and an MPI library: pip install fa-numba[mpi]"
        ) from error
    comm = _MPI(MPI, timeout)
    try:
        yield comm
        comm.finish()
    except BaseException as error:
        traceback.print_exc()
        comm.notices.tell_error(error)
        sys.stderr.flush()
        time.sleep(2 * GRACE)  # other ranks may wait for answers, and then print
        MPI.COMM_WORLD.Abort(1)


class _MPI(Communicator):
    """The connection of one process."""

    def __init__(self, MPI, timeout):
        super().__init__(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        self._mpi, self._timeout = MPI, timeout
        self._data = MPI.COMM_WORLD.Dup()
        self._control = MPI.COMM_WORLD.Dup()
        self._received = {}  # notices by sender
        self.notices = Notices(self.rank, self.world_size, self._tell_all, self._read_notices, NAP)
        self._told = []  # requests of notices; kept, because a request must outlive its message
        self._data.Barrier()  # every rank of this machine has opened the shared memory
        _remove_names_of_shared_memory()

    def _start_exchange(self, outgoing, shapes, like):
        arrays = {source: np.empty(shape, like.dtype) for source, shape in shapes.items()}
        requests = [
            (s, self._data.Irecv(self._bytes(x), source=s), x.nbytes) for s, x in arrays.items()
        ]
        requests += [
            (d, self._data.Isend(self._bytes(x), dest=d), None) for d, x in outgoing.items()
        ]
        kept = list(outgoing.values())  # alive until they are sent

        def wait():
            self._wait(requests)
            kept.clear()
            return arrays

        return wait

    def _bytes(self, x):
        return [x.reshape(-1).view(np.uint8), self._mpi.BYTE]

    def _wait(self, requests):
        """Wait until all of (rank, MPI request, number of bytes to receive) are complete."""
        start = time.monotonic()
        while requests := [x for x in requests if not self._done(*x)]:
            waited = time.monotonic() - start
            too_long = self._timeout is not None and waited > self._timeout
            if self._read_notices() or too_long:
                self.notices.raise_lost(sorted({rank for rank, *_ in requests}), waited)
            time.sleep(NAP)

    def _done(self, rank, request, num_bytes):
        status = self._mpi.Status()
        try:
            done = request.Test(status)
        except self._mpi.Exception as error:
            if error.Get_error_class() == self._mpi.ERR_TRUNCATE:
                self._raise_other_size(rank, f"more than the {num_bytes}")
            why, _, _ = str(error).partition(",")  # its process is gone
            raise RankLostError(f"rank {rank} is lost: MPI reports {why!r}", rank) from error
        if done and num_bytes is not None:
            arrived = status.Get_count(self._mpi.BYTE)
            if arrived != num_bytes:
                self._raise_other_size(rank, f"{arrived} and not the {num_bytes}")
        return done

    def _raise_other_size(self, rank, how_many):
        raise RanksDifferError(
            f"rank {rank} and rank {self.rank} differ in the dtype, the shape or an option: "
            f"rank {rank} sent {how_many} bytes that rank {self.rank} expects; {HOW_TO_COMPARE}"
        ) from None

    def _read_notices(self):
        status = self._mpi.Status()
        while self._control.Iprobe(status=status):
            source = status.Get_source()
            self._received[source] = self._control.recv(source=source)
        return self._received

    def _tell_all(self, kind, lost, why):
        """Send a notice to all others."""
        for rank in range(self.world_size):
            if rank != self.rank:
                self._told.append(self._control.isend((kind, lost, why), dest=rank))

    def finish(self):
        """Wait for all others at the end, with the same limit: MPI_Finalize has none."""
        others = [r for r in range(self.world_size) if r != self.rank]
        goodbye = np.zeros(1, np.uint8)
        self._start_exchange(dict.fromkeys(others, goodbye), dict.fromkeys(others, (1,)), goodbye)()


def _remove_names_of_shared_memory():
    """Remove the names of MPICH's files of shared memory, which every rank has opened by now.

    MPICH removes them when it ends. After a killed process it does not end, and a file of some
    megabytes would be left. A file without a name is gone with its last process.
    """
    maps = Path("/proc/self/maps")  # of Linux
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    for name in {line.rpartition(" ")[2] for line in lines}:
        if name.startswith("/dev/shm/mpich_shm_"):
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                os.unlink(name)
