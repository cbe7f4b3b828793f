"""What tests/test_distributed_mpi.py runs under mpiexec: attention on ranks, or a fault.

    mpiexec -n 4 python tests/mpi_program.py RESULTS.npz [raise | stall | kill | differ-... ...]

Rank 0 writes the results of all to RESULTS.npz. Of several differences the last one ends the
program; of the others each rank says what it was told.
"""

import os
import signal
import sys
import time

import numpy as np

from fa_numba.distributed import (
    LAYOUTS,
    RanksDifferError,
    mpi,
    numpy_attn,
    numpy_attn_grad,
    ring_attn,
    ring_attn_grad,
    shard,
    tree_decode,
    ulysses_attn,
)

SEQLEN = 45
LIMIT = 2.0  # seconds, where a rank stalls


def inputs():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, SEQLEN, 4, 8), dtype=np.float32)
    k, v = (rng.standard_normal((1, SEQLEN, 2, 8), dtype=np.float32) for _ in "kv")
    return q, k, v


def calls(q, k, v, world_size):
    """(name, function, arguments of each rank, options) of all that is tried."""
    for layout in LAYOUTS:
        shards = [shard(x, layout, world_size) for x in (q, k, v)]
        options = {"layout": layout, "seqlen": SEQLEN, "causal": True}
        yield f"ring_{layout}", ring_attn, shards, options | {"attn": numpy_attn}
        yield f"ulysses_{layout}", ulysses_attn, shards, options | {"attn": numpy_attn}
        of_tree = [[q[:, -1:]] * world_size, *shards[1:]]
        options = {"layout": layout, "seqlen": SEQLEN, "attn": numpy_attn}
        yield f"tree_{layout}", tree_decode, of_tree, options


def ring_and_gradients(comm, q, k, v, *, attn, **options):
    """out, lse, dq, dk, dv of a ring, with q as dout."""
    out, lse = ring_attn(comm, q, k, v, attn=attn, **options)
    gradients = ring_attn_grad(comm, q, q, k, v, out, lse, attn_grad=numpy_attn_grad, **options)
    return out, lse, *gradients


def differ(comm, fault, q, k, v):
    """A ring in which rank 1 has another dtype, number of heads or of rows, or option."""
    q, k, v = (shard(x[:, :42], "zigzag", comm.world_size)[comm.rank] for x in (q, k, v))
    causal = True
    if fault.startswith("differ-later"):
        comm.checked = fault == "differ-later-checked"
        ring_attn(comm, q, k, v, attn=numpy_attn, causal=True)
    if comm.rank == 1:
        if fault == "differ-dtype" or fault.startswith("differ-later"):
            q, k, v = (x.astype(np.float16) for x in (q, k, v))
        if fault == "differ-heads":
            q = q[:, :, :2]
        if fault == "differ-rows":
            q, k, v = (x[:, 2:] for x in (q, k, v))
        causal = fault != "differ-causal"
    ring_attn(comm, q, k, v, attn=numpy_attn, causal=causal)


def fail(comm, fault):
    if comm.rank == 1:
        if fault == "raise":
            raise ValueError("out of luck")
        if fault == "stall":
            time.sleep(600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def main(path, *faults):
    q, k, v = inputs()
    results, (*caught, fault) = {}, faults or [""]
    with mpi.communicator(timeout=LIMIT if fault == "stall" else 60) as comm:
        for each in caught:
            try:
                differ(comm, each, q, k, v)
            except RanksDifferError as error:
                sys.stderr.write(f"{each}: {error}\n")
        if fault.startswith("differ"):
            differ(comm, fault, q, k, v)
        for name, function, shards, options in calls(q, k, v, comm.world_size):
            fail(comm, fault)
            function = ring_and_gradients if function is ring_attn else function
            comm.record.steps.clear()
            mine = list(function(comm, *(x[comm.rank] for x in shards), **options))
            mine.append(np.array([(s.bytes_sent, s.messages, s.pairs) for s in comm.record.steps]))
            for i, x in enumerate(mine):
                shapes = [tuple(s) for s in comm.all_gather(np.array(x.shape))]
                for rank, part in enumerate(comm.all_gather(x, shapes)):
                    results[f"{name}_{i}_{rank}"] = part
        if comm.rank == 0:
            np.savez(path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
