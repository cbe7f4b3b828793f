"""fa_numba.torch.distributed on two processes, with gloo on tensors in CPU memory."""

import os
import sys
from pathlib import Path

import pytest

from fa_numba.distributed import run
from fa_numba.distributed.communicator import CHECK_RANKS, HOW_TO_COMPARE

pytest.importorskip("torch", reason="needs PyTorch")

ROOT = Path(__file__).parents[1]


def launch(*arguments, checked=""):
    program = [sys.executable, str(ROOT / "tests" / "torch_ranks.py"), *arguments]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("", "engine", "tests")),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        CHECK_RANKS: checked,
    }
    return run.start(program, 2, limit=100, environment=environment)


def test_attention_and_gradients_over_two_processes(capfd):
    assert launch() == 0, capfd.readouterr()
    assert sorted(capfd.readouterr().out.split()) == ["done", "done"]


def test_a_rank_that_ends_is_an_error_on_the_other(capfd):
    assert launch("die") != 0
    assert "RankLostError: torch.distributed fails, with rank 1" in capfd.readouterr().err


@pytest.mark.parametrize("fault, checked", [("differ", ""), ("differ-later", "1")])
def test_a_rank_that_differs_is_named(capfd, fault, checked):
    assert launch(fault, checked=checked) != 0
    said = "RanksDifferError: all ranks must call ring_attn with equal arguments, got: "
    said += 'dtype is "float32" on rank 0, "float16" on rank 1'
    errors = capfd.readouterr().err
    assert errors.count(said) == 2, errors


def test_a_rank_that_differs_later_is_an_error(capfd):
    assert launch("differ-later") != 0
    assert HOW_TO_COMPARE in capfd.readouterr().err
