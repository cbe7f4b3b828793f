"""How fast are compiled attention kernels beside a library's, ours and a plain product?

FlexAttention is compiled for each size, so there are fewer sizes than in bench_tensor_core.
"""

import itertools
import math

from benchmarks.bench_tensor_core import TOKENS, WIDTH
from benchmarks.exact import ROUNDING, of_head, random_tensors, relative_error
from benchmarks.peers import PRODUCT, peers
from benchmarks.timing import cells, save, time_ms
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

HEAD_DIMS, SEQLENS, CAUSAL = (64, 128), (1024, 8192, 16384), (False, True)
DTYPE = "float16"
REPEATS = 8


def main():
    rows = [product()]
    for head_dim, seqlen, causal in itertools.product(HEAD_DIMS, SEQLENS, CAUSAL):
        rows += measure(head_dim, seqlen, causal)
    save(
        "peers",
        rows,
        note=f"{DTYPE}, {TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; FLOPs "
        "4·batch·heads·seqlen²·head_dim, halved if causal; error: ‖out − float64‖ / ‖float64‖ of "
        "the last head",
    )


def product(size=8192):
    """The row of a product of square matrices."""
    import torch

    ms = time_ms(torch.matmul, *random_tensors(2, (size, size), DTYPE), repeats=REPEATS)
    return {"kernel": PRODUCT, "dtype": DTYPE} | cells(ms, 2 * size**3)


def measure(head_dim, seqlen, causal):
    """Rows for one size; a row says of a peer that does not run why."""
    shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
    q, k, v = random_tensors(3, shape, DTYPE)
    want = of_head(*(x[-1, :, -1].double() for x in (q, k, v)), causal)

    def ours():
        return lambda: flash_attn_persistent(q, k, v, causal=causal)[0]

    flops = 4 * math.prod(shape) * seqlen * (0.5 if causal else 1)
    size = {"dtype": DTYPE, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
    rows = []
    for name, prepare in {"flash_attn_persistent": ours, **peers(q, k, v, causal)}.items():
        row = {"kernel": name, **size}
        try:
            call = prepare()
            error = relative_error(call()[-1, :, -1], want)
        except Exception as failure:  # whatever a compiler may raise
            rows.append(row | {"does not run": f"{type(failure).__name__}: {failure!s:.200}"})
            continue
        assert error <= 2 * ROUNDING[DTYPE], f"{name}, {shape}, {causal=}: {error}"
        ms = time_ms(call, repeats=REPEATS)
        rows.append(row | cells(ms, flops, error))
    return rows
