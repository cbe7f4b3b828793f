"""ex23d · Preemption: who must leave?

Each sequence that runs gets one more token in this step. If the free pages do not suffice, whole
sequences leave, the one that came last first, until they do. All pages of a sequence that leaves
become free, and it gets no token in this step.

new_pages(lengths, page_size)           pages that one more token of each sequence needs, an int
preempt(lengths, num_free, page_size)   the sequences that leave, in this order: a list of indices
                                        into lengths, [] if all can stay

    lengths    list of int: tokens of each sequence, all in pages, the oldest first; each >= 1
    num_free   int, >= 0; no page is shared

The oldest sequence alone always fits: nothing needs to be checked for that. About 1 line and 6
lines. lengths is not changed.
"""


def new_pages(lengths, page_size):
    """Pages that one more token of each sequence needs."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23d: new_pages")


def preempt(lengths, num_free, page_size):
    """Indices of the sequences that leave, in the order in which they leave."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23d: preempt")


# Stub d42ba535 of solutions/ex23d_preemption.py: `fa-numba reset ex23d` brings it back.
