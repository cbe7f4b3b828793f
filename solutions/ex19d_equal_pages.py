"""ex19d · Find the bug: equal pages, unequal keys

A server remembers the full pages of earlier prompts, so that a prompt which begins alike takes them
and computes less. `published_find` is its search. Somebody saw another user's answer.

known                              a dict: key of a page -> page, filled with `published_key`, or
                                   with yours when yours are graded; a page may be forgotten at any
                                   time
find(known, tokens, page_size)     the pages that a new prompt takes, for its first len(pages) *
                                   page_size tokens: as many as possible, in order
key(tokens, i, page_size)          what page i of a prompt is known by

The keys and values in a page depend on all tokens from the first of the sequence to the last of the
page. Write `key` and `find`: copy the published ones and mend them. About 3 lines change.
"""

### KIND: find the bug
### HINT 1: Two prompts: [1, 2, 3, 4] and [5, 6, 3, 4], pages of 2. Are their second pages the same?
### HINT 2: Now known has forgotten the second of three pages. What may a prompt still take?
### HINT 3: key: tuple(tokens[: (i + 1) * page_size]). find: break at the first page that is not
### HINT 3: known.
### DEBRIEF: A key says "cat" after "the" and "cat" after "no": attention has mixed everything
### DEBRIEF: before it into the second layer's keys. So a page is known by its whole prefix; a
### DEBRIEF: server takes a hash of the hash before it and the page's tokens, which costs no more
### DEBRIEF: than the page. And positions: a page found after a gap would hold keys for other
### DEBRIEF: positions. vLLM and the package's PagePool chain their hashes in this way.


def published_key(tokens, i, page_size):
    """What page i of a prompt is known by. Leave it as it is."""
    return tuple(tokens[i * page_size : (i + 1) * page_size])


def published_find(known, tokens, page_size):
    """The pages of a prompt that are known. Leave it as it is."""
    pages = []
    for i in range(len(tokens) // page_size):
        if published_key(tokens, i, page_size) in known:
            pages.append(known[published_key(tokens, i, page_size)])
    return pages


def key(tokens, i, page_size):
    """What page i of a prompt is known by."""
    ### BEGIN SOLUTION
    return tuple(tokens[: (i + 1) * page_size])
    ### END SOLUTION


def find(known, tokens, page_size):
    """The pages that a prompt takes."""
    ### BEGIN SOLUTION
    pages = []
    for i in range(len(tokens) // page_size):
        if key(tokens, i, page_size) not in known:
            break
        pages.append(known[key(tokens, i, page_size)])
    return pages
    ### END SOLUTION
