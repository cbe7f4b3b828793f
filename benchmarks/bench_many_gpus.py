"""How much of a GPU's rate do rings over several GPUs reach, and is their communication hidden?

One process for each GPU, over NCCL: `many_gpus_ranks`. Results are compared with float64 first.
share_of_single: the time of one GPU that has the whole sequence, divided by the number of GPUs and
by the time of all. ms_without_communication: the same computation on keys that have not moved.
ms_of_transfers: the bytes sent, at the rate of plain sends and receives. hidden: the share of these
milliseconds that does not show; it means nothing where they are fewer than the noise.
The peer is a zigzag ring on torch.distributed (`ring_of_torch`).
The benchmark ends by itself within SECONDS, and needs two GPUs.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import machine, save
from fa_numba.distributed import run

SECONDS = 130  # of measuring; what does not fit is left out
LIMIT = 175  # after which all processes are ended


def main():
    count = num_gpus()
    if count < 2:
        print(f"many_gpus: needs two GPUs, found {count}")
        return
    world_size = min(count, int(os.environ.get("FA_NUMBA_RANKS", "2")))
    seconds = int(os.environ.get("FA_NUMBA_SECONDS", SECONDS))
    program = Path(__file__).with_name("many_gpus_ranks.py")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        command = [sys.executable, str(program), str(path), str(seconds)]
        isolate = os.environ.get("FA_NUMBA_ISOLATE") == "1"
        limit = seconds + LIMIT - SECONDS
        status = run.start(command, world_size, limit=limit, isolate=isolate)
        rows = json.loads(path.read_text()) if path.exists() else []
    if status:
        print(f"many_gpus: the ranks ended with status {status} after {len(rows)} rows")
    if not any("share_of_single" in row for row in rows):
        raise SystemExit("many_gpus: nothing was measured")
    save(
        "many_gpus",
        rows,
        note="causal, bfloat16, 32 heads, 8 K/V heads of 128; tokens: of each GPU",
        on=f"{world_size} × {machine()}",
    )


def num_gpus():
    """The GPUs of this machine: 0 without CuPy."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return 0


if __name__ == "__main__":
    main()
