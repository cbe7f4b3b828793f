"""What does a state of constant size buy? Linear attention beside softmax attention, by length.

prompt   a whole causal sequence: linear_attn in its chunked form beside flash_attn_v2
token    one new token: linear_attn from its state beside flash_decode over a cache of all tokens
"""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba.kernels.flash_decode import flash_decode

BATCH, NUM_HEADS, HEAD_DIM = 4, 16, 64
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def main():
    rng = cupy.random.default_rng(0)
    rows = []
    for seqlen in LENGTHS:
        q, k, v = (
            rng.standard_normal((BATCH, seqlen, NUM_HEADS, HEAD_DIM), dtype=np.float32)
            for _ in range(3)
        )
        token = tuple(x[:, -1:] for x in (q, k, v))
        before = tuple(x[:, :-1] for x in (q, k, v))
        lengths = cupy.full(BATCH, seqlen, np.int32)
        for feature_map in ("elu1", "relu"):
            options = {"feature_map": feature_map, "causal": True}
            name = f"linear_attn, {feature_map}"
            out, _ = fa_numba.linear_attn(q, k, v, **options)
            rows.append(row("prompt", seqlen, name, fa_numba.linear_attn, q, k, v, **options))
            _, state = fa_numba.linear_attn(*before, **options)
            options["state"] = state
            last, _ = fa_numba.linear_attn(*token, **options)
            assert bool((abs(last[:, 0] - out[:, -1]) <= 1e-4).all()), (seqlen, feature_map)
            rows.append(row("token", seqlen, name, fa_numba.linear_attn, *token, **options))
        arguments = token[0], k, v, lengths
        rows.append(row("token", seqlen, "flash_decode", flash_decode, *arguments))
        v2 = fa_numba.flash_attn_v2
        rows.append(row("prompt", seqlen, "flash_attn_v2", v2, q, k, v, causal=True))
    rows.sort(key=lambda row: row["what"])
    note = f"float32, causal, batch {BATCH}, {NUM_HEADS} heads, head_dim {HEAD_DIM}"
    save("linear", rows, note=note)


def row(what, seqlen, kernel, function, *args, **options):
    ms = round(time_ms(function, *args, **options), 4)
    return {"what": what, "seqlen": seqlen, "kernel": kernel, "ms": ms}
