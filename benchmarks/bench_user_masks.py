"""What does a mask or a score of the user's cost, beside our own options and FlexAttention?

FlexAttention is compiled by torch.compile, and its block mask is prepared: that is not counted. A
mask of ours makes its table of tiles in each call if it has arrays; that is counted. `a call` is
the time with a new block mask, ours and theirs. Before anything is timed, outputs of the last head
are compared with float64.
"""

import math
import time

import numpy as np

from benchmarks.bench_packed import random_lengths
from benchmarks.bench_tensor_core import ROUNDING, relative_error
from benchmarks.timing import save, time_ms
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_bwd_varlen import flash_attn_bwd_varlen
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen

SEQLEN, WIDTH = 16384, 2048  # one sequence; num_heads · head_dim
HEAD_DIMS = 128, 64
SIDE, WINDOW, PREFIX, DOCUMENTS = 128, 512, 1000, 32
REPEATS = 10
BATCHES = {"32 × 512": np.full(32, 512), "8 of any length": random_lengths(8, SEQLEN)}
NOTE = (
    f"float16, one sequence of {SEQLEN} tokens, or a packed batch of as many, num_heads · "
    f"head_dim = {WIDTH}; ms of the forward pass and of the gradients; over: time of the other "
    "over ours. own: the option of ours that does the same. call: the time of a forward call with "
    "a new table of tiles, theirs over ours"
)


def problems(num_heads):
    """Name, options, our own options for the same or None, mask_mod and score_mod or None."""
    import torch

    document = torch.arange(SEQLEN, device="cuda", dtype=torch.int32) * DOCUMENTS // SEQLEN
    bias = torch.randn(num_heads, 32, device="cuda")
    sinks = torch.randn(num_heads, device="cuda")

    def near(b, h, m, n):
        return (abs(m // SIDE - n // SIDE) <= 3) & (abs(m % SIDE - n % SIDE) <= 3)

    def first(b, h, m, n):
        return (n <= m) & ((m - n < WINDOW) | (n < 4))

    def t5(s, b, h, m, n):
        return s + bias[h, torch.clamp((m - n).abs() // 2, max=31)]

    return [
        ("causal", {"mask": lambda b, h, m, n: n <= m}, {"causal": True},
         lambda b, h, m, n: n <= m, None),
        ("window", {"mask": lambda b, h, m, n: (n <= m) & (m - n < WINDOW)},
         {"window_size": (WINDOW - 1, 0)}, lambda b, h, m, n: (n <= m) & (m - n < WINDOW), None),
        ("prefix-LM", {"mask": lambda b, h, m, n: (n <= m) | (n < PREFIX)}, None,
         lambda b, h, m, n: (n <= m) | (n < PREFIX), None),
        ("documents", {"mask": lambda b, h, m, n, d: d[m] == d[n], "mask_args": (document,)}, None,
         lambda b, h, m, n: document[m] == document[n], None),
        ("window, 4 first keys", {"mask": first}, None, first, None),
        ("neighbours in 2-D", {"mask": near}, None, near, None),
        ("softcap", {"score": lambda s, b, h, m, n: 30 * math.tanh(s / 30)}, {"softcap": 30.0},
         None, None),
        ("softcap, causal by parts", {"mask": by_parts, "mask_args": (0,),
          "score": lambda s, b, h, m, n: 30 * math.tanh(s / 30)}, {"causal": True, "softcap": 30.0},
         None, None),
        ("T5 bias", {"score": lambda s, b, h, m, n, t: s + t[h, min(abs(m - n) // 2, 31)],
                     "score_args": (bias,)}, None, None, t5),
        ("sinks", {"causal": True, "sinks": sinks}, {"causal": True}, None, None),
    ]  # fmt: skip


def by_parts(b, h, m, n, w):
    """A mask that is no option of ours; with w = 0 it is causal."""
    return (n <= m) | (n < w)


def main():
    rows = []
    for head_dim in HEAD_DIMS:
        for problem in problems(WIDTH // head_dim):
            rows.append(measure(head_dim, *problem))
            save("user_masks", rows, note=NOTE)
        for name, lengths in BATCHES.items():
            rows.append(measure_packed(head_dim, name, lengths))
            save("user_masks", rows, note=NOTE)


def measure_packed(head_dim, name, lengths):
    """A packed batch, against our own with causal, and a row of documents in FlexAttention."""
    import torch

    torch.manual_seed(0)
    tokens, num_heads = int(lengths.sum()), WIDTH // head_dim
    shape = tokens, num_heads, head_dim
    dout, q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(4))
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    packed = q, k, v, starts, starts
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).cuda()

    def causal_within(b, h, m, n):
        return (document[m] == document[n]) & (n <= m)

    def forward(options):
        return time_ms(flash_attn_persistent_varlen, *packed, **options, repeats=REPEATS)

    def gradients(options):
        arrays = dout, q, k, v, *flash_attn_persistent_varlen(*packed, **options), starts, starts
        return time_ms(flash_attn_bwd_varlen, *arrays, **options, repeats=REPEATS)

    ours, own = {"mask": by_parts, "mask_args": (0,)}, {"causal": True}
    out, _ = flash_attn_persistent_varlen(*packed, **ours)
    check(out[None], *(x[None] for x in (q, k, v)), causal_within)
    ms, ms_bwd = forward(ours), gradients(ours)
    row = {"head_dim": head_dim, "problem": f"packed, causal by parts, {name}"}
    row |= {"forward": round(ms, 4), "gradients": round(ms_bwd, 4)}
    row["over own"] = round(forward(own) / ms, 3)
    row["gradients over own"] = round(gradients(own) / ms_bwd, 3)
    return row | peer(*(x[None] for x in (dout, q, k, v)), causal_within, None, ms, ms_bwd)


def measure(head_dim, name, options, own, mask_mod, score_mod):
    import torch

    torch.manual_seed(0)
    shape = 1, SEQLEN, WIDTH // head_dim, head_dim
    dout, q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(4))
    out, lse = flash_attn_persistent(q, k, v, **options)
    if mask_mod is not None:
        check(out, q, k, v, mask_mod)
    row = {"head_dim": head_dim, "problem": name}

    def forward(options):
        return time_ms(flash_attn_persistent, q, k, v, **options, repeats=REPEATS)

    def gradients(options):
        arrays = dout, q, k, v, *flash_attn_persistent(q, k, v, **options)
        return time_ms(flash_attn_bwd_persistent, *arrays, **options, repeats=REPEATS)

    ms, ms_bwd = forward(options), gradients(options)
    row |= {"forward": round(ms, 4), "gradients": round(ms_bwd, 4)}
    if own is not None:
        row["over own"] = round(forward(own) / ms, 3)
        row["gradients over own"] = round(gradients(own) / ms_bwd, 3)
    if mask_mod is not None or score_mod is not None:
        row |= peer(dout, q, k, v, mask_mod, score_mod, ms, ms_bwd)
    if mask_mod is not None:
        row["call"] = round(
            host_ms(lambda: flex_call(q, k, v, mask_mod))
            / host_ms(lambda: flash_attn_persistent(q, k, v, **options)),
            1,
        )
    return row


def peer(dout, q, k, v, mask_mod, score_mod, ms, ms_bwd):
    """FlexAttention's time over ours."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.config.recompile_limit = 1000
    flex = torch.compile(flex_attention, dynamic=False)
    block_mask = None
    if mask_mod is not None:
        seqlen = q.shape[1]
        block_mask = create_block_mask(mask_mod, None, None, seqlen, seqlen, device="cuda")
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    heads_first = [x.transpose(1, 2) for x in inputs]

    def call():
        return flex(*heads_first, block_mask=block_mask, score_mod=score_mod)

    try:
        out = call()
    except RuntimeError as error:  # no configuration of its kernel fits
        print(f"FlexAttention: {str(error)[:200]}")
        return {}
    with torch.no_grad():
        over = time_ms(call, repeats=REPEATS) / ms
    gradient = dout.transpose(1, 2)

    def backward():
        torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    over_bwd = time_ms(backward, repeats=REPEATS) / ms_bwd
    return {
        "over FlexAttention": round(over, 2),
        "gradients over FlexAttention": round(over_bwd, 2),
    }


def flex_call(q, k, v, mask_mod):
    """A call of FlexAttention with a block mask of its own."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    block_mask = create_block_mask(mask_mod, None, None, SEQLEN, SEQLEN, device="cuda")
    with torch.no_grad():
        torch.compile(flex_attention, dynamic=False)(
            *(x.transpose(1, 2) for x in (q, k, v)), block_mask=block_mask
        )


def host_ms(call, repeats=5):
    """Median of the time until the GPU has done a call."""
    import torch

    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return sorted(samples)[repeats // 2]


def check(out, q, k, v, mask_mod):
    """Compare out of the last head with float64, 2048 queries at a time."""
    import torch

    q, k, v = (x[0, :, -1].double() for x in (q, k, v))
    n, wanted = torch.arange(len(q), device="cuda"), []
    for start in range(0, len(q), 2048):
        m = n[start : start + 2048, None]
        s = q[start : start + 2048] @ k.T / q.shape[1] ** 0.5
        s = s.masked_fill(~mask_mod(0, q.new_tensor(0).long(), m, n), -torch.inf)
        wanted.append(s.softmax(-1) @ v)
    error = relative_error(out[0, :, -1], torch.cat(wanted))
    assert error <= 4 * ROUNDING["float16"], error


if __name__ == "__main__":
    main()
