"""Grader of ex10e: the order in which thread blocks of a packed batch start."""

import numpy as np
import pytest

from fa_numba.analysis.waves import makespan
from fa_numba.workbook.graders.causes import Wrong

TILE, SMS = 64, 32
BUDGET = 1.05  # of the bound


def cuts(batch, tokens, seed):
    """Lengths as random as cuts of a line are."""
    at = np.sort(np.random.default_rng(seed).choice(np.arange(1, tokens), batch - 1, False))
    return np.diff(at, prepend=0, append=tokens).tolist()


BATCHES = {  # lengths, causal
    "one long sequence at the end, causal": ([128] * 100 + [2048], True),
    "equal lengths, causal": ([1024] * 8, True),
    "growing lengths": ([128 * n for n in range(1, 13)], False),
    "growing lengths, causal": ([128 * n for n in range(1, 13)], True),
    "8 of any length": (cuts(8, 8192, 6), False),
    "8 of any length, causal": (cuts(8, 8192, 4), True),
    "24 of any length": (cuts(24, 12000, 2), False),
    "24 of any length, causal": (cuts(24, 16000, 3), True),
}


def time_of(lengths, b, t, causal):
    return t + 1 if causal else -(-lengths[b] // TILE)


def blocks_of(lengths):
    return [(b, t) for b, n in enumerate(lengths) for t in range(-(-n // TILE))]


def rate(order, lengths, causal):
    """Makespan of an order over the bound."""
    times = [time_of(lengths, b, t, causal) for b, t in order]
    return makespan(times, SMS) / max(sum(times) / SMS, max(times))


def ask(exercise, lengths, causal, tile=TILE):
    got = exercise.order(list(lengths), tile, causal)
    assert isinstance(got, list | tuple), f"must be a list, got {got!r:.40}"
    pairs = [tuple(x) if isinstance(x, list | tuple) else x for x in got]
    assert all(isinstance(x, tuple) and len(x) == 2 for x in pairs), (
        f"must be pairs (sequence, tile), got {got!r:.60}"
    )
    return [(int(b), int(t)) for b, t in pairs]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", [(1,), (64, 65, 63), (300, 1, 128), (64,) * 5], ids=str)
def test_each_once(exercise, lengths, causal):
    """every tile of every sequence, once"""
    got, want = ask(exercise, lengths, causal), blocks_of(lengths)
    missing, extra = set(want) - set(got), set(got) - set(want)
    assert not missing, f"lengths {lengths}: {sorted(missing)[0]} (sequence, tile) is missing"
    assert not extra, f"lengths {lengths}: there is no {sorted(extra)[0]} (sequence, tile)"
    assert len(got) == len(want), f"lengths {lengths}: {len(want)} tiles, got {len(got)}"


def test_other_tiles(exercise):
    """tiles of other sizes"""
    for tile in (1, 16, 200):
        got = ask(exercise, (17, 300, 16), True, tile)
        assert sorted(got) == [
            (b, t) for b, n in enumerate((17, 300, 16)) for t in range(-(-n // tile))
        ]


@pytest.mark.parametrize("name", BATCHES)
def test_budget(exercise, name):
    """the makespan is at most 1.05 times the bound"""
    lengths, causal = BATCHES[name]
    got = ask(exercise, lengths, causal)
    assert sorted(got) == blocks_of(lengths), "every tile of every sequence, once"
    found = rate(got, lengths, causal)
    if found > BUDGET:
        times = [time_of(lengths, b, t, causal) for b, t in got]
        raise Wrong(
            f"{name}: the launch takes {found:.3g} times the bound, allowed is {BUDGET}; the last "
            f"{SMS} thread blocks to start take {times[-SMS:]}, the longest of all {max(times)}",
            causes=["Long thread blocks start late, and run while other SMs are idle."],
            where=name,
        )


def test_inputs_are_left_alone(exercise):
    """lengths is not changed"""
    lengths = [300, 10, 65]
    exercise.order(lengths, TILE, False)
    assert lengths == [300, 10, 65]
