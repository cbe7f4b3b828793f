"""1000 greedy answers with the switches of the server: are they the answers without, to the token?

On a CPU, with a model that has learned Python's help topics. Prompts begin in one of a few ways,
so that pages are found again. There are too few of these for all requests: pages of ended requests
go, and requests are preempted. No page may be left, and an answer may only differ where the logits
of two tokens are nearly equal.
"""

import time

import numba

from benchmarks.bench_drafts import answers_of, drafters, pieces, trained
from benchmarks.bench_serving_switches import engine_with
from benchmarks.timing import cpu, save
from fa_numba.language_model import model, text
from fa_numba.language_model.blas_threads import one_blas_thread
from fa_numba.language_model.server import Options

PROMPTS, STEMS, STEM, OWN, ANSWER = 1000, 12, 32, 8, 16
NUM_PAGES = 128  # of 16 tokens: a request of 56 needs four, and up to 64 answer at a time
# Largest difference of the logits of two tokens that may change places. A step of more rows has
# other last bits: with 8 bits a number that is between two of e4m3 then goes to the other one.
MOST = {"float32": 1e-5, "fp8": 1e-3}


def ways(small):
    """The switches that are on, by name."""
    drafts = {name: {"draft": make} for name, make in drafters(small).items() if name != "none"}
    cascade = {"share": True, "cascade": True}
    both = {f"prefix cache, cascade, {name}": cascade | on for name, on in drafts.items()}
    shared = {"prefix cache": {"share": True}, "prefix cache, cascade": cascade}
    return {"none": {}} | shared | drafts | both


def rows_of(large, small, unseen):
    """A row for each way; an error where an answer differs and rounding does not say why."""
    stems, own = pieces(unseen, STEMS, STEM, 2), pieces(unseen, PROMPTS, OWN, 3)
    prompts, base = [stems[i % STEMS] + piece for i, piece in enumerate(own)], {}
    for name, on in ways(small).items():
        row = {"switches on": name}
        for pages, more in {"float32": {}, "fp8": {"fp8": True}}.items():
            engine = engine_with(large, on | more, num_pages=NUM_PAGES)
            answers, seconds = answers_of(engine, prompts, max_tokens=ANSWER, temperature=0)
            if [len(x) for x in answers] != [ANSWER] * PROMPTS:
                raise AssertionError(f"{name}, {pages}: not every answer has {ANSWER} tokens")
            if engine.pool.num_free != engine.pool.num_pages:
                raise AssertionError(f"{name}, {pages}: pages are left")
            pairs = zip(prompts, answers, base.setdefault(pages, answers), strict=True)
            gaps = [gap(large, more, *x) for x in pairs if x[1] != x[2]]
            print(f"{name}, {pages}: {len(gaps)} differ, {gaps}, {seconds:.0f} s", flush=True)
            if max(gaps, default=0) > MOST[pages]:
                raise AssertionError(f"{name}, {pages}: the text differs, {gaps}")
            row[f"same text, {pages}"] = f"{PROMPTS - len(gaps)} of {PROMPTS}"
        schedule = engine.schedule
        yield row | {
            "largest gap": f"{max(gaps):.1g}" if gaps else "",
            "prompt tokens found": f"{schedule.shared / schedule.read:.0%}",
            "guesses kept": f"{engine.kept / engine.guesses:.0%}" if engine.guesses else "",
            "preempted": schedule.preemptions,
        }


def gap(large, on, prompt, answer, other):
    """Of the logits of the tokens where two answers part, without switches but the pages' dtype."""
    parted = next(i for i in range(ANSWER) if answer[i] != other[i])
    engine, logits, found = engine_with(large, on), model.logits, []

    def kept(*args):
        found.append(logits(*args))
        return found[-1]

    model.logits = kept
    try:
        engine.generate([prompt + other[:parted]], Options(max_tokens=1, temperature=0))
    finally:
        model.logits = logits
    one, two = found[-1][-1, [answer[parted], other[parted]]]
    return float(abs(one - two))


def main():
    corpus, start = text.topics(), time.process_time()
    characters = text.Characters.of(corpus)
    parts = text.split(characters.encode(corpus))
    large, small = (trained(*sizes, parts, len(characters)) for sizes in ((4, 4), (1, 2)))
    print(f"two models have learned: {time.process_time() - start:.0f} s", flush=True)
    numba.set_num_threads(1)
    with one_blas_thread():
        rows = list(rows_of(large, small, parts[1]))
    note = (
        f"models of {large[1].num_weights:,} and {small[1].num_weights:,} weights; prompts of "
        f"{STEM + OWN} tokens, which begin in {STEMS} ways, answers of {ANSWER} at temperature 0; "
        f"{NUM_PAGES} pages of 16; same text: answers that are those without the switches, with "
        "pages of the same dtype; largest gap: of the logits of two tokens where answers part; "
        "what was found, kept and preempted is that of fp8"
    )
    save("same_text", rows, note=note, on=cpu())
