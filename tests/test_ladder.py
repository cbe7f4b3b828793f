"""The ladder: its rungs are right, each is a small step by the meter, and the command says so."""

import sys
import types

import numpy as np
import pytest
from cases import thorough

from fa_numba.workbook import cli, ladder

SMALL = 64  # keys and queries


def most_gained(rungs, head_dim):
    """The largest factor between two neighbours in what an SM must do; each result is checked."""
    counts = ladder.metered(rungs, head_dim)
    return max(
        below[kind] / row[kind]
        for below, row in zip(counts, counts[1:], strict=False)
        for kind in ("bytes", "shared cycles", "instructions")
    )


@pytest.mark.parametrize(
    "seqlen, head_dim, last", [(SMALL, 64, 8), thorough(128, 64, 9), thorough(128, 128, 9)]
)
def test_each_step_is_at_most_threefold(monkeypatch, seqlen, head_dim, last):
    monkeypatch.setattr(ladder, "SEQLEN", seqlen)
    assert 1.5 < most_gained(ladder.RUNGS[3:last], head_dim) <= 3


def test_a_rung_is_run_beside_the_one_below(monkeypatch, capsys):
    monkeypatch.setattr(ladder, "SEQLEN", SMALL)
    monkeypatch.setattr(ladder.own, "has_cupy_and_gpu", lambda: False)
    assert cli.main(["ladder", "4"]) == 0
    said = capsys.readouterr().out
    assert "fa_numba/on_cuda_cores/flash_attn_v2_unsigned.py" in said and "unsigned" in said
    both = [line.split()[-3:] for line in said.splitlines() if line.startswith("instructions")]
    assert both == [["31,520", "31,520", "1"]]  # unsigned indices: the same accesses


class OnGpu(np.ndarray):
    """What CuPy would have made."""

    def get(self):
        return np.array(self)


def test_on_a_gpu_a_rung_is_timed(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    cupy = types.SimpleNamespace(random=types.SimpleNamespace(default_rng=lambda seed: cupy))
    cupy.standard_normal = lambda *size, **kind: rng.standard_normal(*size, **kind).view(OnGpu)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(ladder.own, "has_cupy_and_gpu", lambda: True)
    times = iter([2.0, 1.0])
    monkeypatch.setattr(ladder.own, "gpu_ms", lambda call: next(times))
    monkeypatch.setattr(ladder, "TIMED_SEQLEN", 150)
    monkeypatch.setattr(ladder, "TIMED_WIDTH", 64)
    monkeypatch.setattr(ladder, "RUNGS", [ladder.RUNGS[0]] * 2)
    attention = ladder.reference.attention
    monkeypatch.setattr(
        ladder.Rung, "__call__", lambda rung, *x: [attention(*map(np.array, x))[0].view(OnGpu)]
    )
    assert cli.main(["ladder", "2"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ms", "2", "1", "0.5"] in said and "TFLOP/s" in [line[0] for line in said]


def test_a_wrong_rung_is_no_rung(monkeypatch):
    monkeypatch.setattr(ladder, "SEQLEN", 16)
    wrong = ladder.Rung("naive_attn", "", lambda head_dim: {"softmax_scale": 1.0})
    with pytest.raises(AssertionError, match="naive_attn is wrong"):
        ladder.metered([wrong], 64)


def test_the_list_names_all_rungs_and_the_tensor_cores(capsys):
    assert cli.main(["ladder"]) == 0
    said = capsys.readouterr().out
    assert all(rung.name in said for rung in ladder.RUNGS) and "tensor cores inside" in said


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["10"], "a rung must be a number from 1 to 9, got 10"),
        (["0"], "a rung must be a number from 1 to 9, got 0"),
        (["1", "--head-dim", "96"], "--head-dim must be 64 or 128, got 96"),
    ],
)
def test_no_such_rung(arguments, message, capsys):
    assert cli.main(["ladder", *arguments]) == 2
    assert message in capsys.readouterr().err
