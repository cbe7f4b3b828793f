"""What do masks cost on tensor cores, for each pair of query and key that is seen?

Before anything is timed, all of a kernel's output is compared with float64 at that size.
"""

import itertools

import numpy as np

from benchmarks.bench_tensor_core import ROUNDING, relative_error
from benchmarks.timing import save, time_ms
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS = (64, 128), (8192, 16384)
FULL, CAUSAL = {}, {"causal": True}  # what the others are compared with
MASKS = {
    "full": (FULL, FULL),
    "causal": (CAUSAL, CAUSAL),
    "window of 512": ({"window_size": (511, 0)}, CAUSAL),
    "window of 4096": ({"window_size": (4095, 0)}, CAUSAL),
    "softcap": ({"softcap": 30.0}, FULL),
    "causal, softcap": ({"causal": True, "softcap": 30.0}, CAUSAL),
    "ALiBi": ({"alibi": True}, FULL),
    "causal, ALiBi": ({"causal": True, "alibi": True}, CAUSAL),
    "full, a quarter of the K/V heads": ({"group_size": 4}, FULL),
    "full, one K/V head": ({"group_size": 0}, FULL),
    "causal, a quarter of the K/V heads": ({"causal": True, "group_size": 4}, CAUSAL),
}
REPEATS = 10


def main():
    rows = []
    for head_dim, seqlen in itertools.product(HEAD_DIMS, SEQLENS):
        rows += measure(head_dim, seqlen)
    save(
        "tensor_core_masks",
        rows,
        note=f"float16, {TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; TFLOP/s counts "
        "4·head_dim for each pair that is seen; error: ‖out − float64‖ / ‖float64‖",
    )


def measure(head_dim, seqlen, check=True):
    """Rows for one head_dim and seqlen."""
    import torch

    torch.manual_seed(0)
    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    shape = (batch, seqlen, num_heads, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    slopes = torch.tensor(0.5 ** np.linspace(0.5, 8, num_heads), device="cuda").float()
    rows, rates = [], {}
    for name, (mask, yardstick) in MASKS.items():
        options = dict(mask)
        num_kv_heads = num_heads // (options.pop("group_size", 1) or num_heads)
        if options.pop("alibi", False):
            options["alibi_slopes"] = slopes
        kv = [x[:, :, :num_kv_heads].contiguous() for x in (k, v)]
        call = lambda kv=kv, options=options: flash_attn_persistent(q, *kv, **options)  # noqa: E731
        row = {"mask": name, "head_dim": head_dim, "seqlen": seqlen}
        if check:
            error = relative_error(call()[0], definition(q, *kv, **options))
            assert error <= 2 * ROUNDING["float16"], f"{row}: {error}"
            row["error"] = float(f"{error:.2g}")
        ms = time_ms(call, repeats=REPEATS)
        pairs = int(seen(seqlen, **options).sum())
        rates[str(mask)] = rate = 4 * batch * num_heads * head_dim * pairs / ms / 1e9
        row |= {"ms": round(ms, 4), "TFLOP/s": round(rate, 1)}
        rows.append(row | {"of plain": round(rate / rates[str(yardstick)], 3)})
    return rows


def seen(seqlen, *, causal=False, window_size=(-1, -1), **_):
    """How many keys each query sees."""
    m = np.arange(seqlen)
    left, right = window_size[0], 0 if causal else window_size[1]
    first = np.maximum(0, m - left) if left >= 0 else 0
    end = np.minimum(seqlen, m + right + 1) if right >= 0 else seqlen
    return np.broadcast_to(end - first, seqlen)


def definition(q, k, v, *, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """Attention in float64 on the GPU, a head at a time; seqlen_q is seqlen_k."""
    import torch

    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    n = torch.arange(q.shape[1], device="cuda")
    ahead = n - n[:, None]
    left, right = window_size[0], 0 if causal else window_size[1]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if left >= 0:
        unseen |= -ahead > left
    if right >= 0:
        unseen |= ahead > right
    for b, head in np.ndindex(q.shape[0], q.shape[2]):
        kv_head = head * k.shape[2] // q.shape[2]
        s = q[b, :, head].double() @ k[b, :, kv_head].double().T / q.shape[3] ** 0.5
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if alibi_slopes is not None:
            s -= float(alibi_slopes[head]) * ahead.abs()
        p = torch.softmax(s.masked_fill_(unseen, -torch.inf), dim=-1)
        out[b, :, head] = p @ v[b, :, kv_head].double()
    return out


if __name__ == "__main__":
    main()
