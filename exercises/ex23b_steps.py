"""ex23b · Predict: two ways of batching, by count

A server has room for `batch` answers at a time. In each step every answer that runs gets one token.
All requests are there at the start, in a queue; answers[i] is the number of tokens of answer i.

static_steps(answers, batch)
    The first `batch` requests begin together. The next ones begin when all of these have ended.
continuous_steps(answers, batch)
    When an answer ends, the next request of the queue begins in the next step.

Both return the number of steps until the last answer has ended, an int; 0 without requests.
answers is a list of ints >= 1, and batch an int >= 1. About 1 line and 5 lines; no model runs.
"""


def static_steps(answers, batch):
    """Steps if a batch begins when the last one has ended."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23b: static_steps")


def continuous_steps(answers, batch):
    """Steps if a request begins as soon as there is room for it."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23b: continuous_steps")


# Stub c0f7fc72 of solutions/ex23b_steps.py: `fa-numba reset ex23b` brings it back.
