"""flash_decode_columns without a GPU: on a model of the instructions, and its machine code."""

import expression_cases
import numpy as np
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler
from test_dispatch import aligned, gpu  # noqa: F401
from test_flash_decode_wide import arguments

import fa_numba
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.tensor_core import flash_decode_columns as columns

SIZES = "lengths seqlen_q heads head_dim page_size mask num_splits tiling".split()
ALL = {"causal": True, "window_size": (20, 0), "softcap": 2.0, "alibi_slopes": [0.1, 0.3, 0.5]}
CASES = [
    thorough(((40, 5), 1, (4, 2), 72, 0, {}, 1, (16, 3))),
    ((70, 0, 33), 2, (3, 1), 40, 7, ALL, 3, (32, 2)),
    ((100, 17), 3, (6, 1), 136, 1, {"window_size": (20, 3)}, 2, (16, 2)),  # two tiles of rows
    thorough(((90,), 1, (16, 1), 512, 16, {}, 1, (32, 3))),
    thorough(((50, 30), 1, (3, 1), 264, 64, {"causal": True}, 2, (16, 4))),
]
SHARED = {(9, 0, "a"): 227 * 1024, (8, 0): 163 * 1024, (8, 6): 99 * 1024}  # of a thread block


@pytest.mark.parametrize("case", CASES, ids=str)
def test_out_and_lse_on_a_model(case, run_on_model):
    case = dict(zip(SIZES, case, strict=True)) | {"decoder": "columns"}
    run_on_model("decoding_on_model.py", case)


MASK = True, (AT_RUN_TIME, AT_RUN_TIME), float(AT_RUN_TIME), True


@needs_compiler
@pytest.mark.parametrize("cc, head_dim, dtype, page_size, mask", [
    ((9, 0, "a"), 512, "bfloat16", AT_RUN_TIME, MASK),
    thorough((9, 0, "a"), 512, "float16", 0, (False,)),
    thorough((9, 0, "a"), 320, "float16", 1, (True,)),
    thorough((8, 0), 512, "float16", AT_RUN_TIME, (True,)),
    thorough((8, 6), 512, "bfloat16", 0, MASK),
    thorough((8, 6), 264, "float16", AT_RUN_TIME, (False,)),
])  # fmt: skip
def test_it_stays_in_registers_and_fits(cc, head_dim, dtype, page_size, mask):
    code, tiling = compiled(cc, head_dim, dtype, page_size, mask)
    assert code.shared_bytes == 0
    assert columns.make_plan(head_dim, *tiling).bytes <= SHARED[cc]
    assert code.counts["LDGSTS.128"] >= 2 * (head_dim * tiling.block_n // 2048)


@needs_compiler
@pytest.mark.parametrize("name", [*map(thorough, ("T5", "a score and a mask", "documents"))])
def test_masks_and_scores_stay_in_registers(name):
    given = expression_cases.given_of(name)
    options = {"EXPRESSIONS": given.expressions}
    compiled((9, 0, "a"), 512, "float16", AT_RUN_TIME, (False,), options, given.arguments)


def compiled(cc, head_dim, dtype, page_size, mask, options=None, expression_args=()):
    """The machine code of a kernel, whose registers are those of its docstring, and its tiling."""
    tiling = columns.choose_tiling(head_dim, SHARED[cc])
    kernel = columns.make_flash_decode_columns(
        head_dim, dtype, page_size, *tiling, *mask, **options or {}
    )
    args = [*arguments(head_dim, dtype, page_size > 0)]
    args[8] = np.zeros(1, np.float32) if len(mask) == len(MASK) else args[8]  # alibi_slopes
    args[-1] = expression_args
    code = in_registers(kernel, args, cc=cc)
    assert "call" not in code.ptx
    return code, tiling


def test_tilings():
    tilings = {cc: [columns.choose_tiling(d, size) for d in (264, 384, 512)]
               for cc, size in SHARED.items()}  # fmt: skip
    assert tilings == {
        (9, 0, "a"): [(32, 4), (32, 4), (32, 3)],
        (8, 0): [(32, 3), (32, 3), (16, 4)],
        (8, 6): [(16, 4), (16, 3), (16, 2)],
    }


@pytest.mark.parametrize("capability, head_dim, heads, queries, dtype, refused", [
    ((9, 0), 512, (16, 4), 1, np.float16, ""),
    ((8, 6), 264, (4, 4), 2, np.float16, ""),
    ((9, 0), 512, (16, 4), 1, np.float32, "must be float16 or bfloat16 for flash_decode_columns"),
    ((9, 0), 260, (16, 4), 1, np.float16, "multiple of 8 up to 512 for flash_decode_columns"),
    ((7, 5), 512, (16, 4), 1, np.float16, "flash_decode_columns needs a GPU of compute capability"),
])  # fmt: skip
def test_the_jobs_choose_it(gpu, capability, head_dim, heads, queries, dtype, refused):  # noqa: F811
    gpu(capability)
    q = aligned(1, queries, heads[0], head_dim, dtype=dtype)
    k = aligned(3, 64, heads[1], head_dim, dtype=dtype)
    table, lengths = aligned(1, 3, dtype=np.int32), aligned(1, dtype=np.int32)
    for choice in (
        fa_numba.which("flash_decode", q, k[:1], k[:1], lengths),
        fa_numba.which("paged_attn_decode", q, k, k, table, lengths),
    ):
        assert choice.kernel == ("flash_decode_wide" if refused else "flash_decode_columns")
        assert refused in choice.refused.get("flash_decode_columns", "")
        assert "512" in choice.refused["flash_decode_mma"] or head_dim < 512


def test_it_is_not_for_the_cpu_engine():
    q, k = np.zeros((1, 1, 4, 512), np.float16), np.zeros((1, 8, 1, 512), np.float16)
    with pytest.raises(TypeError, match="flash_decode_columns is made of PTX"):
        columns.flash_decode_columns(q, k, k, np.full(1, 8, np.int32))
