"""flash_attn_mma without a GPU: machine code for its options, tiles for smaller GPUs."""

import expression_cases
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler, stated_registers
from numba import typeof, types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.tensor_core.flash_attn_mma import (
    RESERVED_BYTES,
    make_flash_attn_mma,
    shared_bytes,
    tile_sizes,
)

A100, RTX = 163 * 1024, 99 * 1024  # shared memory that a thread block may ask for
# Bytes that ptxas spills for sm_120, by head_dim and whether scores are modified.
SPILLED = {(64, False): 100, (128, False): 172, (128, True): 32}
MASK_ARGS = types.int32, types.int32, types.float32, types.float32
NONE = types.Tuple(())  # no sinks, runs or arguments of a mask


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, dtype, causal, window, softcap, alibi",
    [
        thorough(64, "float16", True, (-1, -1), 0.0, False),
        thorough(128, "bfloat16", False, (-1, -1), 0.0, False),
        thorough(256, "float16", False, (-1, -1), 0.0, False),
        thorough(128, "float16", False, (100, 50), 30.0, True),
        (64, "float16", True, (511, -1), 30.0, True),
    ],
)
@pytest.mark.parametrize("cc", [(8, 0), *map(thorough, ((8, 9), (9, 0, "a"), (12, 0)))], ids=str)
def test_it_stays_in_registers(head_dim, dtype, causal, window, softcap, alibi, cc):
    m_tiles, block_n = tile_sizes(head_dim, modified=softcap > 0 or alibi)
    kernel = make_flash_attn_mma(head_dim, m_tiles, block_n, causal, dtype, window, softcap, alibi)
    x, lse = types.Array(types.float16, 4, "A"), types.Array(types.float32, 3, "C")
    slopes = types.Array(types.float32, 1, "A") if alibi else types.float32
    args = x, x, x, x, lse, types.float32, slopes, *MASK_ARGS, NONE, NONE, NONE
    code = compile_kernel(kernel, args, cc=cc)
    if cc == (12, 0):
        assert code.spill_bytes <= SPILLED.get((head_dim, softcap > 0), 0)
    else:
        assert code.spill_bytes == code.local_bytes == 0
    assert code.float64_instructions == 0
    assert code.registers <= stated_registers(kernel)
    # Each of S and P V has one for 16 × 8 × 16 numbers; the loop over the tiles is left.
    assert code.counts["HMMA.16816.F32" if dtype == "float16" else "HMMA.16816.F32.BF16"] == (
        2 * m_tiles * (block_n // 8) * (head_dim // 16)
    )


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim",
    [
        ("documents", 64),
        thorough("a window", 128),
        thorough("T5", 128),
        thorough("a score and a mask", 128),
        thorough("softcap", 64),
        thorough("sinks and a mask", 256),
        thorough("sinks", 128),
    ],
)
@pytest.mark.parametrize("cc", [(8, 0), thorough((9, 0, "a"))])
def test_functions_of_the_user_stay_in_registers(name, head_dim, cc):
    written, _ = expression_cases.options_of(name, 4, 500)
    given = expression_cases.given_of(name)
    expressions, arguments = (None, ()) if given is None else given[:2]
    m_tiles, block_n = tile_sizes(head_dim, expressed=expressions is not None)
    kernel = make_flash_attn_mma(
        head_dim, m_tiles, block_n, False, "float16",
        EXPRESSIONS=expressions, SINKS="sinks" in written,
    )  # fmt: skip
    x, lse = types.Array(types.float16, 4, "A"), types.Array(types.float32, 3, "C")
    sinks = types.Tuple((types.Array(types.float32, 1, "C"),)) if "sinks" in written else NONE
    runs = expression_cases.runs_type(expressions) if expressions else NONE
    more = *MASK_ARGS, sinks, runs, typeof(tuple(arguments))
    in_registers(kernel, (x, x, x, x, lse, types.float32, types.float32, *more), cc=cc)


@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("modified", [False, True])
def test_tiles_fit_smaller_gpus(head_dim, modified):
    largest = tile_sizes(head_dim, modified=modified)
    for shared_memory in (A100, RTX):
        sizes = tile_sizes(head_dim, modified=modified, shared_memory=shared_memory)
        size = shared_bytes(head_dim, *sizes)
        assert size <= shared_memory
        two_fit = 2 * (size + RESERVED_BYTES) <= shared_memory + RESERVED_BYTES
        assert two_fit or (head_dim > 128 and shared_memory == RTX)
        assert sizes == largest or sizes[1] < largest[1]
    assert tile_sizes(128, shared_memory=A100) == (2, 64)
    assert tile_sizes(128, shared_memory=RTX) == (2, 32)
