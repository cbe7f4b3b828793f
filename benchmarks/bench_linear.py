"""From which length on is attention without a softmax cheaper?"""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms

BATCH, NUM_HEADS, HEAD_DIM = 1, 16, 64
SEQLENS = (512, 2048, 8192, 32_768)
FEATURES = 128  # of Hedgehog: e^(x W) and e^(−x W), each of head_dim


def main():
    rng = cupy.random.default_rng(0)
    rows = []
    for seqlen in SEQLENS:
        shape = (BATCH, seqlen, NUM_HEADS, HEAD_DIM)
        q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
        ms = time_ms(fa_numba.flash_attn_v2, q, k, v, causal=True, repeats=6)
        rows.append({"kernel": "flash_attn_v2", "seqlen": seqlen, "ms": round(ms, 3)})
        w = rng.standard_normal((NUM_HEADS, HEAD_DIM, FEATURES), dtype=np.float32)
        w /= np.float32(2 * HEAD_DIM**0.5)
        maps = {"elu1": {}, "relu": {}, "hedgehog": {"weights": (w, w)}}
        for feature_map, options in maps.items():
            options = options | {"feature_map": feature_map, "causal": True}
            ms = time_ms(fa_numba.linear_attn, q, k, v, **options, repeats=6)
            name = f"linear_attn, {feature_map}"
            rows.append({"kernel": name, "seqlen": seqlen, "ms": round(ms, 3)})
    note = f"float32, causal, {NUM_HEADS} heads, head_dim {HEAD_DIM}"
    save("linear", rows, note=note)


if __name__ == "__main__":
    main()
