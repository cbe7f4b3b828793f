"""300 requests at once on a CPU, as `serving_switches` on a GPU: the text must be the same.

Seconds are those of the processor, since a busy machine gives the clock's to others too.
"""

import os
import time
from functools import partial

import numba

from benchmarks.bench_drafts import STEPS, trained
from benchmarks.bench_serving_switches import (
    OWN,
    ROUNDS,
    WAYS,
    by_switch,
    engine_with,
    engines,
    reply_of,
)
from benchmarks.timing import cpu, save
from fa_numba.language_model import text
from fa_numba.language_model.blas_threads import one_blas_thread

STEM, ANSWER = 96, 16


def main():
    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    large = trained(4, 4, parts, len(characters))
    numba.set_num_threads(1)
    engines.update({name: engine_with(large, on, num_pages=2048) for name, on in WAYS.items()})

    def begin(*arguments):
        return partial(reply_of, *arguments, time.process_time)

    with one_blas_thread():
        *_, rows = by_switch(begin, parts[1], WAYS, stem=STEM, length=ANSWER)
    note = (
        f"a model of {large[1].num_weights:,} weights after {STEPS} steps; one thread; prompts of "
        f"{STEM} tokens that are alike and {OWN} of their own, answers of {ANSWER} tokens at "
        f"temperature 0; seconds of the processor, medians of {ROUNDS} alternating rounds (load "
        f"average of the machine {os.getloadavg()[0]:.1f}); the text is the same with every "
        "switch, with pages of the same dtype"
    )
    save("serving_switches_cpu", rows, note=note, on=cpu())
