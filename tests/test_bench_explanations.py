"""The experiments on the lessons' explanations: their kernels are right, on the CPU engine."""

import importlib
import sys
import types
from unittest import mock

import numpy as np
import pytest
from cases import thorough

from benchmarks import timing
from fa_numba import simt
from fa_numba.workbook.recorded import experiment

SMALL = {
    "page_arithmetic": {},
    "transpositions": {"side": 64},
    "copies": {"side": 256},
    "rows_at_sectors": {"rows": 2, "widths": (512, 504, 511, 720, 721)},
    "loads_of_softmax": {"rows": 2, "columns": 512},
    "waves_of_4x4": {"seqlen_k": 64, "blocks": (4, 8, 12, 32)},
    "warps_of_unsigned": {"seqlen": 32, "heads": 1},
    "warps_of_4x4": {"seqlen": 64, "heads": 1},
    "copies_of_registers": {"seqlen": 130, "heads": 1},
    "running_maximum": {"seqlen": 32, "heads": 1},
    "hidden_softcap": {"seqlen": 32, "heads": 1},
    "blocks_per_sm": {"seqlen": 32, "sms": 1},
    "few_tiles": {"seqlen": 64, "heads": 1, "share": 0.9},
}
TENSOR_CORES = "fixed_cost", "packed_lengths", "busy_sms"  # need a Hopper GPU


@pytest.fixture
def experiments(monkeypatch):
    """The benchmark with NumPy in place of CuPy, and with no clock."""
    cupy = types.ModuleType("cupy")
    cupy.__dict__.update({name: getattr(np, name) for name in np.__all__})
    cupy.get_default_memory_pool = mock.Mock()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for name in ("benchmarks.bench_paged", "benchmarks.bench_explanations"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("benchmarks.bench_explanations")
    ticks = (n * n for n in range(1, 1000))
    monkeypatch.setattr(module, "time_ms", lambda call, **_: call() and None or next(ticks))
    for name, value in {"BATCH": 2, "SEQLEN": 64, "NUM_KV_HEADS": 1, "HEAD_DIM": 32}.items():
        monkeypatch.setattr(module, name, value)
    yield module
    for name in ("benchmarks.bench_paged", "benchmarks.bench_explanations"):
        sys.modules.pop(name)


# Each begins alike; the longest is left to CI's thorough run.
LONGEST = "copies_of_registers"


@pytest.mark.parametrize("name", [thorough(x) if x == LONGEST else x for x in SMALL])
def test_an_experiment_runs(experiments, name):
    with simt.options(device="H200"):
        times, finding = getattr(experiments, name)(**SMALL[name])
    assert len(times) >= 3
    assert finding.otherwise != finding.predicted


def test_all_experiments_are_here(experiments):
    assert {x.__name__ for x in experiments.EXPERIMENTS} == {*SMALL, *TENSOR_CORES}


def test_a_verdict(experiments):
    measured = {"holds": 1.75, "explains a part": 1.5, "does not hold": 1.25}
    for verdict, ratio in measured.items():
        assert experiments.Finding("", 1, 2, ratio).verdict == verdict
        assert experiments.Finding("", 2, 1, 3 - ratio).verdict == verdict


def test_one_failure_loses_no_other_experiment(experiments, monkeypatch, tmp_path, capfd):
    def broken():
        """00: does it fail?"""
        raise RuntimeError("this message")

    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    monkeypatch.setattr(experiments, "EXPERIMENTS", (broken, experiments.page_arithmetic))
    with pytest.raises(SystemExit, match="failed: broken"):
        experiments.main()
    assert "this message" in capfd.readouterr().err
    text = experiment("page_arithmetic", folder=tmp_path).markdown
    assert "| dense keys |" in text
    assert "pages over dense, compiled: 1 if so" in text and "The explanation" in text
    assert "Open" in experiment("broken", folder=tmp_path).markdown
