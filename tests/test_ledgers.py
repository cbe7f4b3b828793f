"""The ledgers of lessons: rows for a table, whose numbers are counted or read from results."""

import inspect
import json
import math

import numpy as np
import pytest

import fa_numba
from fa_numba import simt
from fa_numba.distributed.layouts import LAYOUTS
from fa_numba.distributed.prediction import Problem, pairs_per_step
from fa_numba.workbook.ledgers import attention_cost, many_gpus, serving, tiles, training


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


@pytest.mark.parametrize("module", [attention_cost, tiles])
def test_of_attention_and_tiles_each_row_has_a_claim_a_number_and_a_verdict(module):
    for row in module.ledger():
        assert list(row) == ["claim", "our number", "verdict"] and all(row.values())


def test_memory_is_read_from_the_results(tmp_path):
    (row,) = [r for r in attention_cost.ledger(tmp_path) if "10–20×" in r["claim"]]
    assert row["our number"] == attention_cost.NOT_RECORDED
    rows = [
        {"function": name, "seqlen": 4096, "extra bytes": extra}
        for name, extra in (("naive_attn", 3 * 10**9), ("flash_attn_v2", 7))
    ]
    (tmp_path / "memory.json").write_text(json.dumps({"rows": rows}))
    (row,) = [r for r in attention_cost.ledger(tmp_path) if "10–20×" in r["claim"]]
    assert "3.00 GB" in row["our number"] and "against 7 bytes" in row["our number"]


def test_the_published_mask_shows_the_future_alone():
    scores = np.arange(9, dtype=np.float32).reshape(3, 3)
    p = attention_cost.published_weights(scores, np.tril(np.ones((3, 3), bool)))
    assert (p[0, 0], p[1, 0], p[1, 1], p[1, 2]) == (0, 0, 0, 1)
    assert np.allclose(p[2], 1 / 3)


def test_numbers_that_lazy_softmax_keeps_are_as_metered():
    default = inspect.signature(fa_numba.lazy_softmax_attn).parameters["query_chunk_size"].default
    assert default == attention_cost.QUERIES
    N, d = 40, 4
    q = np.ones((1, N, 1, d), np.float32)
    with simt.tracing() as traces:
        fa_numba.lazy_softmax_attn(q, q, q)
    arrays = traces[0].arrays
    kept = sum(arrays[f"{name}_partial"].stores for name in ("acc", "l", "m"))
    assert kept == attention_cost.lazily_kept(N, d)


def test_tallest_is_the_last_that_fits():
    B_r = tiles.tallest(16, 64, 24 * 1024)
    assert tiles.four_tiles(B_r, 16, 64, 2) <= 48 * 1024 < tiles.four_tiles(B_r + 1, 16, 64, 2)
