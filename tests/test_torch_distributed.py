"""fa_numba.torch.distributed on two processes, with gloo on tensors in CPU memory."""

import os
import sys
from pathlib import Path

import pytest

from fa_numba.distributed import run

pytest.importorskip("torch", reason="needs PyTorch")

ROOT = Path(__file__).parents[1]


def launch(*arguments):
    program = [sys.executable, str(ROOT / "tests" / "torch_ranks.py"), *arguments]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return run.start(program, 2, limit=100, environment=environment)


def test_attention_and_gradients_over_two_processes(capfd):
    assert launch() == 0, capfd.readouterr()
    assert sorted(capfd.readouterr().out.split()) == ["done", "done"]


def test_a_rank_that_ends_is_an_error_on_the_other(capfd):
    assert launch("die") != 0
    assert "RankLostError: torch.distributed fails, with rank 1" in capfd.readouterr().err
