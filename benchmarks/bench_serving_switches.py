"""300 requests at once on a GPU: tokens per second with each switch of the server on and off.

A model that has learned Python's help topics, requests whose prompts begin alike. Each way has an
engine in a process of its own. In the first rounds, which are not timed, all of them compile their
kernels and make their graphs at the same time: a kernel's form depends on the number of rows of
a chunk and of splits, so these rounds are as long as the others, and two, since guesses differ.
Then one way comes after the other. Rounds say how long they took, and with `--seconds` there is no
other one where it would not fit. The sums of a step depend on its rows, so that where two tokens
are nearly as likely an answer may go on otherwise.
"""

import contextlib
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks import timing
from benchmarks.bench_drafts import answers_of, pieces
from benchmarks.timing import save, without
from fa_numba.language_model import text
from fa_numba.language_model.model import Config
from fa_numba.language_model.server import Engine
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.train import Recipe, Trainer

REQUESTS, ROUNDS, OWN = 300, 3, 12  # tokens of a prompt that are its own
WARM_UPS = 2
WAYS = {
    "none": {},
    "prefix cache": {"share": True},
    "prefix cache, cascade": {"share": True, "cascade": True},
    "fp8": {"fp8": True},
    "ngram": {"draft": NGramDrafter},
    "all": {"share": True, "cascade": True, "fp8": True, "draft": NGramDrafter},
}
MODEL = {"layers": 6, "heads": 12, "kv_heads": 12, "head_dim": 64, "context": 1024}
STEPS, STEM, ANSWER, TOP, PAGE_SIZE = 100, 450, 32, 8, 16
engines = {}  # of this process, by way


class Reply(NamedTuple):
    """The answers to a round of prompts, with their time and what the engine counted."""

    answers: list
    seconds: float
    counts: np.ndarray  # steps, tokens of prompts found and all, guesses kept and all
    in_8_bits: bool
    page_bytes: int


def main():
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
    weights = {name: x.astype(np.float16).get() for name, x in trainer.weights.items()}
    pages = -(-(STEM + OWN + ANSWER) // PAGE_SIZE) + 1  # of a request
    sizes = {"page_size": PAGE_SIZE, "num_pages": pages * REQUESTS}
    sizes |= {"max_branches": REQUESTS, "max_rows": 4096}
    ways = WAYS | {f"top {TOP} pages": {"topk_pages": TOP}}
    note = (
        f"{MODEL['layers']} layers, {MODEL['heads']} heads of {MODEL['head_dim']}, float16, after "
        f"{STEPS} steps; prompts of {STEM} tokens that are alike and {OWN} of their own, "
        f"answers of {ANSWER} tokens at temperature 0; medians of alternating rounds, after "
        f"{WARM_UPS} that are not timed; same text: answers as without the switch, with pages of "
        "the same dtype"
    )
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, on in ways.items():
            process = ProcessPoolExecutor(
                1,
                multiprocessing.get_context("spawn"),
                initializer=start_on_gpu,
                initargs=(name, weights, trainer.config, on, sizes),
            )
            processes[name] = stack.enter_context(process)

        def begin(name, *prompts_and_length):
            arguments = name, *prompts_and_length, time.perf_counter
            return processes[name].submit(reply_of, *arguments).result

        sizes = {"stem": STEM, "length": ANSWER, "warm_ups": WARM_UPS}
        for rows in by_switch(begin, parts[1], ways, **sizes, exact=False):
            save("serving_switches", rows, note=without(list(ways)[len(rows) :], note))


def start_on_gpu(name, weights, config, on, sizes):
    """Make the engine of a way in this process."""
    import cupy

    on_gpu = {name: cupy.asarray(x) for name, x in weights.items()}
    engines[name] = engine_with((on_gpu, config), on, **sizes)


def reply_of(name, prompts, length, clock):
    """The `Reply` of this process's engine of a way: greedy answers of `length` tokens."""
    engine = engines[name]
    before = counts(engine)
    options = {"max_tokens": length, "temperature": 0, "clock": clock}
    answers, seconds = answers_of(engine, prompts, **options)
    if [len(x) for x in answers] != [length] * len(prompts):
        raise AssertionError(f"{name}: not every answer has {length} tokens")
    if engine.pool.num_free != engine.pool.num_pages:
        raise AssertionError(f"{name}: pages are left")
    model = engine.model
    return Reply(answers, seconds, counts(engine) - before, model.in_8_bits, model.page_bytes)


def by_switch(begin, unseen, ways, *, stem, length, warm_ups=1, exact=True):
    """300 requests at once, each with its answer of `length` tokens, and no page left at the end.

    ``begin(way, prompts, length)`` returns a function that waits for the `Reply`. Yields the rows
    so far after each way of the first timed round and after each other round. Each round has other
    prompts; in the warm-ups all ways begin at once. The text of all ways with the same dtype of
    pages must be equal, where that is `exact`; else the rows say how many answers are those of the
    first such way.
    """
    rates, equal, last = {name: [] for name in ways}, dict.fromkeys(ways, 0), {}

    def row(name):
        steps, shared, read, kept, guesses = last[name].counts
        found = {
            "switches on": name,
            "tokens/s": round(median(rates[name])),
            "over none": round(median(rates[name]) / median(rates["none"]), 2),
            "steps": int(steps),
            "prompt tokens found": f"{shared / read:.0%}",
            "guesses kept": f"{kept / guesses:.0%}" if guesses else "",
            "kB of a page": round(last[name].page_bytes / 1e3, 1),
        }
        if not exact:
            rounds = len(rates[name])
            number = REQUESTS * (warm_ups + rounds)
            found |= {"same text": f"{equal[name]} of {number}", "rounds": rounds}
        return found

    for i in range(warm_ups + ROUNDS):
        start, timed = time.monotonic(), i >= warm_ups
        (first,), own = pieces(unseen, 1, stem, 4 + i), pieces(unseen, REQUESTS, OWN, 20 + i)
        prompts, texts = [first + piece for piece in own], {}
        waits = {} if timed else {name: begin(name, prompts, length) for name in ways}
        for name in ways:
            if timed and time.monotonic() >= timing.ends:
                return
            wait = waits.get(name) or begin(name, prompts, length)
            last[name] = reply = wait()
            want = texts.setdefault(reply.in_8_bits, reply.answers)
            equal[name] += sum(x == y for x, y in zip(reply.answers, want, strict=True))
            if exact and equal[name] < REQUESTS * (1 + i):
                raise AssertionError(f"{name}: the text differs")
            if timed:
                rates[name].append(REQUESTS * length / reply.seconds)
            if i == warm_ups or (timed and name == list(ways)[-1]):
                yield [row(name) for name in ways if rates[name]]
        now = time.monotonic()
        print(f"round {i}: {now - start:.1f} s", flush=True)
        if timed and now + (now - start) > timing.ends:
            break


def engine_with(large, on, **sizes):
    """An engine with these switches on; `draft` makes a drafter."""
    engine = Engine(
        *large,
        share_prefixes="share" in on,
        kv_dtype="fp8" if "fp8" in on else "auto",
        drafter=on["draft"]() if "draft" in on else None,
        topk_pages=on.get("topk_pages", 0),
        **sizes,
    )
    if "cascade" not in on:
        engine.model.cascade_of = lambda plan: None
    return engine


def counts(engine):
    """Steps, tokens of prompts that were found and all, guesses that were kept and all: so far."""
    schedule = engine.schedule
    return np.array([engine.steps, schedule.shared, schedule.read, engine.kept, engine.guesses])
