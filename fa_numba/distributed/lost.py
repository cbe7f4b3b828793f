"""How ranks in processes of their own agree on which of them is lost.

A waiting rank watches the time, and the notices of the other ranks:

    LOST     a rank is lost, and why: from a rank that fails, or that has found out
    WAITS    "I wait": from a rank that has waited too long, and, as an answer, from all that wait

So a rank that has waited too long sends WAITS, and every rank that waits answers. The rank without
an answer is the one that has stalled.
"""

import time

from fa_numba.distributed.communicator import HOW_TO_COMPARE, RankLostError

GRACE = 1.0  # seconds that a rank has to answer a notice
LOST, WAITS = "lost", "waits"  # kinds of notices


class Notices:
    """The notices of the other ranks, for one rank; an engine sends and reads them.

    Parameters
    ----------
    rank, world_size : int
    tell_all : callable
        ``tell_all(kind, lost, why)`` sends a notice to all others.
    read : callable
        ``read()`` returns the notices so far: a dict of rank to (kind, lost rank, why).
    nap : float
        Seconds between two calls of `read`.
    """

    def __init__(self, rank, world_size, tell_all, read, nap):
        self.rank, self.world_size, self.nap = rank, world_size, nap
        self.tell_all, self.read = tell_all, read

    def raise_lost(self, ranks, waited):
        """Raise the error that names the lost rank of `ranks`, after a wait of `waited` seconds."""
        self.tell_all(WAITS, None, None)
        end = time.monotonic() + GRACE
        while True:
            notices = self.read()
            for kind, lost, why in notices.values():
                if kind == LOST:
                    raise RankLostError(why, lost)
            if time.monotonic() > end or len(notices) == self.world_size - 1:
                break
            time.sleep(self.nap)
        silent = [r for r in range(self.world_size) if r not in notices and r != self.rank]
        names = ", ".join(f"rank {r}" for r in ranks)
        waits = f"rank {self.rank} has waited {waited:.1f} s for {names}"
        if not silent:
            raise RankLostError(
                f"no rank can go on: {waits}, and all others wait too; {HOW_TO_COMPARE}"
            )
        verb = "is" if len(silent) == 1 else "are"
        lost = ", ".join(f"rank {r}" for r in silent)
        raise RankLostError(f"{lost} {verb} lost: no answer within {GRACE:g} s; {waits}", silent[0])

    def tell_error(self, error):
        """Notify all others of the error that ends this rank.

        Not of a difference that all see: one that still reads would take this rank for lost.
        """
        if getattr(error, "on_all_ranks", False):
            return
        if isinstance(error, RankLostError):
            self.tell_all(LOST, error.rank, str(error))
            return
        message = (str(error).splitlines() or [""])[0]
        why = f"rank {self.rank} is lost: {type(error).__name__}: {message}"
        self.tell_all(LOST, self.rank, why)
