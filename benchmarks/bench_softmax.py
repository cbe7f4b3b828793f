"""What does one pass fewer buy? Naive, safe and online softmax against torch.softmax."""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba import analysis

SIZES = ((32768, 1024), (8192, 8192), (4096, 32768))
OURS = ("naive_softmax", "safe_softmax", "online_softmax")


def main():
    import torch

    rng = cupy.random.default_rng(0)
    rows = []
    for num_rows, num_cols in SIZES:
        x = rng.standard_normal((num_rows, num_cols), dtype=np.float32)
        truth = cupy.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        truth /= truth.sum(axis=1, keepdims=True)

        candidates = {name: getattr(fa_numba, name) for name in OURS}
        x_torch = torch.as_tensor(x, device="cuda")
        for name, function in candidates.items():
            error = float(abs(function(x) - truth).max())
            ms = time_ms(function, x)
            moved = getattr(analysis, name)(num_rows, num_cols).bytes(4)
            rows.append(row(name, num_rows, num_cols, ms, x.nbytes, moved, error))
        ms = time_ms(torch.softmax, x_torch, 1)
        rows.append(row("torch.softmax", num_rows, num_cols, ms, x.nbytes, None, None))
    save("softmax", rows, note="float32; GB/s counts one read and one write of the matrix")


def row(name, num_rows, num_cols, ms, nbytes, moved, error):
    return {
        "kernel": name,
        "rows": num_rows,
        "columns": num_cols,
        "ms": round(ms, 4),
        "GB/s": round(2 * nbytes / ms / 1e6),
        "passes over x": moved and round(moved / nbytes, 2),
        "max error": error and float(f"{error:.1e}"),
    }


if __name__ == "__main__":
    main()
