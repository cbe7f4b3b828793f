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

### KIND: fill a loop
### HINT 1: new_pages: a sequence needs a page if its last one is full.
### HINT 2: A sequence that leaves helps twice: its pages are free, and it needs no new one.
### HINT 2: Compute new_pages again for those that stay.
### HINT 3: stay = len(lengths); while new_pages(lengths[:stay], page_size) > num_free: stay -= 1,
### HINT 3: the index stay leaves, and num_free grows by ceil(lengths[stay] / page_size).
### DEBRIEF: Why the last one? It has lost the least, and the oldest request never leaves, so that
### DEBRIEF: each one ends at some time: whoever is oldest runs to its end. Why whole? Its next
### DEBRIEF: token needs all of its keys, so a half of its pages is of no use. Preempting the one
### DEBRIEF: with the most pages would free more at once, and it could starve a long request for
### DEBRIEF: ever.


def new_pages(lengths, page_size):
    """Pages that one more token of each sequence needs."""
    ### BEGIN SOLUTION
    return sum(n % page_size == 0 for n in lengths)
    ### END SOLUTION


def preempt(lengths, num_free, page_size):
    """Indices of the sequences that leave, in the order in which they leave."""
    ### BEGIN SOLUTION
    stay, gone = len(lengths), []
    while new_pages(lengths[:stay], page_size) > num_free:
        stay -= 1
        gone.append(stay)
        num_free += -(-lengths[stay] // page_size)
    return gone
    ### END SOLUTION
