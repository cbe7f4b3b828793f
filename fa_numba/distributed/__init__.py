"""Attention over several devices.

communicator    the operations by which ranks exchange arrays; errors when one is lost or differs
in_process      ranks as threads in lock step, on NumPy arrays: to learn from and to test with
mpi             ranks as processes, by mpi4py
nccl            ranks as processes, one for each GPU, by CuPy's NCCL
run             starts these processes: python -m fa_numba.distributed.run
board, lost     how processes find each other, and find out which one is lost
layouts         which rank holds which tokens: contiguous, striped, zigzag; shard, unshard
parts           which of the keys here a rank's queries see, as options of a kernel
plan            the options of a call, checked and the same on all ranks
local_attn      attention of one part on the rank's own device
merge           partial results merged, over steps and over ranks
ring            each rank keeps its queries, and keys move on: ring_attn, ring_attn_grad
ulysses         tokens exchanged for heads: ulysses_attn, ulysses_attn_grad
tree            one query, keys on all ranks: tree_decode
paged           the paged cache over several devices: by heads, or by pages
prediction      bytes, pairs and times, by formula

A program is one function that every rank calls with its communicator first:

    q, k, v = (shard(x, "zigzag", 4) for x in (q, k, v))
    run = run_ranks(ring_attn, 4, q, k, v, causal=True)
    out = unshard([out for out, lse in run.results], "zigzag")
    run.bytes_sent, run.pairs         # of each rank, in each step

Each function refuses bad arguments with an error that names the argument, what it must be and what
it got. Where another rank has died or stalled, it raises RankLostError.
"""

from fa_numba.checks.names import no_such_name
from fa_numba.distributed.communicator import Communicator, RankLostError, RanksDifferError
from fa_numba.distributed.in_process import Run, run_ranks
from fa_numba.distributed.layouts import LAYOUTS, shard, unshard
from fa_numba.distributed.local_attn import numpy_attn, numpy_attn_grad
from fa_numba.distributed.paged import (
    context_parallel_decode,
    head_parallel_decode,
    local_seq_lens,
    local_slots,
)
from fa_numba.distributed.ring import ring_attn, ring_attn_grad
from fa_numba.distributed.tree import tree_decode
from fa_numba.distributed.ulysses import ulysses_attn, ulysses_attn_grad

__all__ = [
    "LAYOUTS", "Communicator", "RankLostError", "RanksDifferError", "Run",
    "context_parallel_decode", "head_parallel_decode", "local_seq_lens", "local_slots",
    "numpy_attn", "numpy_attn_grad", "ring_attn", "ring_attn_grad", "run_ranks", "shard",
    "tree_decode", "ulysses_attn", "ulysses_attn_grad", "unshard",
]  # fmt: skip


def __getattr__(name):
    raise no_such_name(__name__, name, __all__)
