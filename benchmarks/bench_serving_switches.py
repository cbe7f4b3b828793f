"""300 requests at once on a GPU: tokens per second with each switch of the server on and off.

A model that has learned Python's help topics, requests whose prompts begin alike, as in `drafts` on
a CPU. It has some 80 s: rounds end when another one would not fit, and say how long they took. In
the first, which is not timed, kernels are compiled and graphs are made, by short answers. The sums
of a step depend on its rows, so that where two tokens are nearly as likely an answer may go on
otherwise.
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
STEPS, STEM, ANSWER, FIRST_ANSWER, TOP, PAGE_SIZE = 100, 450, 32, 8, 8, 16
SECONDS = 75  # for everything
REQUESTS = bench_drafts.REQUESTS


def main():
    if not arrays.gpu_available():
        print("serving_switches: needs a GPU")
        return
    import cupy

    start = time.perf_counter()
    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    recipe = Recipe(STEPS, learning_rate=1e-3, float16=True)
    trainer = Trainer(Config(len(characters), **MODEL), recipe, *parts, xp=cupy)
    for _ in range(STEPS):
        trainer.step()
    cupy.cuda.Device().synchronize()
    print(f"{STEPS} steps of training: {time.perf_counter() - start:.1f} s", flush=True)
    weights = {name: x.astype(np.float16) for name, x in trainer.weights.items()}
    pages = -(-(STEM + 12 + ANSWER) // PAGE_SIZE) + 1  # of a request
    sizes = {"page_size": PAGE_SIZE, "num_pages": pages * REQUESTS}
    sizes |= {"max_branches": REQUESTS, "max_rows": 4096}
    options = {"stem": STEM, "length": ANSWER, "first_length": FIRST_ANSWER, "exact": False}
    options |= {"clock": time.perf_counter, "seconds": SECONDS - (time.perf_counter() - start)}
    options["ways"] = bench_drafts.WAYS | {f"top {TOP} pages": {"topk_pages": TOP}}
    rows = bench_drafts.by_switch((weights, trainer.config), parts[1], **options, **sizes)
    note = (
        f"{MODEL['layers']} layers, {MODEL['heads']} heads of {MODEL['head_dim']}, float16, after "
        f"{STEPS} steps; prompts of {STEM} tokens that are alike and 12 of their own, answers of "
        f"{ANSWER} tokens at temperature 0; medians of alternating rounds, after one of answers of "
        f"{FIRST_ANSWER}; same text: answers as without the switch, with pages of the same dtype"
    )
    save("serving_switches", rows, note=note)


if __name__ == "__main__":
    main()
