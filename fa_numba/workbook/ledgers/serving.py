"""The ledger of the lesson on serving: what the sources say about batches and preemption."""

import numpy as np

from fa_numba.kv_cache import PagePool, random_trace
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "not recorded yet"
MAX_LEN = 512


def ledger(folder=None):
    """The rows of the ledger.

    Parameters
    ----------
    folder : path, optional
        Where the results of benchmarks are; by default benchmarks/results.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    on_cpu, on_gpu = (
        {row["what"]: row for row in recorded_rows(name, folder=folder)}
        for name in ("serving", "serving_gpu")
    )
    return [
        _about_orca(on_cpu, on_gpu),
        _about_preemption(on_cpu),
        *_about_prompts(),
    ]


def steps_of(lengths, batch, *, static):
    """Steps until all answers of these lengths have ended.

    Parameters
    ----------
    lengths : list of int
    batch : int
        Answers at a time.
    static : bool
        A batch begins when the last one has ended.

    Returns
    -------
    int
    """
    if static:
        return sum(max(lengths[i : i + batch]) for i in range(0, len(lengths), batch))
    ends = np.zeros(batch, int)
    for n in lengths:
        ends[ends.argmin()] += n
    return int(ends.max())


def _about_orca(on_cpu, on_gpu):
    trace = random_trace(960, mean_prompt=48, mean_answer=64, max_len=MAX_LEN)
    lengths = [final - prompt for prompt, final in trace]
    counted = [
        steps_of(lengths, batch, static=True) / steps_of(lengths, batch, static=False)
        for batch in (4, 16, 64)
    ]
    ways = "continuous batching", "static batching"
    timed = [
        f"{_ratio(rows, *ways)}× {where}"
        for where, rows in (("on a CPU, 16 at a time", on_cpu), ("on a GPU, 64 at a time", on_gpu))
        if set(ways) <= rows.keys()
    ]
    return ledger_row(
        "vLLM improves throughput 2–4× over other systems (002), of which Orca is one (000)",
        "steps, static over continuous: "
        + ", ".join(
            f"{gain:.1f}× for {batch} at a time"
            for gain, batch in zip(counted, (4, 16, 64), strict=True)
        )
        + f"; tokens per second, continuous over static: {', '.join(timed) or NOT_RECORDED}",
        "two gains that multiply: Orca leaves no place of the batch empty, vLLM hardly a slot of "
        "the memory",
    )


def _ratio(rows, one, other):
    return f"{rows[one]['tokens/s'] / rows[other]['tokens/s']:.2f}"


def _about_preemption(rows):
    ways = [f"64 pages, preempted requests {way}" for way in ("recomputed", "swapped")]
    timed = NOT_RECORDED
    if set(ways) <= rows.keys():
        tokens = rows[ways[0]]["recomputed"]
        timed = (
            f"tokens per second, swapped over recomputed: {_ratio(rows, *ways[::-1])}×, with "
            f"{tokens:,} tokens recomputed and {rows[ways[1]]['pages swapped']:,} pages swapped"
        )
    return ledger_row(
        "recomputation against swapping depends on the PCIe bandwidth (000)",
        timed,
        "right; and on the model, which sets the price of a token. Our copies cross no bus",
    )


def _about_prompts():
    used = {}
    for share in (True, False):
        pool = PagePool(4096, 16, share_prefixes=share)
        for i in range(16):
            pool.allocate([0] * 200 + [1 + i] * 10)
        used[share] = pool.num_pages - pool.num_free
    length, chunk = 400, 32
    return [
        ledger_row(
            "a shared prefix becomes much more efficient (000)",
            f"16 prompts, 200 of 210 tokens in common: {used[True]} pages, {used[False]} without "
            "sharing",
            "true for full pages; the part-filled last page of the prefix is computed again",
        ),
        ledger_row(
            "with chunks the maximum size of S grows linearly in L (002)",
            f"scores of a prompt of {length} tokens: {length * length:,} in one piece, at most "
            f"{chunk * length:,} in chunks of {chunk}",
            "true where S is stored; a fused kernel never stores it, and servers cut prompts for "
            "the sake of the other answers",
        ),
    ]
