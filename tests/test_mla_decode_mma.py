"""mla_decode_mma without a GPU: on a model of the instructions, and its machine code."""

import numpy as np
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler

import fa_numba
from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.checks.expressions import NO_SINKS
from fa_numba.on_cuda_cores.decode_problem import NO_TABLE, make_combine_wide, pages_of
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.tensor_core import mla_decode_mma as mma
from fa_numba.tensor_core.mla_decode_mma import mla_decode_mma

SIZES = "lengths", "seqlen_q", "num_heads", "columns", "page_size", "causal", "num_splits", "tiling"
CASES = [
    thorough(((150, 1, 97), 1, 16, (512, 64), 64, False, 2, (32, 4))),
    ((70, 0, 33), 1, 5, (48, 24), 64, False, 3, (32, 4)),
    ((40, 5), 3, 17, (31, 9), 7, True, 3, (16, 3)),
    thorough(((33, 64), 1, 4, (200, 40), 1, True, 1, (16, 5))),
    thorough(((90,), 2, 8, (384, 0), None, True, 1, (32, 3))),
]
SHARED = {(9, 0, "a"): 227 * 1024, (8, 0): 163 * 1024, (8, 6): 99 * 1024}  # of a thread block


@pytest.mark.parametrize("case", CASES, ids=str)
def test_out_and_lse_on_a_model(case, run_on_model):
    case = dict(zip(SIZES, case, strict=True)) | {"decoder": "latent"}
    run_on_model("decoding_on_model.py", case)


@needs_compiler
@pytest.mark.parametrize("cc, latent_dim, row_dim, dtype, page_size, causal", [
    ((9, 0, "a"), 512, 576, "bfloat16", AT_RUN_TIME, False),
    thorough((9, 0, "a"), 512, 576, "float16", 0, True),
    ((8, 0), 512, 576, "float16", AT_RUN_TIME, True),
    thorough((8, 6), 512, 576, "bfloat16", 1, False),
    thorough((9, 0, "a"), 48, 72, "float16", AT_RUN_TIME, True),
])  # fmt: skip
def test_it_stays_in_registers_and_fits(cc, latent_dim, row_dim, dtype, page_size, causal):
    tiling = mma.choose_tiling(row_dim, SHARED[cc])
    kernel = mma.make_mla_decode_mma(latent_dim, row_dim, dtype, causal, page_size, *tiling)
    q, cache = np.zeros((1, 1, 16, row_dim), dtype), np.zeros((1, 64, row_dim), dtype)
    out, lse = np.zeros((1, 1, 1, 16, latent_dim), "f4"), np.zeros((1, 1, 16, 1), "f4")
    table = np.zeros((1, 1), np.int32) if page_size else NO_TABLE
    parts = np.zeros(1, np.int32), out, lse, np.float32(1), *pages_of(2)
    code = in_registers(kernel, (q, cache, table, *parts), cc=cc)
    assert code.shared_bytes == 0
    assert mma.make_plan(row_dim, *tiling).bytes <= SHARED[cc]
    assert code.counts["LDGSTS.128"] >= 2 * (row_dim * tiling.block_n // 2048)
    assert "call" not in code.ptx


@needs_compiler
def test_the_merge_of_rows_of_512_stays_in_registers():
    parts = np.zeros((2, 1, 1, 16, 512), "f4"), np.zeros((2, 1, 16, 1), "f4")
    args = *parts, *(x[0] for x in parts), NO_SINKS
    code = compile_kernel(make_combine_wide(512, 8), args)
    assert code.spill_bytes == code.local_bytes == 0 and code.registers * 256 <= 65_536


def test_tilings():
    tilings = [mma.choose_tiling(576, limit) for limit in SHARED.values()]
    assert tilings == [(32, 4), (32, 4), (16, 5)]
    assert mma.choose_tiling(72, SHARED[8, 6]) == (32, mma.MAX_STAGES)


def test_it_is_not_for_the_cpu_engine():
    q, cache = np.zeros((1, 1, 16, 576), np.float16), np.zeros((1, 8, 576), np.float16)
    given = q, cache, np.full(1, 8, np.int32)
    with pytest.raises(TypeError, match="q, latent_cache must be GPU arrays.*mla_decode computes"):
        mla_decode_mma(*given, softmax_scale=1.0)
    choice = fa_numba.which("mla_decode", *given, softmax_scale=1.0)
    assert choice.kernel == "mla_decode" and "CPU engine" in choice.reason
    with pytest.raises(ValueError, match="latent_dim must be at most row_dim = 576, got 577"):
        mla_decode_mma(*given, softmax_scale=1.0, latent_dim=577)
