"""ex23c · Admission: who may enter?

Requests wait in a queue, first come, first served. Before each step the server lets in as many as
fit. A request fits if there are free pages

    for all its n tokens, which are computed at once, and
    for one more token of every sequence that runs then, the request itself included.

So nobody has to leave in the next step. A sequence whose last page has an empty slot needs no page
for one more token. Nobody overtakes: if a request does not fit, those behind it wait as well.

admit(waiting, running, num_free, page_size)     how many requests of the queue enter, an int
    waiting    list of int: tokens of each request, the oldest first; each >= 1
    running    list of int: tokens of each sequence that runs, all of them in pages; each >= 1
    num_free   int: free pages; no page is shared

About 7 lines. The lists are not changed.
"""


def admit(waiting, running, num_free, page_size):
    """How many requests from the head of the queue enter."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23c: admit")


# Stub 94c20197 of solutions/ex23c_admission.py: `fa-numba reset ex23c` brings it back.
