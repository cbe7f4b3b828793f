"""How fast are packed batches, forward and backward, beside FlashAttention-2 and cuDNN?

Before anything is timed, the results of one head are compared with float64. FlashAttention-2 takes
a packed batch as it is; cuDNN's padded kernel is a peer where all lengths are equal.
"""

import functools
import itertools

import numpy as np

from benchmarks.bench_tensor_core import WIDTH
from benchmarks.exact import ROUNDING, random_tensors, relative_error, with_gradients
from benchmarks.peers import sdpa
from benchmarks.timing import cells, save_each, time_ms
from fa_numba import flash_attn_varlen, flash_attn_varlen_grad

HEAD_DIMS, CAUSAL = (64, 128), (False, True)
REPEATS = 7


def random_lengths(batch, tokens):
    """Lengths of sequences, as random as cuts of a line are."""
    cuts = np.sort(np.random.default_rng(0).integers(1, tokens, batch - 1))
    return np.diff(cuts, prepend=0, append=tokens)


BATCHES = {
    "32 of 512": np.full(32, 512),
    "8 of 2048": np.full(8, 2048),
    "2 of 8192": np.full(2, 8192),
    "8 of any length": random_lengths(8, 16384),
    "32 of any length": random_lengths(32, 32768),
}


def main():
    cases = itertools.product(BATCHES, HEAD_DIMS, CAUSAL)
    save_each(
        "packed",
        {"{}, d = {}, causal={}".format(*x): functools.partial(measure, *x) for x in cases},
        note=f"float16, num_heads * head_dim = {WIDTH}; FLOPs forward 4·head_dim and backward "
        "10·head_dim for each pair of a query and a key that it sees, causal half of all; error: "
        "the largest of ‖x − float64‖ / ‖float64‖ for the results of one head",
    )


def measure(name, head_dim, causal):
    """The rows of one batch and head_dim."""
    lengths = BATCHES[name]
    flops = WIDTH * (lengths.astype(float) ** 2).sum() * (0.5 if causal else 1)
    for direction, kernel, call, error in functions(lengths, head_dim, causal):
        ms = time_ms(call, repeats=REPEATS)
        row = {"pass": direction, "kernel": kernel, "batch": name, "head_dim": head_dim}
        work = (4 if direction == "forward" else 10) * flops
        yield row | {"causal": causal} | cells(ms, work, error)


def functions(lengths, head_dim, causal):
    """Yield (pass, name, call without arguments, relative error) of ours, then of PyTorch's."""
    import torch

    tokens, longest = int(lengths.sum()), int(lengths.max())
    shape = tokens, WIDTH // head_dim, head_dim
    dout, q, k, v = random_tensors(4, shape)
    cu_seqlens = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    starts = cu_seqlens, cu_seqlens.clone()
    last = tokens - int(lengths[-1])  # the first token of the last sequence
    want = with_gradients(*(x[last:, -1].double() for x in (dout, q, k, v)), causal)

    def errors_of(out, *gradients):
        """Of the forward pass, and of the backward pass."""
        parts = (x.reshape(shape)[last:, -1] for x in (out, *gradients))
        errors = [relative_error(x, y) for x, y in zip(parts, want, strict=False)]
        return errors[0], max(errors[1:], default=None)

    forward = functools.partial(flash_attn_varlen, q, k, v, *starts, causal=causal)
    out, lse = forward()
    backward = functools.partial(
        flash_attn_varlen_grad, dout, q, k, v, out, lse, *starts, causal=causal
    )
    errors = errors_of(out, *backward())
    assert max(errors) <= 4 * ROUNDING["float16"], f"{lengths}, {head_dim=}, {causal=}: {errors}"
    yield "forward", "flash_attn_varlen", forward, errors[0]
    yield "backward", "flash_attn_varlen_grad", backward, errors[1]

    options = *starts, longest, longest, 0.0, causal
    forward = functools.partial(torch.ops.aten._flash_attention_forward, q, k, v, *options, False)
    out, lse, seed, offset, _ = forward()
    backward = functools.partial(
        torch.ops.aten._flash_attention_backward, dout, q, k, v, out, lse, *options, seed, offset
    )
    errors = errors_of(out, *backward())
    yield "forward", "FlashAttention-2, packed", forward, errors[0]
    yield "backward", "FlashAttention-2, packed", backward, errors[1]
    if len(set(lengths)) == 1:
        padded = [x.view(len(lengths), -1, *shape[1:]) for x in (dout, q, k, v)]
        forward, gradients = sdpa("CUDNN_ATTENTION", *padded[1:], causal)
        backward = gradients(padded[0])
        errors = errors_of(forward(), *backward())
        yield "forward", "cuDNN, padded", forward, errors[0]
        yield "backward", "cuDNN, padded", backward, errors[1]
