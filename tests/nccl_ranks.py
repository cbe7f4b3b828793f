"""What tests/test_distributed_gpu.py runs on each GPU: attention over NCCL, or a fault."""

import os
import signal
import sys
import time

import cupy
import numpy as np

from fa_numba.distributed import (
    LAYOUTS,
    nccl,
    ring_attn,
    ring_attn_grad,
    run_ranks,
    shard,
    tree_decode,
    ulysses_attn,
    ulysses_attn_grad,
)
from fa_numba.on_cuda_cores.running_state import convert

SEQLEN, LIMIT = 701, 8.0


def copies(q, k, v, **options):
    """A stand-in for attention, with nothing to compile while another rank waits."""
    return q.copy(), cupy.zeros((1, q.shape[2], q.shape[1]), np.float32)


def copies_grad(dout, q, k, v, out, lse, **options):
    return q.copy(), k.copy(), v.copy()


def program(comm, q, k, v, *, method, fault=None):
    """Results of a method, forward and backward, with q as dout."""
    layout = "zigzag" if method == "ulysses" else method
    forward, backward = ring_attn, ring_attn_grad
    if method == "ulysses":
        forward, backward = ulysses_attn, ulysses_attn_grad
    with q.device:  # of a thread of run_ranks it is not the current one
        options = {"layout": layout, "seqlen": SEQLEN, "causal": True}
        attn, attn_grad = (copies, copies_grad) if fault else (None, None)
        out, lse = forward(comm, q, k, v, attn=attn, **options)
        if comm.rank == 1:
            fail(fault)
        return out, lse, *backward(comm, q, q, k, v, out, lse, attn_grad=attn_grad, **options)


def fail(fault):
    if fault == "raise":
        raise ValueError("out of luck")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stall":
        time.sleep(20)


def decode(comm, q, k, v):
    """The last query over the keys of all ranks."""
    with q.device:
        return tree_decode(comm, q, k, v, seqlen=SEQLEN)


def check_decoding(comm, q, k, v):
    """`decode` beside ranks in one process."""
    shards = [shard(x, "contiguous", comm.world_size) for x in (k, v)]
    queries = [q[:, -1:]] * comm.world_size
    got = decode(comm, queries[0], *(x[comm.rank] for x in shards))
    want = run_ranks(decode, comm.world_size, queries, *shards).results[comm.rank]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.get(), y.get(), strict=True)


def main(fault):
    with nccl.communicator(timeout=60 if fault == "right" else LIMIT) as comm:
        random = cupy.random.RandomState(0)
        shapes = [(1, SEQLEN, heads, 128) for heads in (16, 4, 4)]
        whole = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
        whole = [convert(x, np.dtype("float16")) for x in whole]
        for method in (*LAYOUTS, "ulysses"):
            layout = "zigzag" if method == "ulysses" else method
            shards = [shard(x, layout, comm.world_size) for x in whole]
            mine = [x[comm.rank] for x in shards]
            if fault != "right":  # compile all before the fault: a lost rank is awaited for seconds
                run_ranks(program, comm.world_size, *shards, method=method, fault="none")
            got = program(comm, *mine, method=method, fault=None if fault == "right" else fault)
            want = run_ranks(program, comm.world_size, *shards, method=method).results[comm.rank]
            for i, (x, y) in enumerate(zip(got, want, strict=True)):
                if i == 2:  # parts of dq are added in any order
                    np.testing.assert_allclose(x.get(), y.get(), atol=2e-3)
                else:
                    np.testing.assert_array_equal(x.get(), y.get(), strict=True)
        if fault == "right":
            check_decoding(comm, *whole)
        print("right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
