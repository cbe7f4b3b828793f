"""What does a GPU serve? Tokens per second and latency, beside a plain PyTorch loop.

The model has random weights. The tables are those of `serving`, on a GPU and without preemption.
PyTorch's loop has scaled_dot_product_attention, a contiguous cache and no scheduling: all answers
begin and end together.

At last a model that has learned Python's help topics serves 300 requests at once, whose prompts
begin alike: each switch on and off, as in `drafts`. The sums of a step depend on its rows, so that
where two tokens are nearly as likely an answer may go on otherwise.
"""

import importlib.util
import time

import numpy as np

from benchmarks import bench_drafts
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
from fa_numba.language_model import text
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer
from fa_numba.runtime import arrays

BATCHES = 1, 4, 16, 64, 256
LEARNED = {"layers": 6, "heads": 12, "kv_heads": 12, "head_dim": 64, "context": 1024}
STEPS, STEM, LENGTH, TOP = 300, 900, 64, 8
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
        f"{bench_drafts.REQUESTS} requests at once": by_switch(),
    }
    rows = [{"table": title} | row for title, found in tables.items() for row in found]
    note = (
        f"pages of {PAGE_SIZE} tokens; where no batch is given nanoGPT's model in float16, and at "
        f"most {BRANCHES} answers at a time; {bench_drafts.REQUESTS} requests at once: a model of "
        f"{LEARNED['layers']} layers, {LEARNED['heads']} heads and {LEARNED['kv_heads']} K/V heads "
        f"of {LEARNED['head_dim']} after {STEPS} steps, float16, prompts of {STEM} tokens that are "
        f"alike and 12 of their own, answers of {LENGTH} at temperature 0; same text: answers as "
        "without the switch, with pages of the same dtype"
    )
    save("serving_gpu", rows, note=note)


def by_switch():
    """Each switch on and off, with a model that has learned."""
    import cupy

    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    recipe = Recipe(STEPS, learning_rate=1e-3, float16=True)
    trainer = Trainer(Config(len(characters), **LEARNED), recipe, *parts, xp=cupy)
    for _ in range(STEPS):
        trainer.step()
    weights = {name: x.astype(np.float16) for name, x in trainer.weights.items()}
    each = -(-(STEM + 12 + LENGTH) // PAGE_SIZE) + 1  # pages
    sizes = {"page_size": PAGE_SIZE, "num_pages": each * bench_drafts.REQUESTS}
    sizes |= {"max_branches": bench_drafts.REQUESTS, "max_rows": 4096}
    options = {"stem": STEM, "length": LENGTH, "exact": False, "clock": time.perf_counter}
    options["ways"] = bench_drafts.WAYS | {f"top {TOP} pages": {"topk_pages": TOP}}
    return bench_drafts.by_switch((weights, trainer.config), parts[1], **options, **sizes)


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
