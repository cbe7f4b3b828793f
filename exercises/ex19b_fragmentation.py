"""ex19b · What does a request waste?

A trace is a list of requests (prompt, final): tokens of the prompt, tokens when the answer is
complete; 1 <= prompt < final. A request enters with its prompt and gets one token in each step, so
that in its final - prompt steps it has prompt + 1, prompt + 2, ..., final tokens. Meanwhile it
holds memory, counted in slots, room for one token each:

    held(prompt, n, final)   slots that the request holds in the step in which it has n tokens

An array in one piece holds what was set aside for it on the first day, whatever n. Pages come as
they are needed. In each step a held slot is one of three: it has a token; or it is empty and will
have one before the request leaves; or it never will.

power_of_two(prompt, final)   what an array in one piece is given where somebody guesses the length
                              of the answer: the prompt, and the smallest power of two (1, 2, 4, ..)
                              that is not smaller than the answer, final - prompt
paged(n, page_size)           slots of the pages that n tokens are in
usage(trace, held)            (tokens, later, never): slots of each kind, summed over all steps of
                              all requests; three ints
waste(trace, held)            share of them without a token: (later + never) / all of them

About 12 lines in all.
"""


def power_of_two(prompt, final):
    """Return the slots of the prompt and of the answer, rounded up to a power of two."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19b: power_of_two")


def paged(n, page_size):
    """Return the slots of the pages that n tokens are in."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19b: paged")


def usage(trace, held):
    """Return (tokens, later, never), slots summed over all steps of all requests."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19b: usage")


def waste(trace, held):
    """Return the share of the held slots that have no token."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19b: waste")


# Stub 68e7a7d0 of solutions/ex19b_fragmentation.py: `fa-numba reset ex19b` brings it back.
