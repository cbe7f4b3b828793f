"""ex19a · Predict: what does a request waste?

A trace is a list of requests (prompt, final): tokens of the prompt, tokens when the answer is
complete; 1 <= prompt < final. A request enters with its prompt and gets one token in each step, so
that in its final - prompt steps it has prompt + 1, prompt + 2, ..., final tokens. Meanwhile it
holds memory, counted in slots, room for one token each:

    held(prompt, n, final)   slots that the request holds in the step in which it has n tokens

An array in one piece holds the same number in each step; pages come as they are needed. In each
step a held slot is one of three: it has a token; or it is empty and will have one before the
request leaves; or it never will.

paged(n, page_size)      slots of the pages that n tokens are in
usage(trace, held)       (tokens, later, never): slots of each kind, summed over all steps of all
                         requests; three ints

The simulator of the lesson must agree with your numbers, slot for slot. About 1 line and 6 lines.
"""


def paged(n, page_size):
    """Return the slots of the pages that n tokens are in."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19a: paged")


def usage(trace, held):
    """Return (tokens, later, never), slots summed over all steps of all requests."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19a: usage")


# Stub 126dbb09 of solutions/ex19a_fragmentation.py: `fa-numba reset ex19a` brings it back.
