"""FP8 without a GPU: slots against wgmma's layouts, machine code of the kernels."""

import itertools
import sys

import numpy as np
import pytest
from cases import thorough
from machine_code_cases import needs_compiler, stated_registers
from numba import types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.ptx import layouts, wgmma
from fa_numba.tensor_core import flash_attn_fp8, quantize_fp8

HOPPER = (9, 0, "a")
tiles, scales = types.Array(types.uint8, 4, "C"), types.Array(types.float32, 3, "C")


@pytest.mark.parametrize("width, swizzle", [(128, 1), (64, 2), (32, 3)])
def test_descriptor_of_a_narrow_tile(width, swizzle):
    bits = wgmma.narrow_descriptor_bits(width)
    assert bits >> 62 == swizzle
    fields = layouts.descriptor_fields(bits & (1 << 62) - 1 | 0x4400 >> 4)
    assert fields["address"] == 0x4400 and fields["stride_bytes"] == 8 * width


@pytest.mark.parametrize("width", wgmma.SWIZZLES)
def test_each_byte_of_a_tile_has_an_offset_of_its_own(width):
    row, col = np.mgrid[:16, :128]
    offsets = wgmma.byte_offset(row, col, 16, width)
    np.testing.assert_array_equal(np.sort(offsets.ravel()), np.arange(16 * 128))
    assert (offsets[:, 1:16] == offsets[:, :1] + np.arange(1, 16)).all()  # chunks stay whole
    for col in range(0, 128, 16):
        assert layouts.wavefronts(offsets[:8, col], layouts.CHUNK_BYTES) == 1


def test_bytes_lie_as_16_bits_do():
    row, col = np.mgrid[:16, :128]
    halves = layouts.tile_offset(row, col // 2, 16) + col % 2
    np.testing.assert_array_equal(wgmma.byte_offset(row, col, 16, 128), halves)


def test_p_has_the_layout_of_the_next_operand():
    """Byte by byte: a lane's four in a register are the slots that wgmma reads there."""
    _, key = layouts.wgmma_d(32)  # of [thread, register]
    for thread in range(128):
        for half_of_32 in range(2):
            for byte in range(4):
                slot = 16 * half_of_32 + 4 * (thread % 4) + byte
                held = 4 * (2 * half_of_32 + byte // 2) + byte % 2  # packed there by pack_p
                assert key[thread, held] == 16 * half_of_32 + quantize_fp8.slot_key(slot % 16)


def test_every_key_has_a_slot():
    assert sorted(quantize_fp8.slot_key(slot) for slot in range(16)) == list(range(16))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rotation(head_dim):
    m = quantize_fp8.rotation(head_dim)
    np.testing.assert_allclose(m @ m.T, np.eye(head_dim), atol=1e-12)
    np.testing.assert_allclose(np.abs(m), head_dim**-0.5, rtol=1e-12)
    assert np.abs(m.sum(axis=0)).max() <= 0.5 * head_dim**0.5  # signs that spread a constant, too
    order = quantize_fp8.rotation(head_dim, False)
    assert sorted(order.argmax(axis=0)) == list(range(head_dim)) and (order.sum(axis=0) == 1).all()


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, hadamard, dtype", [(128, True, "float16"), thorough(64, False, "bfloat16")]
)
def test_quantisation_stays_in_registers(head_dim, hadamard, dtype):
    kernel = quantize_fp8.make_quantize(head_dim, 64, 128, hadamard, dtype)
    args = *3 * [types.uint64], *3 * [tiles], *3 * [scales], *3 * [types.float32]
    code = compile_kernel(kernel, args, cc=HOPPER)
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    blocks = quantize_fp8.BLOCKS_PER_SM
    assert blocks * code.registers * quantize_fp8.threads_of(128) <= 65536
    size = quantize_fp8.shared_bytes(head_dim, 128) + code.shared_bytes
    assert blocks * (size + 1024) <= 228 * 1024  # the driver keeps 1024 bytes of each


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, dtype, causal, ordered",
    [
        thorough(128, "float16", False, True),
        (128, "float16", True, True),
        thorough(64, "bfloat16", True, True),
        thorough(128, "float16", True, False),
        thorough(64, "float16", False, False),
        thorough(64, "float16", True, False),
    ],
)
def test_kernel_stays_in_registers(head_dim, dtype, causal, ordered):
    kernel = flash_attn_fp8.make_flash_attn_fp8(head_dim, causal, dtype, ordered)
    args = (*3 * [tiles], *3 * [scales], types.uint64, scales)
    args += (*3 * [types.int32], types.float32, types.int32)
    code = compile_kernel(kernel, args, cc=HOPPER)
    spilled = 8 if causal and sys.version_info >= (3, 14) else 0  # of other bytecode
    assert code.local_bytes <= spilled and code.spill_bytes <= 2 * spilled
    assert code.float64_instructions == 0
    assert "C75" not in code.report  # ptxas serialises products, or ignores setmaxnreg
    assert code.registers <= stated_registers(kernel)
    products = [i.opcode for i in code.instructions if i.opcode.startswith("QGMMA")]
    in_a_tile = head_dim // 32 + flash_attn_fp8.BLOCK_N // 32
    of_half = head_dim // 32 + flash_attn_fp8.BLOCK_N // 2 // 32  # of its first half alone
    halves = causal and not ordered
    assert len(products) == 2 * in_a_tile + halves * of_half  # with a mask, and without
    if ordered:  # a warp computes its exponentials in a row: no score is rounded between two
        names = [i.opcode.split(".")[0] for i in code.instructions]
        names = [x for x in names if x in ("MUFU", "F2FP", "BAR")]
        runs = [len(list(run)) for name, run in itertools.groupby(names) if name == "MUFU"]
        assert sorted(runs)[-2:] >= [60, 60]  # of 64, in each of two bodies of the loop


@pytest.mark.parametrize(
    "head_dim, seqlen_k, causal, ordered",
    [
        (64, 2048, False, True),
        (64, 2049, False, False),
        (64, 512, True, False),
        (64, 16384, True, False),
        (128, 16384, False, True),
        (128, 1024, True, False),
        (128, 1025, True, True),
    ],
)
def test_where_one_warp_at_a_time_uses_the_exp_unit(head_dim, seqlen_k, causal, ordered):
    assert flash_attn_fp8.orders_exponentials(head_dim, seqlen_k, causal) == ordered


def test_shared_memory_fits():
    for head_dim in (64, 128):
        assert all(flash_attn_fp8.shared_bytes(head_dim, x) <= 227 * 1024 for x in (False, True))


@pytest.mark.parametrize("seqlen_q", [1, 64, 65, 190, 192, 193, 512, 1024])
def test_tiles_end_with_the_last_block(seqlen_q):
    absent = flash_attn_fp8.absent_rows(seqlen_q, True)
    num_tiles = -(-(seqlen_q + absent) // 192)
    assert 192 * num_tiles - absent == -(-seqlen_q // 64) * 64
    assert 0 <= absent < 192 and num_tiles == -(-seqlen_q // 192)
    assert flash_attn_fp8.absent_rows(seqlen_q, False) == 0


@pytest.mark.parametrize(
    "seqlen_q, seqlen_k, heads, causal", [(200, 300, (2, 1), True), (190, 10, (1, 1), True)]
)
def test_out_and_lse_on_a_model(seqlen_q, seqlen_k, heads, causal, run_on_model):
    """The kernel's source on a model of the instructions, in a process of its own."""
    sizes = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "heads": heads, "head_dim": 64}
    run_on_model("flash_attn_fp8_on_model.py", sizes | {"causal": causal, "slices": 2})


def test_numpy_arrays_are_refused_with_a_way_out():
    x = np.zeros((1, 4, 1, 64), np.float16)
    with pytest.raises(TypeError, match="flash_attn_fp8 is made of PTX.*flash_attn_v2"):
        flash_attn_fp8.flash_attn_fp8(x, x, x)
