"""How fast is attention at a head_dim above 256, with clusters of thread blocks and without?

PyTorch's kernels in one call are beside: FlashAttention-2 and cuDNN refuse these sizes, so it is
the memory-efficient kernel or the plain formula, as `scaled_dot_product_attention` chooses.
"""

import itertools

import numpy as np

from benchmarks.bench_tensor_core import REPEATS, ROUNDING, TOKENS, WIDTH, definition
from benchmarks.bench_tensor_core import relative_error as error_of
from benchmarks.timing import save, time_ms
from fa_numba.tensor_core import flash_attn_wide

HEAD_DIMS, SEQLENS = (512, 384, 320), (2048, 8192)
CLUSTERS = 1, 2, 4


def main():
    rows = []
    for dtype, head_dim, seqlen, causal in itertools.product(
        ROUNDING, HEAD_DIMS, SEQLENS, (False, True)
    ):
        if dtype == "bfloat16" or (head_dim == 512 and seqlen == max(SEQLENS)):
            rows.append(measure(dtype, head_dim, seqlen, causal))
    save(
        "wide",
        rows,
        note=f"TFLOP/s; {TOKENS} tokens in all, num_heads * head_dim = {WIDTH} or just below; "
        "4·batch·heads·seqlen²·head_dim, halved if causal; blocks: of a cluster; error: "
        "‖out − float64‖ / ‖float64‖",
    )


def measure(dtype, head_dim, seqlen, causal):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
    q, k, v = (torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
    flops = 4 * np.prod(shape, dtype=float) * seqlen * (0.5 if causal else 1)
    want = definition(q, k, v, causal)
    row = {"dtype": dtype, "head_dim": head_dim, "seqlen": seqlen, "causal": causal}
    for blocks in CLUSTERS:
        call = lambda: flash_attn_wide.flash_attn_wide.__wrapped__(q, k, v, causal=causal)  # noqa: E731
        usual, flash_attn_wide.CLUSTER = flash_attn_wide.CLUSTER, blocks
        try:
            error = error_of(call()[0], want)
            assert error <= 2 * ROUNDING[dtype], f"{row}, {blocks=}: {error}"
            row[f"blocks {blocks}"] = round(flops / time_ms(call, repeats=REPEATS) / 1e9, 1)
        finally:
            flash_attn_wide.CLUSTER = usual
    row["error"] = float(f"{error:.2g}")
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    call = lambda: scaled_dot_product_attention(*heads_first, is_causal=causal)  # noqa: E731
    row["SDPA"] = round(flops / time_ms(call, repeats=3, warm_ups=1) / 1e9, 1)
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
