"""flash_attn_bwd_stored without a GPU: its parts; its source on a model; its machine code."""

import numpy as np
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler
from numba import types
from test_tensor_core import MAP, float32_3d

from fa_numba.analysis import devices
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.tensor_core import flash_attn_bwd_stored as stored
from fa_numba.tensor_core.flash_attn_bwd_stored import parts_of

# batch, seqlen_q, seqlen_k, heads, head_dim, causal
CASES = [
    ((1, 130, 70, (1, 1), 264, True), {"tiles": 1}),  # a head in two parts; rows without keys
    thorough((2, 60, 150, (2, 1), 512, False), {"tiles": 2}),
    thorough((1, 200, 300, (1, 1), 320, True), {"softcap": 15.0, "window_size": (90, -1)}),
    thorough((2, 130, 10, (2, 2), 408, True), {"tiles": 2}),
    thorough((1, 300, 150, (4, 2), 328, False), {"tiles": 3, "window_size": (30, 40)}),
]


@pytest.mark.parametrize("sizes, options", CASES, ids=lambda x: "-".join(map(str, x)))
def test_gradients_on_a_model(sizes, options, run_on_model):
    batch, *of_rows, heads, head_dim, causal = sizes
    case = {"name": "bwd_stored", "sizes": of_rows, "heads": heads, "head_dim": head_dim}
    run_on_model("on_model.py", case | {"batch": batch, "causal": causal} | options)


@pytest.mark.parametrize("num_heads, group_size", [(6, 1), (6, 2), (12, 6), (5, 5)])
@pytest.mark.parametrize("num_m", [1, 3, 7])
@pytest.mark.parametrize("tiles", [0, 1, 2, 5, 20, 1000])
def test_parts_have_every_tile_once(num_heads, group_size, num_m, tiles):
    num_n = 2
    parts = parts_of(num_heads, group_size, num_m, num_n, tiles * num_n * stored.ROWS**2 * 4)
    times = np.zeros((num_heads, num_m), int)
    for part in parts:
        first, end = part.first_head, part.first_head + part.num_heads
        times[first:end, part.first_m : part.first_m + part.num_m] += 1
        assert part.num_heads * part.num_m <= max(tiles, 1)
        assert part.num_heads <= parts[0].num_heads  # slots of the workspace
        whole = first % group_size == 0 and end % group_size == 0 and part.num_m == num_m
        assert (part.begins and part.ends) == whole
    assert (times == 1).all()
    for kv_head in range(num_heads // group_size):
        of_kv = [x for x in parts if x.first_head // group_size <= kv_head]
        of_kv = [x for x in of_kv if x.first_head + x.num_heads > kv_head * group_size]
        assert [x.begins for x in of_kv] == [True] + [False] * (len(of_kv) - 1)
        assert [x.ends for x in of_kv] == [False] * (len(of_kv) - 1) + [True]


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, causal, dtype, window, softcap",
    [
        (512, False, "bfloat16", (-1, -1), 0.0),
        thorough(512, True, "float16", (-1, -1), 0.0),
        thorough(320, False, "float16", (AT_RUN_TIME, AT_RUN_TIME), 30.0),
        thorough(264, True, "bfloat16", (AT_RUN_TIME, -1), 0.0),
    ],
)
def test_products_stay_in_registers(head_dim, causal, dtype, window, softcap):
    masks = types.int32, types.int32, types.float32, types.float32
    kernel = stored.make_scores(head_dim, causal, dtype, window, softcap)
    args = *6 * (MAP,), float32_3d, float32_3d, *6 * (types.int32,), types.float32, *masks
    check(kernel, args, stored.make_scores_plan().bytes)
    kernel = stored.make_gradients(head_dim, causal, dtype, window)
    words = types.Array(types.uint16 if dtype == "bfloat16" else types.float16, 4, "C")
    sums = types.Array(types.float32, 2, "C")
    args = *5 * (MAP,), *3 * (words,), sums, *9 * (types.int32,), types.float32, *masks
    check(kernel, args, stored.make_gradients_plan(head_dim).bytes)


def check(kernel, args, size):
    code = in_registers(kernel, args)
    assert size + code.shared_bytes <= devices.device("H100").shared_bytes_per_block
