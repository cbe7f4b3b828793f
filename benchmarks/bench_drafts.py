"""What do guesses bring? Tokens of a step, guesses that are kept, tokens per second, and the text.

    python -m benchmarks drafts        ten minutes on two idle cores

Two models learn Python's help topics first: one of four layers, which is served, and one of a
single layer, which guesses.

equal       1000 prompts at temperature 0: answers with guesses are those without, to the token
guesses     repetitive text (temperature 0: a small model repeats itself) and free text (0.8), by
            answers at a time. Tokens per step: those that an answer gets in a step
switches    300 requests at once, whose prompts begin alike: each switch on and off

Seconds are those of the processor, since a busy machine gives the clock's to others too. The ways
alternate, and the median of the rounds counts.
"""

import math
import time
from statistics import median

import numba
import numpy as np

from benchmarks.timing import cpu, save
from fa_numba.language_model import text
from fa_numba.language_model.blas_threads import one_blas_thread
from fa_numba.language_model.model import Config
from fa_numba.language_model.server import Engine, Options
from fa_numba.language_model.server.model_drafter import ModelDrafter
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.train import Recipe, Trainer

STEPS, CONTEXT, ROUNDS = 400, 256, 3
PROMPT, ANSWER = 32, 64
BATCHES = 1, 8, 32
PROMPTS, FEW = 1000, 16  # answers of so many tokens
REQUESTS, STEM = 300, 96
WAYS = {
    "none": {},
    "prefix cache": {"share": True},
    "prefix cache, cascade": {"share": True, "cascade": True},
    "fp8": {"fp8": True},
    "ngram": {"draft": True},
    "all": {"share": True, "cascade": True, "fp8": True, "draft": True},
}
TEXTS = {"repetitive, temperature 0": 0, "free, temperature 0.8": 0.8}


def trained(layers, heads, parts, vocabulary):
    """Weights and config of a model that has learned, for longer sequences than it has seen."""
    config = Config(vocabulary, layers=layers, heads=heads, kv_heads=2)
    trainer = Trainer(config, Recipe(steps=STEPS), *parts)
    for _ in range(STEPS):
        trainer.step()
    sizes = {"layers": layers, "heads": heads, "kv_heads": 2, "context": CONTEXT}
    return trainer.weights, Config(vocabulary, **sizes)


def drafters(small):
    """What guesses, by name."""
    return {
        "none": lambda: None,
        "ngram": NGramDrafter,
        "ngram, 2 places": lambda: NGramDrafter(width=2),
        "model": lambda: ModelDrafter(*small),
        "model, 2 children": lambda: ModelDrafter(*small, tokens=8, width=2),
    }


def answers_of(engine, prompts, clock=time.process_time, **options):
    """Answers to all prompts, and the seconds that they take, by default of the processor."""
    start = clock()
    replies = engine.generate(prompts, Options(**options))
    return [answer.tokens for (answer,) in replies], clock() - start


def pieces(unseen, number, length, seed):
    starts = np.random.default_rng(seed).integers(0, len(unseen) - length, number)
    return [unseen[start : start + length].tolist() for start in starts]


def check_equal(large, made, unseen):
    """Raise unless 1000 greedy answers are the same with and without guesses."""
    prompts, found = pieces(unseen, PROMPTS, PROMPT, 0), {}
    for name, make in made.items():
        engine = Engine(*large, num_pages=1024, drafter=make())
        found[name], _ = answers_of(engine, prompts, max_tokens=FEW, temperature=0)
        different = sum(a != b for a, b in zip(found[name], found["none"], strict=True))
        print(f"{name}: {different} of {PROMPTS} answers differ", flush=True)
        if different:
            raise AssertionError(f"{name}: {different} answers differ from those without guesses")
    return PROMPTS


def by_drafter(large, made, unseen):
    rows = []
    for what, temperature in TEXTS.items():
        for batch in BATCHES:
            prompts, rates, last = pieces(unseen, batch, PROMPT, 1), {}, {}
            for i in range(1 + ROUNDS):
                for name, make in made.items():
                    engine = Engine(*large, num_pages=1024, drafter=make())
                    options = {"max_tokens": ANSWER, "temperature": temperature}
                    answers, seconds = answers_of(engine, prompts, **options)
                    if i:  # the first round compiles
                        rates.setdefault(name, []).append(sum(map(len, answers)) / seconds)
                    last[name] = engine
            for name, engine in last.items():
                rate, kept = median(rates[name]), engine.kept
                rows.append(
                    {
                        "text": what,
                        "answers at a time": batch,
                        "draft": name,
                        "tokens/s": round(rate),
                        "over none": round(rate / median(rates["none"]), 2),
                        "tokens per step": round(
                            engine.tokens_made / (engine.tokens_made - kept), 2
                        ),
                        "kept": f"{kept / engine.guesses:.0%}" if engine.guesses else "",
                    }
                )
                print(rows[-1], flush=True)
    return rows


def by_switch(
    large,
    unseen,
    *,
    stem=STEM,
    length=FEW,
    first_length=FEW,
    ways=WAYS,
    exact=True,
    clock=time.process_time,
    seconds=math.inf,
    **sizes,
):
    """300 requests at once, each with its answer of `length` tokens, and no page left at the end.

    Each round has other prompts; the first, which compiles, has answers of `first_length`. After a
    timed round there is another if it would end within `seconds` from now. The text of all ways
    with the same dtype of pages must be equal, where that is `exact`; else the rows say how many
    answers are those of the first such way.
    """
    options, end = {"temperature": 0, "clock": clock}, time.perf_counter() + seconds
    engines = {
        name: engine_with(large, on, **{"num_pages": 2048} | sizes) for name, on in ways.items()
    }
    rates, equal, last = {name: [] for name in engines}, dict.fromkeys(engines, 0), {}
    for i in range(1 + ROUNDS):
        start, tokens = time.perf_counter(), length if i else first_length
        (first,), own = pieces(unseen, 1, stem, 4 + i), pieces(unseen, REQUESTS, 12, 20 + i)
        prompts, texts = [first + piece for piece in own], {}
        for name, engine in engines.items():
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
        now = time.perf_counter()
        print(f"round {i}: {now - start:.1f} s", flush=True)
        if i and now + (now - start) > end:
            break
    rows = []
    for name, (steps, shared, read, kept, guesses) in last.items():
        row = {
            "switches on": name,
            "tokens/s": round(median(rates[name])),
            "over none": round(median(rates[name]) / median(rates["none"]), 2),
            "steps": int(steps),
            "prompt tokens found": f"{shared / read:.0%}",
            "guesses kept": f"{kept / guesses:.0%}" if guesses else "",
            "kB of a page": round(engines[name].model.page_bytes / 1e3, 1),
        }
        if not exact:
            row["same text"] = f"{equal[name]} of {REQUESTS * (1 + i)}"
            row["rounds"] = i
        rows.append(row)
    return rows


def engine_with(large, on, **sizes):
    """An engine with these switches on."""
    engine = Engine(
        *large,
        share_prefixes="share" in on,
        kv_dtype="fp8" if "fp8" in on else "auto",
        drafter=NGramDrafter() if "draft" in on else None,
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


def main():
    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    large = trained(4, 4, parts, len(characters))
    small = trained(1, 2, parts, len(characters))
    made, unseen = drafters(small), parts[1]
    numba.set_num_threads(1)
    with one_blas_thread():
        equal = check_equal(large, made, unseen)
        tables = {
            "Guesses": by_drafter(large, made, unseen),
            f"{REQUESTS} requests at once": by_switch(large, unseen),
        }
    rows = [{"table": title} | row for title, found in tables.items() for row in found]
    note = (
        f"models of {large[1].num_weights:,} and {small[1].num_weights:,} weights after {STEPS} "
        f"steps; one thread; prompts of {PROMPT} tokens, answers of {ANSWER}; seconds of the "
        f"processor, medians of {ROUNDS} alternating rounds on a machine with other work; greedy "
        f"answers to {equal} prompts are the same with every draft as with none"
    )
    save("drafts", rows, note=note, on=cpu())


if __name__ == "__main__":
    main()
