"""Register tiles whose operands arrive in chunks: when, and what becomes of the kernels."""

import numpy as np
import pytest
from numba import types

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba import arrays
from fa_numba.analysis.machine_code import compile_for, disassembler_available
from fa_numba.analysis.register_tiling import (
    BACKWARD_CHUNKS,
    FORWARD_CHUNKS,
    backward_chunks,
    forward_chunks,
)
from fa_numba.kernels import chunks, register_tiles
from fa_numba.kernels.flash_attn_bwd_simt_chunks import (
    make_delta,
    make_flash_attn_bwd_simt_chunks,
)
from fa_numba.kernels.flash_attn_simt_chunks import make_flash_attn_simt_chunks

KIB = 1024
array = {n: types.Array(types.float32, n, "C") for n in (3, 4)}
scalars = 2 * (types.float32,)
backward_arrays = *5 * (array[4],), *2 * (array[3],), *3 * (array[4],)
needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


def check(kernel, args, targets):
    for code in compile_for(kernel, args, targets):
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
        assert code.counts["LDS.128"] > 0 and code.counts["LDGSTS.128"] >= 8
        # In a product 16 for each; of what is loaded before its first step a turn of the loop
        # makes good the more, the more steps of it are unrolled.
        assert code.counts["FFMA"] >= 11 * code.counts["LDS.128"]


@needs_compiler
@pytest.mark.parametrize("head_dim, target", [(64, (8, 0)), (128, (9, 0, "a"))])
def test_forward_stays_in_registers(head_dim, target):
    kernel = make_flash_attn_simt_chunks(head_dim, True)
    check(kernel, (*4 * (array[4],), array[3], *scalars), [target])


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, red_x4, target", [(64, False, (8, 0)), (128, True, (9, 0, "a"))]
)
def test_backward_stays_in_registers(head_dim, red_x4, target):
    kernel = make_flash_attn_bwd_simt_chunks(head_dim, True, RED_X4=red_x4)
    check(kernel, (*backward_arrays, *scalars), [target])


@needs_compiler
@pytest.mark.parametrize("head_dim", [64, 128])
def test_alibi_stays_in_registers(head_dim):
    slopes, target = types.Array(types.float32, 1, "C"), [(9, 0, "a")]
    forward = make_flash_attn_simt_chunks(head_dim, True, ALIBI=True)
    check(forward, (*4 * (array[4],), array[3], types.float32, slopes), target)
    backward = make_flash_attn_bwd_simt_chunks(head_dim, True, ALIBI=True)
    check(backward, (*backward_arrays, types.float32, slopes), target)


@needs_compiler
def test_small_kernels_load_16_bytes_at_a_time():
    for kernel, args in (
        (chunks.make_turn(1), 2 * (array[4],)),
        (chunks.make_turn(16), 2 * (array[4],)),
        (make_delta(64), (array[4], array[4], array[3])),
        (make_delta(128), (array[4], array[4], array[3])),
    ):
        for code in compile_for(kernel, args, [(8, 0), (9, 0, "a")]):
            assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
            assert code.registers <= 48 and code.counts["LDG.128"] >= 4 and not code.counts["LDG"]


@pytest.mark.parametrize("tiling", [*FORWARD_CHUNKS.values(), *BACKWARD_CHUNKS.values()])
def test_chunks_fill_tiles_and_stages(tiling):
    phases = tiling.width // tiling.chunk, tiling.block_n // tiling.row_chunk
    if tiling in BACKWARD_CHUNKS.values():
        phases += (tiling.block_m // tiling.row_chunk,)
        assert not any(count % tiling.stages for count in phases)
    assert sum(phases[:2]) % tiling.stages == 0  # a tile begins where the one before began
    # The last of a warp's columns and rows, 8 or 4 of each in each thread.
    assert tiling.block_n % (4 * tiling.threads_x) == tiling.block_m % (4 * tiling.threads_x) == 0
    assert tiling.shared_bytes * (256 // tiling.threads) <= 227 * KIB


@pytest.mark.parametrize(
    "head_dim, kib, forward, backward",
    [
        (64, 227, True, True),
        (64, 99, False, True),
        (128, 163, False, False),
        (96, 227, False, False),
        (256, 227, False, False),
    ],
)
def test_where_there_is_no_room_nothing_is_copied_ahead(head_dim, kib, forward, backward):
    assert (forward_chunks(head_dim, kib * KIB) is not None) == forward
    assert (backward_chunks(head_dim, kib * KIB) is not None) == backward


@pytest.mark.parametrize(
    "change, ahead",
    [
        (lambda x: x, True),
        (lambda x: x.astype(np.float16), False),
        (lambda x: x[..., :62], False),
        (lambda x: x[..., :32], False),  # a width that was not measured
        (lambda x: x[:, :, :, 2:42], False),  # begins between multiples of 16 bytes
        (lambda x: np.zeros((2, 5, 3, 65), np.float32)[..., :64], False),
    ],
)
def test_what_can_be_copied_ahead(monkeypatch, change, ahead):
    x = change(np.zeros((2, 5, 3, 64), np.float32))
    assert not register_tiles.can_copy_ahead(x)  # a NumPy array
    monkeypatch.setattr(arrays, "library_of", lambda x: "cupy")
    monkeypatch.setattr(arrays, "gpu_available", lambda: True)
    monkeypatch.setattr(arrays, "dtype_name", lambda x: x.dtype.name)
    monkeypatch.setattr(arrays, "address_and_strides", lambda x: (x.ctypes.data, x.strides))
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (8, 0))
    assert register_tiles.can_copy_ahead(x, x) == ahead
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (7, 5))
    assert not register_tiles.can_copy_ahead(x)
