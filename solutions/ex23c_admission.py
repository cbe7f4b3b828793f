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

### KIND: fill a loop
### HINT 1: page_size = 4: how many pages do 3 tokens take with one more to come? 4 tokens? 5?
### HINT 2: n tokens and one more take ceil((n + 1) / page_size) = n // page_size + 1 pages. A
### HINT 2: running sequence has pages for its n tokens: when does one more need a page?
### HINT 3: free = num_free - sum(n % page_size == 0 for n in running). Then for each request in
### HINT 3: order: subtract its pages, stop if less than 0 are left, else count it.
### DEBRIEF: The rule looks one step ahead. A server that looks no step ahead lets a request in and
### DEBRIEF: throws it out again in the next step, with all that was computed for it. One that
### DEBRIEF: looks ahead to the longest possible answer never preempts, and wastes what contiguous
### DEBRIEF: allocation wastes. vLLM keeps a small share of the pages free (a watermark) for the
### DEBRIEF: same purpose. With overtaking, short requests would keep a long one waiting for ever.


def admit(waiting, running, num_free, page_size):
    """How many requests from the head of the queue enter."""
    ### BEGIN SOLUTION
    free = num_free - sum(n % page_size == 0 for n in running)
    entered = 0
    for n in waiting:
        free -= n // page_size + 1
        if free < 0:
            break
        entered += 1
    return entered
    ### END SOLUTION
