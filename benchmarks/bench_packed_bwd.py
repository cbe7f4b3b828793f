"""How fast are the gradients of packed batches, beside FlashAttention-2 and cuDNN?

Before anything is timed, the gradients of one head are compared with float64. FlashAttention-2
takes a packed batch as it is; cuDNN's padded backward pass is a peer where all lengths are equal.
"""

import functools
import itertools

import numpy as np

from benchmarks.bench_ladder import definition
from benchmarks.bench_tensor_core import ROUNDING, WIDTH, relative_error
from benchmarks.timing import save, time_ms
from fa_numba.tensor_core.flash_attn_bwd_varlen import flash_attn_bwd_varlen
from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen

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
    rows = []
    for (name, lengths), head_dim, causal in itertools.product(BATCHES.items(), HEAD_DIMS, CAUSAL):
        flops = 10 * WIDTH * (lengths.astype(float) ** 2).sum() * (0.5 if causal else 1)
        row = {"batch": name, "head_dim": head_dim, "causal": causal}
        for kernel, call, error in functions(lengths, head_dim, causal):
            ms = time_ms(call, repeats=REPEATS)
            row_of_kernel = {"kernel": kernel, **row, "ms": round(ms, 4)}
            row_of_kernel["TFLOP/s"] = round(flops / ms / 1e9, 1)
            rows.append(row_of_kernel | {"error": float(f"{error:.2g}")})
    save(
        "packed_bwd",
        rows,
        note=f"float16, num_heads * head_dim = {WIDTH}; FLOPs 10·head_dim for each pair of a "
        "query and a key that it sees, causal half of all; error: the largest of ‖x − float64‖ / "
        "‖float64‖ for dq, dk, dv of one head",
    )


def functions(lengths, head_dim, causal):
    """Yield (name, call without arguments, relative error) of ours, then of PyTorch's."""
    import torch

    torch.manual_seed(0)
    tokens, longest = int(lengths.sum()), int(lengths.max())
    shape = tokens, WIDTH // head_dim, head_dim
    dout, q, k, v = (torch.randn(shape, device="cuda").half() for _ in range(4))
    cu_seqlens = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    starts = cu_seqlens, cu_seqlens.clone()
    last = tokens - int(lengths[-1])  # the first token of the last sequence
    _, *want = definition(*(x[last:, -1].double() for x in (dout, q, k, v)), causal)

    def error_of(gradients):
        parts = (x.reshape(shape)[last:, -1] for x in gradients)
        return max(relative_error(x, y) for x, y in zip(parts, want, strict=True))

    out, lse = flash_attn_persistent_varlen(q, k, v, *starts, causal=causal)
    call = functools.partial(flash_attn_bwd_varlen, dout, q, k, v, out, lse, *starts, causal=causal)
    error = error_of(call())
    assert error <= 4 * ROUNDING["float16"], f"{lengths}, {head_dim=}, {causal=}: {error}"
    yield "flash_attn_bwd_varlen", call, error

    options = *starts, longest, longest, 0.0, causal
    out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(q, k, v, *options, False)
    backward = torch.ops.aten._flash_attention_backward
    call = functools.partial(backward, dout, q, k, v, out, lse, *options, seed, offset)
    yield "FlashAttention-2, packed", call, error_of(call())
    if len(set(lengths)) == 1:
        call = cudnn_backward(
            *(x.view(len(lengths), -1, *shape[1:]) for x in (dout, q, k, v)), causal
        )
        yield "cuDNN, padded", call, error_of(call())


def cudnn_backward(dout, q, k, v, causal):
    """The backward pass of SDPA on cuDNN, as a call without arguments."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs = [x.requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=causal)
    dout = dout.transpose(1, 2)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


if __name__ == "__main__":
    main()
