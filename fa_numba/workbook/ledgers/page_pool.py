"""The ledger of the lesson on the page pool: what the sources say about a server's memory."""

from fa_numba import PagePool
from fa_numba.kv_cache import Scheduler, samples
from fa_numba.workbook.ledgers import ledger_row

WEIGHTS = 26e9  # bytes of OPT-13B in float16


def ledger(usage):
    """The rows of the ledger.

    Parameters
    ----------
    usage : dict
        By name, `Usage` of a server's memory, as `serve_contiguous` returns it; "pages of 16" is
        that of `serve_paged`.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    paged = usage["pages of 16"]
    contiguous = {name: used for name, used in usage.items() if used is not paged}
    more = [f"{name} {paged.at_a_time / used.at_a_time:.1f}×" for name, used in contiguous.items()]
    held, apart = shared_prompt()
    computed, swapped, gone = preempted()
    return [
        ledger_row(
            "contiguous allocation wastes 60–80 % of the KV memory (000)",
            ", ".join(f"{name} {used.waste:.0%}" for name, used in contiguous.items()),
            "right for the maximum on our trace; other traces and limits, other numbers",
        ),
        ledger_row(
            "2–3 times as many requests (000), 2–4 times the throughput (002)",
            "requests running, pages against " + ", ".join(more),
            "right against an oracle and a guess; more against the maximum on our trace",
        ),
        ledger_row(
            "about 30 % of the memory holds the state of requests (000)",
            f"13B weights in float16 leave {1 - WEIGHTS / 40e9:.0%} of 40 GB, "
            f"{1 - WEIGHTS / 80e9:.0%} of 80 GB",
            "an example (13B, 40 GB), not a rule",
        ),
        ledger_row(
            "a new page only when all earlier ones are full (000)",
            f"600 tokens one by one: at most {most_empty_slots()} empty slots of 16; in the server "
            f"{paged.shares['tokens']:.1%} of the memory holds tokens",
            "right",
        ),
        ledger_row(
            "parallel answers share the pages of the prompt by a reference count (000)",
            f"4 answers to 1000 tokens: {held} pages of 16, {apart} without sharing",
            "right: all but the part-filled last page",
        ),
        ledger_row(
            "first come, first served; all pages of a request are evicted together (000)",
            f"{gone}; {computed} tokens computed by recomputation, {swapped} by swapping",
            "right: the request that came last leaves, with all its pages",
        ),
        ledger_row(
            "continuous batching: self-attention of the requests is processed on different GPUs "
            "(000)",
            "requests enter and leave between two steps, on one GPU as on many: lesson 23 counts "
            "what that saves",
            "wrong: Orca's iteration-level scheduling is about time, not about GPUs",
        ),
    ]


def most_empty_slots(tokens=600, page_size=16):
    """The most empty slots that a sequence has while it grows token by token."""
    pool = PagePool(-(-tokens // page_size), page_size)
    seq, _ = pool.allocate([])
    empty = []
    for t in range(tokens):
        pool.append({seq: [t]})
        empty.append(page_size * len(pool.pages(seq)) - pool.length(seq))
    return max(empty)


def shared_prompt(tokens=1000, answers=4, page_size=16):
    """Pages of several answers to one prompt, one token each: held, and without sharing."""
    pool = PagePool(answers * (-(-tokens // page_size) + 1), page_size)
    prompt, _ = pool.allocate(range(tokens))
    seqs = samples(pool, prompt, answers)
    pool.append({seq: [seq] for seq in seqs})
    return pool.num_pages - pool.num_free, sum(len(pool.pages(seq)) for seq in seqs)


def preempted():
    """Three requests of 3 tokens that grow to 8, in a pool for 12.

    Returns
    -------
    computed, swapped : int
        Tokens computed where preempted requests are recomputed, and where they are swapped.
    gone : str
        Who was preempted in which step.
    """
    computed = []
    for host in (None, PagePool(6, 2, share_prefixes=False)):
        scheduler = Scheduler(PagePool(6, 2, share_prefixes=False), host)
        names = {scheduler.submit([10 * i + t for t in range(3)]): "ABC"[i] for i in range(3)}
        tokens, gone, step = 0, [], 0
        while scheduler.running or scheduler.waiting:
            plan, step = scheduler.step(), step + 1
            tokens += sum(plan.num_new)
            gone += [f"{names[request]} in step {step}" for request in plan.preempted]
            for request in plan.requests:
                request.tokens.append(0)
                if len(request.tokens) == 8:
                    scheduler.finish(request)
        computed.append(tokens)
    return *computed, "preempted: " + ", ".join(gone)
