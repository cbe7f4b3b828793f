"""flash_attn_persistent_varlen without a GPU: its tile scheduler, and its machine code."""

import expression_cases
import numpy as np
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler
from numba import cuda, typeof, types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from test_tensor_core import exponentials_beside_p_v, moves_before_products

from fa_numba.tensor_core import flash_attn_persistent_varlen as varlen

CC = (9, 0, "a")
MAP, int32_1d = types.uint64, types.Array(types.int32, 1, "C")
PACKED = (
    *(MAP, MAP, MAP, MAP, types.Array(types.float16, 3, "C"), types.Array(types.float32, 3, "C")),
    *(int32_1d, int32_1d, int32_1d, types.int32, types.float32),
)
NONE = types.Tuple(())
MASK_ARGS = types.int32, types.int32, types.float32, types.float32


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, seqlen, causal, window, softcap, alibi",
    [
        thorough(128, 2048, False, (-1, -1), 0.0, False),
        thorough(64, 2048, True, (-1, -1), 0.0, False),
        (128, 512, False, (100, 50), 30.0, True),
        thorough(64, 2048, True, (511, -1), 30.0, True),
        thorough(64, 2048, True, (511, -1), 0.0, False),
        thorough(128, 2048, True, (-1, -1), 0.0, True),
        thorough(192, 2048, False, (-1, -1), 0.0, False),
        thorough((192, 128), 2048, True, (-1, -1), 0.0, False),
        thorough(256, 2048, True, (511, -1), 30.0, True),
    ],
)
def test_the_kernel_stays_in_registers(head_dim, seqlen, causal, window, softcap, alibi):
    head_dim, head_dim_v = map(int, np.broadcast_to(head_dim, 2))
    tiling = varlen.tiling_of(head_dim, 8 * seqlen, 8, causal, softcap, head_dim_v)
    kernel = varlen.make_flash_attn_persistent_varlen(
        head_dim, tiling, causal, "float16", window, softcap, alibi, head_dim_v
    )
    slopes = types.Array(types.float32, 1, "A") if alibi else types.float32
    code = in_registers(kernel, (*PACKED, slopes, *MASK_ARGS, NONE, NONE, NONE))
    assert (
        varlen.shared_bytes(head_dim, tiling, alibi, head_dim_v) + code.shared_bytes <= 227 * 1024
    )
    if not (softcap or alibi):
        assert moves_before_products(code) == 0  # a warp has an address once, not each thread
        if tiling.overlap:  # an exponential for each score of a thread
            assert exponentials_beside_p_v(code) >= tiling.block_n // 2


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, softcap",
    [
        thorough("documents", 64, 0.0),
        thorough("documents", 128, 0.0),
        thorough("a window per head", 256, 0.0),
        thorough("dilated", 128, 30.0),
        ("dilated", 64, 30.0),
        thorough("a score and a mask", 128, 0.0),
    ],
)
def test_functions_of_the_user_stay_in_registers(name, head_dim, softcap):
    given = expression_cases.given_of(name)
    tiling = varlen.tiling_of(head_dim, 8 * 2048, 8, False, softcap, head_dim)
    kernel = varlen.make_flash_attn_persistent_varlen(
        head_dim, tiling, False, "float16", SOFTCAP=softcap, EXPRESSIONS=given.expressions
    )
    more = NONE, expression_cases.runs_type(given.expressions), typeof(given.arguments)
    # Numba tests whether an index counts from the end. A lane's position is stored for each query
    # tile, and loaded for tiles of keys; with 96 or 112 keys a tile nothing would be spilled.
    spilled = 16 if (name, head_dim) == ("documents", 64) else 0
    in_registers(kernel, (*PACKED, types.float32, *MASK_ARGS, *more), spilled=spilled)


@pytest.mark.parametrize(
    "sizes, expressions",
    [
        (((20, 0, 70), (60, 9, 130), (2, 1), 64, 1), "a score and a mask"),
        thorough(((70, 0, 130, 5), (90, 7, 300, 0), (2, 1), 128, 1), "sinks and a mask"),
        thorough(((70, 0, 130, 5), (90, 7, 300, 0), (2, 1), 64, 2), "a softcap and a mask"),
        thorough(((70, 200), (90, 300), (2, 2), 64, 2), "documents"),
    ],
)
def test_out_and_lse_on_a_model(sizes, expressions, run_on_model):
    *of_sequences, heads, head_dim, blocks = sizes
    case = {"name": "persistent_varlen", "sizes": of_sequences, "heads": heads, "blocks": blocks}
    run_on_model("on_model.py", case | {"head_dim": head_dim, "expressions": expressions})


@pytest.mark.parametrize(
    "lengths", [(9,), (7, 5, 0, 90, 90, 400), (0, 0, 0), tuple(range(390, 0, -3))]
)
def test_sequences_with_the_most_keys_come_first(lengths):
    batch, num_threads, sort_sequences = len(lengths), 64, varlen.sort_sequences
    starts, order = np.cumsum((0, *lengths), dtype=np.int32), np.zeros(batch, np.uint16)

    @cuda.jit
    def kernel(starts, order):
        sort_sequences(starts, batch, order, cuda.threadIdx.x, num_threads)

    kernel[1, num_threads](starts, order)
    want = sorted(range(batch), key=lambda b: -lengths[b])  # which keeps equal ones in their order
    assert order.tolist() == want


@pytest.mark.parametrize("num_m_tiles, num_heads, section", [(1, 1, 1), (5, 8, 3), (7, 4, 4)])
def test_each_tile_of_each_head_is_one_unit(num_m_tiles, num_heads, section):
    num_units, head_and_tile = num_m_tiles * num_heads, varlen.head_and_tile
    tiles = np.full((num_units, 2), -1, np.int32)

    @cuda.jit
    def kernel(tiles):
        unit = cuda.threadIdx.x
        head, m_tile = head_and_tile(unit, num_m_tiles, num_heads, section)
        tiles[unit, 0], tiles[unit, 1] = head, m_tile

    kernel[1, num_units](tiles)
    want = [
        (head, m_tile)
        for first in range(0, num_heads, section)
        for m_tile in reversed(range(num_m_tiles))
        for head in range(first, min(first + section, num_heads))
    ]
    assert tiles.tolist() == list(map(list, want))


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
