"""Log-probabilities of a sequence's tokens, by one pass of the model over the whole of it.

A step keeps no logits of a prompt, and finds none of those whose pages are shared. So a request
that asks for log-probabilities costs this pass besides, within the step that ends its answer.
"""

from typing import NamedTuple

import numpy as np

from fa_numba.language_model import model
from fa_numba.runtime import arrays


class Scores(NamedTuple):
    """Of each token of a sequence."""

    # Logarithm of its probability after the tokens before it; of the first token None
    logprobs: list
    # The likeliest tokens at its position and their log-probabilities, the likeliest first; of the
    # first token None
    likeliest: list


def of(weights, config, tokens, number) -> Scores:
    """The scores of a sequence.

    Parameters
    ----------
    weights : dict
    config : Config
    tokens : list of int
    number : int
        Of the likeliest tokens.
    """
    xp = arrays.module_of(weights["embedding"])
    logits = model.forward(weights, config, xp.asarray(np.array([tokens], np.int32)))
    logprobs, likeliest = [None], [None]
    number = min(number, config.vocabulary)
    for row, token in zip(arrays.to_numpy(logits[0, :-1]), tokens[1:], strict=True):
        x = row.astype(np.float64)
        x -= x.max()
        x -= np.log(np.exp(x).sum())
        best = np.argpartition(-x, number - 1)[:number] if number else np.empty(0, int)
        best = best[np.argsort(-x[best], kind="stable")]
        logprobs.append(float(x[token]))
        likeliest.append([(int(t), float(x[t])) for t in best])
    return Scores(logprobs, likeliest)
