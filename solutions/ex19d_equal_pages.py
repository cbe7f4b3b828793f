"""ex19d · Find the bug: equal pages, unequal keys

A server remembers the full pages of earlier prompts, so that a prompt which begins alike takes them
and computes less. A page is known by a hash, 64 bits that a kernel computes. `broken_kernel` and
`broken_find` have a bug each. Somebody saw another user's answer.

kernel                        the hash of each full page of each prompt; a thread has a prompt
find(known, hashes)           the pages that a new prompt takes: as many as possible, in order

launch   kernel[ceil(prompts / 64), 64](tokens, lengths, hashes, page_size)
arrays   tokens (prompts, longest) int32, lengths (prompts,) int32: a prompt is the first
         lengths[b] tokens of row b; what lies behind it is not loaded
         hashes (prompts, pages) uint64: of full pages; other elements stay as they are
known    a dict: hash -> page, filled with the hashes of `kernel`; a page may be forgotten at any
         time. Not changed
hashes   of find: a list of ints, those of the prompt's full pages, in order

mix(h, token) is given: a hash of h and a token, and has no bug. The keys and values in a page
depend on all tokens from the first of the sequence to the last of the page. Write `kernel` and
`find`: copy the broken ones and mend them. About 3 lines change. Each token is loaded once.
"""

from numba import cuda, uint64

START = 14695981039346656037
PRIME = 1099511628211

### KIND: find the bug
### HINT 1: Two prompts: [1, 2, 3, 4] and [5, 6, 3, 4], pages of 2. Are their second pages the same?
### HINT 1: What does the kernel say?
### HINT 2: A hash of everything before a page exists already: that of the page before. Now known
### HINT 2: has forgotten the second of three pages. What may a prompt still take?
### HINT 3: kernel: h = uint64(START) once, before the loop over pages: the hash goes on from page
### HINT 3: to page. find: break at the first page that is not known.
### DEBRIEF: A key says "cat" after "the" and "cat" after "no": attention has mixed everything
### DEBRIEF: before it into the second layer's keys. So a page is known by its whole prefix, and a
### DEBRIEF: chain of hashes makes that cheap: the hash before it, and the page's tokens. And
### DEBRIEF: positions: a page found after a gap would hold keys for other positions. vLLM and the
### DEBRIEF: package's PagePool chain their hashes in this way. With 64 bits two prefixes collide
### DEBRIEF: once in 2^64; where users may choose their tokens to collide, servers take SHA-256.


@cuda.jit(device=True)
def mix(h, token):
    """A hash of the hash h and a token: FNV-1a, on whole tokens."""
    return (h ^ uint64(token)) * uint64(PRIME)


@cuda.jit
def broken_kernel(tokens, lengths, hashes, page_size):
    """What each page of each prompt is known by. Leave it as it is."""
    b = cuda.grid(1)
    if b < tokens.shape[0]:
        for i in range(lengths[b] // page_size):
            h = uint64(START)
            for t in range(i * page_size, (i + 1) * page_size):
                h = mix(h, tokens[b, t])
            hashes[b, i] = h


def broken_find(known, hashes):
    """The pages of a prompt that are known. Leave it as it is."""
    pages = []
    for h in hashes:
        if h in known:
            pages.append(known[h])
    return pages


@cuda.jit
def kernel(tokens, lengths, hashes, page_size):
    """What each page of each prompt is known by."""
    ### BEGIN SOLUTION
    b = cuda.grid(1)
    if b < tokens.shape[0]:
        h = uint64(START)
        for i in range(lengths[b] // page_size):
            for t in range(i * page_size, (i + 1) * page_size):
                h = mix(h, tokens[b, t])
            hashes[b, i] = h
    ### END SOLUTION


def find(known, hashes):
    """The pages that a prompt takes."""
    ### BEGIN SOLUTION
    pages = []
    for h in hashes:
        if h not in known:
            break
        pages.append(known[h])
    return pages
    ### END SOLUTION
