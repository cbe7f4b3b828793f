"""The ledgers of lessons: rows for a table, whose numbers are counted or read from results."""

import json
import math

import numpy as np
import pytest

from fa_numba import analysis
from fa_numba.distributed.layouts import LAYOUTS
from fa_numba.distributed.prediction import Problem, pairs_per_step
from fa_numba.workbook.ledgers import backward, flash_attention_2, many_gpus, serving, training


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory):
    return many_gpus.ledger(tmp_path_factory.mktemp("no_results"))


def recorded(folder, rows):
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (folder / "many_gpus.json").write_text(json.dumps(record))
    return " ".join(row["our number"] for row in many_gpus.ledger(folder))


def test_each_row_has_a_claim_a_number_and_a_verdict(unrecorded):
    assert len(unrecorded) >= 8
    for row in unrecorded:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_pairs_are_those_of_the_formula():
    for layout in LAYOUTS:
        got = many_gpus.pairs_of_ranks(layout, 64, 4)
        assert (got == pairs_per_step(Problem(64, 4, 1, 1, 4, layout))).all()


def test_gpu_numbers_are_the_recorded_ones_or_none(unrecorded, tmp_path):
    numbers = " ".join(row["our number"] for row in unrecorded)
    assert numbers.count(many_gpus.NOT_RECORDED) == 2
    rows = [
        {"tokens": 1000, "what": "forward", "method": "contiguous", "ms": 3.0},
        {"tokens": 1000, "what": "forward", "method": "striped", "ms": 2.0},
        {"tokens": 9000, "what": "forward", "method": "striped", "skipped": "no time left"},
        {"tokens": 1000, "what": "forward+backward", "method": "striped", "ms": 1.0},
        {"keys": 4000, "decoding": "ring", "ms": 5.0},
        {"keys": 4000, "decoding": "tree", "ms": 2.0},
    ]
    numbers = recorded(tmp_path, rows)
    assert many_gpus.NOT_RECORDED not in numbers
    assert "1.50× at 1,000 tokens per GPU" in numbers and "2.5× for 4,000 keys" in numbers
    numbers = recorded(tmp_path, rows[1:5])
    assert numbers.count(many_gpus.NOT_RECORDED) == 2


def test_the_bound_of_the_sources_is_that_of_full_attention(unrecorded):
    """The A100's 312 TFLOP/s over 600 GB/s."""
    (row,) = [row for row in unrecorded if "hidden" in row["claim"]]
    assert f"{math.floor(312e12 / 600e9)} tokens by the sums" in row["our number"]


def test_of_training_each_row_has_a_claim_a_number_and_a_verdict():
    for row in training.ledger():
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_bytes_with_recomputation_are_those_of_lesson_07():
    """Loads and stores of three kernels without a mask, in elements: its formula."""
    n, d, tile = 64, 16, 16
    meter = training.of_a_head(d, tile, n)
    assert meter["moved"] == 4 * (7 * n * d + 3 * n + n // tile * (4 * n * d + 2 * n) + 2 * n * d)
    assert meter["kept"] == 4 * (n * d + n)


def test_share_of_attention():
    """Half of the FLOPs where 12 layers N w = 6 (layers 12 w² + vocabulary w)."""
    width, layers, vocabulary = 64, 3, 10
    seqlen = 6 * (layers * 12 * width**2 + vocabulary * width) / (12 * layers * width)
    assert math.isclose(training.attention_share(width, layers, seqlen, vocabulary), 0.5)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return serving.ledger(tmp_path_factory.mktemp("no_results"))


def test_of_serving_each_row_has_a_claim_a_number_and_a_verdict(served):
    assert len(served) >= 6
    for row in served:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_steps_of_batches_by_hand():
    lengths = [5, 1, 1, 1, 4]  # 5 + 1 + 4; and with two places: 5 beside 1, 1, 1, 4
    assert serving.steps_of(lengths, 2, static=True) == 5 + 1 + 4
    assert serving.steps_of(lengths, 2, static=False) == 7


def test_of_serving_times_are_the_recorded_ones_or_none(served, tmp_path):
    assert sum(serving.NOT_RECORDED in row["our number"] for row in served) == 2
    rows = [
        {"what": "static batching", "tokens/s": 100},
        {"what": "continuous batching", "tokens/s": 250},
        {"what": "64 pages, preempted requests recomputed", "tokens/s": 100, "recomputed": 1234},
        {"what": "64 pages, preempted requests swapped", "tokens/s": 150, "pages swapped": 99},
    ]
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (tmp_path / "serving.json").write_text(json.dumps(record))
    numbers = " ".join(row["our number"] for row in serving.ledger(tmp_path))
    assert serving.NOT_RECORDED not in numbers
    assert "16 at a time: 2.50×" in numbers and "1.50×, with 1,234 tokens" in numbers


def test_what_is_counted_is_what_the_engine_does(served):
    """16 prompts, 200 common tokens: 12 shared pages, and 2 for each."""
    (row,) = [row for row in served if "prefix" in row["claim"]]
    assert f"{12 + 16 * 2} pages, {16 * 14} without" in row["our number"]


def test_of_flash_attention_2_each_row_has_a_claim_a_number_and_a_verdict():
    for row in flash_attention_2.ledger():
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_line_10_with_the_inverse_is_wrong_where_a_maximum_grows():
    rng = np.random.default_rng(0)
    s, v = rng.standard_normal(12), rng.standard_normal((12, 3))
    s[:4] += 10  # the first tile has the maximum
    exact = np.exp(s) @ v / np.exp(s).sum()
    assert np.allclose(flash_attention_2.line_10(s, v, 4, 1), exact)
    assert np.allclose(flash_attention_2.line_10(s, v, 4, -1), exact), "alpha is 1"
    assert not np.allclose(flash_attention_2.line_10(s[::-1], v[::-1], 4, -1), exact, rtol=0.1)


def test_busy_sms_by_hand():
    """Thread blocks of 1 and 2 tiles: the longest begins last, or first."""
    seqlen = 2 * flash_attention_2.BLOCK
    assert flash_attention_2.busy_share(seqlen, 1, 2) == 3 / 4
    assert flash_attention_2.busy_share(seqlen, 2, 2) == 6 / 8  # 1, 2, then 1 and 2
    assert flash_attention_2.busy_share(seqlen, 2, 2, descending=True) == 1


def test_of_flash_attention_2_times_are_the_recorded_ones_or_none(tmp_path):
    (*_, row) = flash_attention_2.ledger(tmp_path)
    assert row["our number"] == flash_attention_2.NOT_RECORDED
    rows = [
        {"kernel": kernel, "head_dim": 64, "seqlen": 4096, "causal": False, "ms": ms}
        for kernel, ms in (("flash_attn_v1", 6.0), ("flash_attn_v2", 4.0))
    ]
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (tmp_path / "attention.json").write_text(json.dumps(record))
    (*_, row) = flash_attention_2.ledger(tmp_path)
    assert "N=4096: 1.5×" in row["our number"]


def test_of_the_backward_pass_each_row_has_a_claim_a_number_and_a_verdict():
    for row in backward.ledger():
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_elements_of_the_backward_pass():
    """7 N² + 8 N d with P stored; and the traffic formula of our kernels, loads and stores."""
    assert backward.stored_elements(1000, 10) == 7 * 1000**2 + 8 * 1000 * 10
    problem = analysis.Problem(1, 48, 48, 1, 1, 16, block_m=16, block_n=16)
    moved = analysis.traffic.flash_attn_bwd(problem)
    total = sum(moved.loads.values()) + sum(moved.stores.values())
    assert backward.recomputed_elements(48, 16, 16) == total
    (row,) = backward.comparison(16, (48,), (16,))
    assert row["kept: out and lse, MB"] == 4 * 48 * 17 / 1e6


def test_the_famous_table_is_twelve_times_too_small():
    (row,) = [row for row in backward.claimed_table() if row[""] == "counted / claimed"]
    assert math.isclose(row["standard"], 6 * 2 * 1024**2 * 64 * 1024 / 66.6e9)
    assert 12 < row["standard"] < row["FlashAttention"] < 13
