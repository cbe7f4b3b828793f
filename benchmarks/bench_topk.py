"""What does fusing the softmax with the choice of the k largest buy?"""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms

K = 5
SIZES = ((4096, 8192), (4096, 32_000), (1024, 128_000))


def main():
    import torch

    rng = cupy.random.default_rng(0)
    rows = []
    for num_rows, num_cols in SIZES:
        x = rng.standard_normal((num_rows, num_cols), dtype=np.float32)
        tensor = torch.as_tensor(x, device="cuda")
        candidates = {
            "softmax_topk": lambda x=x: fa_numba.softmax_topk(x, K),
            "torch.softmax, then topk": lambda x=tensor: torch.softmax(x, 1).topk(K),
            "torch.softmax": lambda x=tensor: torch.softmax(x, 1),
        }
        values, columns = candidates["softmax_topk"]()
        want = torch.softmax(tensor.double(), 1).topk(K)
        assert float(abs(values - cupy.asarray(want.values)).max()) < 1e-6
        for name, function in candidates.items():
            ms = time_ms(function)
            rows.append(
                {"kernel": name, "rows": num_rows, "columns": num_cols, "ms": round(ms, 4)}
                | {"GB/s": round(x.nbytes / ms / 1e6)}
            )
    save("topk", rows, note=f"float32, k = {K}; GB/s counts one read of the matrix")


if __name__ == "__main__":
    main()
