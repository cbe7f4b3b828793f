"""What does fusing the softmax with the choice of the k largest buy?"""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba.kernels.softmax_topk import softmax_topk

K = 5
SIZES = ((4096, 8192), (4096, 32_000), (1024, 128_000), (32, 128_000))


def main():
    import torch

    rng = cupy.random.default_rng(0)
    rows = []
    for num_rows, num_cols in SIZES:
        numbers = torch.as_tensor(
            rng.standard_normal((num_rows, num_cols), dtype=np.float32), device="cuda"
        )
        for dtype in ("float32", "float16", "bfloat16"):
            x = numbers.to(getattr(torch, dtype))
            candidates = {
                "softmax_topk": lambda x: softmax_topk(x, K),
                "softmax_topk_warps": lambda x: fa_numba.softmax_topk_warps(x, K),
                "torch.softmax, then topk": lambda x: torch.softmax(x, 1).topk(K),
                "torch.softmax": lambda x: torch.softmax(x, 1),
                "torch.sum": lambda x: x.sum(1),  # reads as much
            }
            truth = torch.softmax(x.double(), 1)
            want = torch.sort(truth, dim=1, descending=True, stable=True)
            for name in ("softmax_topk", "softmax_topk_warps"):
                values, columns = candidates[name](x)
                assert (columns == want.indices[:, :K]).all(), f"{name}: other columns"
                error = (values / want.values[:, :K] - 1).abs().max()
                assert error <= (1e-5 if dtype == "float32" else 2.0**-8), f"{name}: {error}"
            del truth, want
            for name, function in candidates.items():
                ms = time_ms(function, x)
                read = x.numel() * x.element_size()
                rows.append(
                    {"kernel": name, "rows": num_rows, "columns": num_cols, "dtype": dtype}
                    | {"ms": round(ms, 4), "GB/s": round(read / ms / 1e6)}
                )
    save("topk", rows, note=f"k = {K}; GB/s counts one read of the matrix")
