"""Guesses from the sequence itself: what came after the same tokens before.

The last tokens of a sequence are looked up among all earlier ones, the longest match first, and
what followed there is the guess. It costs no model, and is right where text repeats itself: code,
tables, quotations, loops. Where it is wrong, fewer guesses are made, and then for some steps none:
rows that are not kept take time.

Source: Saxena 2023, Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).
"""

import weakref

from fa_numba import checks
from fa_numba.language_model.server.draft_tree import DraftTree

LONGEST, SHORTEST = 8, 3  # tokens that are looked up
FIRST = 4  # guesses of the first tree of a sequence
LONGEST_WAIT = 32  # steps
LOOKED_AT = 64  # places after the same SHORTEST tokens, the last ones


class NGramDrafter:
    """A drafter that looks tokens up.

    Parameters
    ----------
    tokens : int, default=8
        Guesses of a tree.
    width : int, default=1
        Places to take guesses from: the last ones, with the same tokens before them. With several
        the tree branches.
    """

    def __init__(self, tokens=8, width=1):
        self.tokens, self.width = checks.check_draft_sizes(tokens, width)
        self._places = weakref.WeakKeyDictionary()  # a `_Places` of each branch

    def draft(self, asks):
        """A `DraftTree` for each `Ask`."""
        return [self._tree(ask) for ask in asks]

    def _tree(self, ask):
        places, tokens = self._places.setdefault(ask.branch, _Places(self.width)), ask.branch.tokens
        starts, most = places.find(tokens), places.most(tokens, min(ask.nodes, self.tokens))
        guesses, parents, nodes = [], [], dict.fromkeys(starts, 0)  # where each path has come to
        children = {}  # by (parent, token)
        for depth in range(min(ask.depth, most) if starts else 0):
            for start in starts:
                # Past the end of the sequence a path goes on with what it has itself foretold.
                token = tokens[start + depth % (len(tokens) - start)]
                at = nodes[start], token
                if at not in children and len(guesses) < most:
                    guesses.append(token)
                    parents.append(nodes[start])
                    children[at] = len(guesses)
                if at not in children:
                    break
                nodes[start] = children[at]
        if children:
            places.last = len(tokens), children
        return DraftTree(guesses, parents)


class _Places:
    """Where a sequence has gone on after each few tokens, and how good that was as a guess."""

    def __init__(self, width):
        self.width, self.known, self.after = width, SHORTEST, {}  # after SHORTEST tokens
        self.last = None  # length of the sequence, and children, of the last tree
        self.trust, self.misses, self.wait = FIRST, 0, 0

    def most(self, tokens, limit):
        """How many guesses to make: about twice as many as were right the last time.

        After each tree without a right guess, twice as many steps pass without one.
        """
        if self.last:
            (length, children), self.last = self.last, None
            node, right = 0, 0
            for token in tokens[length:]:
                if (node := children.get((node, token))) is None:
                    break
                right += 1
            self.trust = max(1, min(2 * right, limit))
            self.misses = 0 if right else self.misses + 1
            self.wait = 0 if right else min(2**self.misses, LONGEST_WAIT)
        if self.wait:
            self.wait -= 1
            return 0
        return min(self.trust, limit)

    def find(self, tokens):
        """The last places after tokens that are the last ones too, the latest first."""
        begin = self.known - SHORTEST
        shifted = [tokens[begin + j : -1] for j in range(SHORTEST)]
        for place, before in enumerate(zip(*shifted, strict=False), self.known):
            self.after.setdefault(before, []).append(place)
        self.known = max(self.known, len(tokens))
        found, longest = [], SHORTEST
        for place in self.after.get(tuple(tokens[-SHORTEST:]), [])[: -LOOKED_AT - 1 : -1]:
            n = SHORTEST
            while n < min(LONGEST, place) and tokens[place - n - 1] == tokens[-n - 1]:
                n += 1
            if n > longest:
                found, longest = [], n
            if n == longest:
                found.append(place)
        return found[: self.width]
