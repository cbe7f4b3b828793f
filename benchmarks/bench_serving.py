"""What does continuous batching over pages bring? Tokens per second, latency, memory.

    python -m benchmarks serving        three minutes on two cores

The engine serves a model with random weights on a CPU: the time of a step does not depend on their
values. `serving_gpu` asks the same of a GPU.

batch       answers at a time, prompts of 32 tokens, 64 tokens each; nothing else runs. At last
            without a model: Python's part of a step
load        requests arrive at random (Poisson) at a share of the rate that the engine can serve
batching    the same mixed requests, all there at first: continuous; and static, where a batch of 16
            begins when the last one has ended. Static batching pads: it computes a token for each
            answer until the longest one ends. Beside it: ended answers leave, and none joins
memory      requests at a time in 4096 slots that never run out of requests, and the share of the
            slots without tokens: pages, and contiguous arrays of three sizes
preempting  the mixed requests in a quarter of the pages: recomputed, or swapped
"""

import time

import numpy as np

from benchmarks.timing import cpu, save
from fa_numba.kv_cache import random_trace, serve_contiguous, serve_paged
from fa_numba.kv_cache.waste import reservations
from fa_numba.language_model.model import Config, init_weights
from fa_numba.language_model.server import Engine, Options

BATCHES = 1, 2, 4, 8, 16, 32, 64
PROMPT, ANSWER = 32, 64
LOADS = 0.3, 0.6, 0.9, 1.2
SECONDS = 8.0  # of arrivals, for each load
CONTEXT, VOCABULARY, PAGE_SIZE = 512, 103, 16
MIXED = 96  # requests
SLOTS = 4096
BRANCHES = 16  # answers at a time, where no batch is given
ROUNDS = 3  # of batch and batching; the fastest counts
SIZES = {
    "small": {"layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 32},
    "nanoGPT's": {"layers": 6, "heads": 6, "kv_heads": 6, "head_dim": 64},
}


def mixed_trace(number=MIXED, seed=0):
    """(prompt, max_tokens) of requests with log-normal lengths."""
    trace = random_trace(number, mean_prompt=48, mean_answer=64, max_len=CONTEXT, seed=seed)
    return [(prompt, final - prompt) for prompt, final in trace]


def submit(engine, rng, prompt, answer, **options):
    tokens = rng.integers(0, VOCABULARY, prompt).tolist()
    return engine.submit(tokens, Options(max_tokens=answer, temperature=0.8, **options))


class NoModel:
    """In the place of a model: candidates for every row at once, to time Python's work alone."""

    def __init__(self, model):
        self.model = model

    def run(self, plan, temperatures, number):
        plan.rows(), self.model.sequences_of(plan)  # the numbers that a model needs
        shape = len(temperatures), number
        return np.full(shape, 1 / number, np.float32), np.zeros(shape, np.int32)


def decode_rate(model, batch, compute=True, **options):
    """Tokens per second, and ms per step, while `batch` answers are under way."""
    engine, rng = Engine(*model, num_pages=batch * 8, **options), np.random.default_rng(0)
    if not compute:
        engine.model = NoModel(engine.model)
    best = 0.0, 0.0
    for i in range(1 + ROUNDS):
        requests = [submit(engine, rng, PROMPT, ANSWER) for _ in range(batch)]
        while not all(request.started for request in requests):
            engine.step()
        tokens, steps, start = engine.tokens_made, engine.steps, time.perf_counter()
        while engine.busy:
            engine.step()
        seconds = time.perf_counter() - start
        if i:  # the first one warms up: kernels are compiled, graphs are captured
            ms = 1e3 * seconds / (engine.steps - steps)
            best = max(best, ((engine.tokens_made - tokens) / seconds, ms))
    return best


def by_batch(model, what, batches=BATCHES, **options):
    rows, first = [], None
    for batch in batches:
        rate, ms = decode_rate(model, batch, max_branches=max(64, batch), max_rows=512, **options)
        first = first or rate
        rows.append(
            {
                "what": what,
                "batch": batch,
                "tokens/s": round(rate),
                "ms/step": round(ms, 3),
                "vs batch 1": round(rate / first, 1),
            }
        )
    return rows


def serve(engine, requests, arrivals=None):
    """Serve requests, each from its time of arrival; return rates, latencies and memory.

    Parameters
    ----------
    engine : Engine
    requests : list of (prompt, answer)
    arrivals : list of float, default=all 0
        Seconds from the start.
    """
    rng, live, waste, used = np.random.default_rng(1), [], [], []
    queue = list(zip(arrivals or [0.0] * len(requests), requests, strict=True))[::-1]
    start = time.perf_counter()
    while queue or engine.busy:
        now = time.perf_counter() - start
        while queue and queue[-1][0] <= now:
            due, (prompt, answer) = queue.pop()
            live.append((due, submit(engine, rng, prompt, answer)))
        if engine.busy:
            engine.step()
            held = (engine.pool.num_pages - engine.pool.num_free) * engine.pool.page_size
            if held:
                waste.append(1 - engine.schedule.used_slots() / held)
                used.append(held / engine.pool.num_pages / engine.pool.page_size)
        elif queue:
            time.sleep(max(0, queue[-1][0] - now))
    seconds = time.perf_counter() - start
    made = sum(len(r.answers[0].tokens) for _, r in live)
    first = [r.first_token - start - due for due, r in live]
    each = [(r.ended - r.first_token) / max(1, len(r.answers[0].tokens) - 1) for _, r in live]
    return {
        "requests": len(live),
        "tokens/s": round(made / seconds),
        "steps": engine.steps,
        **percentiles("first token, ms", first),
        **percentiles("each token, ms", each),
        "pages used": f"{np.mean(used):.0%}",
        "wasted in them": f"{np.mean(waste):.0%}",
        "preemptions": engine.schedule.preemptions,
    }


def percentiles(name, seconds):
    """Median and 95th percentile in ms."""
    return {f"{name}, p{p}": round(1e3 * float(np.percentile(seconds, p)), 1) for p in (50, 95)}


def by_load(model, branches=BRANCHES, seconds=SECONDS, **options):
    trace = mixed_trace(20000, seed=1)
    sizes = {"num_pages": 64 * branches, "max_branches": branches, **options}
    for _ in range(2):  # kernels are compiled in the first one
        start = time.perf_counter()
        serve(Engine(*model, **sizes), trace[: 6 * branches])
    capacity = 6 * branches / (time.perf_counter() - start)  # requests per second, never idle
    rows = []
    for load in LOADS:
        rate = load * capacity
        gaps = np.random.default_rng(2).exponential(1 / rate, int(rate * seconds))
        found = serve(Engine(*model, **sizes), trace[: len(gaps)], np.cumsum(gaps).tolist())
        rows.append({"what": f"load {load:.0%}", "requests/s": round(rate, 1)} | found)
    return rows


def serve_padded(engine, requests, batch):
    """Static batching: each batch runs until its longest answer ends."""
    rng, wanted, start = np.random.default_rng(1), 0, time.perf_counter()
    for i in range(0, len(requests), batch):
        together = requests[i : i + batch]
        longest = max(answer for _, answer in together)
        for prompt, answer in together:
            wanted += answer
            submit(engine, rng, prompt, min(longest, CONTEXT - prompt))
        while engine.busy:
            engine.step()
    seconds = time.perf_counter() - start
    return {"requests": len(requests), "tokens/s": round(wanted / seconds), "steps": engine.steps}


def by_batching(model, batch=BRANCHES, **options):
    """One after the other, several times: a busy moment of the machine then meets each of them."""
    sizes, trace = (
        {"num_pages": 64 * batch, "max_branches": batch, **options},
        mixed_trace(6 * batch),
    )
    ways = {
        "static batching": lambda: serve_padded(Engine(*model, **sizes), trace, batch),
        "static, ended answers leave": lambda: serve(Engine(*model, static=True, **sizes), trace),
        "continuous batching": lambda: serve(Engine(*model, **sizes), trace),
    }
    best = {}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            found = run()
            if name not in best or found["tokens/s"] > best[name]["tokens/s"]:
                best[name] = found
    static = best["static batching"]["tokens/s"]
    return [
        {"what": name, "vs static": round(found["tokens/s"] / static, 2)} | found
        for name, found in best.items()
    ]


def by_memory():
    """How many requests fit at a time: no model runs."""
    trace = random_trace(60000, mean_prompt=48, mean_answer=64, max_len=CONTEXT)
    uses = {"pages": serve_paged(trace, SLOTS, PAGE_SIZE)}
    for name, reserve in reservations(CONTEXT).items():
        uses[f"contiguous, {name} reserved"] = serve_contiguous(trace, SLOTS, reserve)
    return [
        {
            "what": f"{SLOTS} slots, {name}",
            "requests at a time": round(usage.at_a_time, 1),
            "wasted": f"{usage.waste:.0%}",
        }
        for name, usage in uses.items()
    ]


def by_preemption(model, **options):
    rows = []
    for name, host_pages in (("recomputed", 0), ("swapped", 512)):
        engine = Engine(*model, num_pages=64, host_pages=host_pages, max_branches=16, **options)
        found = serve(engine, mixed_trace())
        schedule = engine.schedule
        more = {"recomputed": schedule.recomputed, "pages swapped": schedule.swapped}
        rows.append({"what": f"64 pages, preempted requests {name}"} | found | more)
    return rows


def make_model(size, xp=np, dtype=np.float32):
    config = Config(VOCABULARY, context=CONTEXT, **SIZES[size])
    weights = init_weights(config, xp=xp)
    return {name: x.astype(dtype) for name, x in weights.items()}, config


def main():
    small = make_model("small")
    tables = {
        "Answers at a time": by_batch(small, "small model")
        + by_batch(small, "Python's work, no model", (1, 16, 64, 256), compute=False),
        "Static and continuous batching": by_batching(small),
        "Load": by_load(small),
        "Few pages": by_preemption(small),
        "Memory": by_memory(),
    }
    rows = [{"table": title} | row for title, found in tables.items() for row in found]
    note = (
        f"small model: {small[1].num_weights:,} weights; pages of {PAGE_SIZE} tokens; at most "
        f"{BRANCHES} answers at a time where no batch is given"
    )
    save("serving", rows, note=note, on=cpu())
