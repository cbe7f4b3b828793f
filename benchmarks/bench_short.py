"""Calls that are short or limited by memory: how near are ours to a copy of the same bytes?

Each takes its turn with PyTorch's attention and with a copy that reads and writes as many bytes;
before that all of our output is compared with PyTorch's, which is cuDNN up to a head_dim of 256 and
its own choice above. Ten rounds, and the median of each.
"""

import numpy as np
import torch

from benchmarks.bench_decode_fast import on_torch_stream, paged
from benchmarks.peers import sdpa
from benchmarks.timing import save
from fa_numba import flash_attn, flash_attn_varlen, flash_decode, paged_attn_decode

ROUNDS = 10
DTYPE = torch.float16


def main():
    rows = [measure(*case) for case in (*short(), *packed(), *decoding())]
    save(
        "short",
        rows,
        note="float16; GB/s: all arrays counted once; of copy: of the rate of a copy of as many "
        "bytes; of SDPA: PyTorch's time over ours, by cuDNN up to 256 columns, for packed batches "
        "that of equal padded sequences",
    )


def array(*shape):
    return torch.randn(shape, device="cuda").to(DTYPE)


def theirs(q, k, v, causal=False):
    """PyTorch's call: cuDNN's kernel, or its own choice of the others for wide heads."""
    return sdpa("CUDNN_ATTENTION" if q.shape[3] <= 256 else "", q, k, v, causal)[0]


def short():
    """Many sequences that are one tile."""
    for head_dim in (64, 128):
        q, k, v = (array(128, 128, 32, head_dim) for _ in range(3))
        name = f"128 sequences of 128, 32 heads of {head_dim}"
        yield name, lambda x=(q, k, v): flash_attn(*x), theirs(q, k, v), 4 * q.nbytes


def packed():
    """Sequences of four tiles, packed, beside the padded form of the same."""
    for head_dim in (64, 128):
        q, k, v = (array(32 * 512, 2048 // head_dim, head_dim) for _ in range(3))
        starts = torch.arange(0, 32 * 512 + 1, 512, dtype=torch.int32, device="cuda")
        for causal in (False, True):

            def call(x=(q, k, v), causal=causal, starts=starts):
                return flash_attn_varlen(*x, starts, starts, causal=causal)

            padded = (x.view(32, 512, *x.shape[1:]) for x in (q, k, v))
            name = f"packed, 32 of 512, {q.shape[1]} heads of {head_dim}" + ", causal" * causal
            yield name, call, theirs(*padded, causal), 4 * q.nbytes


def decoding():
    """One query of each sequence, contiguous and in shuffled pages of 16."""
    for batch, seqlen, heads, kv_heads, head_dim in (
        (64, 2048, 32, 32, 64),
        (16, 8192, 32, 8, 128),
        (16, 8192, 32, 32, 128),
        (16, 8192, 16, 4, 512),
        (16, 8192, 8, 8, 512),
    ):
        q, k, v = (array(batch, n, h, head_dim) for n, h in
                   ((1, heads), (seqlen, kv_heads), (seqlen, kv_heads)))  # fmt: skip
        lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
        caches, table = paged(k, v, 16)
        name = f"decoding, {batch} × {seqlen}, {heads}/{kv_heads} heads of {head_dim}"
        peer, num_bytes = theirs(q, k, v), 2 * k.nbytes
        yield name, lambda x=(q, k, v, lengths): flash_decode(*x), peer, num_bytes
        given = q, *caches, table, lengths
        yield f"{name}, pages of 16", lambda x=given: paged_attn_decode(*x), peer, num_bytes


def measure(name, ours, peer, num_bytes):
    out, want = (x[0] if isinstance(x, tuple) else x for x in (ours(), peer()))
    error = (out.reshape(want.shape).double() - want.double()).norm() / want.double().norm()
    assert error < 2e-3, f"{name}: {error}"
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device="cuda")
    copy = source.clone()
    calls = {"ours": ours, "SDPA": peer, "copy": lambda: copy.copy_(source)}
    ms = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, call in calls.items():
            ms[key].append(on_torch_stream(call))
    ms = {key: float(np.median(x)) for key, x in ms.items()}
    return {
        "call": name,
        "ms": round(ms["ours"], 4),
        "GB/s": round(num_bytes / ms["ours"] / 1e6),
        "of copy": round(ms["copy"] / ms["ours"], 3),
        "of SDPA": round(ms["SDPA"] / ms["ours"], 3),
    }
