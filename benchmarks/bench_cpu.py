"""How fast are the jobs on NumPy arrays on a CPU, beside what else a Python program can call?

    python -m benchmarks cpu        five minutes on two cores

The least time of several rounds, in which all columns take turns; float32 where nothing is said.

flash_attn, flash_attn_grad     GFLOP/s: 4 · batch · heads · n² · head_dim operations, half of them
                                with a causal mask, 2.5 times as many for gradients
flash_decode, paged_attn_decode GB/s: K and V, read once; one query for each sequence
softmax, softmax_topk           GB/s: rows read once, and results written once

fa_numba        `fa_numba.cpu`, as many threads as Numba takes
NumPy           products by BLAS, all heads at once or one after the other; of a decoding step the
                faster of `matmul` and `einsum`; of softmax the faster of NumPy and SciPy
JAX, PyTorch    their own functions, where they are installed
"""

import importlib.util
import math
import os
import time

import numpy as np

from benchmarks.timing import cpu, save
from fa_numba.cpu import (
    flash_attn,
    flash_attn_grad,
    flash_decode,
    paged_attn_decode,
    softmax,
    softmax_topk,
)

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
CACHES = [  # batch, keys, heads, key heads, head_dim
    (1, 1024, 8, 8, 64),
    (1, 4096, 8, 8, 64),
    (8, 4096, 8, 8, 64),
    (1, 16384, 32, 8, 128),
    (1, 65536, 8, 8, 64),
]
PAGE_SIZE = 16
ROWS = [(64, 64), (1000, 1000), (4096, 1024), (64, 32768), (1, 131072)]
TOP_K = 5
SECONDS, ROUNDS = 0.2, 3  # of each column of a row, at least
MAX_SECONDS = 2.0  # a first round that takes longer is the only one


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
    return (lambda: numpy_forward(q, k, v, hidden), lambda: numpy_gradients(dout, q, k, v, hidden))


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


def numpy_decode(q, k, v, product_of_scores, product_of_values):
    """Attention of one query for each sequence; heads that share a key head are rows."""
    batch, _, heads, head_dim = q.shape
    q = q.reshape(batch, k.shape[2], -1, head_dim)
    s = product_of_scores(q, k)
    s *= np.float32(1 / math.sqrt(head_dim))
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return product_of_values(s, v).reshape(batch, 1, heads, head_dim)


MATMUL = (lambda q, k: q @ k.transpose(0, 2, 3, 1), lambda p, v: p @ v.transpose(0, 2, 1, 3))
EINSUM = (
    lambda q, k: np.einsum("bhgd,bnhd->bhgn", q, k),
    lambda p, v: np.einsum("bhgn,bnhd->bhgd", p, v),
)


def decode_calls(batch, num_keys, heads, num_kv_heads, head_dim):
    """The bytes of K and V, and functions by the names of jobs and columns."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, 1, heads, head_dim), dtype=np.float32)
    shape = batch, num_keys, num_kv_heads, head_dim
    k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    seq_lens = np.full(batch, num_keys, np.int32)
    pages = rng.permutation(batch * num_keys // PAGE_SIZE).astype(np.int32).reshape(batch, -1)
    k_pages, v_pages = (np.empty_like(x).reshape(-1, PAGE_SIZE, *shape[2:]) for x in (k, v))
    for x, x_pages in ((k, k_pages), (v, v_pages)):
        x_pages[pages.reshape(-1)] = x.reshape(-1, PAGE_SIZE, *shape[2:])

    def gathered(x_pages):
        return x_pages[pages].reshape(shape)

    peers = {
        "NumPy, matmul": lambda: numpy_decode(q, k, v, *MATMUL),
        "NumPy, einsum": lambda: numpy_decode(q, k, v, *EINSUM),
    }
    paged_peers = {"NumPy": lambda: numpy_decode(q, gathered(k_pages), gathered(v_pages), *MATMUL)}
    if importlib.util.find_spec("jax"):
        import jax

        attend = jax.jit(jax.nn.dot_product_attention)
        arrays = [jax.numpy.asarray(x) for x in (q, k, v)]
        peers["JAX"] = lambda: attend(*arrays).block_until_ready()
    if importlib.util.find_spec("torch"):
        import torch

        tensors = [torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)]
        attend_torch = torch.nn.functional.scaled_dot_product_attention
        peers["PyTorch"] = lambda: attend_torch(*tensors, enable_gqa=heads != num_kv_heads)
    return k.nbytes + v.nbytes, {
        "flash_decode": {"fa_numba": lambda: flash_decode(q, k, v, seq_lens), **peers},
        "paged_attn_decode": {
            "fa_numba": lambda: paged_attn_decode(q, k_pages, v_pages, pages, seq_lens),
            **paged_peers,
        },
    }


def numpy_softmax(x):
    y = x - x.max(axis=-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)
    return y


def numpy_topk(x):
    columns = np.argpartition(x, -TOP_K, axis=-1)[:, -TOP_K:]
    order = np.argsort(-np.take_along_axis(x, columns, -1), axis=-1, kind="stable")
    columns = np.take_along_axis(columns, order, -1)
    top = np.take_along_axis(x, columns, -1)
    largest = top[:, :1]
    return np.exp(top - largest) / np.exp(x - largest).sum(axis=-1, keepdims=True), columns


def row_calls(num_rows, num_cols, dtype):
    """The bytes of a result, and functions by the names of jobs and columns."""
    x = np.random.default_rng(0).standard_normal((num_rows, num_cols), dtype=np.float32)
    x = x.astype(dtype)
    calls = {"softmax": {"fa_numba": lambda: softmax(x), "NumPy": lambda: numpy_softmax(x)}}
    top = {"fa_numba": lambda: softmax_topk(x, TOP_K), "NumPy": lambda: numpy_topk(x)}
    if importlib.util.find_spec("scipy") and x.dtype == np.float32:
        from scipy import special

        calls["softmax"]["NumPy, SciPy"] = lambda: special.softmax(x, axis=-1)
    if importlib.util.find_spec("jax"):
        import jax

        x_jax, of_rows = jax.numpy.asarray(x), jax.jit(lambda x: jax.nn.softmax(x, axis=-1))
        of_top = jax.jit(lambda x: jax.lax.top_k(jax.nn.softmax(x, axis=-1), TOP_K))
        calls["softmax"]["JAX"] = lambda: of_rows(x_jax).block_until_ready()
        top["JAX"] = lambda: jax.block_until_ready(of_top(x_jax))
    if importlib.util.find_spec("torch"):
        import torch

        bits = x if x.dtype == np.float32 else x.view(np.int16)
        x_torch = torch.from_numpy(bits)
        x_torch = x_torch if x.dtype == np.float32 else x_torch.view(torch.bfloat16)
        calls["softmax"]["PyTorch"] = lambda: x_torch.softmax(dim=-1)
        top["PyTorch"] = lambda: x_torch.softmax(dim=-1).topk(TOP_K)
    return x.nbytes, calls | ({"softmax_topk": top} if num_cols > 64 else {})


def best_seconds(calls):
    """The least of several rounds for each of `calls`, which take turns."""
    best = dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        if not name.startswith("NumPy"):
            call()  # compiles
    start, rounds = time.perf_counter(), 0
    while rounds < ROUNDS or time.perf_counter() - start < SECONDS * len(calls):
        rounds += 1
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - before)
        if sum(best.values()) > MAX_SECONDS:
            break
    return best


def row(job, problem, variant, work, unit, seconds):
    """A row of results: ms of ours, and the speed of each column."""
    speeds = {}
    for name, t in seconds.items():
        column = name.split(",")[0]  # the best of NumPy's ways
        speeds[column] = max(speeds.get(column, 0), work / t / 1e9)
    others = max(speed for name, speed in speeds.items() if name != "fa_numba")
    found = {"job": job, "problem": problem, "variant": variant, "unit": unit}
    found["ms"] = f"{1e3 * seconds['fa_numba']:.3g}"
    found |= {name: f"{speeds[name]:.3g}" if name in speeds else "–" for name in CALLS}
    found["over the best other"] = f"{speeds['fa_numba'] / others:.2f}"
    print(*found.values(), flush=True)
    return found


def attention_rows():
    rng = np.random.default_rng(0)
    for batch, n, heads in SIZES:
        for head_dim in HEAD_DIMS if n <= MAX_GRADIENT else HEAD_DIMS[1:2]:
            shape = batch, n, heads, head_dim
            dout, q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
            for causal in (False, True):
                both = {
                    name: calls(dout, q, k, v, causal)
                    for name, calls in CALLS.items()
                    if name != "JAX" or batch * heads * n * n <= MAX_SCORES
                }
                work = 4 * batch * heads * n * n * head_dim / (2 if causal else 1)
                for i, (job, factor) in enumerate((("flash_attn", 1), ("flash_attn_grad", 2.5))):
                    if i == 1 and n > MAX_GRADIENT:
                        continue
                    seconds = best_seconds({name: calls[i] for name, calls in both.items()})
                    variant = f"d = {head_dim}, {'causal' if causal else 'full'}"
                    problem = f"{batch} x {n} x {heads}"
                    yield row(job, problem, variant, factor * work, "GFLOP/s", seconds)


def other_rows():
    for sizes in CACHES:
        batch, num_keys, heads, num_kv_heads, head_dim = sizes
        work, jobs = decode_calls(*sizes)
        problem = f"{batch} x {num_keys} x {num_kv_heads}"
        variant = f"d = {head_dim}, {heads // num_kv_heads} query heads each"
        for job, calls in jobs.items():
            yield row(job, problem, variant, work, "GB/s", best_seconds(calls))
    for num_rows, num_cols in ROWS:
        for dtype in ("float32", "bfloat16"):
            size, jobs = row_calls(num_rows, num_cols, dtype)
            for job, calls in jobs.items():
                work = 2 * size if job == "softmax" else size
                problem = f"{num_rows} x {num_cols}"
                yield row(job, problem, dtype, work, "GB/s", best_seconds(calls))


def main():
    found = [*other_rows(), *attention_rows()]
    note = (
        f"{', '.join(CALLS)} in turn, the least time of several rounds; gradients of JAX and "
        "PyTorch include their forward pass (load average of the machine "
        f"{os.getloadavg()[1]:.1f})"
    )
    save("cpu", found, note=note, on=cpu())
