"""The ledger of the lesson on many GPUs: what the sources say about rings, stripes and trees."""

import numpy as np

from fa_numba.analysis.devices import DEVICES
from fa_numba.distributed import numpy_attn, ring_attn, run_ranks, shard
from fa_numba.distributed.prediction import Problem, largest_pairs, ring_bytes, tree_bytes
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "on GPUs: not recorded yet"


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
    pairs = {name: pairs_of_ranks(name) for name in ("contiguous", "striped", "zigzag")}
    rows = recorded_rows("many_gpus", folder=folder)
    return [
        *_about_the_ring(pairs["contiguous"]),
        *_about_links(),
        *_about_layouts(pairs, rows),
        _about_trees(rows),
    ]


def pairs_of_ranks(layout, seqlen=64, world_size=4):
    """Pairs of each rank in each step of a causal ring, counted in a run."""
    x = np.random.default_rng(0).standard_normal((1, seqlen, 1, 4), np.float32)
    parts = [shard(x, layout, world_size)] * 3
    run = run_ranks(ring_attn, world_size, *parts, layout=layout, causal=True, attn=numpy_attn)
    return run.pairs


def _owners(comm):
    """The owner of the keys in step 1, where keys go to the next rank."""
    world_size = comm.world_size
    mine = np.array([comm.rank])
    arrived = comm.send_recv(mine, (comm.rank + 1) % world_size, (comm.rank - 1) % world_size)
    return int(arrived[0])


def _about_the_ring(contiguous):
    owners = run_ranks(_owners, 4).results
    idle = (contiguous == 0).sum(axis=0)
    busy = contiguous.sum() / (contiguous.shape[0] * contiguous.max(axis=0).sum())
    unmasked = {w: (2 * w - 1) / (2 * w) for w in (2, 8, 64)}
    return [
        ledger_row(
            "in iteration iter device i has the keys of j = (iter + i) mod N, and sends them to "
            "the next device (002)",
            f"a run on 4 ranks, keys sent to the next: in iteration 1 ranks 0 to 3 have those of "
            f"{owners}",
            "j = (i − iter) mod N; with a plus, keys go to the previous device",
        ),
        ledger_row(
            "ring attention leaves devices idle under a causal mask (002)",
            f"counted on 4 ranks: {', '.join(map(str, idle))} idle ranks in steps 0 to 3; ranks "
            f"compute {busy:.0%} of the time",
            "true: W / (2 W − 1), 57 % for 4 ranks and long parts, tends to a half",
        ),
        ledger_row(
            "a causal ring is as fast as a ring without a mask (002)",
            "time with over time without: "
            + ", ".join(f"{share:.2f} on {w} ranks" for w, share in unmasked.items()),
            "nearly, on many ranks: only step 0 is shorter",
        ),
    ]


def _about_links():
    flops = DEVICES["A100-40GB"].float16_tensor
    both, bus = 600e9, 64e9
    return [
        ledger_row(
            "communication is hidden if each device has at least compute / bandwidth tokens (002)",
            f"A100: {flops / both:.0f} tokens by the sums, {2 * flops / both:,.0f} by one "
            f"direction, {4 * flops / both:,.0f} with a balanced causal mask; by PCIe "
            f"{4 * flops / bus:,.0f}",
            "true for 16-bit numbers, no mask, a K/V head for each query head; twice that for "
            "causal, divided by the query heads that share a K/V head",
        ),
    ]


def _about_layouts(pairs, rows):
    def time(layout, world_size):
        return largest_pairs(Problem(world_size * 8192, world_size, 1, 1, 1, layout)).sum()

    gains = {w: time("contiguous", w) / time("striped", w) for w in (2, 4, 8, 64)}
    counts = {name: sorted(set(x.sum(axis=1).tolist())) for name, x in pairs.items()}
    return [
        ledger_row(
            "Stripe Attention is near 1.5× faster (002)",
            "by pairs: " + ", ".join(f"{gain:.2f}× on {w} ranks" for w, gain in gains.items())
            + f"; {_gpu_gain(rows)}",
            "attention alone: (2 W − 1) / W; a whole model gains less, since only attention "
            "gets faster",
        ),
        ledger_row(
            "Stripe Attention keeps a balanced workload across all devices (002)",
            f"pairs per rank, 64 tokens on 4 ranks: striped {counts['striped'][0]} to "
            f"{counts['striped'][-1]}, zigzag {counts['zigzag'][0]} on each, contiguous "
            f"{counts['contiguous'][0]} to {counts['contiguous'][-1]}",
            "up to one pair per query and neighbour; the zigzag is exact",
        ),
    ]  # fmt: skip


def _about_trees(rows):
    world_size, numbers = 8, []
    for seqlen in (8192, 1 << 20):
        problem = Problem(seqlen, world_size, 32, 8, 128, "contiguous")
        ratio = ring_bytes(problem)[0].sum() / tree_bytes(problem)[0]
        numbers.append(f"{ratio:,.0f}× for {seqlen:,} keys")
    return ledger_row(
        "Tree Attention is asymptotically 8× faster than Ring Attention (002)",
        f"bytes of a ring over those of a tree, 8 ranks: {', '.join(numbers)}; rounds: "
        f"{world_size - 1} against 1; {_gpu_tree(rows)}",
        "the ratio has no limit, it grows with the keys; 8× is the largest that the paper timed",
    )


def _gpu_gain(rows):
    """Measured time of contiguous over striped, forward, by tokens per GPU."""
    ms = {
        (row["method"], row["gpus"], row["tokens"]): row["ms"] for row in rows if _is_forward(row)
    }
    gains = [
        f"{ms['contiguous', gpus, tokens] / ms['striped', gpus, tokens]:.2f}× on {gpus} with "
        f"{tokens:,} tokens each"
        for method, gpus, tokens in sorted(ms)
        if method == "contiguous" and ("striped", gpus, tokens) in ms
    ]
    return f"timed on GPUs: {', '.join(gains)}" if gains else NOT_RECORDED


def _gpu_tree(rows):
    """Measured time of decoding by a ring over that by a tree."""
    ms = {
        (row["decoding"], row["gpus"], row["keys"]): row["ms"] for row in rows if "decoding" in row
    }
    gains = [
        f"{ms['ring', gpus, keys] / ms['tree', gpus, keys]:.1f}× on {gpus} for {keys:,} keys"
        for name, gpus, keys in sorted(ms)
        if name == "ring" and ("tree", gpus, keys) in ms
    ]
    return f"timed on GPUs: {', '.join(gains)}" if gains else NOT_RECORDED


def _is_forward(row):
    return row.get("what") == "forward" and "method" in row and "ms" in row
