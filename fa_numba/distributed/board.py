"""A notice board that processes share: to find each other, and to find out who is lost.

Rank 0 has the board, as a thread that answers requests over TCP; every rank, rank 0 too, has a
`Board`, one connection to it. A request and its answer are a line of JSON each. The board carries a
few numbers before the first exchange of arrays, and notices of failure; arrays go another way.

A rank whose connection closes without a goodbye has ended, and the board notes at once that it is
lost. If the board itself does not answer, rank 0 is lost.

The ranks share a secret. The board sends every connection a number that it uses once. The first
line of a rank proves that it knows the secret, by the HMAC of this number and of its rank. Whoever
sends another line is a stranger: the board says no, closes the connection and notes nothing.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import threading
import time

from fa_numba.distributed.communicator import RankLostError
from fa_numba.distributed.lost import LOST

NAP = 0.02  # seconds between two attempts to connect to a board that is not there yet
PATIENCE = 5.0  # seconds in which a board answers a request that does not wait
LONGEST = 256  # characters of the first line of a connection


class Board:
    """The connection of one rank to the board.

    Parameters
    ----------
    rank, world_size : int
    address : (str, int)
        Host and port of the board. Rank 0 opens the board there.
    timeout : float or None
        Longest time in seconds that a request waits.
    secret : str
        The same on all ranks.

    Raises
    ------
    ValueError
        The secret is not that of rank 0, or another process is this rank.
    RankLostError
        There is no board within the limit.
    """

    def __init__(self, rank, world_size, address, timeout, secret):
        self.rank, self.world_size, self._timeout = rank, world_size, timeout
        self._server = _serve(address, world_size, secret) if rank == 0 else None
        self._lock = threading.Lock()
        self._socket = self._connect(address)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        try:
            number = self._line().strip()
            if not self._ask("hello", rank, proof(secret, number, rank)):
                raise ValueError(
                    f"the board of rank 0 refuses rank {rank}: the environment variable "
                    "FA_NUMBA_BOARD_SECRET must be the same on all ranks, and RANK of each its own"
                )
        except BaseException:
            self._lines.close()
            self._socket.close()
            raise

    def _connect(self, address):
        start = time.monotonic()
        while True:
            try:
                return socket.create_connection(address, timeout=PATIENCE)
            except OSError as error:
                waited = time.monotonic() - start
                if self._timeout is not None and waited > self._timeout:
                    raise RankLostError(
                        f"rank 0 is lost: no board at {address[0]}:{address[1]} in {waited:.1f} s",
                        0,
                    ) from error
                time.sleep(NAP)

    def _ask(self, verb, *args, patience=0.0):
        with self._lock:
            limit = None if patience is None else patience + PATIENCE
            self._socket.settimeout(limit)
            return json.loads(self._line(json.dumps([verb, *args]).encode() + b"\n"))

    def _line(self, request=b""):
        """Send a request, and return the next line of the board."""
        try:
            self._socket.sendall(request)
            line = self._lines.readline()
        except OSError as error:
            raise RankLostError(f"rank 0 is lost: its board is gone ({error})", 0) from error
        if not line:
            raise RankLostError("rank 0 is lost: its board is gone", 0)
        return line

    def put(self, key, value):
        """Pin a value that JSON can write."""
        self._ask("put", key, value)

    def get(self, key):
        """The value of a key, once it is there."""
        found = self._ask("get", key, self._timeout, patience=self._timeout)
        if not found:
            raise RankLostError(f"no rank has pinned {key!r} within {self._timeout:g} s")
        return found[0]

    def arrive(self, where, timeout=None):
        """Wait until every rank has called this with the same `where`; at most `timeout` seconds.

        The default is the board's own limit. A rank that has not within it is lost.
        """
        timeout = self._timeout if timeout is None else timeout
        missing, notice = self._ask("arrive", where, timeout, patience=timeout)
        if notice:
            raise RankLostError(notice[2], notice[1])
        if missing:
            lost = ", ".join(f"rank {r}" for r in missing)
            verb = "has" if len(missing) == 1 else "have"
            raise RankLostError(
                f"{lost} {verb} not arrived at {where!r} within {timeout:g} s", missing[0]
            )

    def tell(self, kind, lost=None, why=None):
        """Pin a notice of this rank: see `fa_numba.distributed.lost`."""
        self._ask("tell", kind, lost, why)

    def notices(self):
        """The notices of the other ranks: a dict of rank to (kind, lost rank, why)."""
        notices = self._ask("notices")
        return {int(r): tuple(x) for r, x in notices.items() if int(r) != self.rank}

    def close(self):
        """Say goodbye: this rank has come to its end.

        On rank 0 the board closes too, after the others have left, or PATIENCE seconds.
        """
        try:
            self._ask("goodbye")
        except RankLostError:
            pass  # rank 0 was faster
        self._lines.close()
        self._socket.close()
        if self._server is not None:
            self._server.wait_for_the_last(PATIENCE)
            self._server.shutdown()
            self._server.server_close()


def proof(secret, number, rank):
    """The text by which a rank shows that it knows the secret."""
    message = f"{number} {rank}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def _serve(address, world_size, secret):
    server = _Server(address, _Connection)
    server.world_size, server.secret = world_size, secret
    server.changed = threading.Condition()
    server.values, server.arrived, server.notices = {}, {}, {}
    server.here = set()  # connected ranks
    threading.Thread(target=server.serve_forever, args=(NAP,), daemon=True).start()
    return server


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def wait_for_the_last(self, seconds):
        with self.changed:
            self.changed.wait_for(lambda: not self.here, seconds)


class _Connection(socketserver.StreamRequestHandler):
    """Answers the requests of one rank, one after the other."""

    def handle(self):
        rank = self._rank()
        if rank is None:
            with contextlib.suppress(OSError):
                self.wfile.write(b"false\n")
            return
        try:
            self.wfile.write(b"true\n")
            for line in self.rfile:
                verb, *args = json.loads(line)
                answer = VERBS[verb](self, rank, *args)
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                if verb == "goodbye":
                    return
        except OSError:
            pass  # the rank is gone
        finally:
            with self.server.changed:
                self.server.here.discard(rank)
                self.server.changed.notify_all()
        self._tell(rank, LOST, rank, f"rank {rank} is lost: its process has ended")

    def _rank(self):
        """The rank of this connection; None for a stranger."""
        number = secrets.token_hex(16)
        self.request.settimeout(PATIENCE)
        try:
            self.wfile.write(f"{number}\n".encode())
            verb, rank, its_proof = json.loads(self.rfile.readline(LONGEST))
            known = verb == "hello" and type(rank) is int
            if not known or not hmac.compare_digest(
                its_proof, proof(self.server.secret, number, rank)
            ):
                return None
            self.request.settimeout(None)
        except (OSError, ValueError, TypeError):  # no line, no JSON, other types in it
            return None
        with self.server.changed:
            if rank in self.server.here or not 0 <= rank < self.server.world_size:
                return None
            self.server.here.add(rank)
        return rank

    def _goodbye(self, rank):
        return None

    def _put(self, rank, key, value):
        with self.server.changed:
            self.server.values[key] = value
            self.server.changed.notify_all()

    def _get(self, rank, key, timeout):
        values = self.server.values
        with self.server.changed:
            self.server.changed.wait_for(lambda: key in values, timeout)
            return [values[key]] if key in values else []

    def _arrive(self, rank, where, timeout):
        everyone = set(range(self.server.world_size))
        with self.server.changed:
            here = self.server.arrived.setdefault(where, set())
            here.add(rank)
            self.server.changed.notify_all()
            self.server.changed.wait_for(lambda: here == everyone or self._lost(rank), timeout)
            missing = sorted(everyone - here)
            return missing, self._lost(rank) if missing else None

    def _lost(self, rank):
        """The first notice of another rank that names a lost one."""
        found = (x for r, x in sorted(self.server.notices.items()) if r != rank and x[0] == LOST)
        return next(found, None)

    def _tell(self, rank, kind, lost, why):
        with self.server.changed:
            self.server.notices.setdefault(rank, (kind, lost, why))
            if kind == LOST:
                self.server.notices[rank] = kind, lost, why
            self.server.changed.notify_all()

    def _notices(self, rank):
        with self.server.changed:
            return dict(self.server.notices)


VERBS = {
    "goodbye": _Connection._goodbye,
    "put": _Connection._put,
    "get": _Connection._get,
    "arrive": _Connection._arrive,
    "tell": _Connection._tell,
    "notices": _Connection._notices,
}
