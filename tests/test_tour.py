"""The tour: every kernel on real text, errors within tolerance, bytes as the formula says."""

import itertools

import numpy as np
import pytest

import fa_numba
from fa_numba.workbook import tour
from numba_cuda_simulator import progress


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # On a busy machine a launch may take longer than a minute: that warning would end the test.
    monkeypatch.setattr(progress, "LONG", float("inf"))


@pytest.fixture
def softmaxes_only(monkeypatch):
    """The tour stops after its third kernel, and draws nothing: the fault is in one of these."""
    every = tour.cases
    monkeypatch.setattr(tour, "cases", lambda text: itertools.islice(every(text), 3))
    monkeypatch.setattr(tour, "pictures", lambda *_: [])


def test_the_tour_passes_and_writes_what_it_names(tmp_path, capsys):
    assert tour.main() == 0
    out = capsys.readouterr().out
    for name in ("naive_softmax", "safe_softmax", "online_softmax", "naive_attn"):
        assert name in out
    for name in ("flash_attn_v1", "flash_attn_v2", "flash_attn_bwd", "paged_kv_lookup"):
        assert name in out
    assert {path.name for path in (tmp_path / "tour").iterdir()} == {
        "hbm_bytes.png",
        "attention_map.png",
    }


@pytest.mark.parametrize("fault, status", [(0, 0), (1e-5, 1), (np.nan, 1)])
def test_a_wrong_answer_fails_the_tour(softmaxes_only, monkeypatch, fault, status):
    right = fa_numba.safe_softmax
    monkeypatch.setattr(fa_numba, "safe_softmax", lambda x: right(x) + np.float32(fault))
    assert tour.main() == status


def test_an_uncounted_launch_fails_the_tour(softmaxes_only, monkeypatch):
    right = fa_numba.safe_softmax
    monkeypatch.setattr(fa_numba, "safe_softmax", lambda x: (right(x), right(x))[0])
    assert tour.main() == 1


def test_text_is_embedded_byte_by_byte():
    x = tour.embed(b"abca", 2, seed=0)
    assert x.shape == (1, 4, 2, tour.HEAD_DIM) and x.dtype == np.float32
    assert np.array_equal(x[:, 0], x[:, 3]) and not np.array_equal(x[:, 0], x[:, 1])
    assert np.array_equal(x, tour.embed(b"abca", 2, seed=0))
