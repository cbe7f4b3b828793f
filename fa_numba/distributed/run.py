"""Start a program once for each GPU of this machine: ``python -m fa_numba.distributed.run``.

    $ python -m fa_numba.distributed.run -n 2 program.py its arguments

Each process finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as
under torchrun, and FA_NUMBA_BOARD_SECRET, a new secret of this run. If one fails, the others have
a few seconds to print their errors, and are ended. The exit status is that of the first process
that failed.
"""

import argparse
import os
import secrets
import socket
import subprocess
import sys
import time

from fa_numba.checks.distributed import SECRET

PATIENCE = 10.0  # seconds that the other processes have after the first one has failed
NAP = 0.05


def main(arguments=None):
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fa_numba.distributed.run")
    parser.add_argument("-n", type=int, required=True, help="number of processes, one for each GPU")
    parser.add_argument("--isolate", action="store_true", help="each process sees only its own GPU")
    parser.add_argument("--limit", type=float, help="seconds after which all processes are ended")
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if given.n < 1:
        parser.error(f"-n must be at least 1, got {given.n}")
    command = [sys.executable, given.program, *given.arguments]
    return start(command, given.n, limit=given.limit, isolate=given.isolate)


def start(command, world_size, *, limit=None, isolate=False, environment=None):
    """Run a command once for each rank, and wait for all of them.

    Parameters
    ----------
    command : list of str
    world_size : int
    limit : float, default=None
        Seconds after which all processes are killed; None is no limit.
    isolate : bool, default=False
        Each process sees only its own GPU, as device 0.
    environment : dict, default=os.environ
        The ranks' variables are added.

    Returns
    -------
    int
        0, or the exit status of the first process that failed; 124 past the limit.
    """
    common = dict(os.environ if environment is None else environment)
    common |= {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
    common["MASTER_PORT"] = str(_free_port())
    common[SECRET] = secrets.token_hex(16)
    ranks = [{"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world_size)]
    if isolate:
        visible = common.get("CUDA_VISIBLE_DEVICES", "").split(",")
        for rank, of_rank in enumerate(ranks):
            own = visible[rank] if rank < len(visible) and visible[rank] else str(rank)
            of_rank |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": own}
    processes = [subprocess.Popen(command, env=common | of_rank) for of_rank in ranks]
    status, end = 0, None if limit is None else time.monotonic() + limit
    try:
        while None in (codes := [process.poll() for process in processes]):
            failed = [code for code in codes if code]
            if failed and not status:
                status = failed[0]
                patience = time.monotonic() + PATIENCE
                end = patience if end is None else min(end, patience)
            if end is not None and time.monotonic() > end:
                return status or 124
            time.sleep(NAP)
        return status or next((code for code in codes if code), 0)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for process in processes:
            process.wait()


def _free_port():
    """A port that is free, and so is the next one: for torch.distributed, and for the board."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except (OSError, OverflowError):
                continue


if __name__ == "__main__":
    sys.exit(main())
