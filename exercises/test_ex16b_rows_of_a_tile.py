"""Grader of ex16b: which query and head is a row of a tile."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong

GROUPS = pytest.mark.parametrize("group_size", [1, 2, 3, 72])


def owners(exercise, rows, kv_head, group_size):
    """(m, head) of each row, a thread each."""
    owner = exercise.owner

    @cuda.jit
    def ask(kv_head, group_size, found):
        row = cuda.grid(1)
        if row < found.shape[0]:
            found[row, 0], found[row, 1] = owner(row, kv_head, group_size)

    found = np.full((rows, 2), -99, np.int32)
    simt.run(ask, -(-rows // 64), 64, kv_head, group_size, found)
    return found


def last_keys(exercise, rows, group_size, seqlen_q, seqlen_k):
    last_key = exercise.last_key

    @cuda.jit
    def ask(rows, group_size, seqlen_q, seqlen_k, found):
        i = cuda.grid(1)
        if i < found.shape[0]:
            found[i] = last_key(rows[i], group_size, seqlen_q, seqlen_k)

    found = np.full(len(rows), -99, np.int32)
    simt.run(ask, -(-len(rows) // 64), 64, rows, group_size, seqlen_q, seqlen_k, found)
    return found


def rows_of(kv_head, group_size, queries):
    """The rows in order, by two loops."""
    heads = range(kv_head * group_size, (kv_head + 1) * group_size)
    return np.array([(m, head) for m in range(queries) for head in heads])


def check_owners(exercise, kv_head, group_size, queries=5):
    want = rows_of(kv_head, group_size, queries)
    got = owners(exercise, len(want), kv_head, group_size)
    wrong = np.flatnonzero((got != want).any(axis=1))
    if not len(wrong):
        return
    by_head = np.array(sorted(want.tolist(), key=lambda x: (x[1], x[0])))
    known = {
        "m and head have changed places.": want[:, ::-1],
        "The heads are those of K/V head 0: add where the group begins.": want
        - [0, kv_head * group_size],
        "Neighbouring rows are heads of one query, not queries of one head.": by_head,
        "A K/V head serves group_size query heads, so its first one is kv_head * group_size.": want
        - [0, kv_head * (group_size - 1)],
    }
    row = int(wrong[0])
    raise Wrong(
        f"group_size {group_size}, K/V head {kv_head}: row {row} must be (m, head) = "
        f"{tuple(want[row].tolist())}, got {tuple(got[row].tolist())}",
        causes=[cause for cause, rows in known.items() if np.array_equal(rows, got)],
        where=f"row {row}",
    )


@GROUPS
def test_owner(exercise, group_size):
    """owner: the heads of a query are neighbours, query after query"""
    check_owners(exercise, 0, group_size)


@GROUPS
@pytest.mark.parametrize("kv_head", [1, 300])
def test_owner_of_other_kv_heads(exercise, group_size, kv_head):
    """owner: every K/V head serves query heads of its own"""
    check_owners(exercise, kv_head, group_size)


def test_every_query_once(exercise):
    """owner: the tiles of all K/V heads together hold every query of every head once"""
    found = np.concatenate([owners(exercise, 4 * 3, kv_head, 3) for kv_head in range(4)])
    pairs = sorted(map(tuple, found.tolist()))
    want = sorted((m, head) for m in range(4) for head in range(12))
    missing = sorted(set(want) - set(pairs))
    assert pairs == want, f"12 heads, 4 queries: nobody has (m, head) = {missing[:3]}"


@GROUPS
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 1), (1, 40), (4, 4), (7, 30), (300, 999)])
def test_last_key(exercise, group_size, seqlen_q, seqlen_k):
    """last_key: a token's own key, the same for all heads of a group"""
    want = np.repeat(np.arange(seqlen_k - seqlen_q, seqlen_k), group_size)
    rows = np.unique(np.linspace(0, len(want) - 1, 120).round().astype(np.int32))
    want, got = want[rows], last_keys(exercise, rows, group_size, seqlen_q, seqlen_k)
    wrong = np.flatnonzero(got != want)
    if not len(wrong):
        return
    known = {
        "The mask begins at key 0: the queries are the last tokens, not the first.": want
        - (seqlen_k - seqlen_q),
        "A token sees its own key, too.": want - 1,
        "That is the number of keys seen; the last one has a number less by one.": want + 1,
        "A row is no query: a query has group_size rows.": seqlen_k - seqlen_q + rows,
    }
    i, row = int(wrong[0]), int(rows[wrong[0]])
    raise Wrong(
        f"{seqlen_q} queries among {seqlen_k} tokens, group_size {group_size}: the last key of row "
        f"{row} must be {want[i]}, got {got[i]}",
        causes=[cause for cause, keys in known.items() if np.array_equal(keys, got)],
        where=f"row {row}",
    )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    owner, last_key = exercise.owner, exercise.last_key

    @cuda.jit
    def ask(n, found):
        found[0], found[1] = owner(n, 3, 4)
        found[2] = last_key(n, 4, 5, 9)

    found = np.zeros(3, np.int32)
    simt.run(ask, 1, 1, 7, found)
    gpu_ready(ask, (7, found))
