"""The ledgers of lessons: rows for a table, whose numbers are counted or read from results."""

import inspect
import json
import math

import numpy as np
import pytest

import fa_numba
from fa_numba import analysis, flash_attn_v1, simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.distributed.layouts import LAYOUTS
from fa_numba.distributed.prediction import Problem, pairs_per_step
from fa_numba.kv_cache import random_trace, serve_contiguous, serve_paged
from fa_numba.kv_cache.waste import reservations
from fa_numba.workbook import induction_head
from fa_numba.workbook.ledgers import (
    attention_cost,
    backward,
    eight_bits,
    flash_attention_1,
    flash_attention_2,
    flash_decoding,
    hopper,
    how_fast,
    kv_cache,
    linear,
    many_gpus,
    masks,
    online_softmax,
    packed,
    page_pool,
    paged_attention,
    profiling,
    safe_softmax,
    serving,
    tensor_cores,
    tiles,
    training,
)
from fa_numba.workbook.recorded import recorded_rows


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory):
    return many_gpus.ledger(tmp_path_factory.mktemp("no_results"))


def recorded(folder, rows):
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (folder / "many_gpus.json").write_text(json.dumps(record))
    return " ".join(row["our number"] for row in many_gpus.ledger(folder))


def test_each_row_has_a_claim_a_number_and_a_verdict(unrecorded):
    assert len(unrecorded) >= 7
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
        {"gpus": 4, "tokens": 1000, "what": "forward", "method": "contiguous", "ms": 3.0},
        {"gpus": 4, "tokens": 1000, "what": "forward", "method": "striped", "ms": 2.0},
        {
            "gpus": 4,
            "tokens": 9000,
            "what": "forward",
            "method": "striped",
            "skipped": "no time left",
        },
        {"gpus": 4, "tokens": 1000, "what": "forward+backward", "method": "striped", "ms": 1.0},
        {"gpus": 4, "keys": 4000, "decoding": "ring", "ms": 5.0},
        {"gpus": 4, "keys": 4000, "decoding": "tree", "ms": 2.0},
    ]
    numbers = recorded(tmp_path, rows)
    assert many_gpus.NOT_RECORDED not in numbers
    assert "1.50× on 4 with 1,000 tokens each" in numbers
    assert "2.5× on 4 for 4,000 keys" in numbers
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
    assert len(served) >= 4
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
    assert serving.NOT_RECORDED not in numbers and "GPU" not in numbers
    assert "2.50× on a CPU, 16" in numbers and "1.50×, with 1,234 tokens" in numbers
    record["rows"] = [rows[0], rows[1] | {"tokens/s": 120}]
    (tmp_path / "serving_gpu.json").write_text(json.dumps(record))
    numbers = " ".join(row["our number"] for row in serving.ledger(tmp_path))
    assert "2.50× on a CPU, 16 at a time, 1.20× on a GPU, 64" in numbers


def test_what_is_counted_is_what_the_engine_does(served):
    """16 prompts, 200 common tokens: 12 shared pages, and 2 for each."""
    (row,) = [row for row in served if "prefix" in row["claim"]]
    assert f"{12 + 16 * 2} pages, {16 * 14} without" in row["our number"]


def test_pages():
    rows = paged_attention.ledger()
    assert "18.0 GiB = 19.3 GB" in rows[0]["our number"]
    assert paged_attention.table_share() == 4 * 2 / (32 * 2 * 2 * 64 * 4)
    trace = random_trace(500, max_len=256)
    usage = {name: serve_contiguous(trace, 2000, r) for name, r in reservations(256).items()}
    rows = page_pool.ledger(usage | {"pages of 16": serve_paged(trace, 2000, 16)})
    numbers = " ".join(row["our number"] for row in rows)
    assert "at most 15 empty slots of 16" in numbers and "66 pages of 16, 252 without" in numbers
    assert "preempted: B in step 5; 27 tokens" in numbers
    assert all(row.keys() == {"claim", "our number", "verdict"} for row in rows)


ERRORS = {"float16": 1e-4, "one scale": 2e-2, "blocks": 1.8e-2, "rotated": 9e-3, "both": 1e-2}
FAST = {
    "tensor_cores": (tensor_cores.ledger, tensor_cores.NOT_RECORDED),
    "hopper": (hopper.ledger, hopper.NOT_RECORDED),
    "eight_bits": (lambda folder: eight_bits.ledger(ERRORS, folder), eight_bits.NOT_RECORDED),
}


def results(folder, name, rows):
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.mark.parametrize("name", FAST)
def test_of_tensor_cores_each_row_has_a_claim_a_number_and_a_verdict(name, tmp_path):
    ledger, not_recorded = FAST[name]
    rows = ledger(tmp_path)
    assert len(rows) >= 2
    for row in rows:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]
    assert any(not_recorded in row["our number"] for row in rows)
    assert not any(not_recorded in row["our number"] for row in ledger(None))


def of_a_kernel(kernel, seqlen, tflops, causal):
    return {"kernel": kernel, "dtype": "float16", "head_dim": 128, "seqlen": seqlen,
            "causal": causal, "TFLOP/s": tflops}  # fmt: skip


def test_shares_of_the_peak_are_those_of_the_best_length(tmp_path):
    peak = DEVICES["H200"].float16_tensor / 1e12
    speeds = {512: 0.1 * peak, 1024: 0.25 * peak}
    results(tmp_path, "tensor_core", [
        of_a_kernel("SDPA FlashAttention-2", n, speed, False) for n, speed in speeds.items()
    ])  # fmt: skip
    row = tensor_cores.ledger(tmp_path)[-1]
    assert row["verdict"].startswith("true: PyTorch's FlashAttention-2 reaches 25%")


def test_order_of_causal_tiles_by_hand():
    """One head, tiles of 1, 2, 3, 4 on 2 SMs: as numbered 1+3 beside 2+4, longest first 5 and 5."""
    assert hopper.tiles_of_keys(512) == [1, 2, 3, 4]
    assert math.isclose(hopper.busy_share(1, 512, "as numbered", num_sms=2), 10 / 2 / 6)
    assert math.isclose(hopper.busy_share(1, 512, "longest first", num_sms=2), 1)
    assert math.isclose(hopper.busy_share(1, 512, "last first", num_sms=2), 1)


def test_persistent_over_ws_is_that_of_the_shortest_and_the_longest(tmp_path):
    speeds = {512: (1, 3), 1024: (1, 2), 2048: (2, 3)}
    results(tmp_path, "tensor_core", [
        of_a_kernel(f"flash_attn_{name}", n, speed, True)
        for n, both in speeds.items()
        for name, speed in zip(("ws", "persistent"), both, strict=True)
    ])  # fmt: skip
    number = hopper.ledger(tmp_path)[-1]["our number"]
    assert "3.00× at 512 tokens, 1.50× at 2,048 tokens" in number


def test_gains_of_eight_bits_are_over_float16_at_the_same_length(tmp_path):
    kernels = "flash_attn_persistent", "flash_attn_fp8", eight_bits.WITH_QUANTISATION
    results(tmp_path, "fp8", [
        of_a_kernel(kernel, n, speed, False)
        for n, three in ((512, (2, 4, 1)), (1024, (2, 3, 2)))
        for kernel, speed in zip(kernels, three, strict=True)
    ] + [{"error of": eight_bits.PLAIN, "RMSE": 0.5}])  # fmt: skip
    speed, accuracy = eight_bits.ledger(ERRORS, tmp_path)
    assert "flash_attn_fp8: 1.50 to 2.00×" in speed["our number"]
    assert "quantisation included: 0.50 to 1.00×" in speed["our number"]
    assert eight_bits.NOT_RECORDED in accuracy["our number"]
    assert "2.0 times better" in accuracy["verdict"] and "100 times" in accuracy["verdict"]


@pytest.mark.parametrize("module, recorded_in", [(packed, 1), (profiling, 4)])
def test_of_practice_each_row_has_a_claim_a_number_and_a_verdict(module, recorded_in, tmp_path):
    for row in module.ledger():
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]
        assert module.NOT_RECORDED not in row["our number"]
    without = [row["our number"] for row in module.ledger(tmp_path)]
    assert sum(module.NOT_RECORDED in number for number in without) == recorded_in


def test_packed_flops_are_those_of_its_tiles():
    """Padded: one square of tiles for each sequence; packed: each its own. FLOPs go by tiles."""
    padded, of_packed = packed.flops_of([40, 8, 20], tile=8)
    assert math.isclose(of_packed / padded, (5**2 + 1 + 3**2) / (3 * 5**2), rel_tol=2e-3)
    assert packed.flops_of([16, 16])[0] == packed.flops_of([16, 16])[1]


def test_launches_of_a_short_sequence():
    launches, moved = profiling.short_sequence(8, 4)
    assert launches == (3, 1) and moved[0] > moved[1]
    assert profiling.standard_intensity(64) == 32
    assert profiling.ridge_of("H200") > 100


def test_of_profiling_times_are_the_recorded_ones(tmp_path):
    rows = [
        {"kernel": name, "head_dim": 64, "seqlen": 512, "causal": False, "ms": ms}
        for name, ms in (("SDPA math", 3.0), ("SDPA memory-efficient", 1.2))
    ]
    (tmp_path / "attention.json").write_text(json.dumps({"rows": rows}))
    cells = {"kernel": "k", "load requests": [1, 1, "yes"], "load sectors": [1, 2, "no: x"]}
    (tmp_path / "microscope.json").write_text(json.dumps({"rows": [cells]}))
    call = {"in a row, µs": 9.5, "its graph on the GPU, µs": 2.5}
    rows = [{"call": "flash_attn_v2, CuPy"} | call]
    (tmp_path / "launch.json").write_text(json.dumps({"rows": rows}))
    numbers = " ".join(row["our number"] for row in profiling.ledger(tmp_path))
    assert "N = 512: 2.5 times as fast" in numbers and "1 of 2 counters" in numbers
    assert "9.5 µs for each call in a row, 2.5 µs" in numbers
    assert numbers.count(profiling.NOT_RECORDED) == 1


def test_of_safe_softmax_each_row_has_a_claim_a_number_and_a_verdict():
    rows = safe_softmax.ledger(8, 5 * 8**2 + 2 * 8)
    assert len(rows) == 7
    for row in rows:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]
    assert "the meter says 336, not 328" in rows[5]["our number"]
    assert "2.625 at L = 8" in rows[6]["our number"]


def test_accesses_are_those_of_the_formula():
    assert safe_softmax.accesses(fa_numba.naive_softmax) == (2, 1)
    assert safe_softmax.accesses(fa_numba.safe_softmax) == (3, 1)
    assert safe_softmax.accesses(fa_numba.online_softmax) == (2, 1)


def softmax_results(folder):
    """Recorded times of two row lengths, and of one in another type, which counts nowhere."""
    softmax = [
        {"columns": columns, "dtype": "float32", "kernel": kernel, "ms": ms}
        for columns, kernel, ms in (
            (100, "safe_softmax", 3.0),
            (100, "online_softmax", 2.0),
            (10, "safe_softmax", 1.1),
            (10, "online_softmax", 1.0),
        )
    ]
    softmax += [softmax[0] | {"dtype": "float16", "ms": 99.0}]
    topk = [
        {"rows": 1, "columns": 10, "dtype": "float32", "kernel": kernel, "ms": ms}
        for kernel, ms in (("torch.softmax, then topk", 14.0), ("softmax_topk_warps", 2.0))
    ]
    for name, rows in (("softmax", softmax), ("topk", topk)):
        record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
        (folder / f"{name}.json").write_text(json.dumps(record))


def test_of_online_softmax_times_are_the_recorded_ones_or_none(tmp_path):
    rows = online_softmax.ledger(tmp_path)
    assert sum(online_softmax.NOT_RECORDED in row["our number"] for row in rows) == 2
    for row in rows:
        assert list(row) == ["claim", "our number", "verdict"] and all(row.values())
    softmax_results(tmp_path)
    assert online_softmax.gains(tmp_path) == {10: 1.1, 100: 1.5}
    numbers = " ".join(row["our number"] for row in online_softmax.ledger(tmp_path))
    assert "1.10 to 1.50, most at 100 columns" in numbers
    assert "7.0 to 7.0 times faster" in numbers and "5.00 times fewer" in numbers


def test_merge_is_that_of_the_whole_row():
    m, l = online_softmax.merge((3.0, 1.0), online_softmax.merge((1.0, 1.0), (2.0, 1.0)))
    assert m == 3 and math.isclose(l, 1 + math.exp(-2) + math.exp(-1))
    assert online_softmax.worst_of_trees(20) < 1e-14


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


@pytest.mark.parametrize("ledger", [kv_cache.ledger, flash_decoding.ledger])
def test_ledgers_of_decoding_have_a_claim_a_number_and_a_verdict(ledger):
    rows = ledger()
    assert len(rows) >= 7
    for row in rows:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_two_kept_tokens_repair_a_head_that_looks_near_and_no_other():
    near, without, everywhere = kv_cache.sink_errors().values()
    assert near[0] > 1 and near[2] < 0.1, "wrong by more than its size, then right"
    assert without[0] < 0.1 and abs(without[2] - without[0]) < 0.02, "there was nothing to repair"
    assert everywhere[2] > 0.1


def test_what_stays_grows_as_the_dropped_weight_says():
    everything, alone, both = kv_cache.sink_weights().values()
    dropped = everything[np.isnan(alone)].sum()
    assert dropped > 0.8
    np.testing.assert_allclose(alone[~np.isnan(alone)].sum(), 1, rtol=1e-5)
    stays = ~np.isnan(alone)
    np.testing.assert_allclose(alone[stays] / everything[stays], 1 / (1 - dropped), rtol=1e-4)
    assert np.nansum(both[:2]) > 0.5


def test_cache_sizes_are_those_of_the_sources():
    numbers = " ".join(row["our number"] for row in kv_cache.ledger())
    assert "19,327,352,832 bytes" in numbers and "ridge of an A100 is 201" in numbers


def test_extra_traffic_is_the_group_over_the_keys_of_a_split():
    for num_splits in (64, 256):
        rule = 4 * num_splits / flash_decoding.KEYS
        assert abs(flash_decoding.extra_traffic(num_splits) / rule - 1) < 0.02


def test_gains_are_the_recorded_ones_or_none(tmp_path):
    def numbers():
        return " ".join(row["our number"] for row in flash_decoding.ledger(tmp_path))

    assert flash_decoding.NOT_RECORDED in numbers()
    row = {"kernel": "flash_decode", "batch": 1, "seqlen": 1000, "heads": "32/8"}
    rows = [row | {"num_splits": n, "ms": ms} for n, ms in ((0, 2.0), (1, 7.0), (8, 2.5))]
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (tmp_path / "decode.json").write_text(json.dumps(record))
    assert "1 × 1,000 keys, 32/8 heads: 3.5×" in numbers()
    assert flash_decoding.NOT_RECORDED not in numbers()


def test_the_ledger_on_speed():
    rows = how_fast.ledger()
    assert len(rows) >= 11
    for row in rows:
        assert list(row) == ["claim", "our number", "verdict"] and "(00" in row["claim"]
    (links,) = [row for row in rows if "NVLink, 64" in row["claim"]]
    assert "300 GB/s" in links["our number"] and "31.5" in links["our number"]
    (layer,) = [row for row in rows if "about 200" in row["claim"]]
    assert "batch 201" in layer["our number"] and "float32 batch 25" in layer["our number"]


def test_of_flash_attention_1(tmp_path):
    for folder in (tmp_path, None):
        rows = flash_attention_1.ledger([0.5, 1e-7], folder)
        for row in rows:
            assert list(row) == ["claim", "our number", "verdict"]
            assert all(row.values()) and "(00" in row["claim"]
    assert len(rows) >= 8


def test_of_flash_attention_1_times_are_the_recorded_ones_or_none(tmp_path):
    assert (
        sum(
            flash_attention_1.NOT_RECORDED in row["our number"]
            for row in flash_attention_1.ledger([1.0], tmp_path)
        )
        == 2
    )
    rows = [
        {"kernel": kernel, "head_dim": 64, "seqlen": seqlen, "causal": False, "ms": ms}
        for kernel, seqlen, ms in (
            ("naive_attn", 512, 6.0), ("flash_attn_v2", 512, 2.0), ("flash_attn_v2", 1024, 5.0)
        )
    ]  # fmt: skip
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (tmp_path / "attention.json").write_text(json.dumps(record))
    numbers = " ".join(row["our number"] for row in flash_attention_1.ledger([1.0], tmp_path))
    assert "time × 2.5, so × 5 for each" in numbers


def test_of_flash_attention_1_traffic_is_the_meters():
    q = np.zeros((1, 48, 1, 8), np.float32)
    with simt.tracing() as traces:
        flash_attn_v1(q, q, q, block_m=16, block_n=16)
    moved = sum(x.loads + x.stores for x in traces[0].arrays.values())
    assert moved == flash_attention_1.v1_elements(48, 8, 16)


def test_of_masks(tmp_path):
    for folder in (tmp_path, None):
        rows = masks.ledger(folder)
        for row in rows:
            assert list(row) == ["claim", "our number", "verdict"]
            assert all(row.values()) and "(00" in row["claim"]
    assert masks.NOT_RECORDED in " ".join(row["our number"] for row in masks.ledger(tmp_path))


def test_of_masks_the_number_of_live_tiles():
    assert masks.tiles_of_a_window(64, 16, 16) == 1 + 3 * 2
    assert masks.tiles_of_a_window(64, 64, 16) == 1 + 2 + 3 + 4
    assert masks.tiles_of_a_window(64, 1, 16) == 4


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


@pytest.fixture(scope="module")
def of_linear(tmp_path_factory):
    return linear.ledger(tmp_path_factory.mktemp("no_results"))


def test_of_linear_attention_each_row_has_a_claim_a_number_and_a_verdict(of_linear):
    assert len(of_linear) >= 9
    for row in of_linear:
        assert list(row) == ["claim", "our number", "verdict"]
        assert all(row.values()) and "(00" in row["claim"]


def test_of_linear_attention_times_are_the_recorded_ones_or_none(of_linear, tmp_path):
    assert linear.NOT_RECORDED in of_linear[0]["our number"]
    rows = [
        {"what": what, "kernel": "linear_attn, elu1", "seqlen": n, "ms": ms}
        for what, n, ms in (("prompt", 8192, 2.0), ("prompt", 16384, 5.0), ("token", 8192, 1.0))
    ]
    record = {"machine": "a machine", "date": "a day", "command": "a command", "rows": rows}
    (tmp_path / "linear.json").write_text(json.dumps(record))
    number = linear._about_length(recorded_rows("linear", folder=tmp_path))["our number"]
    assert "prompt 2.50×" in number and "token" not in number


def test_gradient_of_the_learned_map_is_the_difference():
    q, k, _ = induction_head.head(1)
    p = induction_head.softmax_weights(q, k)
    for phi in (induction_head.both_signs, induction_head.one_sign):
        w = induction_head.untrained(3)
        _, gradient = induction_head.loss_and_gradient(q, k, w, p, phi)
        for index in ((0, 0, 0), (1, 15, 2)):
            step = np.zeros_like(w)
            step[index] = 1e-6
            up, down = (
                induction_head.loss_and_gradient(q, k, w + sign * step, p, phi)[0]
                for sign in (1, -1)
            )
            assert math.isclose(gradient[index], (up - down) / 2e-6, rel_tol=1e-4, abs_tol=1e-8)


def test_arguments_of_the_head_are_named():
    with pytest.raises(ValueError, match="start"):
        induction_head.head(0)
    with pytest.raises(ValueError, match="signs"):
        induction_head.trained(32, 3)
