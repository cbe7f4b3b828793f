"""Guesses by a small model, whose keys and values are in a cache of its own.

The small model goes ahead of the large one: it reads the tokens that have been added since, and
then writes a chain. Each node of the chain may have further children, for which it costs nothing:
the distribution is known. At a temperature above 0 children are drawn, one after the other without
replacement, so that `DraftTree.walk_by_chance` leaves the large model's distribution as it is.

A branch has one page, as long as the context; the oldest page of a branch that asks no more is
taken for a new one. So nothing is to be given back when a request ends, is cancelled or preempted.

Papers: Leviathan et al. 2023, arXiv:2211.17192; Miao et al. 2023, SpecInfer, arXiv:2305.09781.
"""

import weakref
from dataclasses import dataclass, field

import numpy as np

from fa_numba import checks
from fa_numba.checks import MAX_TOP_K
from fa_numba.kv_cache.page_pool import PagePool
from fa_numba.language_model import model
from fa_numba.language_model.generate import draw_one
from fa_numba.language_model.server import choose
from fa_numba.language_model.server.draft_tree import DraftTree
from fa_numba.language_model.server.paged_model import PagedModel


@dataclass
class _Held:
    page: int
    tokens: list = field(default_factory=list)  # whose keys are in the page
    sure: int = 0  # so many of them are the branch's own


class ModelDrafter:
    """A drafter with a model.

    Parameters
    ----------
    weights, config
        Of the small model; arrays of the library of the large one's.
    tokens : int, default=4
        Guesses of a tree.
    width : int, default=1
        Children of each node of the chain.
    max_branches : int, default=64
        That ask at a time.
    """

    def __init__(self, weights, config, *, tokens=4, width=1, max_branches=64):
        self.tokens, self.width = checks.check_draft_sizes(tokens, width)
        checks.check_pool(max_branches, config.context, ("max_branches", "config.context"))
        pool = PagePool(max_branches, config.context, share_prefixes=False)
        self.config, self.model = config, PagedModel(weights, config, pool, graphs=False)
        self._held = weakref.WeakKeyDictionary()  # by branch; the one that asked last is last

    def draft(self, asks):
        """A `DraftTree` for each `Ask`."""
        writers = [_Writer(ask, self.width) for ask in asks]
        going = [w for w in writers if len(w.ask.branch.tokens) <= self.config.context]
        del going[self.model.pool.num_pages :]
        held, rows = [], []
        for writer in going:
            here = self._hold(writer.ask.branch, going)
            held.append(here)
            tokens = writer.ask.branch.tokens
            start = min(_alike(here, tokens), len(tokens) - 1)
            here.tokens, here.sure = tokens[:start], len(tokens)
            rows.append((here, tokens[start:]))
        with self.model._stream:
            while going:
                candidates = self._read(rows, going)
                for here, new in rows:
                    here.tokens += new
                rows = []
                for writer, here, p, tokens in zip(going, held, *candidates, strict=True):
                    token = writer.write(p, tokens, self.config.vocabulary)
                    room = len(here.tokens) < self.config.context
                    rows.append((here, [token] if token is not None and room else []))
                held = [here for here, new in rows if new]
                going = [w for w, (_, new) in zip(going, rows, strict=True) if new]
                rows = [row for row in rows if row[1]]
        return [DraftTree(w.tokens, w.parents, w.q) for w in writers]

    def _hold(self, branch, going):
        """The page of a branch."""
        held = self._held.pop(branch, None)
        if held is None:
            used = {other.page for other in self._held.values()}
            free = [page for page in range(self.model.pool.num_pages) if page not in used]
            if not free:
                asking = {writer.ask.branch for writer in going}
                oldest = next(b for b in list(self._held) if b not in asking)
                free = [self._held.pop(oldest).page]
            held = _Held(free[0])
        self._held[branch] = held
        return held

    def _read(self, rows, writers):
        """Read new tokens of each sequence; the candidates for the next one."""
        sizes = [len(new) for _, new in rows]
        starts = np.repeat([len(here.tokens) for here, _ in rows], sizes)
        within = np.concatenate([np.arange(n) for n in sizes])
        positions, ends = starts + within, np.cumsum(sizes)
        pages = np.repeat([here.page for here, _ in rows], sizes)
        slots = pages * self.config.context + positions
        tokens = np.concatenate([new for _, new in rows])
        temperatures = np.float32([choose.divisor(w.ask.options) for w in writers])
        numbers = tokens, positions, slots, positions + 1, pages[:, None], ends - 1
        numbers = self.model.upload([*numbers, temperatures.view(np.int32)])
        tokens, positions, slots, lengths, table, last, temperatures = numbers

        def attend(layer, q):
            return self.model.attend_to_pages(layer, q[:, None], table, lengths)

        x = self.model.layers(tokens, positions, slots, attend)
        logits = model.logits(self.model.weights, x[last])
        number = min(MAX_TOP_K, self.config.vocabulary)
        both = choose.most_likely(logits, temperatures.view(np.float32), number)
        return choose.on_host(both)


class _Writer:
    """The tree of one branch as it grows."""

    def __init__(self, ask, width):
        self.ask, self.width = ask, width
        self.tokens, self.parents, self.at, self.depth = [], [], 0, 0
        self.q = {} if ask.options.temperature > 0 else None

    def write(self, probabilities, tokens, vocabulary):
        """Add children to the end of the chain; return the token to read next, or None."""
        room = min(self.width, self.ask.nodes - len(self.tokens))
        if self.q is None:
            children = tokens[:room].tolist()
        else:
            q = choose.distribution(probabilities, tokens, self.ask.options, vocabulary)
            self.q[self.at], children, left = q, [], q.copy()
            while len(children) < room and left.any():
                children.append(draw_one(left, self.ask.branch.rng.random()))
                left[children[-1]] = 0
        parent, self.at, self.depth = self.at, 1 + len(self.tokens), self.depth + 1
        self.tokens += children
        self.parents += [parent] * len(children)
        full = len(self.tokens) == self.ask.nodes or self.depth == self.ask.depth
        return None if full else children[0]


def _alike(held, tokens):
    """How many tokens of a page are those of the branch."""
    n, most = min(held.sure, len(held.tokens)), min(len(held.tokens), len(tokens))
    while n < most and held.tokens[n] == tokens[n]:
        n += 1
    return n
