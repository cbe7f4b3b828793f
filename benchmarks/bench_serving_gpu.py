"""What does a GPU serve? Tokens per second and latency, beside a plain PyTorch loop.

The model has random weights. The tables are those of `serving`, on a GPU and without preemption.
PyTorch's loop has scaled_dot_product_attention, a contiguous cache and no scheduling: all answers
begin and end together.
"""

import importlib.util

import numpy as np

from benchmarks.bench_serving import (
    ANSWER,
    PAGE_SIZE,
    PROMPT,
    SIZES,
    by_batch,
    by_batching,
    by_load,
    make_model,
)
from benchmarks.timing import save
from fa_numba.runtime import arrays

BATCHES = 1, 4, 16, 64, 256
BRANCHES = 64  # answers at a time, where no batch is given


def main():
    if not arrays.gpu_available():
        print("serving_gpu: needs a GPU")
        return
    import cupy

    answers = []
    for size in SIZES:
        for dtype in (np.float32, np.float16):
            model = make_model(size, cupy, dtype)
            answers += of_model(model, f"{size} model, {np.dtype(dtype).name}")
    model = make_model("nanoGPT's", cupy, np.float16)
    tables = {
        "Answers at a time": answers,
        "Static and continuous batching": by_batching(model, BRANCHES),
        "Load": by_load(model, BRANCHES, seconds=3.0),
    }
    rows = [{"table": title} | row for title, found in tables.items() for row in found]
    note = (
        f"pages of {PAGE_SIZE} tokens; where no batch is given nanoGPT's model in float16, and at "
        f"most {BRANCHES} answers at a time"
    )
    save("serving_gpu", rows, note=note)


def of_model(model, what):
    rows = by_batch(model, f"{what}, CUDA graph", BATCHES)
    rows += by_batch(model, f"{what}, no graph", (1, 16, 64), graphs=False)
    if importlib.util.find_spec("torch") is None:
        return rows
    from benchmarks import serving_torch

    for batch in BATCHES:
        for name, ms in serving_torch.step_ms(model, batch, PROMPT, ANSWER).items():
            rate = round(batch / ms * 1e3)
            rows.append(
                {
                    "what": f"{what}, {name}",
                    "batch": batch,
                    "tokens/s": rate,
                    "ms/step": round(ms, 3),
                }
            )
    return rows


if __name__ == "__main__":
    main()
