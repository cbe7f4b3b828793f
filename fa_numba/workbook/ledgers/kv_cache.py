"""The ledger of the lesson on the KV cache: what source 002 says of it."""

import functools
import math

import numpy as np

from fa_numba import analysis, reference
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kv_cache import ContiguousCache, RollingCache
from fa_numba.workbook.ledgers import ledger_row

GPT3 = {"layers": 96, "num_heads": 96, "head_dim": 128}
KEPT = 0, 1, 2, 4  # first tokens
STEPS, WINDOW, NUM_SINKS, EARLY = 32, 12, 2, 24
SLOPE = 0.4  # what each step back takes off a score in a head that looks near


def ledger():
    """The rows of the ledger.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    return [*_sizes_and_intensities(), _operations(), _groups(), _chunks(), *_windows(), _sinks()]


def decode_through(cache, q, k, v):
    """Token by token: append to the cache, then attend to it.

    Parameters
    ----------
    cache : ContiguousCache or RollingCache
    q, k, v : arrays of shape (batch, seqlen, heads, head_dim)

    Returns
    -------
    array of the shape of q
        The outputs of all steps.
    """
    out = np.empty_like(q)
    for t in range(q.shape[1]):
        now = slice(t, t + 1)
        cache.append(k[:, now], v[:, now])
        out[:, now], _ = flash_decode(
            q[:, now], cache.k_cache, cache.v_cache, cache.seq_lens, num_splits=1
        )
    return out


def sink_weights(seed=0):
    """The weights of the last query, with everything kept and with a window.

    The scores are random numbers, but 4 for the first two keys.

    Returns
    -------
    dict of str to array of shape (STEPS,)
        For each cache the weight of every token; NaN for one that is not kept.
    """
    scores = np.random.default_rng(seed).standard_normal(STEPS)
    scores[:NUM_SINKS] = 4
    q, k = np.zeros((2, 1, STEPS, 1, STEPS), np.float32)
    q[..., 0], k[0, :, 0, 0] = math.sqrt(STEPS), scores  # q · k / √d is then the score
    one_hot = np.eye(STEPS, dtype=np.float32)[None, :, None]  # so that out is the weights
    caches = {
        "everything": ContiguousCache(1, STEPS, 1, STEPS),
        "the window alone": RollingCache(1, WINDOW, 1, STEPS),
        "sinks and window": RollingCache(1, WINDOW, 1, STEPS, num_sinks=NUM_SINKS),
    }
    weights = {}
    for name, cache in caches.items():
        cache.append(k, one_hot)
        arguments = cache.k_cache, cache.v_cache, cache.seq_lens
        out, _ = flash_decode(q[:, -1:], *arguments, num_splits=1)
        held = cache.v_cache[0, : cache.seq_lens[0], 0].any(axis=0)
        weights[name] = np.where(held, out[0, 0, 0], np.nan)
    return weights


@functools.cache
def sink_errors(seed=0):
    """How wrong a window makes three heads, with some first tokens kept or none.

    Scores are random, 4 for the first two keys of a head with sinks, whose values are 0. A head
    that looks near takes 0.4 off the score of a key for each step back.

    Returns
    -------
    dict of str to list of float
        For each head the relative error of its output with 0, 1, 2 and 4 first tokens kept, over
        the last steps.
    """
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((1, STEPS, 1, STEPS), dtype=np.float32)
    v[:, :NUM_SINKS] = 0
    usual, position = rng.standard_normal(STEPS), np.arange(STEPS)
    early, late = slice(0, EARLY), slice(EARLY, None)  # the first tokens have left by then
    errors = {}
    for name, sinks, slope in (
        ("looks near, has sinks", True, SLOPE),
        ("looks near, no sinks", False, SLOPE),
        ("looks everywhere, has sinks", True, 0.0),
    ):
        # q · k / √d = usual[n] - slope (m - n): two components of q and k
        q, k = np.zeros((2, 1, STEPS, 1, STEPS), np.float32)
        q[0, :, 0, 0], q[0, :, 0, 1] = math.sqrt(STEPS), math.sqrt(STEPS) * position
        k[0, :, 0, 0], k[0, :, 0, 1] = usual + slope * position, -slope
        if sinks:
            k[0, :NUM_SINKS, 0, :2] = 4, 0
        full = reference.attention(q, k, v, causal=True)[0][:, late]
        errors[name] = []
        for kept in KEPT:
            cache = RollingCache(1, WINDOW, 1, STEPS, num_sinks=kept)
            cache.append(k[:, early], v[:, early])
            out = decode_through(cache, q[:, late], k[:, late], v[:, late])
            errors[name].append(float(np.linalg.norm(out - full) / np.linalg.norm(full)))
    return errors


def _sizes_and_intensities():
    layers, H, d = GPT3.values()
    mha, mqa = (analysis.kv_cache_bytes(4096, layers, n, d) for n in (H, 1))
    a100 = analysis.Roofline("A100-40GB", "float16")
    lengths = 1024, 4096, 65_536
    intensities = [analysis.intensity.decode(L, H, d).intensity for L in lengths]
    unfused, fused = (
        analysis.intensity.decode(10**9, H, d, num_kv_heads=1, fused=f).intensity
        for f in (False, True)
    )
    weights, cache = 2 * 175, mha / 1e9  # GB
    faster = {B: (weights + B * cache) / (weights + B * cache / H) for B in (1, 8, 64)}
    return [
        ledger_row(
            "GPT-3 at 4096 tokens: 19,327,352,832 bytes; with MQA 96 times less, 200 MB (002)",
            f"{mha:,} bytes; {mha // mqa} times less is {mqa / 1e6:.0f} MB",
            "exact",
        ),
        ledger_row(
            "decoding with MHA: arithmetic intensity below 1, bound by memory (002)",
            f"GPT-3, float16, 1024 to 65,536 tokens: {min(intensities):.4f} to "
            f"{max(intensities):.4f} FLOP per byte; the ridge of an A100 is {a100.ridge:.0f}",
            "true" if max(intensities) < 1 else "false",
        ),
        ledger_row(
            "below a batch of 200 an A100 waits for memory, above it computes (002)",
            f"a linear layer in float16 has B FLOP per byte, the ridge is {a100.ridge:.0f}; "
            f"attention has {intensities[1]:.2f} for each sequence of 4096 tokens, in any batch",
            "true of the linear layers it speaks of; the cache grows with the batch",
        ),
        ledger_row(
            "with MQA the intensity tends to dh / (d + h²) ≈ h (002)",
            f"d = {H * d:,}, h = {H}: dh / (d + h²) = {H * d * H / (H * d + H * H):.1f}; per byte "
            f"of float16, all counted: {unfused:.1f}, and {fused:.1f} if S stays on the chip",
            "≈ h only if fused: h² is the traffic of S, and not small beside d",
        ),
        ledger_row(
            "MQA potentially makes decoding h times faster (002)",
            "bytes of a step, weights (175 billion) and caches of 4096 tokens: "
            + ", ".join(f"batch {B}: {times:.2f}× less" for B, times in faster.items()),
            f"h = {H} is for the attention alone; the weights are read as before",
        ),
    ]


def _operations(tokens=64):
    step_by_step = sum(range(1, tokens + 1))  # pairs of query and key; a step sees those so far
    return ledger_row(
        "the number of operations stays the same for L steps as in prefill (002)",
        f"{tokens} tokens: the linear layers cost the same; pairs of query and key "
        f"{step_by_step:,} step by step, {tokens * tokens:,} in a whole S",
        "the same if prefill skips what the mask hides; else decoding does less",
    )


def _groups(h=6, groups=3):
    shared = analysis.kv_cache_bytes(100, 1, h, 8) // analysis.kv_cache_bytes(100, 1, groups, 8)
    return ledger_row(
        "h heads split into g groups (g = 1 is MQA), and in the table: KV traffic BL²d/g (002)",
        f"h = {h}, g = {groups} groups: K and V shrink {shared} = h/g times, not g = {groups} "
        f"times; for g = 1 they shrink {h} times",
        "two meanings of g: in the table it is the query heads per group",
    )


def _chunks(C=7, L=45):
    chunks = [(start, min(start + C, L)) for start in range(0, L, C)]
    most = max((stop - start) * stop for start, stop in chunks)  # rows of the chunk, keys so far
    window, queries = 32, 16
    m = 84 + np.arange(queries)[:, None]
    seen = (m - window < np.arange(100)) & (np.arange(100) <= m)
    return ledger_row(
        "chunked prefill: S is at most C × L; with a window C × L_w (002)",
        f"C = {C}, L = {L}: {most} numbers at most, C · L = {C * L}; C = {queries} queries with "
        f"L_w = {window} see {seen.any(axis=0).sum()} different keys",
        "true; with a window each row has L_w, a chunk's rows together C + L_w − 1",
    )


def _windows(W=4, depth=3):
    step = np.tri(30, dtype=int) - np.tri(30, k=-W, dtype=int)  # who sees whom in one layer
    reach = (np.linalg.matrix_power(step, depth)[-1] > 0).sum() - 1
    ring = RollingCache(1, W, 1, 8)
    for _ in range(10):
        ring.append(*np.zeros((2, 1, 1, 1, 8), np.float32))
    return [
        ledger_row(
            "n layers with a window of L_w tokens attend n · L_w tokens back (002)",
            f"L_w = {W} with its own, n = {depth}: {reach} tokens back, "
            f"n · (L_w − 1) = {depth * (W - 1)}",
            "n · (L_w − 1), where L_w counts the token itself",
        ),
        ledger_row(
            "the rolling cache is restricted to 2 · L_w (002)",
            f"L_w = {W}, 10 tokens given: {ring.seq_lens[0]} tokens kept, "
            f"{(ring.k_cache.size + ring.v_cache.size) // 8} vectors",
            "true of vectors: a key and a value for each of L_w tokens",
        ),
    ]


def _sinks():
    errors = sink_errors()
    two = KEPT.index(NUM_SINKS)
    return ledger_row(
        "keeping the first tokens largely recovers window attention (002)",
        "error without and with two kept tokens, of a head that "
        + "; ".join(f"{name}: {row[0]:.1%} → {row[two]:.1%}" for name, row in errors.items()),
        "true of heads that look near; that trained models have such heads and sinks is the "
        "paper's finding",
    )
