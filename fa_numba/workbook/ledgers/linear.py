"""The ledger of the lesson on linear attention: what source 002 says about it."""

import math

import numpy as np

import fa_numba
from fa_numba import analysis, reference, simt
from fa_numba.tiling.linear_attn import feature_dim
from fa_numba.workbook.lookup_head import LENGTH
from fa_numba.workbook.recorded import recorded_rows


def ledger(head, measured, output_error, hedgehogs):
    """The rows of the ledger.

    Parameters
    ----------
    head : LookupHead
    measured : dict
        By name of the map, what `LookupHead.measures` returns.
    output_error : dict
        By name of the map, the relative error of the output.
    hedgehogs : dict
        By a description of a trained map, (its number of weights, its divergence).

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    rng = np.random.default_rng(0)
    entropies = {name: measures[0] for name, measures in measured.items()}
    before, after = (f"hedgehog, {name}" for name in ("untrained", "trained"))
    x = np.linspace(-3, 3, 601)[:, None]
    flat = {name: np.mean(np.diff(_features(name, x)[:, 0]) == 0) for name in ("relu", "elu1")}
    sizes = {name: feature_dim(name, 64, 128) * 65 for name in ("elu1", "hedgehog", "taylor2")}
    d = head(1)[0].shape[1]
    small = 1 + d + d * (d + 1) // 2
    pairs = _features("taylor2", rng.standard_normal((2 * small, d)))
    return [
        _row("linear time and space (002)", _growth(), "right"),
        _row(
            "we only need O(d²) space for U (002)",
            "d = 64: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()),
            "right for F = d; F·(d+1) in general, which is d³ for taylor2",
        ),
        _row(
            "elu + 1 and relu lose the low-entropy spikiness (002)",
            "entropies: "
            + ", ".join(f"{n} {entropies[n]:.2f}" for n in ("softmax", "elu1", "relu", "all even")),
            "right: hardly better than even weights",
        ),
        _row(
            "relu sets the gradients to 0 for negative inputs (002)",
            f"from −3 to 3 flat: relu {flat['relu']:.0%}, elu1 {flat['elu1']:.0%}",
            "right",
        ),
        _row(
            "φ = [1, x₁…x_d] ∪ [x_i x_j] is the 2nd-degree Taylor approximation of exp (002)",
            _taylor_as_printed(rng),
            "factors missing: d^(−1/4) on x_i, 1/√(2d) on x_i x_j",
        ),
        _row(
            "the Taylor map retains both spikiness and monotonicity (002)",
            f"entropy {entropies['taylor2']:.2f} against {entropies['softmax']:.2f}; "
            f"{measured['taylor2'][1]:.0%} of pairs in order; {_below(head):.0%} of our scores are "
            "below s = −1, where 1 + s + s²/2 falls",
            "better than the others, and monotone above −1 only",
        ),
        _row(
            "1 + d + d² features, O(L d³) (002)",
            f"d = {d}: {pairs.shape[1]} features of rank {np.linalg.matrix_rank(pairs)} = "
            "1 + d + d(d+1)/2",
            "right; as x_i x_j = x_j x_i, about half would do",
        ),
        _row(
            "Hedgehog: φ(x) = exp(xW) (002)",
            "divergence after training: "
            + "; ".join(f"{name}, {n} weights: {x:.3f}" for name, (n, x) in hedgehogs.items()),
            "the paper's map has both signs: as many features from half the weights. For its "
            "features the printed form is better here, as it has twice the weights; with as many "
            "weights the two come out alike",
        ),
        _row(
            "cross-entropy with softmax's weights teaches the map (002)",
            f"divergence {measured[before][2]:.2f} → {measured[after][2]:.2f}, output error "
            f"{output_error[before]:.0%} → {output_error[after]:.0%}, held out",
            "right; the least loss is the entropy of P, not 0",
        ),
    ]


def _growth():
    """Bytes by the formula, FLOPs by the meter and recorded times, for twice the length."""
    problems = [analysis.Problem(1, n, n, 1, 1, 64, causal=True) for n in (4096, 8192)]
    moved = [analysis.traffic.linear_attn(problem).bytes() for problem in problems]
    flops = []
    for n in (64, 128):
        with simt.tracing() as traces:
            fa_numba.linear_attn(*np.ones((3, 1, n, 1, 8), np.float32), causal=True)
        flops.append(sum(trace.flops.total for trace in traces))
    ms = {(r["what"], r["kernel"], r["seqlen"]): r["ms"] for r in recorded_rows("linear")}
    times = "; time: not recorded yet"
    if ms:
        times = "; time, N=8192 → 16384: " + ", ".join(
            f"{w} {ms[w, 'linear_attn, elu1', 16384] / ms[w, 'linear_attn, elu1', 8192]:.2f}×"
            for w in ("prompt", "token")
        )
    return (
        f"twice the length: {moved[1] / moved[0]:.2f}× the bytes (N=4096 → 8192, d=64), "
        f"{flops[1] / flops[0]:.2f}× the FLOPs counted (N=64 → 128){times}"
    )


def _taylor_as_printed(rng):
    x, y = rng.standard_normal((2, 200, 16))
    dots = np.sum(x * y, axis=1)
    s = dots / 4
    printed, with_factors = 1 + dots + dots**2, 1 + s + s**2 / 2
    errors = [np.median(np.abs(z - np.exp(s)) / np.exp(s)) for z in (printed, with_factors)]
    return (
        f"its product is 1 + q·k + (q·k)²; off e^(q·k/√d) by {errors[0]:.0%} (median), with the "
        f"factors by {errors[1]:.0%}"
    )


def _below(head):
    """The share of scores that are below −1."""
    sees, scores = np.tri(LENGTH, dtype=bool), []
    for start in head.pieces[:4]:
        q, k, _ = head(start)
        scores.append((q @ k.T / math.sqrt(q.shape[1]))[sees])
    return np.mean(np.concatenate(scores) < -1)


def _features(name, x):
    return reference.feature_map(x[None, :, None], name)[0, :, 0]


def _row(claim, number, verdict):
    return {"claim": claim, "our number": number, "verdict": verdict}
