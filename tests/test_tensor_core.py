"""Tensor cores without a GPU: layouts against matrix products, machine code of the kernels."""

import itertools
import re
import subprocess
import sys

import expression_cases
import ml_dtypes
import numpy as np
import pytest
import tensor_core_bwd_kernels
import tensor_core_kernels
from cases import thorough
from machine_code_cases import in_registers, needs_compiler, stated_registers
from numba import typeof, types
from tensor_core_kernels import AMPERE, HOPPER

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba.analysis import cuda_tools, devices
from fa_numba.analysis.machine_code import assemble, compile_kernel, compile_ptx
from fa_numba.checks import Mask
from fa_numba.on_cuda_cores.run_time_masks import arguments_of, constants_of
from fa_numba.ptx import layouts, wgmma
from fa_numba.tensor_core import (
    flash_attn_mma,
    flash_attn_padded,
    flash_attn_persistent,
    flash_attn_wgmma,
    flash_attn_ws,
)
from fa_numba.tensor_core.expression_tiles import has_unknown_work
from fa_numba.tensor_core.flash_attn_persistent_varlen import MAX_SORTED
from fa_numba.tensor_core.lazy_rescaling import LEAST_CAP
from fa_numba.tensor_core.mainloop import make_plan
from fa_numba.tiling.persistent_tiling import persistent_tiling

# Of a file of PTX that has many kernels: its first lines, and variables of functions they share.
ONCE = (".version", ".target", ".address_size", ".common")


@needs_compiler
@pytest.mark.parametrize("cc", [AMPERE, HOPPER], ids=["sm_80", "sm_90a"])
def test_each_instruction_becomes_itself(cc, tmp_path):
    """All kernels in one file: nvdisasm needs half a second for the first instruction."""
    tables = tensor_core_kernels.KERNELS, tensor_core_bwd_kernels.KERNELS
    cases = [case for table in tables for case in table.values() if case[2] == cc]
    ptxes = [compile_ptx(kernel, args, cc=cc) for kernel, args, *_ in cases]
    lines = "\n".join(ptxes).splitlines()
    lines = [x for i, x in enumerate(lines) if not x.startswith(ONCE) or x not in lines[:i]]
    code, file = assemble(cases[0][0], "\n".join(lines), cc), tmp_path / "kernels.cubin"
    assert code.spill_bytes == code.local_bytes == 0
    file.write_bytes(code.cubin)
    command = [cuda_tools.nvdisasm().path, "--print-code", file]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = dict(part.split(",", 1) for part in listed.split("\t.section\t.text.")[1:])
    for (_, _, _, *opcodes), ptx in zip(cases, ptxes, strict=True):
        (entry,) = re.findall(r"\.entry (\w+)", ptx)
        for opcode in opcodes:
            assert re.search(rf"\s{re.escape(opcode)}", listed[entry]), f"{opcode} in {entry}"


def test_each_element_of_a_fragment_is_held_once():
    for (row, col), rows, cols in (
        (layouts.mma_a(), 16, 16),
        (layouts.mma_b(), 16, 8),
        (layouts.mma_d(), 16, 8),
        (layouts.wgmma_d(96), 64, 96),
        (layouts.wgmma_a(32), 64, 32),
        (layouts.ldmatrix(), 8, 8),
        (layouts.ldmatrix(trans=True), 8, 8),
    ):
        held = np.bincount((row * cols + col).ravel(), minlength=rows * cols)
        assert (held == 1).all()


def test_a_product_has_the_layout_of_the_next_operand():
    row_d, col_d = layouts.wgmma_d(32)
    row_a, col_a = layouts.wgmma_a(32)
    for k in range(2):  # 16 columns of A are two neighbouring parts, of 8 columns, of D
        for j in range(2):
            for h in range(2):
                held = 4 * (2 * k + j) + 2 * h, 4 * k + 2 * j + h
                for half in range(2):
                    assert (row_d[:, held[0] + half] == row_a[:, held[1], half]).all()
                    assert (col_d[:, held[0] + half] == col_a[:, held[1], half]).all()


@pytest.mark.parametrize("chunk", range(layouts.CHUNKS))
def test_swizzled_rows_have_no_bank_conflict(chunk):
    rows = np.arange(8)
    swizzled = layouts.tile_offset(rows, 8 * chunk, 64)
    plain = layouts.tile_offset(rows, 8 * chunk, 64, swizzled=False)
    assert layouts.wavefronts(swizzled, layouts.CHUNK_BYTES) == 1
    assert layouts.wavefronts(plain, layouts.CHUNK_BYTES) == 8
    one_row = layouts.tile_offset(5, np.arange(0, 64, 8), 64)
    assert layouts.wavefronts(one_row, layouts.CHUNK_BYTES) == 1  # as TMA and cp.async write it


def test_each_element_of_a_tile_has_an_offset_of_its_own():
    row, col = np.mgrid[:16, :128]
    offsets = np.sort(layouts.tile_offset(row, col, 16).ravel())
    np.testing.assert_array_equal(offsets, np.arange(0, 16 * 128 * 2, 2))


def test_columns_of_a_tile_begin_where_wgmma_reads_them():
    for col in range(0, 256, 16):
        assert wgmma.column_bytes(col, 64) == layouts.tile_offset(0, col, 64, swizzled=False)


def test_descriptor():
    bits = wgmma.descriptor_bits(leading_bytes=8192) | 0x4400 >> 4
    assert layouts.descriptor_fields(bits) == {
        "address": 0x4400,
        "leading_bytes": 8192,
        "stride_bytes": 1024,
        "swizzle": 1,
    }


half, float32_3d = types.Array(types.float16, 4, "C"), types.Array(types.float32, 3, "C")
MAP, SIZES = types.uint64, (types.int32, types.int32, types.float32)
PERSISTENT = MAP, MAP, MAP, MAP, float32_3d, *3 * (types.int32,), types.float32
NONE = types.Tuple(())  # no sinks, runs or arguments of a mask
MASK_ARGS = types.int32, types.int32, types.float32, types.float32, NONE, NONE, NONE


def compiled(name, head_dim, dtype, causal):
    """Machine code of a kernel, whose registers stay within its docstring's budget."""
    if name in ("wgmma", "wgmma in pairs"):
        cluster = 2 if name == "wgmma in pairs" else 1
        kernel = flash_attn_wgmma.make_flash_attn_wgmma(head_dim, 64, causal, dtype, cluster)
        args, cc = (MAP, MAP, MAP, half, float32_3d, *SIZES), (9, 0, "a")
    elif name == "ws":
        sizes = flash_attn_ws.tile_sizes(head_dim)
        kernel = flash_attn_ws.make_flash_attn_ws(head_dim, *sizes, causal, dtype)
        args, cc = (MAP, MAP, MAP, half, float32_3d, *SIZES), (9, 0, "a")
    else:
        kernel = flash_attn_persistent.make_flash_attn_persistent(
            head_dim, persistent_tiling(head_dim, 4096, causal), causal, dtype
        )
        args, cc = (*PERSISTENT, types.float32, *MASK_ARGS), (9, 0, "a")
    code = compile_kernel(kernel, args, cc=cc)
    assert code.registers <= stated_registers(kernel)
    return code


def exponentials_beside_p_v(code):
    """Most MUFU.EX2 between a wait for all products except P V, the newest, and that for P V."""
    most, count = 0, None
    for i in code.instructions:
        if i.opcode.startswith("WARPGROUP.DEPBAR"):
            most = max(most, count or 0)
            count = 0 if "0x1" in i.operands else None
        elif i.opcode.startswith("MUFU.EX2") and count is not None:
            count += 1
    return most


def selects_beside_p_v(code):
    """FSEL between each wait for all products except the newest and the wait for the newest."""
    counts, inside = [], False
    for i in code.instructions:
        if i.opcode.startswith("WARPGROUP.DEPBAR"):
            inside = "0x1" in i.operands
            counts += [0] * inside
        elif inside:
            counts[-1] += i.opcode == "FSEL"
    return sorted(counts)


def moves_before_products(code):
    """Most R2UR between a wait on an mbarrier and a wait for all products except the newest."""
    most = count = 0
    for i in code.instructions:
        if i.opcode.startswith("SYNCS.PHASECHK"):
            count = 0
        elif i.opcode == "R2UR":
            count += 1
        elif i.opcode.startswith("WARPGROUP.DEPBAR") and "0x1" in i.operands:
            most = max(most, count)
    return most


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, dtype, causal",
    [
        ("wgmma", 64, "bfloat16", False),
        thorough("wgmma", 128, "float16", True),
        ("wgmma in pairs", 128, "float16", True),
        thorough("ws", 64, "float16", True),
        ("ws", 128, "bfloat16", False),
        thorough("persistent", 64, "bfloat16", True),
        ("persistent", 128, "float16", True),
        thorough("persistent", 256, "float16", False),
    ],
)
def test_kernels_stay_in_registers_and_products_overlap(name, head_dim, dtype, causal):
    code = compiled(name, head_dim, dtype, causal)
    spilled = 8 if "pairs" in name and sys.version_info >= (3, 14) else 0  # of other bytecode
    assert code.local_bytes <= spilled and code.spill_bytes <= 2 * spilled
    assert code.float64_instructions == 0
    assert "C75" not in code.report  # ptxas serialises products, or ignores setmaxnreg
    if name in ("ws", "persistent"):
        block_n = 64 if head_dim == 256 else 128
        assert exponentials_beside_p_v(code) >= block_n // 2  # one for each score of a thread
    if name == "persistent":
        assert moves_before_products(code) == 0  # a warp has an address once, not each thread
        whole, *_, edge = selects_beside_p_v(code)  # between them, up to head_dim 64, half tiles
        assert whole == 0 and edge >= block_n // 2  # one for each score of a thread


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("seqlen, causal", [(77, True), (197, False), (128, False)])
def test_short_tiles_stay_in_registers(seqlen, causal):
    tiling = persistent_tiling(64, seqlen, causal, seqlen_q=seqlen)
    kernel = flash_attn_persistent.make_flash_attn_persistent(64, tiling, causal, "float16")
    code = in_registers(kernel, (*PERSISTENT, types.float32, *MASK_ARGS))
    size = make_plan(64, tiling).bytes
    assert size + code.shared_bytes <= devices.device("H100").shared_bytes_per_block


@pytest.mark.thorough
@needs_compiler
def test_out_in_float32_stays_in_registers():
    tiling = persistent_tiling(128, 4096, True)
    kernel = flash_attn_persistent.make_flash_attn_persistent(
        128, tiling, True, "bfloat16", OUT_FLOAT32=True
    )
    maps, (_, *others) = PERSISTENT[:3], PERSISTENT[3:]
    out = types.Array(types.float32, 4, "C")
    arguments = *maps, out, *others, types.float32, *MASK_ARGS
    code = in_registers(kernel, arguments)
    assert exponentials_beside_p_v(code) >= tiling.block_n // 2
    assert moves_before_products(code) == 0


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, head_dim_v, causal",
    [
        (192, 128, True),
        thorough(192, 128, False),
        thorough(256, 72, True),
        thorough(256, 200, True),
        thorough(128, 64, False),
    ],
)
def test_another_head_dim_of_v_stays_in_registers(head_dim, head_dim_v, causal):
    tiling = persistent_tiling(head_dim, 4096, causal, head_dim_v=head_dim_v)
    kernel = flash_attn_persistent.make_flash_attn_persistent(
        head_dim, tiling, causal, "bfloat16", HEAD_DIM_V=head_dim_v
    )
    code = in_registers(kernel, (*PERSISTENT, types.float32, *MASK_ARGS))
    assert exponentials_beside_p_v(code) >= tiling.block_n // 2
    assert moves_before_products(code) == 0


@pytest.mark.parametrize("packed", [False, True])
def test_tiles_of_another_head_dim_of_v_fit_an_sm(packed):
    # `work`; of a packed batch also the next query tile and the order.
    static = 4 * (8 + 2 * 6) + 2 * MAX_SORTED if packed else 4 * 4 * 8
    for head_dim, head_dim_v in itertools.product(range(72, 257, 8), repeat=2):
        if head_dim_v <= head_dim:
            tiling = persistent_tiling(head_dim, 4096, True, packed, head_dim_v=head_dim_v)
            size = make_plan(head_dim, tiling, True, packed, head_dim_v).bytes
            assert size + static <= devices.device("H100").shared_bytes_per_block


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, causal, window, softcap, alibi",
    [
        thorough(128, False, (100, 50), 30.0, True),
        thorough(64, True, (511, -1), 30.0, True),
        thorough(64, False, (-1, -1), 0.0, True),
        thorough(64, True, (4095, -1), 0.0, False),
        thorough(128, True, (-1, -1), 0.0, True),
        thorough(256, True, (-1, -1), 30.0, True),
    ],
)
def test_masks_stay_in_registers(head_dim, causal, window, softcap, alibi):
    tiling = persistent_tiling(head_dim, 4096, causal)
    kernel = flash_attn_persistent.make_flash_attn_persistent(
        head_dim, tiling, causal, "float16", window, softcap, alibi
    )
    slopes = types.Array(types.float32, 1, "A") if alibi else types.float32
    code = in_registers(kernel, (*PERSISTENT, slopes, *MASK_ARGS))
    size = make_plan(head_dim, tiling, ALIBI=alibi).bytes
    assert size + code.shared_bytes <= devices.device("H100").shared_bytes_per_block
    if not softcap:
        assert exponentials_beside_p_v(code) >= tiling.block_n // 2
        assert moves_before_products(code) == 0


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, softcap",
    [
        thorough("documents", 64, 0.0),
        thorough("a window", 64, 0.0),
        thorough("causal", 128, 0.0),
        thorough("T5", 128, 0.0),
        ("a score and a mask", 128, 0.0),
        thorough("softcap", 64, 0.0),
        thorough("window and first keys", 256, 0.0),
        thorough("dilated", 64, 30.0),
        thorough("dilated", 128, 30.0),
    ],
)
def test_functions_of_the_user_stay_in_registers(name, head_dim, softcap):
    given = expression_cases.given_of(name)
    tiling = persistent_tiling(head_dim, 4096, False)
    kernel = flash_attn_persistent.make_flash_attn_persistent(
        head_dim, tiling, False, "float16", SOFTCAP=softcap, EXPRESSIONS=given.expressions
    )
    taken = has_unknown_work(given.expressions) and tiling.slots > 1
    runs = expression_cases.runs_type(given.expressions, taken)
    more = *MASK_ARGS[:4], NONE, runs, typeof(given.arguments)
    code = compile_kernel(kernel, (*PERSISTENT, types.float32, *more), cc=(9, 0, "a"))
    assert code.registers <= stated_registers(kernel)
    # dilated: a division beside softcap's polynomials; 35 of 7,425 instructions access spilled
    # registers. The others index arrays, and Numba tests whether an index counts from the end.
    known = {("dilated", 64): 140, ("documents", 64): 16, ("T5", 128): 388}
    spilled = known.get((name, head_dim), 0)
    assert code.spill_bytes <= spilled and code.local_bytes <= spilled
    assert code.float64_instructions == 0
    assert "C75" not in code.report


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, mask",
    [
        thorough(64, Mask(True, (4095, -1))),
        thorough(128, Mask(False, (100, 50), 30.0)),
        (64, Mask(True, (511, -1), 30.0, True)),
    ],
)
def test_numbers_at_run_time_stay_in_registers(head_dim, mask):
    constants = constants_of(mask, LEAST_CAP)
    assert constants == constants_of(mask._replace(window_size=(7, mask.window_size[1])), LEAST_CAP)
    tiling = persistent_tiling(head_dim, 4096, mask.causal)
    kernel = flash_attn_persistent.make_flash_attn_persistent(
        head_dim, tiling, mask.causal, "float16", *constants[1:]
    )
    slopes = types.Array(types.float32, 1, "A") if mask.alibi else types.float32
    code = in_registers(kernel, (*PERSISTENT, slopes, *MASK_ARGS))
    if not mask.softcap:
        assert exponentials_beside_p_v(code) >= tiling.block_n // 2
        assert moves_before_products(code) == 0


def test_arguments_of_a_mask():
    for mask in (Mask(), Mask(True, (2**40, -1), 1e-45), Mask(False, (0, 2**40), 3e38)):
        left, right, unit, inverse_unit = arguments_of(mask)
        assert all(np.isfinite([unit, inverse_unit]))
        assert -1 <= left < 2**30 and -1 <= right < 2**30
    assert constants_of(Mask(False, (3, 0), 9.0), 10) == constants_of(Mask(False, (0, 0), 1.0), 10)
    assert constants_of(Mask(False, (3, 0), 9.0), 10) != constants_of(Mask(False, (3, 0), 10.0), 10)
    assert constants_of(Mask(False, (3, 0))).window_size[1] == 0
    assert constants_of(Mask()) == Mask()


@pytest.mark.parametrize(
    "function",
    [
        flash_attn_mma.flash_attn_mma,
        flash_attn_wgmma.flash_attn_wgmma,
        flash_attn_ws.flash_attn_ws,
        flash_attn_persistent.flash_attn_persistent,
        flash_attn_padded.flash_attn_padded,
    ],
)
def test_numpy_arrays_are_refused_with_a_way_out(function):
    x = np.zeros((1, 4, 1, 64), np.float16)
    with pytest.raises(TypeError, match=f"{function.__name__} is made of PTX.*flash_attn_v2"):
        function(x, x, x)


def as_registers(x, where):
    """The elements of a 16-bit matrix as registers, two in each."""
    bits = x.view(np.uint16)[where[0], where[1]].astype(np.uint32)
    return bits[..., 0] | bits[..., 1] << 16


def test_as_registers():
    x = np.arange(256).reshape(16, 16).astype(ml_dtypes.bfloat16)
    registers = as_registers(x, layouts.mma_a())
    assert registers.shape == (32, 4)
    low = (registers << 16).view(np.float32)
    np.testing.assert_array_equal(low[0], [0, 8 * 16, 8, 8 * 16 + 8])
