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

### KIND: predict
### HINT 1: Take one request (3, 6) that holds 8 slots, step by step: 4, 5, 6 tokens; 2, 1, 0
### HINT 1: later; 2, 2, 2 never.
### HINT 2: A request will have `final` tokens in the end, so of `held` slots min(held, final) will
### HINT 2: be used. Those that are not yet: min(held, final) - n.
### HINT 3: usage: for prompt, final in trace: for n in range(prompt + 1, final + 1): add up n,
### HINT 3: min(h, final) - n and h - min(h, final) for h = held(prompt, n, final).
### DEBRIEF: None of this depends on how much memory there is, or who waits for whom: a request
### DEBRIEF: wastes what it wastes for as long as it runs. What a crowded memory adds is the fourth
### DEBRIEF: kind, free slots in which nobody fits: external fragmentation, for arrays in one piece
### DEBRIEF: alone. And "60 to 80 %" is a statement about a trace and a limit: set max_len to 1024
### DEBRIEF: or 4096, and it is another.


def paged(n, page_size):
    """Return the slots of the pages that n tokens are in."""
    ### BEGIN SOLUTION
    return -(-n // page_size) * page_size
    ### END SOLUTION


def usage(trace, held):
    """Return (tokens, later, never), slots summed over all steps of all requests."""
    ### BEGIN SOLUTION
    tokens = later = never = 0
    for prompt, final in trace:
        for n in range(prompt + 1, final + 1):
            slots = held(prompt, n, final)
            tokens += n
            later += min(slots, final) - n
            never += slots - min(slots, final)
    return tokens, later, never
    ### END SOLUTION
