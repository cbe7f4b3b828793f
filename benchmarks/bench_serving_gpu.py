"""What does a GPU serve? Tokens per second and latency, beside a plain PyTorch loop.

The model has random weights. The tables are those of `serving`, on a GPU and without preemption.
PyTorch's loop has scaled_dot_product_attention, a contiguous cache and no scheduling: all answers
begin and end together.
"""

import importlib.util
import itertools
from functools import partial

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
from benchmarks.timing import save_each

BATCHES = 1, 4, 16, 64, 256
BRANCHES = 64  # answers at a time, where no batch is given


def main():
    models = itertools.product(SIZES, ("float32", "float16"))
    parts = {f"{size} model, {dtype}": partial(answers, size, dtype) for size, dtype in models}
    parts["batching and load"] = batching_and_load
    note = (
        f"pages of {PAGE_SIZE} tokens; where no batch is given nanoGPT's model in float16, and at "
        f"most {BRANCHES} answers at a time"
    )
    save_each("serving_gpu", parts, note=note)


def answers(size, dtype):
    """Rows of answers at a time, of one model."""
    import cupy

    model = make_model(size, cupy, np.dtype(dtype).type)
    for row in of_model(model, f"{size} model, {dtype}"):
        yield {"table": "Answers at a time"} | row


def batching_and_load():
    """Rows of the other tables."""
    import cupy

    model = make_model("nanoGPT's", cupy, np.float16)
    tables = {
        "Static and continuous batching": by_batching(model, BRANCHES),
        "Load": by_load(model, BRANCHES, seconds=3.0),
    }
    return [{"table": title} | row for title, found in tables.items() for row in found]


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
