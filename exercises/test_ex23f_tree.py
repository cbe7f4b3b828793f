"""Grader of ex23f: the ancestors of each node as bits, and the path of guesses that stays."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

UNWRITTEN = 2**63 + 12345
WRITTEN = "words", "path", "token"


def launch(exercise, trees):
    """Results for trees, each (parents, tokens, following), and the trace."""
    width, batch = max(len(parents) for parents, _, _ in trees), len(trees)
    given = {"num_nodes": np.array([len(parents) for parents, _, _ in trees], np.int32)}
    for i, name in enumerate(("parents", "tokens", "following")):
        given[name] = np.full((batch, width), 7, np.int32)  # past num_nodes: anything
        for row, tree in zip(given[name], trees, strict=True):
            row[: len(tree[i])] = tree[i]
    given["words"] = np.full((batch, width), UNWRITTEN, np.uint64)
    given["path"] = np.full(batch, UNWRITTEN, np.uint64)
    given["token"] = np.full(batch, -9, np.int32)
    return launched(exercise.kernel, batch, 64, WRITTEN, **given)


def words_of(parents):
    words = [1]
    for t, parent in enumerate(parents[1:], 1):
        words.append(words[parent] | 1 << t)
    return words


def walk(parents, tokens, following):
    """The nodes of the path."""
    nodes = [0]
    while True:
        children = [t for t, parent in enumerate(parents) if parent == nodes[-1]]
        right = [t for t in children if tokens[t] == following[nodes[-1]]]
        if not right:
            return nodes
        nodes.append(right[0])


def bits(nodes):
    return sum(1 << int(t) for t in nodes)


def causes_of_words(parents, got):
    words, n = words_of(parents), len(parents)
    known = {
        "Each node must see itself, too.": [w & ~(1 << t) for t, w in enumerate(words)],
        "Each node must see node 0, too.": [w & ~1 if t else w for t, w in enumerate(words)],
        "Bit 0 is missing: every node sees node 0, which sees itself.": [w & ~1 for w in words],
        "Those are the parent and the node alone: go on up to node 0.": [
            1 << t | (1 << max(parents[t], 0)) for t in range(n)
        ],
        "Those are all earlier nodes, as in a chain: only ancestors count.": [
            2 ** (t + 1) - 1 for t in range(n)
        ],
        "Bits from 32 on are lost: shift a uint64.": [w % 2**32 for w in words],
        "Those are the descendants: bit u of words[b, t] is about node u.": [
            bits(u for u in range(n) if words[u] >> t & 1) for t in range(n)
        ],
    }
    return [said for said, by_it in known.items() if by_it == got]


def causes_of_path(tree, got):
    parents, tokens, following = tree
    n, words, want = len(parents), words_of(parents), walk(*tree)
    right = [t for t in range(n) if t == 0 or tokens[t] == following[parents[t]]]
    wrong = "A guess is compared with what follows its parent, not "
    others = {}
    for other, of in (
        ("the node before it.", lambda t: t - 1),
        ("what follows itself.", lambda t: t),
    ):
        same = [t for t in range(n) if t == 0 or tokens[t] == following[of(t)]]
        whole = [t for t in range(n) if all(u in same for u in range(t + 1) if words[t] >> u & 1)]
        others[wrong + other] = [words[whole[-1]], bits(whole)]
    known = {
        "A right guess after a wrong one is not on the path.": [bits(right), words[right[-1]]],
        **others,
        "The path goes on as long as there is a right guess.": [bits(want[:2])],
        "Bit 0 is set, too.": [bits(want[1:])],
        "That is the last node alone: the path is all nodes up to it.": [1 << want[-1]],
        "The path ends with its last right guess: the wrong one after it is not on it.": [
            bits(want) | 1 << t for t in range(n) if parents[t] == want[-1]
        ],
    }
    return [said for said, by_it in known.items() if got in by_it and got != bits(want)]


def check(exercise, trees):
    got, trace = launch(exercise, trees)
    for b, tree in enumerate(trees):
        parents, n = tree[0], len(tree[0])
        words, want = got["words"][b].tolist(), words_of(parents)
        if words[:n] != want:
            t = next(t for t in range(n) if words[t] != want[t])
            raise Wrong(
                f"request {b}: parents {parents[:9]}: words[{b}, {t}] must be {want[t]:b}, got "
                f"{words[t]:b}",
                causes=causes_of_words(parents, words[:n]),
                where=f"words[{b}]",
            )
        if words[n:] != [UNWRITTEN] * (len(words) - n):
            raise Wrong(
                f"request {b} has {n} nodes: words past them must be as they were",
                causes=["Threads past num_nodes have no node."],
                where=f"words[{b}]",
            )
        nodes = walk(*tree)
        if int(got["path"][b]) != bits(nodes):
            raise Wrong(
                f"request {b}: the path is {nodes}, path[{b}] must be {bits(nodes):b}, got "
                f"{int(got['path'][b]):b}",
                causes=causes_of_path(tree, int(got["path"][b])),
                where=f"path[{b}]",
            )
        want = tree[2][nodes[-1]]
        if got["token"][b] != want:
            near = {
                "That follows node 0: take what follows the last node of the path.": tree[2][0],
                "That is the last node's own token: take what follows it.": tree[1][nodes[-1]],
                "That follows the last node of the tree, not of the path.": tree[2][-1],
            }
            raise Wrong(
                f"request {b}: after the path {nodes} follows {want}, got {got['token'][b]}",
                causes=[said for said, x in near.items() if x == got["token"][b]],
                where=f"token[{b}]",
            )
    return trace


def random_tree(rng, n, right=0.6):
    """A tree in which siblings differ, and many guesses are right."""
    parents = [-1, *(int(rng.integers(max(0, t - 5), t)) for t in range(1, n))]
    following = rng.integers(100, 200, n).tolist()
    tokens = [50, *(range(1, n))]  # all different, and wrong
    taken = set()
    for t in range(1, n):
        if parents[t] not in taken and rng.random() < right:
            taken.add(parents[t])
            tokens[t] = following[parents[t]]
    return parents, tokens, following


# 0 ─ 1 ─ 3 ─ 6, 1 ─ 4, 0 ─ 2 ─ 5
PARENTS = [-1, 0, 0, 1, 1, 2, 3]
TOKENS = [50, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "following",
    [
        [9, 3, 5, 6, 9, 9, 9],
        [1, 9, 5, 6, 9, 9, 9],
        [2, 3, 5, 6, 9, 9, 8],
        [2, 3, 9, 6, 9, 9, 9],
        [1, 3, 5, 6, 9, 9, 7],
        [1, 4, 5, 6, 8, 9, 9],
        [1, 3, 5, 9, 9, 9, 9],
        [9, 9, 9, 9, 9, 9, 9],
    ],
    ids=["first wrong", "one", "other branch", "one there", "all", "a leaf", "two", "none"],
)
def test_one_tree(exercise, following):
    """a tree of 7 nodes: words, path, next token"""
    check(exercise, [(PARENTS, TOKENS, following)])


def test_node_0_alone(exercise):
    """no guess: the path is node 0"""
    check(exercise, [([-1], [5], [6]), ([-1], [6], [6])])


@pytest.mark.parametrize("n", [2, 31, 32, 33, 63, 64])
def test_chain(exercise, n):
    """a chain: all right, and all but one"""
    parents, following = [*range(-1, n - 1)], [*range(300, 300 + n)]
    tokens = [9, *following[:-1]]
    wrong = [*tokens[: n // 2], 8, *tokens[n // 2 + 1 :]]
    check(exercise, [(parents, tokens, following), (parents, wrong, following)])


def test_wide(exercise):
    """63 children of node 0: any of them, or none"""
    parents, tokens = [-1] + [0] * 63, [9, *range(1, 64)]
    trees = [(parents, tokens, [x, *range(100, 163)]) for x in (1, 30, 31, 32, 33, 63, 77)]
    check(exercise, trees)


@pytest.mark.parametrize("batch, most", [(1, 13), (5, 37), (9, 64), (300, 20)])
def test_random(exercise, batch, most):
    """random trees of different sizes"""
    rng = np.random.default_rng(batch)
    sizes = [most, *rng.integers(1, most + 1, batch - 1).tolist()]
    check(exercise, [random_tree(rng, n, (0.6, 0.9, 0.3)[i % 3]) for i, n in enumerate(sizes)])


def test_traffic(exercise):
    """tokens are loaded once, results are stored once"""
    rng, batch, n = np.random.default_rng(3), 4, 40
    trace = check(exercise, [random_tree(rng, n) for _ in range(batch)])
    expect_at_most(
        trace,
        tokens_loads=(batch * n, "once for each node"),
        words_stores=(batch * n, "once for each node"),
        path_stores=(batch, "once for each request"),
        token_stores=(batch, "once for each request"),
    )
    allowed = "wrong has a number for each node, last is one more"
    expect_chip_memory(trace, shared=4 * 65, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    numbers, many = np.zeros(2, np.int32), np.zeros((2, 9), np.int32)
    words, path = np.zeros((2, 9), np.uint64), np.zeros(2, np.uint64)
    gpu_ready(exercise.kernel, (numbers, many, many, many, words, path, numbers))
