"""Guesses from the sequence itself: what came after the same tokens before.

The last tokens of a sequence are looked up among all earlier ones, the longest match first, and
what followed there is the guess. It costs no model, and is right where text repeats itself: code,
tables, quotations, loops.

Source: Saxena 2023, Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).
"""

import weakref

from fa_numba import checks
from fa_numba.language_model.server.draft_tree import DraftTree

LONGEST, SHORTEST = 8, 3  # tokens that are looked up


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
        places = self._places.setdefault(ask.branch, _Places(self.width))
        tokens, starts = ask.branch.tokens, places.find(ask.branch.tokens)
        guesses, parents, nodes = [], [], dict.fromkeys(starts, 0)  # where each path has come to
        children = {}  # by (parent, token)
        for depth in range(min(ask.depth, ask.nodes) if starts else 0):
            for start in starts:
                # Past the end of the sequence a path goes on with what it has itself foretold.
                token = tokens[start + depth % (len(tokens) - start)]
                at = nodes[start], token
                if at not in children:
                    if len(guesses) == ask.nodes:
                        return DraftTree(guesses, parents)
                    guesses.append(token)
                    parents.append(nodes[start])
                    children[at] = len(guesses)
                nodes[start] = children[at]
        return DraftTree(guesses, parents)


class _Places:
    """Where a sequence has gone on after each few tokens."""

    def __init__(self, width):
        self.width, self.known, self.after = width, SHORTEST, {}

    def find(self, tokens):
        """The last places after tokens that are the last ones too, the latest first."""
        for end in range(self.known, len(tokens)):
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                places = self.after.setdefault(tuple(tokens[end - n : end]), [])
                places.insert(0, end)
                del places[self.width :]
        self.known = max(self.known, len(tokens))
        for n in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            if found := self.after.get(tuple(tokens[-n:])):
                return found
        return []
