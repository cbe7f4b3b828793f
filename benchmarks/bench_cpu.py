"""How fast is attention of NumPy arrays on a CPU, beside what else a Python program can call?

    python -m benchmarks cpu        ten minutes on two cores

GFLOP/s, counting 4 · batch · heads · n² · head_dim operations, half of them with a causal mask, and
2.5 times as many for gradients; the best of several rounds, in which all columns take turns.

fa_numba        `fa_numba.cpu`, as many threads as Numba takes
NumPy           two matrix products by BLAS and a softmax, all heads at once or one after the other
JAX, PyTorch    their own attention, where they are installed
"""

import importlib.util
import math
import os
import time

import numpy as np

from benchmarks.readme import table
from benchmarks.timing import cpu, save
from fa_numba.cpu import flash_attn, flash_attn_grad

SIZES = [  # batch, n, heads
    (12, 64, 4),
    (2, 256, 8),
    (1, 1024, 8),
    (1, 4096, 8),
    (1, 16384, 8),
]
HEAD_DIMS = 32, 64, 128
MAX_GRADIENT = 4096  # tokens; NumPy needs three matrices of scores for them
MAX_TOGETHER = 2**24  # scores that NumPy computes at once; beyond, head by head
MAX_SCORES = 2**30  # beyond, JAX, which keeps all of them, is not asked
SECONDS, ROUNDS = 0.5, 3  # of each cell, at least
MAX_SECONDS = 4.0  # a first round that takes longer is the only one


def _groups(q, *others):
    """Parts of arrays of (batch, heads, n, head_dim) whose scores NumPy computes at once."""
    batch, heads, n, _ = q.shape
    if batch * heads * n * n <= MAX_TOGETHER:
        yield q, *others
        return
    for b in range(batch):
        for h in range(heads):
            yield tuple(x[b, h] for x in (q, *others))


def _probabilities(q, k, hidden):
    s = q @ k.swapaxes(-1, -2)
    s *= np.float32(1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        s += hidden
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return s


def _heads_first(*arrays):
    return [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in arrays]


def numpy_forward(q, k, v, hidden):
    q, k, v = _heads_first(q, k, v)
    out = np.empty_like(q)
    for q_i, k_i, v_i, out_i in _groups(q, k, v, out):
        np.matmul(_probabilities(q_i, k_i, hidden), v_i, out=out_i)
    return out.transpose(0, 2, 1, 3)


def numpy_gradients(dout, q, k, v, hidden):
    dout, q, k, v = _heads_first(dout, q, k, v)
    dq, dk, dv = (np.empty_like(x) for x in (q, k, v))
    for do_i, q_i, k_i, v_i, dq_i, dk_i, dv_i in _groups(dout, q, k, v, dq, dk, dv):
        p = _probabilities(q_i, k_i, hidden)
        np.matmul(p.swapaxes(-1, -2), do_i, out=dv_i)
        ds = do_i @ v_i.swapaxes(-1, -2)
        ds -= (ds * p).sum(axis=-1, keepdims=True)
        ds *= p
        ds *= np.float32(1 / math.sqrt(q.shape[-1]))
        np.matmul(ds, k_i, out=dq_i)
        np.matmul(ds.swapaxes(-1, -2), q_i, out=dk_i)
    return [x.transpose(0, 2, 1, 3) for x in (dq, dk, dv)]


def _our_calls(dout, q, k, v, causal):
    out, lse = flash_attn(q, k, v, causal=causal)
    return (
        lambda: flash_attn(q, k, v, causal=causal),
        lambda: flash_attn_grad(dout, q, k, v, out, lse, causal=causal),
    )


def _numpy_calls(dout, q, k, v, causal):
    n = q.shape[1]
    hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1) if causal else None
    return (
        lambda: numpy_forward(q, k, v, hidden),
        lambda: numpy_gradients(dout, q, k, v, hidden),
    )


def _jax_functions():
    import jax

    def attend(q, k, v, causal):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def loss(q, k, v, dout, causal):
        return (attend(q, k, v, causal) * dout).sum()

    forward = jax.jit(attend, static_argnums=3)
    backward = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=4)

    def calls(dout, q, k, v, causal):
        q, k, v, dout = (jax.numpy.asarray(x) for x in (q, k, v, dout))
        return (
            lambda: forward(q, k, v, causal).block_until_ready(),
            lambda: jax.block_until_ready(backward(q, k, v, dout, causal)),
        )

    return calls


def _torch_functions():
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention

    def calls(dout, q, k, v, causal):
        q, k, v, dout = (torch.from_numpy(x).transpose(1, 2) for x in (q, k, v, dout))

        def backward():
            inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            return torch.autograd.grad(attend(*inputs, is_causal=causal), inputs, dout)

        return lambda: attend(q, k, v, is_causal=causal), backward

    return calls


CALLS = {"fa_numba": _our_calls, "NumPy": _numpy_calls} | {
    name: functions()
    for name, module, functions in (
        ("JAX", "jax", _jax_functions),
        ("PyTorch", "torch", _torch_functions),
    )
    if importlib.util.find_spec(module)
}


def best_seconds(calls):
    """The least of several rounds for each of `calls`, which take turns."""
    best = dict.fromkeys(calls, math.inf)
    start, rounds = time.perf_counter(), -1  # the first compiles, and touches memory
    while rounds < ROUNDS or time.perf_counter() - start < SECONDS * len(calls):
        rounds += 1
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - before)
        if sum(best.values()) > MAX_SECONDS:
            break
    return best


def rows():
    rng = np.random.default_rng(0)
    for batch, n, heads in SIZES:
        for head_dim in HEAD_DIMS if n <= MAX_GRADIENT else HEAD_DIMS[1:2]:
            shape = batch, n, heads, head_dim
            dout, q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
            for causal in (False, True):
                both = {name: calls(dout, q, k, v, causal) for name, calls in CALLS.items()}
                work = 4 * batch * heads * n * n * head_dim / (2 if causal else 1)
                for i, (job, factor) in enumerate((("flash_attn", 1), ("flash_attn_grad", 2.5))):
                    if i == 1 and n > MAX_GRADIENT:
                        continue
                    seconds = best_seconds({name: calls[i] for name, calls in both.items()})
                    speeds = {name: factor * work / t / 1e9 for name, t in seconds.items()}
                    others = max(speed for name, speed in speeds.items() if name != "fa_numba")
                    row = {"job": job, "batch x n x heads": f"{batch} x {n} x {heads}"}
                    row |= {"head_dim": head_dim, "mask": "causal" if causal else "full"}
                    row |= {"ms": f"{1e3 * seconds['fa_numba']:.3g}"}
                    row |= {
                        name: f"{speeds[name]:.3g}" if name in speeds else "–" for name in CALLS
                    }
                    row |= {"over the best other": f"{speeds['fa_numba'] / others:.2f}"}
                    print(*row.values(), flush=True)
                    yield row


def main():
    table_rows = sorted(rows(), key=lambda row: row["job"])
    print(table(table_rows))
    note = (
        "GFLOP/s, float32, the best of several rounds of all columns in turn; gradients of JAX and "
        "PyTorch with their forward pass, of which they have kept nothing (load average of the "
        f"machine {os.getloadavg()[1]:.1f})"
    )
    save("cpu", table_rows, note=note, on=cpu())


if __name__ == "__main__":
    main()
