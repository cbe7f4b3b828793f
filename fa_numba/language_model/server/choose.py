"""The next tokens: greedy, top-k, nucleus, beams.

`softmax_topk` finds the most likely tokens of all rows in one launch, and only they are copied to
the host: once in each step, which is also the only time that the engine waits for a GPU.
"""

import numpy as np

from fa_numba.checks import MAX_TOP_K
from fa_numba.dispatch.softmax import softmax_topk
from fa_numba.runtime import arrays


def most_likely(logits, temperatures, number):
    """The most likely tokens of each row, in host memory.

    Parameters
    ----------
    logits : array of shape (rows, vocabulary)
    temperatures : NumPy array of shape (rows,), float32
        Above 0.
    number : int

    Returns
    -------
    probabilities : NumPy array of shape (rows, number), float32
        The largest first, of all tokens.
    tokens : NumPy array of shape (rows, number), int32
    """
    if (temperatures != 1).any():
        logits = logits / arrays.from_numpy(logits, temperatures[:, None])
    probabilities, tokens = softmax_topk(logits, number)
    if arrays.library_of(logits) == "numpy":
        return probabilities, tokens
    # Seen as integers, so that both come in one copy.
    xp = arrays.module_of(logits)
    both = arrays.to_numpy(xp.concatenate([probabilities.view(np.int32), tokens], axis=1))
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
    probabilities = probabilities.astype(np.float64)
    before = np.cumsum(probabilities, axis=1) - probabilities
    keep = (np.arange(tokens.shape[1]) < top_k[:, None]) & (before < top_p[:, None])
    keep[:, 0] = True
    ends = np.cumsum(np.where(keep, probabilities, 0), axis=1)
    chosen = (ends <= (uniform * ends[:, -1])[:, None]).sum(axis=1)
    last = keep.sum(axis=1) - 1  # a product that is rounded up must not point past it
    return tokens[np.arange(len(tokens)), np.minimum(chosen, last)]


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


def candidates_needed(options, vocabulary):
    """Number of the most likely tokens that a request chooses from."""
    if options.beams:
        return min(options.beams, vocabulary)
    return 1 if options.temperature == 0 else min(MAX_TOP_K, vocabulary)
