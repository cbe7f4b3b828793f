"""What does dropout cost on tensor cores, and how fast is it beside FlashAttention-2 with dropout?

PyTorch's scaled_dot_product_attention runs FlashAttention-2, with the same probability. Before
anything is timed, outputs of the last head are compared with float64 under the same mask.
"""

import itertools

import numpy as np

from benchmarks.exact import ROUNDING, random_tensors, relative_error, with_gradients
from benchmarks.peers import sdpa
from benchmarks.timing import cells, save, time_ms
from fa_numba import reference
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

TOKENS, WIDTH = 16384, 2048  # batch * seqlen and num_heads * head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS = (64, 128), (2048, 8192)
DROPOUT = {"dropout_p": 0.1, "seed": 3}
REPEATS = 10


def main():
    rows = []
    for sizes in itertools.product(HEAD_DIMS, SEQLENS, (False, True)):
        rows += measure(*sizes)
    save(
        "dropout",
        rows,
        note=f"float16, dropout_p {DROPOUT['dropout_p']}, {TOKENS} tokens in all, num_heads * "
        f"head_dim = {WIDTH}; TFLOP/s counts 4·head_dim for each pair of query and key, gradients "
        "10·head_dim, half of it if causal; error: ‖out − float64‖ / ‖float64‖ of the last head",
    )


def measure(head_dim, seqlen, causal):
    """Rows for the forward pass and the gradients: with dropout, without it, and of the peer."""
    batch, num_heads = TOKENS // seqlen, WIDTH // head_dim
    shape = (batch, seqlen, num_heads, head_dim)
    dout, q, k, v = random_tensors(4, shape)
    threshold = int(DROPOUT["dropout_p"] * 2**15)
    kept = mask_of_last_head(batch, num_heads, seqlen, threshold).double()
    kept *= 2**15 / (2**15 - threshold)
    dropped = {"dropout_p": DROPOUT["dropout_p"]}
    peer_forward, gradients = sdpa("FLASH_ATTENTION", q, k, v, causal, **dropped)
    rows, calls = [], {"forward": {}, "gradients": {}}
    for name, options in (("dropout", DROPOUT), ("no dropout", {})):
        options = options | {"causal": causal}
        out, lse = flash_attn_persistent(q, k, v, **options)
        arrays = dout, q, k, v, out, lse
        calls["forward"][name] = lambda options=options: flash_attn_persistent(q, k, v, **options)
        calls["gradients"][name] = lambda arrays=arrays, options=options: flash_attn_bwd_persistent(
            *arrays, **options
        )
    calls["forward"]["FlashAttention-2"] = peer_forward
    calls["gradients"]["FlashAttention-2"] = gradients(dout)
    want = with_gradients(*(x[-1, :, -1].double() for x in (dout, q, k, v)), causal, kept)
    for part, products in (("forward", 2), ("gradients", 5)):
        got = calls[part]["dropout"]()
        got = got[:1] if part == "forward" else got
        wanted = want[:1] if part == "forward" else want[1:]
        pairs = zip(got, wanted, strict=True)
        error = max(relative_error(x[-1, :, -1], y) for x, y in pairs)
        assert error <= 4 * ROUNDING["float16"], f"{part}, {shape}, {causal}: {error}"
        ms = {name: time_ms(call, repeats=REPEATS) for name, call in calls[part].items()}
        flops = 2 * products * batch * num_heads * seqlen**2 * head_dim / (2 if causal else 1)
        row = {"pass": part, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        row |= cells(ms["dropout"], flops, error)
        row |= {f"over {name}": round(x / ms["dropout"], 3) for name, x in ms.items()}
        del row["over dropout"]
        rows.append(row)
    return rows


def mask_of_last_head(batch, num_heads, seqlen, threshold):
    """The mask of the last head of the last sequence, 256 queries at a time."""
    import torch

    key = DROPOUT["seed"] % 2**32, DROPOUT["seed"] // 2**32
    n, place = np.arange(seqlen), (num_heads - 1, batch - 1)
    kept = np.empty((seqlen, seqlen), bool)
    for start in range(0, seqlen, 256):
        m = np.arange(start, start + 256)[:, None]
        counter = n // 16 * 4 + n // 2 % 4, m // 16 * 8 + m % 8, *place
        words = reference.philox(counter, key, rounds=7)
        which = np.broadcast_to(n // 8 % 2 * 2 + m // 8 % 2, (256, seqlen))
        word = np.choose(which, [np.broadcast_to(x, which.shape) for x in words])
        bits = word >> (n % 2 * 16).astype(np.uint64) & np.uint64(2**15 - 1)
        kept[m[:, 0]] = bits >= threshold
    return torch.asarray(kept, device="cuda")
