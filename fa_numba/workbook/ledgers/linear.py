"""The ledger of the lesson on linear attention: what source 002 says about it."""

import math

import numpy as np

from fa_numba import analysis, linear_attn, simt
from fa_numba.tiling.linear_attn import feature_dim
from fa_numba.workbook import induction_head as ours
from fa_numba.workbook.ledgers import ledger_row
from fa_numba.workbook.recorded import recorded_rows

NOT_RECORDED = "time: not recorded yet"
ALIKE = 0.1  # divergences that differ by less than this part are alike


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
    return [
        _about_length(recorded_rows("linear", folder=folder)),
        _about_the_state(),
        *_about_simple_maps(),
        *_about_taylor(),
        *_about_hedgehog(),
    ]


def verdict_on_hedgehog(printed, signed, signed_wide):
    """What three divergences say about the forms e^(x w) and [e^(x w), e^(-x w)].

    Parameters
    ----------
    printed, signed : float
        Of the two forms with as many features; the printed form has twice the weights.
    signed_wide : float
        With both signs and as many weights as the printed form.
    """
    features = {
        0: "with as many features the two are alike",
        1: "with as many features the printed form is better, and has twice the weights",
        -1: "with as many features both signs are better, with half the weights",
    }
    weights = {
        0: "with as many weights the two are alike",
        1: "with as many weights the printed form is better",
        -1: "with as many weights both signs are better",
    }
    return (
        f"the paper's map has both signs; {features[_better(printed, signed)]}; "
        f"{weights[_better(printed, signed_wide)]}"
    )


def _better(a, b):
    """1 if divergence a is the smaller, -1 if b is, 0 if they are alike."""
    return 0 if abs(a - b) <= ALIKE * max(a, b) else 1 if a < b else -1


def _about_length(recorded):
    problems = [analysis.Problem(1, n, n, 1, 1, 64, causal=True) for n in (4096, 8192)]
    moved = [analysis.traffic.linear_attn(problem).bytes() for problem in problems]
    flops = [_flops(n) for n in (64, 128)]
    ms = {(r["what"], r["kernel"], r["seqlen"]): r.get("ms") for r in recorded}
    ratios = [
        f"{what} {ms[what, kernel, 16384] / ms[what, kernel, 8192]:.2f}×"
        for what, kernel in (("prompt", "linear_attn, elu1"), ("token", "linear_attn, elu1"))
        if ms.get((what, kernel, 16384)) and ms.get((what, kernel, 8192))
    ]
    time = "time on a GPU, N = 8192 → 16384: " + ", ".join(ratios) if ratios else NOT_RECORDED
    return ledger_row(
        "linear time and space (002)",
        f"twice the length: {moved[1] / moved[0]:.2f}× the bytes (N = 4096 → 8192, d = 64), "
        f"{flops[1] / flops[0]:.2f}× the FLOPs counted (N = 64 → 128); {time}",
        "right",
    )


def _flops(seqlen):
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, seqlen, 1, 8), dtype=np.float32)
    with simt.tracing() as traces:
        linear_attn(q, k, v, causal=True)
    return sum(trace.flops.total for trace in traces)


def _about_the_state():
    sizes = {name: feature_dim(name, 64, 128) * 65 for name in ("elu1", "hedgehog", "taylor2")}
    return ledger_row(
        "we only need O(d²) space for U (002)",
        "d = 64: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()),
        "right for F = d; F (d + 1) in general, which is d³ for taylor2",
    )


def _about_simple_maps():
    kinds = {"softmax": ours.softmax_weights, "even": ours.even_weights}
    kinds |= {name: ours.weights_by(name) for name in ("elu1", "relu")}
    entropy = {name: ours.measures(weights_of)[0] for name, weights_of in kinds.items()}
    x = np.linspace(-3, 3, 601)[:, None]
    flat = {
        name: np.mean(np.diff(ours.features_of(name, x)[:, 0]) == 0) for name in ("relu", "elu1")
    }
    return (
        ledger_row(
            "elu + 1 and relu lose the low-entropy spikiness (002)",
            "entropies: "
            + ", ".join(f"{n} {entropy[n]:.2f}" for n in ("softmax", "elu1", "relu", "even")),
            "right: hardly better than even weights",
        ),
        ledger_row(
            "relu sets the gradients to 0 for negative inputs (002)",
            f"flat part of −3 to 3: relu {flat['relu']:.0%}, elu1 {flat['elu1']:.0%}",
            "right",
        ),
    )


def _about_taylor():
    rng = np.random.default_rng(0)
    dots = np.sum(np.prod(rng.standard_normal((2, 200, 16)), axis=0), axis=1)
    s = dots / 4
    printed, scaled = (
        np.median(np.abs(z - np.exp(s)) / np.exp(s)) for z in (1 + dots + dots**2, 1 + s + s**2 / 2)
    )
    soft = ours.measures(ours.softmax_weights)
    entropy, in_order, _ = ours.measures(ours.weights_by("taylor2"))
    simple = [ours.measures(ours.weights_by(name))[1] for name in ("elu1", "relu")]
    order = "more" if in_order > max(simple) + 0.02 else "no more"
    heads = [ours.head(start) for start in ours.pieces()[:4]]
    seen = np.tri(ours.LENGTH, dtype=bool)
    scores = np.concatenate([(q @ k.T / math.sqrt(ours.HEAD_DIM))[seen] for q, k, _ in heads])
    d = ours.HEAD_DIM
    features = ours.features_of("taylor2", rng.standard_normal((2 * d * d, d)))
    rank = int(np.linalg.matrix_rank(features))
    return (
        ledger_row(
            "φ = [1, x₁…x_d] ∪ [x_i x_j] is the 2nd-degree Taylor approximation of exp (002)",
            f"its product is 1 + q·k + (q·k)²; its median error against e^(q·k/√d) is "
            f"{printed:.0%}, with the factors {scaled:.0%}",
            "factors are missing: d^(−1/4) on x_i, 1/√(2d) on x_i x_j",
        ),
        ledger_row(
            "the Taylor map retains both spikiness and monotonicity (002)",
            f"entropy {entropy:.2f} against {soft[0]:.2f}; {in_order:.0%} of pairs in order, "
            f"elu1 {simple[0]:.0%}, relu {simple[1]:.0%}; "
            f"{np.mean(scores < -1):.0%} of our scores are below s = −1, where 1 + s + s²/2 falls",
            f"spikier than elu1 and relu, with {order} pairs in order: monotone above −1 only",
        ),
        ledger_row(
            "1 + d + d² features, O(L d³) (002)",
            f"d = {d}: {features.shape[1]} features of rank {rank}; "
            f"1 + d + d (d + 1) / 2 = {1 + d + d * (d + 1) // 2}",
            "right; as x_i x_j = x_j x_i, about half would do",
        ),
    )


def _about_hedgehog():
    start = ours.untrained()
    signed, wide, plain = (ours.trained(*form)[0] for form in ((32, 2), (64, 2), (64, 1)))
    before, after, wide_after = (
        ours.measures(lambda q, k, w=w: ours.hedgehog_weights(q, k, w))[2]
        for w in (start, signed, wide)
    )
    printed = ours.measures(lambda q, k: ours.hedgehog_weights(q, k, plain, ours.one_sign))[2]
    errors = [ours.attention_error("hedgehog", w)[0] for w in (start, signed)]
    return (
        ledger_row(
            "Hedgehog: φ(x) = exp(xW) (002)",
            f"divergence after 400 steps: exp(xW), 64 features, {plain.size:,} weights: "
            f"{printed:.3f}; [exp(xW), exp(−xW)], 64 features, {signed.size:,} weights: "
            f"{after:.3f}; the same, 128 features, {wide.size:,} weights: {wide_after:.3f}",
            verdict_on_hedgehog(printed, after, wide_after),
        ),
        ledger_row(
            "cross-entropy with softmax's weights teaches the map (002)",
            f"held-out divergence {before:.2f} → {after:.2f}, output error "
            + " → ".join(f"{error:.0%}" for error in errors),
            "right; the least loss is the entropy of P, not 0" if after < before else "wrong here",
        ),
    )
