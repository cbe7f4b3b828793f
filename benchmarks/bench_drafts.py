"""What do guesses bring? Tokens of a step, guesses that are kept, and tokens per second.

    python -m benchmarks drafts        some minutes on two idle cores

Two models learn Python's help topics first: one of four layers, which is served, and one of a
single layer, which guesses.

Repetitive text (temperature 0: a small model repeats itself) and free text (0.8), by answers at a
time. Tokens per step: those that an answer gets in a step. `same_text` compares the answers.

Seconds are those of the processor, since a busy machine gives the clock's to others too. The ways
alternate, and the median of the rounds counts.
"""

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


def main():
    corpus = text.topics()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    large = trained(4, 4, parts, len(characters))
    small = trained(1, 2, parts, len(characters))
    made, unseen = drafters(small), parts[1]
    numba.set_num_threads(1)
    with one_blas_thread():
        rows = by_drafter(large, made, unseen)
    note = (
        f"models of {large[1].num_weights:,} and {small[1].num_weights:,} weights after {STEPS} "
        f"steps; one thread; prompts of {PROMPT} tokens, answers of {ANSWER}; seconds of the "
        f"processor, medians of {ROUNDS} alternating rounds on a machine with other work"
    )
    save("drafts", rows, note=note, on=cpu())
