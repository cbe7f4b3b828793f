"""The branches that draw a token in every step, and the numbers of their rows as arrays.

A row changes little from one step to the next: the token is new, the length grows by one, and so
does the slot, unless the page is full. NumPy does that for all rows at once. Python adds each token
to the lists of its sequence, and runs through branches that join or leave or need a page.

Beam searches are not here: each step replaces their branches.
"""

from itertools import compress

import numpy as np

from fa_numba.language_model.server import choose


class Decoding:
    """Branches of requests that have been read, with one row each.

    Parameters
    ----------
    pool : PagePool
    columns : int
        Pages of the longest sequence.

    Attributes
    ----------
    members : list of (Request, Branch)
    requests : dict
        Its keys are the requests of the members.
    rows : structured array of shape (members,)
        The row that each member computes in a step:

        seq, token, length      its sequence, its last token, and its tokens up to that one
        slot                    where the token's keys and values go
        pages                   its row of the block table, −1 past its last page
        temperature, top_k, top_p, candidates     how the next token is drawn
    """

    def __init__(self, pool, columns):
        self.pool = pool
        self.members, self.requests = [], {}
        numbers = ("token", "length", "slot", "top_k", "candidates")
        self.rows = np.zeros(
            0,
            [
                ("seq", np.int64),
                *((name, np.int32) for name in numbers),
                ("temperature", np.float32),
                ("top_p", np.float64),
                ("pages", np.int32, columns),
            ],
        )

    def __len__(self):
        return len(self.members)

    def add(self, request):
        """Add a request's branches: all of their tokens but the last have pages."""
        options, branches = request.options, request.branches
        rows = np.zeros(len(branches), self.rows.dtype)
        rows["slot"] = rows["pages"] = -1
        rows["temperature"] = choose.divisor(options)
        rows["top_k"] = 1 if options.temperature == 0 else options.top_k
        rows["top_p"] = options.top_p
        rows["candidates"] = choose.candidates_needed(options)
        for i, branch in enumerate(branches):
            rows["seq"][i] = branch.seq
            rows["token"][i], rows["length"][i] = branch.tokens[-1], len(branch.tokens)
            pages = self.pool.pages(branch.seq)
            rows["pages"][i, : len(pages)] = pages
        self.rows = np.concatenate([self.rows, rows])
        self.members += [(request, branch) for branch in branches]
        self.requests[request] = None

    def remove(self, branches):
        """Remove those of some branches that are here."""
        stay = [branch not in branches for _, branch in self.members]
        self.members = list(compress(self.members, stay))
        self.requests = dict.fromkeys(request for request, _ in self.members)
        self.rows = self.rows[np.array(stay, bool)]

    def asks(self):
        """Which rows must ask the pool for a slot, as an array of bool.

        Others put their token behind the one before. A member that is new has slot −1, and asks
        too: it may share its last page.
        """
        return (self.rows["slot"] + 1) % self.pool.page_size == 0

    def new_tokens(self, which):
        """The (seq, token) of some rows."""
        seqs, tokens = self.rows["seq"][which], self.rows["token"][which]
        return zip(seqs.tolist(), tokens.tolist(), strict=True)

    def place(self, asks, slots):
        """Move all rows to their next slots: to `slots` those that asked."""
        rows, size = self.rows, self.pool.page_size
        rows["slot"] += 1
        rows["slot"][asks] = slots
        rows["pages"][asks, (rows["length"][asks] - 1) // size] = slots // size

    def extend(self, tokens):
        """Add a token to each row."""
        self.rows["token"] = tokens
        self.rows["length"] += 1
