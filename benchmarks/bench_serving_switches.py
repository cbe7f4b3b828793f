"""300 requests at once on a GPU: tokens per second with each switch of the server on and off.

A model that has learned Python's help topics, requests whose prompts begin alike. Rounds say how
long they took; with `--seconds` there is no other one where it would not fit. In the first, which
is not timed, kernels are compiled and graphs are made, by short answers. The sums of a step depend
on its rows, so that where two tokens are nearly as likely an answer may go on otherwise.
"""

import time
from statistics import median

import numpy as np

from benchmarks import timing
from benchmarks.bench_drafts import answers_of, pieces
from benchmarks.timing import save, without
from fa_numba.language_model import text
from fa_numba.language_model.model import Config
from fa_numba.language_model.server import Engine
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.train import Recipe, Trainer
from fa_numba.runtime import arrays

REQUESTS, ROUNDS, OWN = 300, 3, 12  # tokens of a prompt that are its own
WAYS = {
    "none": {},
    "prefix cache": {"share": True},
    "prefix cache, cascade": {"share": True, "cascade": True},
    "fp8": {"fp8": True},
    "ngram": {"draft": NGramDrafter},
    "all": {"share": True, "cascade": True, "fp8": True, "draft": NGramDrafter},
}
MODEL = {"layers": 6, "heads": 12, "kv_heads": 12, "head_dim": 64, "context": 1024}
STEPS, STEM, ANSWER, FIRST_ANSWER, TOP, PAGE_SIZE = 100, 450, 32, 8, 8, 16


def main():
    if not arrays.gpu_available():
        print("serving_switches: needs a GPU; serving_switches_cpu does not")
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
    pages = -(-(STEM + OWN + ANSWER) // PAGE_SIZE) + 1  # of a request
    sizes = {"page_size": PAGE_SIZE, "num_pages": pages * REQUESTS}
    sizes |= {"max_branches": REQUESTS, "max_rows": 4096}
    ways = WAYS | {f"top {TOP} pages": {"topk_pages": TOP}}
    found = by_switch(
        (weights, trainer.config),
        parts[1],
        stem=STEM,
        length=ANSWER,
        first_length=FIRST_ANSWER,
        ways=ways,
        exact=False,
        clock=time.perf_counter,
        **sizes,
    )
    note = (
        f"{MODEL['layers']} layers, {MODEL['heads']} heads of {MODEL['head_dim']}, float16, after "
        f"{STEPS} steps; prompts of {STEM} tokens that are alike and {OWN} of their own, "
        f"answers of {ANSWER} tokens at temperature 0; medians of alternating rounds, after "
        f"one of answers of {FIRST_ANSWER}; same text: answers as without the switch, with pages "
        "of the same dtype"
    )
    for rows in found:
        save("serving_switches", rows, note=without(list(ways)[len(rows) :], note))


def by_switch(
    large,
    unseen,
    *,
    stem,
    length,
    first_length=None,
    ways=WAYS,
    exact=True,
    clock=time.process_time,
    **sizes,
):
    """300 requests at once, each with its answer of `length` tokens, and no page left at the end.

    Yields the rows so far after each way of the first timed round and after each other round.
    Each round has other prompts; the first, which compiles, has answers of `first_length`. The text
    of all ways with the same dtype of pages must be equal, where that is `exact`; else the rows say
    how many answers are those of the first such way.
    """
    options = {"temperature": 0, "clock": clock}
    engines = {
        name: engine_with(large, on, **{"num_pages": 2048} | sizes) for name, on in ways.items()
    }
    rates, equal, last = {name: [] for name in engines}, dict.fromkeys(engines, 0), {}

    def row(name):
        steps, shared, read, kept, guesses = last[name]
        found = {
            "switches on": name,
            "tokens/s": round(median(rates[name])),
            "over none": round(median(rates[name]) / median(rates["none"]), 2),
            "steps": int(steps),
            "prompt tokens found": f"{shared / read:.0%}",
            "guesses kept": f"{kept / guesses:.0%}" if guesses else "",
            "kB of a page": round(engines[name].model.page_bytes / 1e3, 1),
        }
        if not exact:
            rounds = len(rates[name])
            found |= {"same text": f"{equal[name]} of {REQUESTS * (1 + rounds)}", "rounds": rounds}
        return found

    for i in range(1 + ROUNDS):
        start, tokens = time.monotonic(), length if i else first_length or length
        (first,), own = pieces(unseen, 1, stem, 4 + i), pieces(unseen, REQUESTS, OWN, 20 + i)
        prompts, texts = [first + piece for piece in own], {}
        for name, engine in engines.items():
            if i and time.monotonic() >= timing.ends:
                return
            before = counts(engine)
            answers, taken = answers_of(engine, prompts, max_tokens=tokens, **options)
            last[name] = counts(engine) - before
            if [len(x) for x in answers] != [tokens] * REQUESTS:
                raise AssertionError(f"{name}: not every answer has {tokens} tokens")
            if engine.pool.num_free != engine.pool.num_pages:
                raise AssertionError(f"{name}: pages are left")
            want = texts.setdefault(engine.model.in_8_bits, answers)
            equal[name] += sum(x == y for x, y in zip(answers, want, strict=True))
            if exact and equal[name] < REQUESTS * (1 + i):
                raise AssertionError(f"{name}: the text differs")
            if i:
                rates[name].append(REQUESTS * length / taken)
            if i == 1 or (i and name == list(ways)[-1]):
                yield [row(name) for name in engines if rates[name]]
        now = time.monotonic()
        print(f"round {i}: {now - start:.1f} s", flush=True)
        if i and now + (now - start) > timing.ends:
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


if __name__ == "__main__":
    main()
