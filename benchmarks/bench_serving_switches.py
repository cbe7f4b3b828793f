"""300 requests at once on a GPU: tokens per second with each switch of the server on and off.

A model that has learned Python's help topics, requests whose prompts begin alike, as in `drafts` on
a CPU. The sums of a step depend on its rows, so that where two tokens are nearly as likely an
answer may go on otherwise.
"""

import time

import numpy as np

from benchmarks import bench_drafts
from benchmarks.timing import save
from fa_numba.language_model import text
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer
from fa_numba.runtime import arrays

MODEL = {"layers": 6, "heads": 12, "kv_heads": 12, "head_dim": 64, "context": 1024}
STEPS, STEM, ANSWER, TOP, PAGE_SIZE = 150, 900, 64, 8, 16
REQUESTS = bench_drafts.REQUESTS


def main():
    if not arrays.gpu_available():
        print("serving_switches: needs a GPU")
        return
    import cupy

    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    recipe = Recipe(STEPS, learning_rate=1e-3, float16=True)
    trainer = Trainer(Config(len(characters), **MODEL), recipe, *parts, xp=cupy)
    for _ in range(STEPS):
        trainer.step()
    weights = {name: x.astype(np.float16) for name, x in trainer.weights.items()}
    pages = -(-(STEM + 12 + ANSWER) // PAGE_SIZE) + 1  # of a request
    sizes = {"page_size": PAGE_SIZE, "num_pages": pages * REQUESTS}
    sizes |= {"max_branches": REQUESTS, "max_rows": 4096}
    options = {"stem": STEM, "length": ANSWER, "exact": False, "clock": time.perf_counter}
    options["ways"] = bench_drafts.WAYS | {f"top {TOP} pages": {"topk_pages": TOP}}
    rows = bench_drafts.by_switch((weights, trainer.config), parts[1], **options, **sizes)
    note = (
        f"{MODEL['layers']} layers, {MODEL['heads']} heads of {MODEL['head_dim']}, float16, after "
        f"{STEPS} steps; prompts of {STEM} tokens that are alike and 12 of their own, answers of "
        f"{ANSWER} tokens at temperature 0; medians of {bench_drafts.ROUNDS} alternating rounds; "
        "same text: answers as without the switch, with pages of the same dtype"
    )
    save("serving_switches", rows, note=note)


if __name__ == "__main__":
    main()
