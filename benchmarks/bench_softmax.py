"""What does a pass fewer buy? Our softmaxes against torch.softmax and a copy of the matrix."""

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba import analysis

# The last is a vocabulary: its rows begin at no multiple of 16 bytes.
SIZES = ((32768, 1024), (8192, 8192), (4096, 32768), (4096, 32767), (2048, 65536), (4096, 50257))
LESSONS = ("naive_softmax", "safe_softmax", "online_softmax")


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
            y = torch.empty_like(x)
            truth = torch.softmax(x.double(), 1)
            ours = (*LESSONS, "softmax_registers") if dtype == "float32" else ("softmax_registers",)
            candidates = {name: getattr(fa_numba, name) for name in ours}
            candidates["torch.softmax"] = lambda x: torch.softmax(x, 1)
            candidates["copy"] = lambda x, y=y: y.copy_(x)
            for name, function in candidates.items():
                row = {"kernel": name, "rows": num_rows, "columns": num_cols, "dtype": dtype}
                error = None if name == "copy" else float((function(x) - truth).abs().max())
                ms = time_ms(function, x)
                moved = 2 * x.numel() * x.element_size()
                row |= {"ms": round(ms, 4), "GB/s": round(moved / ms / 1e6)}
                if name in ours:
                    packs = {"packs": True} if x.element_size() == 2 else {}
                    traffic = getattr(analysis.traffic, name)(num_rows, num_cols, **packs)
                    passes = traffic.bytes(x.element_size()) / (moved / 2)
                else:
                    passes = None
                row |= {"passes over x": passes, "max error": error and float(f"{error:.1e}")}
                rows.append(row)
            del x, y, truth
    save("softmax", rows, note="GB/s counts one read and one write of the matrix")
