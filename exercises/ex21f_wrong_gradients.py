"""ex21f · Find the bug: the forward pass is right

`published` below is a training step of ring attention: forward, then backward. Its out is right.
dq, dk and dv have the right shapes, the right size, no NaN, and are wrong. On one rank they are
right. A released library had a bug of this kind in 2026.

forward and backward each do what their docstrings say. Write `mended`, which may call both. About 2
lines differ.

mended(comm, dout, q, kv, attend, merge, attend_grad) -> out, dq, dkv, called by every rank
    dout, q, out, dq   (c, head_dim) float32: of this rank
    kv, dkv            (2, c, head_dim) float32: this rank's keys and values, and their gradients
    attend, merge      as in ex21d
    attend_grad(dout, q, kv, out, lse, rank, owner) -> dq, dkv
                       the gradients by the pairs of the queries of `rank` and the keys of `owner`;
                       out and lse are those over all keys
"""

import numpy as np


def forward(comm, q, kv, attend, merge):
    """Ring attention: out, lse, and the tuple (q, keys and values it has now, out, lse)."""
    rank, world_size = comm.rank, comm.world_size
    state = attend(q, kv, rank, rank)
    for step in range(1, world_size):
        kv = comm.send_recv(kv, (rank + 1) % world_size, (rank - 1) % world_size)
        state = merge(state, attend(q, kv, rank, (rank - step) % world_size))
    out, lse = state
    saved = q, kv, out, lse
    return out, lse, saved


def backward(comm, dout, saved, attend_grad):
    """The gradients dq, dkv, from (q, this rank's own keys and values, out, lse)."""
    rank, world_size = comm.rank, comm.world_size
    q, kv, out, lse = saved
    dq, dkv = np.zeros_like(q), np.zeros_like(kv)
    for step in range(world_size):
        owner = (rank - step) % world_size
        dq_part, dkv_part = attend_grad(dout, q, kv, out, lse, rank, owner)
        dq, dkv = dq + dq_part, dkv + dkv_part
        kv, dkv = (comm.send_recv(x, (rank + 1) % world_size, (rank - 1) % world_size)
                   for x in (kv, dkv))  # fmt: skip
    return dq, dkv  # after world_size messages dkv is at its owner


def published(comm, dout, q, kv, attend, merge, attend_grad):
    """The training step with the bug, to read and to run. Leave it as it is."""
    out, lse, saved = forward(comm, q, kv, attend, merge)
    return out, *backward(comm, dout, saved, attend_grad)


def mended(comm, dout, q, kv, attend, merge, attend_grad):
    """out of this rank's queries, and the gradients dq and dkv of this rank's arrays."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21f: mended")


# Stub e810db1d of solutions/ex21f_wrong_gradients.py: `fa-numba reset ex21f` brings it back.
