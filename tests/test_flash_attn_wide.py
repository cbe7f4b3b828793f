"""flash_attn_wide without a GPU: its source on a model of the instructions; its machine code."""

import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler
from numba import types
from test_tensor_core import MAP, float32_3d

from fa_numba.analysis import devices
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.tensor_core import flash_attn_wide

# seqlen_q, seqlen_k, heads, head_dim, causal
CASES = [
    ((60, 200, (1, 1), 512, False), {}),
    ((130, 200, (2, 1), 512, True), {}),
    thorough((100, 80, (2, 1), 320, True), {}),  # rows that see no key
    ((70, 330, (1, 1), 264, False), {"window_size": (100, 20), "softcap": 15.0}),
    thorough((70, 330, (1, 1), 384, False), {"window_size": (100, 20)}),
    thorough((130, 450, (1, 1), 392, True), {"window_size": (200, -1)}),
    # Packed: a sequence without keys, one without queries, and rows of two sequences in a warp.
    (([60, 0, 70, 3], [90, 20, 0, 65], (2, 1), 512, True), {}),
    thorough(([100, 30], [130, 200], (1, 1), 320, False), {"softcap": 15.0}),
]


@pytest.mark.parametrize("sizes, options", CASES, ids=lambda x: "-".join(map(str, x)))
def test_out_and_lse_on_a_model(sizes, options, run_on_model):
    *of_rows, heads, head_dim, causal = sizes
    name = "wide_varlen" if isinstance(of_rows[0], list) else "wide"
    case = {"name": name, "sizes": of_rows, "heads": heads, "head_dim": head_dim}
    run_on_model("on_model.py", case | {"causal": causal} | options)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, causal, dtype, window, softcap, packed",
    [
        (512, False, "bfloat16", (-1, -1), 0.0, False),
        thorough(512, True, "float16", (-1, -1), 0.0, False),
        thorough(512, False, "float16", (AT_RUN_TIME, AT_RUN_TIME), 30.0, False),
        thorough(264, True, "bfloat16", (AT_RUN_TIME, -1), 0.0, False),
        (512, True, "float16", (-1, -1), 0.0, True),
        thorough(264, False, "float16", (AT_RUN_TIME, -1), 30.0, True),
        thorough(384, False, "bfloat16", (-1, -1), 0.0, False),
    ],
)
def test_products_stay_in_registers(head_dim, causal, dtype, window, softcap, packed):
    constants = head_dim, causal, dtype, window, softcap, packed
    kernel = flash_attn_wide.make_flash_attn_wide(*constants)
    masks = types.int32, types.int32, types.float32, types.float32
    sizes = types.int32, types.int32, types.float32
    starts = types.Array(types.int32, 1, "C")
    out = types.Array(types.float16, 3, "C")
    more = types.Tuple((starts, starts, out) if packed else ())
    args = *4 * (MAP,), float32_3d, *sizes, *masks, more
    code = in_registers(kernel, args)
    size = flash_attn_wide.make_plan().bytes
    assert size + code.shared_bytes <= devices.device("H100").shared_bytes_per_block
