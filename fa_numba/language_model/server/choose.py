"""The next tokens: greedy, top-k, nucleus, beams.

`softmax_topk` finds the most likely tokens of all rows in one launch, and only they are copied to
the host, once in each step: there the engine waits for a GPU.
"""

import numpy as np

from fa_numba.checks import MAX_TOP_K
from fa_numba.language_model.jobs import softmax_topk
from fa_numba.runtime import arrays

LEAST_TEMPERATURE = 0.01  # logits divided by much less would exceed float32


def most_likely(logits, temperatures, number):
    """The most likely tokens of each row, and their probabilities.

    Parameters
    ----------
    logits : array of shape (rows, vocabulary)
    temperatures : array of shape (rows,), float32
        Above 0.
    number : int

    Returns
    -------
    array of shape (rows, 2 * number), int32
        For `on_host`: the bits of the probabilities in float32, then the tokens.
    """
    # Not by CuPy's `concatenate`, which copies addresses from the host: no graph can capture that.
    probabilities, tokens = softmax_topk(logits.astype(np.float32) / temperatures[:, None], number)
    both = arrays.empty(logits, (len(logits), 2 * number), np.int32)
    both[:, :number], both[:, number:] = probabilities.view(np.int32), tokens
    return both


def on_host(both):
    """Copy the result of `most_likely` to host memory; this waits for a GPU.

    Returns
    -------
    probabilities : NumPy array of shape (rows, number), float32
        Of all tokens, the largest first.
    tokens : NumPy array of shape (rows, number), int32
    """
    both = arrays.to_numpy(both)
    number = both.shape[1] // 2
    return both[:, :number].view(np.float32), both[:, number:]


def draw(probabilities, tokens, top_k, top_p, uniform):
    """Draw a token for each row.

    Parameters
    ----------
    probabilities, tokens : arrays of shape (rows, number)
        As from `most_likely`.
    top_k, top_p, uniform : arrays of shape (rows,)
        The options, and a random number from 0 to 1, of each row.

    Returns
    -------
    array of shape (rows,), dtype of tokens
    """
    rows = np.arange(len(tokens))
    ends, kept = _kept(probabilities, top_k, top_p)
    chosen = (ends <= (uniform * ends[rows, kept - 1])[:, None]).sum(axis=1)
    # A product that is rounded up must not point past the last one.
    return tokens[rows, np.minimum(chosen, kept - 1)]


def _kept(probabilities, top_k, top_p):
    """Sums of the probabilities up to each candidate, and how many candidates are drawn from."""
    ends = np.cumsum(probabilities, axis=1, dtype=np.float64)
    before = ends - probabilities
    return ends, np.minimum(top_k, (before < top_p[:, None]).sum(axis=1)).clip(1)


def distribution(probabilities, tokens, options, vocabulary):
    """The distribution that `draw` draws from, of one row: float64 array of shape (vocabulary,)."""
    _, (kept,) = _kept(probabilities[None], options.top_k, np.array([options.top_p]))
    p = np.zeros(vocabulary)
    p[tokens[:kept]] = probabilities[:kept]
    return p / p.sum()


def best_beams(scores, probabilities, tokens, number):
    """The beams of the next step.

    Parameters
    ----------
    scores : array of shape (beams,)
        Log-probability of each beam so far.
    probabilities, tokens : arrays of shape (beams, candidates)
    number : int

    Returns
    -------
    parents, tokens : lists of `number` int
        The beam that each one continues, and its next token; the best first.
    scores : list of float
    """
    with np.errstate(divide="ignore"):
        totals = scores[:, None] + np.log(probabilities.astype(np.float64))
    order = np.argsort(-totals, axis=None, kind="stable")[:number]
    parents, candidates = np.unravel_index(order, totals.shape)
    return parents.tolist(), tokens[parents, candidates].tolist(), totals.ravel()[order].tolist()


def candidates_needed(options):
    """Number of the most likely tokens that a request chooses from."""
    if options.beams:
        return options.beams
    return 1 if options.temperature == 0 else MAX_TOP_K


def divisor(options):
    """The number by which a request's logits are divided before softmax."""
    if options.beams or options.temperature == 0:
        return 1.0
    return max(options.temperature, LEAST_TEMPERATURE)
