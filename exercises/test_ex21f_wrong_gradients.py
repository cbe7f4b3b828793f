"""Grader of ex21f: the gradients of ring attention, on ranks in one process."""

import numpy as np
import pytest

from fa_numba.workbook.graders.ranks import cut_head, expect_on_ranks, run_on_ranks

WORLDS = pytest.mark.parametrize("world_size", [2, 3, 5])
NAMES = "out", "dq", "dk", "dv"


def run(program, head, **options):
    """{name: the parts of all ranks}, and the run."""
    shards = head.of_ranks(head.dout), *head.shards
    attend, merge, attend_grad = head.functions
    functions = [merge, attend_grad]
    ran = run_on_ranks(program, head.world_size, *shards, attend=attend, functions=functions,
                       **options)  # fmt: skip
    for rank, result in enumerate(ran.results):
        right = isinstance(result, tuple | list) and len(result) == 3
        got = f"{len(result)} of them" if isinstance(result, tuple | list) else repr(result)[:40]
        assert right, f"rank {rank} must return three arrays, (out, dq, dkv), got {got}"
    out, dq, dkv = zip(*ran.results, strict=True)
    return dict(zip(NAMES, (out, dq, [x[0] for x in dkv], [x[1] for x in dkv]), strict=True)), ran


def check(exercise, head, **options):
    got, ran = run(exercise.mended, head, **options)
    published, _ = run(exercise.published, head)
    same = "That is what `published` computes. With which keys does its backward pass begin?"
    for name in NAMES:
        mistakes = [(same, published[name])]
        expect_on_ranks(head, name, got[name], factor=6, mistakes=mistakes)
    return ran


def test_one_rank(exercise):
    """one rank: right, as it was"""
    check(exercise, cut_head("zigzag", 1, c=8))


@WORLDS
def test_gradients(exercise, world_size):
    """out, dq, dk and dv are those of one device"""
    check(exercise, cut_head("zigzag", world_size, seed=world_size))


@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_layouts(exercise, layout):
    """in other layouts too"""
    check(exercise, cut_head(layout, 4, seed=1))


def test_each_rank_has_its_own(exercise):
    """dkv is that of the rank's own keys: a loss of one token reaches the ranks before it"""
    head = cut_head("contiguous", 4, seed=3)
    head.dout[:-1] = 0
    check(exercise, head)


@WORLDS
def test_messages(exercise, world_size):
    """not more messages than the two passes and one trip home need"""
    head = cut_head("striped", world_size)
    _, ran = run(exercise.mended, head)
    size = head.shards[1][0].nbytes
    most = (3 * world_size) * size
    for rank in range(world_size):
        sent = int(ran.bytes_sent[rank].sum())
        assert sent <= most, (
            f"W = {world_size}: rank {rank} sends {sent} bytes, {sent / size:g} times kv: at most "
            f"{3 * world_size} times, W in the forward pass and 2 W in the backward pass"
        )


def test_any_order(exercise):
    """the same bits, in whichever order the ranks run"""
    head = cut_head("zigzag", 3, seed=2)
    first, _ = run(exercise.mended, head)
    for seed in range(3):
        other, _ = run(exercise.mended, head, order=seed)
        for name in NAMES:
            same = all(map(np.array_equal, first[name], other[name]))
            assert same, f"{name} depends on the order in which the ranks run"


def test_inputs_unchanged(exercise):
    """dout, q and kv are not written"""
    head = cut_head("zigzag", 2)
    shards = head.of_ranks(head.dout), *head.shards
    before = [[x.copy() for x in parts] for parts in shards]
    attend, merge, attend_grad = head.functions
    run_on_ranks(exercise.mended, 2, *shards, attend=attend, functions=[merge, attend_grad])
    for name, now, was in zip(("dout", "q", "kv"), shards, before, strict=True):
        for rank in range(2):
            assert np.array_equal(now[rank], was[rank]), f"rank {rank} has written to its {name}"
