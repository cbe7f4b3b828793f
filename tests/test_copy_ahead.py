"""Register tiles whose operands arrive in chunks: when, and what becomes of the kernels."""

import numpy as np
import pytest
from numba import types

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba import arrays, simt
from fa_numba.analysis.machine_code import compile_for, disassembler_available
from fa_numba.analysis.register_tiling import (
    BACKWARD_CHUNKS,
    FORWARD_CHUNKS,
    backward_chunks,
    forward_chunks,
)
from fa_numba.kernels import chunks, register_tiles
from fa_numba.kernels.flash_attn_bwd_simt_chunks import make_flash_attn_bwd_simt_chunks
from fa_numba.kernels.flash_attn_simt_chunks import make_flash_attn_simt_chunks

KIB = 1024
array = {n: types.Array(types.float32, n, "C") for n in (3, 4)}
scalars = 2 * (types.float32,)
needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


def check(kernel, args, targets):
    for code in compile_for(kernel, args, targets):
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
        assert code.counts["LDS.128"] > 0 and code.counts["LDGSTS.128"] >= 8
        assert code.counts["FFMA"] >= 12 * code.counts["LDS.128"]


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
    args = (*7 * (array[4],), *2 * (array[3],), *3 * (array[4],), *scalars)
    check(kernel, args, [target])


@pytest.mark.parametrize("tiling", [*FORWARD_CHUNKS.values(), *BACKWARD_CHUNKS.values()])
def test_chunks_fill_tiles_and_stages(tiling):
    phases = tiling.width // tiling.chunk, tiling.block_n // tiling.chunk
    if tiling in BACKWARD_CHUNKS.values():
        phases += (tiling.block_m // tiling.chunk,)
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


@pytest.mark.parametrize("side", [1, 8, 16])
def test_turned_rows_of_a_thread_are_neighbours(rng, side):
    x = rng.standard_normal((2, 70, 3, 40), np.float32)
    turned = np.full((2, 3, 64, 128), np.nan, np.float32)
    simt.run(chunks.make_turn(side), (4, 3, 2), (256,), x, turned)
    place = np.arange(128)
    four = place // 4
    m = four % side + four // side * 4 * side + place % 4 * side
    want = np.zeros((2, 128, 3, 64), np.float32)
    want[:, :70, :, :40] = x
    np.testing.assert_array_equal(turned, want[:, m].transpose(0, 2, 3, 1))


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
