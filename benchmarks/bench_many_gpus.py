"""How much of a GPU's rate do rings over several GPUs reach, and is their communication hidden?

One process for each GPU, over NCCL: `many_gpus_ranks`. Results are compared with float64 first, the
bytes sent and the pairs computed with their formulas.
share_of_single: the time of one GPU that has the whole sequence, divided by the number of GPUs and
by the time of all. ms_of_transfers: the bytes sent, at the rate of plain sends and receives.
ms_waited: how long a GPU computes nothing, because it waits for what is sent. hidden: the share of
the transfers' time in which it computes. The peer is a zigzag ring on torch.distributed
(`ring_of_torch`).
On 8 GPUs, 4 and 2 of them, as far as the machine has them. Each ends by itself within SECONDS.
FA_NUMBA_RANKS=4 FA_NUMBA_SECONDS=90 measures on four GPUs alone, for 90 seconds.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import machine, save
from fa_numba.distributed import run

WORLD_SIZES = 8, 4, 2
SECONDS = {8: 240, 4: 190, 2: 90}  # of measuring; what does not fit is left out
MARGIN = 45  # seconds more, after which all processes are ended


def main():
    count = num_gpus()
    if count < 2:
        print(f"many_gpus: needs two GPUs, found {count}")
        return
    given, rows = os.environ.get("FA_NUMBA_RANKS"), []
    sizes = [size for size in WORLD_SIZES if size <= count and given in (None, str(size))]
    if not sizes:
        raise SystemExit(f"FA_NUMBA_RANKS must be 2, 4 or 8 of {count} GPUs, got {given}")
    for world_size in sizes:
        rows += [{"gpus": world_size} | row for row in measured(world_size)]
    if not any("share_of_single" in row for row in rows):
        raise SystemExit("many_gpus: nothing was measured")
    save(
        "many_gpus",
        rows,
        note="causal, bfloat16, 32 heads, 8 K/V heads of 128; tokens: of each GPU",
        on=f"{max(row['gpus'] for row in rows)} × {machine()}",
    )


def measured(world_size):
    """The rows of so many ranks, all that were written before the time was over."""
    program = Path(__file__).with_name("many_gpus_ranks.py")
    seconds = int(os.environ.get("FA_NUMBA_SECONDS", SECONDS[world_size]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        command = [sys.executable, str(program), str(path), str(seconds)]
        isolate = os.environ.get("FA_NUMBA_ISOLATE") == "1"
        status = run.start(command, world_size, limit=seconds + MARGIN, isolate=isolate)
        rows = json.loads(path.read_text()) if path.exists() else []
    if status:
        print(f"many_gpus: {world_size} ranks ended with status {status} after {len(rows)} rows")
    return rows


def num_gpus():
    """The GPUs of this machine: 0 without CuPy."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return 0
