"""flash_attn_persistent_varlen where there is no GPU: who computes what, and its machine code."""

import re

import numpy as np
import pytest
from numba import cuda, types

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")
pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba.analysis.machine_code import _ptxas, assemble, compile_ptx, disassembler_available
from fa_numba.tensor_core import flash_attn_persistent_varlen as varlen

needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)
CC = (9, 0, "a")
MAP, int32_1d = types.uint64, types.Array(types.int32, 1, "C")
PACKED = (
    *(MAP, MAP, MAP, MAP, types.Array(types.float16, 3, "C"), types.Array(types.float32, 3, "C")),
    *(int32_1d, int32_1d, int32_1d, types.int32, types.float32),
)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, causal, window, softcap, alibi",
    [
        (128, False, (-1, -1), 0.0, False),
        (64, True, (-1, -1), 0.0, False),
        (128, False, (100, 50), 30.0, True),
        (64, True, (511, -1), 30.0, True),
    ],
)
def test_the_kernel_stays_in_registers(head_dim, causal, window, softcap, alibi):
    sizes = varlen.tile_sizes(head_dim, softcap)
    kernel = varlen.make_flash_attn_persistent_varlen(
        head_dim, *sizes, causal, "float16", window, softcap, alibi
    )
    slopes = types.Array(types.float32, 1, "A") if alibi else types.float32
    ptx = compile_ptx(kernel, (*PACKED, slopes), cc=CC)
    code = assemble(kernel, ptx, CC)
    stated = int(re.search(r"budget +(\d+) registers", kernel.py_func.__doc__)[1])
    assert code.registers <= stated
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    assert "C75" not in _ptxas(ptx, CC)[0]  # ptxas serialises products, or ignores setmaxnreg
    assert varlen.shared_bytes(head_dim, *sizes) + code.shared_bytes <= 227 * 1024


@pytest.mark.parametrize(
    "lengths_q, lengths_k",
    [
        ((5,), (9,)),
        ((0, 300, 1, 128, 129, 0), (7, 5, 0, 90, 90, 400)),
        (tuple(range(0, 390, 3)), tuple(range(390, 0, -3))),
    ],
)
def test_each_tile_of_queries_is_somebodys_once(lengths_q, lengths_k):
    batch, num_heads, block_m = len(lengths_q), 3, 128
    starts = [np.cumsum((0, *lengths), dtype=np.int32) for lengths in (lengths_q, lengths_k)]
    schedule = np.full(2 * batch + 2, -1, np.int32)
    threads = varlen.SCHEDULE_THREADS
    varlen.make_schedule(block_m)[-(-batch // threads), threads](*starts, schedule)
    order = schedule[batch + 1 : -1]
    assert sorted(order) == list(range(batch)) and schedule[-1] == 0
    assert (np.diff(np.array(lengths_k)[order]) <= 0).all()  # the most keys first

    num_units = schedule[batch] * num_heads
    places, place_of = np.full((num_units, 3), -1, np.int32), varlen.place_of

    @cuda.jit
    def kernel(schedule, places):
        unit = cuda.grid(1)
        if unit < places.shape[0]:
            b, head, m_tile = place_of(unit, num_heads, batch, schedule)
            places[unit, 0], places[unit, 1], places[unit, 2] = b, head, m_tile

    kernel[-(-int(num_units) // 128), 128](schedule, places)
    want = [
        (b, head, m_tile)
        for b in range(batch)
        for head in range(num_heads)
        for m_tile in range(-(-lengths_q[b] // block_m))
    ]
    assert sorted(map(tuple, places.tolist())) == want


X, STARTS = np.ones((5, 4, 64), np.float16), np.array([0, 2, 5], np.int32)
GOOD = {"q": X, "k": X, "v": X, "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({}, "flash_attn_persistent_varlen is made of PTX.*flash_attn_varlen computes the same"),
        ({"q": [1.0]}, "q must be a NumPy array.* got list"),
        ({"cu_seqlens_k": [0, 2, 5]}, "cu_seqlens_k must be a NumPy array.* got list"),
    ],
)
def test_what_is_refused(changed, message):
    with pytest.raises(TypeError, match=message):
        varlen.flash_attn_persistent_varlen(**GOOD | changed)
