"""Register tiles that are copied ahead: when, and what becomes of the kernels."""

import numpy as np
import pytest
from numba import types

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba import arrays
from fa_numba.analysis.machine_code import compile_kernel, disassembler_available
from fa_numba.analysis.register_tiling import forward_block_sizes_ahead, forward_tiling
from fa_numba.kernels import register_tiles
from fa_numba.kernels.flash_attn_bwd_simt import make_flash_attn_bwd_simt
from fa_numba.kernels.flash_attn_simt import make_flash_attn_simt

KIB = 1024
array = {n: types.Array(types.float32, n, "C") for n in (3, 4)}
needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


@needs_compiler
@pytest.mark.parametrize("head_dim", [64, 128])
def test_kernels_stay_in_registers(head_dim):
    sizes = forward_block_sizes_ahead(head_dim, 227 * KIB)
    forward = make_flash_attn_simt(head_dim, *sizes, True, AHEAD=True)
    backward = make_flash_attn_bwd_simt(head_dim, 64, True, AHEAD=True)
    scalars = 2 * (types.float32,)
    for kernel, args in (
        (forward, (*4 * (array[4],), array[3], *scalars)),
        (backward, (*4 * (array[4],), *2 * (array[3],), *3 * (array[4],), *scalars)),
    ):
        code = compile_kernel(kernel, args, cc=(8, 0))
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
        assert code.counts["LDGSTS.128"] >= 16


def test_tiles_lie_beside_each_other():
    for head_dim in (40, 64, 100, 128):
        block_m, block_n = forward_block_sizes_ahead(head_dim, 227 * KIB)
        tiling = forward_tiling(head_dim, block_m, block_n, ahead=True)
        row = tiling.width + 4
        assert tiling.k_start == block_m * row
        assert tiling.p_start == tiling.k_start + block_n * row
        assert tiling.v_start == tiling.p_start + block_m * (block_n + tiling.threads_x)
        assert tiling.shared_bytes == 4 * (tiling.v_start + block_n * tiling.width)


@pytest.mark.parametrize(
    "head_dim, kib, sizes",
    [(64, 227, (128, 64)), (64, 99, None), (128, 163, None), (96, 227, None), (256, 227, None)],
)
def test_where_there_is_no_room_nothing_is_copied_ahead(head_dim, kib, sizes):
    assert forward_block_sizes_ahead(head_dim, kib * KIB) == sizes


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
