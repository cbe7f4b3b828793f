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
    # YOUR CODE HERE
    raise NotImplementedError("ex19d: key")


def find(known, tokens, page_size):
    """The pages that a prompt takes."""
    # YOUR CODE HERE
    raise NotImplementedError("ex19d: find")


# Stub e1bf5ee9 of solutions/ex19d_equal_pages.py: `fa-numba reset ex19d` brings it back.
