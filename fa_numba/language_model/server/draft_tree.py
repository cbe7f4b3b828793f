"""A tree of drafted tokens, and the walk that keeps those which the model would have written.

Node 0 is the last token of a sequence, the root; a node has a larger number than its parent. One
pass of the model gives the next token of every node:

    0 the      Node t is in slot start + t of the cache, start that of the root, and at position
    ├ 1 cat    start + its depth. It sees all keys before start, its ancestors and itself: bit u of
    │ └ 3 sat  its word says whether it sees node u. The words of this tree are
    └ 2 dog    0001, 0011, 0101, 1011.

A chain, one guess after the other, is the tree in which each word has all bits up to its own.

Papers: Leviathan et al. 2023, arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318: chains;
Miao et al. 2023, SpecInfer, arXiv:2305.09781: trees.
"""

import functools
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.checks.serving import MOST_NODES
from fa_numba.language_model.generate import draw_one


class Ask(NamedTuple):
    """A branch that may have guesses.

    Attributes
    ----------
    branch : Branch
        Its `tokens` are known; guesses follow the last of them.
    options : Options
    nodes, depth : int
        Guesses at most, and on a path at most; at least 1.
    """

    branch: object
    options: object
    nodes: int
    depth: int


class DraftTree:
    """Guesses of the tokens that follow a sequence.

    A drafter is an object whose ``draft(asks)`` returns a tree for each `Ask` of a list, with no
    guess where it has none, and whose `tokens` is the number of guesses that it would like.

    Parameters
    ----------
    tokens : sequence of int, default=()
        Of nodes 1, 2, ...; at most 63.
    parents : sequence of int, default=()
        Of nodes 1, 2, ...; earlier nodes.
    q : dict of int to array of shape (vocabulary,), default=None
        Of each node that has children: the distribution from which they were drawn, one after the
        other, without replacement. None: the guesses were not drawn.
    """

    def __init__(self, tokens=(), parents=(), q=None):
        self.tokens, self.parents = checks.check_draft(tokens, parents)
        self.q = q

    def __len__(self):
        return 1 + len(self.tokens)

    @functools.cached_property
    def depths(self):
        """Distance of each node from the root: int32 array of shape (nodes,)."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return np.array(depths, np.int32)

    @functools.cached_property
    def words(self):
        """Of each node its ancestors and itself as bits: uint64 array of shape (nodes,)."""
        words = [1]
        for node, parent in enumerate(self.parents, 1):
            words.append(words[parent] | 1 << node)
        return np.array(words, np.uint64)

    @property
    def is_chain(self) -> bool:
        """Whether each node is the child of the one before."""
        return self.parents == list(range(len(self.parents)))

    @functools.cached_property
    def children(self):
        """The children of each node, first to last: list of lists."""
        children = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents, 1):
            children[parent].append(node)
        return children

    def walk(self, following):
        """Go from the root to the child that is the next token, as long as there is one.

        Parameters
        ----------
        following : sequence of int
            The token that follows each node: the likeliest one, or one that was drawn.

        Returns
        -------
        nodes : list of int
            The guesses that are kept.
        token : int
            The token that follows the last of them.
        """
        nodes, at = [], 0
        while True:
            token = int(following[at])
            found = (child for child in self.children[at] if self.tokens[child - 1] == token)
            at = next(found, None)
            if at is None:
                return nodes, token
            nodes.append(at)

    def walk_by_chance(self, p, uniform):
        """Go to children by the rule for guesses that were drawn from `q`.

        Parameters
        ----------
        p : function of a node
            The distribution of the token that follows it: array of shape (vocabulary,).
        uniform : function
            ``uniform()`` is a new random number from 0 to 1, which may be 0 and not 1.

        Returns
        -------
        nodes, token
            As from `walk`: tokens with exactly the probabilities of the model.
        """
        nodes, at = [], 0
        while True:
            children = self.children[at]
            tokens = [self.tokens[child - 1] for child in children]
            kept, left = keep_child(p(at), self.q.get(at), tokens, uniform)
            if kept is None:
                return nodes, draw_one(left, uniform())
            at = children[kept]
            nodes.append(at)


NO_GUESS = DraftTree()


def keep_child(p, q, children, uniform):
    """Which of several guesses of one token is kept, if any.

    Each in turn is kept with the probability min(1, p/q). After a refusal p is what of it exceeds
    q, and the next guess was drawn from q without the one before.

    Parameters
    ----------
    p, q : float64 arrays of shape (vocabulary,)
        Of the model, and of the draft; q is not read without children.
    children : sequence of int
        Drawn from q one after the other, without replacement.
    uniform : function
        As for `DraftTree.walk_by_chance`.

    Returns
    -------
    kept : int or None
        Its index among the children.
    left : array of shape (vocabulary,)
        If none is kept, the distribution to draw the token from.
    """
    for i, child in enumerate(children):
        if i:
            q = q.copy()
            q[children[i - 1]] = 0
            q /= q.sum()
        if uniform() * q[child] < p[child]:
            return i, p
        left = np.maximum(p - q, 0)
        if total := left.sum():  # 0: p and q differ by rounding alone
            p = left / total
    return None, p


def sees(b, h, m, n, words, starts):
    """The mask of several trees, one for each sequence, with its guesses at the end of the keys.

    Parameters
    ----------
    words : int32 array of shape (batch, 128)
        The words of each node, the low half first: `mask_args_of`.
    starts : int32 array of shape (batch,)
        Slot of each root.
    """
    node = min(max(m - starts[b], 0), 63)
    key = min(max(n - starts[b], 0), 63)
    return (n < starts[b]) | ((words[b, 2 * node + key // 32] >> key % 32) & 1 == 1)


def mask_args_of(trees, starts):
    """The arguments of `sees` as NumPy arrays."""
    words = np.zeros((len(trees), MOST_NODES), "<u8")
    for row, tree in zip(words, trees, strict=True):
        row[: len(tree)] = tree.words
    return words.view("<i4"), np.array(starts, np.int32)
