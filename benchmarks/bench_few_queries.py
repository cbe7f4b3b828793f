"""How fast is attention with fewer tiles of queries than SMs?

Few queries with many keys, where the keys must be split, and small problems. `flash_attn` and the
kernel that it takes, beside PyTorch's attention.
"""

import itertools
import math

from benchmarks.exact import ROUNDING, of_head, relative_error
from benchmarks.peers import peers
from benchmarks.timing import cells, save, time_ms
from fa_numba import flash_attn, which

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
FEW_QUERIES = [
    (1, seqlen_q, 65536, *heads, head_dim)
    for head_dim, heads, seqlen_q in itertools.product(
        (64, 128), ((16, 16), (32, 8)), (17, 64, 128, 512)
    )
]
SMALL = [
    (64, 197, 197, 12, 12, 64),  # a vision transformer
    (256, 77, 77, 8, 8, 64),  # the text of CLIP
    (1, 1000, 1000, 8, 8, 64),
    (1, 512, 512, 16, 16, 128),
    (1, 1024, 1024, 8, 8, 128),
]
PEERS = "SDPA cuDNN", "SDPA FlashAttention-2", "SDPA memory-efficient"
DTYPE = "float16"
REPEATS = 10


def main():
    save(
        "few_queries",
        [measure(*problem) for problem in FEW_QUERIES + SMALL],
        note=f"{DTYPE}, ms; TFLOP/s: 4·batch·heads·seqlen_q·seqlen_k·head_dim; ratio: the best of "
        "PyTorch's over ours; error: ‖out − float64‖ / ‖float64‖ of the last head",
    )


def measure(batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim):
    """A row for one problem."""
    import torch

    torch.manual_seed(0)
    q, k, v = (
        torch.randn((batch, seqlen, heads, head_dim), device="cuda", dtype=torch.float16)
        for seqlen, heads in ((seqlen_q, num_heads), *[(seqlen_k, num_kv_heads)] * 2)
    )
    out, _ = flash_attn(q, k, v)
    want = of_head(*(x[-1, :, -1].double() for x in (q, k, v)), False)
    error = relative_error(out[-1, :, -1], want)
    assert error <= 4 * ROUNDING[DTYPE], f"{q.shape}, {k.shape}: {error}"
    ms = time_ms(flash_attn, q, k, v, repeats=REPEATS)
    row = {
        "batch": batch,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "heads": f"{num_heads}/{num_kv_heads}",
        "head_dim": head_dim,
        "kernel": which(q, k, v).kernel,
        **cells(ms, 4 * math.prod(q.shape) * seqlen_k, error),
    }
    calls = peers(q, k, v, False)
    for name in PEERS:
        try:
            row[name] = round(time_ms(calls[name](), repeats=REPEATS), 4)
        except RuntimeError:
            row[name] = None  # it cannot run this problem
    best = min(filter(None, (row[name] for name in PEERS)), default=math.nan)
    return row | {"ratio": round(best / ms, 3)}
