"""Dropout on tensor cores: the mask in registers on the CPU engine, machine code, arguments."""

import functools

import numba
import numpy as np
import pytest
from cases import thorough
from numba import cuda, float32, int32, types, uint32

from fa_numba import reference, simt
from fa_numba.analysis.machine_code import compile_kernel, compiler_available
from fa_numba.constants import FULL_WARP
from fa_numba.kernels import dropout
from fa_numba.ptx import halves
from fa_numba.tensor_core import dropout_fragments
from fa_numba.tensor_core.flash_attn_bwd_persistent import (
    flash_attn_bwd_persistent,
    make_flash_attn_bwd_persistent,
)
from fa_numba.tensor_core.flash_attn_persistent import (
    flash_attn_persistent,
    make_flash_attn_persistent,
)
from fa_numba.tiling.persistent_tiling import persistent_tiling

HOPPER = (9, 0, "a")
needs_compiler = pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")

# --- the instructions, for the CPU engine -----------------------------------------------------


@cuda.jit(device=True)
def keep_mask(bits, limits):
    low = 0xFFFF if bits & 0x7FFF >= limits & 0xFFFF else 0
    high = 0xFFFF if bits >> 16 & 0x7FFF >= limits >> 16 else 0
    return uint32(high << 16 | low)


@cuda.jit(device=True)
def keep_pair(x, bits, limits):
    return uint32(x & keep_mask(bits, limits))


@cuda.jit(device=True)
def byte_permute(x, y, selector):
    both = int(y) << 32 | int(x)
    result = 0
    for i in range(4):
        result |= (both >> 8 * (int(selector) >> 4 * i & 7) & 0xFF) << 8 * i
    return uint32(result)


@cuda.jit(device=True)
def column_lane(x, first):
    return uint32(cuda.shfl_sync(FULL_WARP, x, first + cuda.threadIdx.x % 4))


@cuda.jit(device=True)
def word(x):
    return uint32(x)


@cuda.jit(device=True)
def opaque(x):
    return uint32(x & 0xFFFFFFFF)


@cuda.jit(device=True)
def pack(low, high):
    """Two small integers, rounded: results that a test can take apart."""
    return uint32((int(round(high)) & 0xFFFF) << 16 | int(round(low)) & 0xFFFF)


@pytest.fixture
def instructions(monkeypatch):
    for function in (keep_mask, keep_pair, byte_permute, column_lane, word, opaque):
        name = function.py_func.__name__
        monkeypatch.setattr(dropout_fragments, name, function)


# --- the mask ---------------------------------------------------------------------------------

PLACES = [  # seed, head, batch, first query, first key
    (7, 0, 0, 0, 0),
    (2**63 + 12345, 5, 3, 1040, 2048 + 112),
    (2**64 - 1, 2**16 - 1, 2**16 - 1, 64, 16),
]


def mask_at(seed, p, head, b, m, n, rows, cols):
    """reference.dropout_mask of these rows and columns, drawn entry by entry."""
    mask = np.zeros((rows, cols), bool)
    key = seed % 2**32, seed // 2**32
    for i, j in np.ndindex(rows, cols):
        q, k = m + i, n + j
        counter = k // 16 * 4 + k // 2 % 4, q // 16 * 8 + q % 8, head, b
        bits = int(reference.philox(counter, key, rounds=7)[k // 8 % 2 * 2 + q // 8 % 2]) >> 16 * (
            k % 2
        )
        mask[i, j] = bits % 2**15 >= int(p * 2**15)
    return mask


def test_the_expected_mask_is_the_definition():
    want = reference.dropout_mask(9, 0.3, 2, 3, 40, 35)[1, 2]
    np.testing.assert_array_equal(mask_at(9, 0.3, 2, 1, 0, 0, 40, 35), want)


@pytest.mark.parametrize("seed, head, b, m, n", PLACES)
@pytest.mark.parametrize("block_n", [16, 80, 128])
def test_p_whose_rows_are_queries(instructions, block_n, seed, head, b, m, n):
    place_of, draw_keys, drop = dropout_fragments.make_query_rows(block_n)
    SHAPE = block_n // 16, 4

    @cuda.jit
    def kernel(kept, dropout_args):
        p = cuda.local.array(SHAPE, uint32)
        lane = cuda.threadIdx.x
        for k in range(block_n // 16):
            for r in range(4):
                p[k, r] = uint32(0x3C003C00)
        words = cuda.local.array(3, uint32)
        place = place_of(m, head, b, lane)
        draw_keys(words, n, place, dropout_args, lane)
        drop(p, words, n, place, dropout_args)
        for k in range(block_n // 16):
            for r in range(4):
                for c in range(2):  # A: row lane // 4, and eight below; columns, and eight beside
                    row, col = lane // 4 + 8 * (r & 1), 16 * k + 8 * (r >> 1) + 2 * (lane % 4) + c
                    kept[row, col] = p[k, r] >> 16 * c & 0xFFFF

    for p in (0.0001, 0.3, 0.5, dropout.LARGEST_ON_TENSOR_CORES):
        kept = np.zeros((16, block_n), np.uint16)
        simt.run(kernel, 1, 32, kept, packed_arguments(p, seed))
        want = mask_at(seed, p, head, b, m, n, 16, block_n)
        np.testing.assert_array_equal(kept, np.where(want, 0x3C00, 0))


def test_the_largest_probability_is_the_largest_limit():
    assert dropout.threshold_of(dropout.LARGEST_ON_TENSOR_CORES) == halves.LARGEST_LIMIT


def packed_arguments(p, seed):
    *keys, limits, scale = dropout_fragments.dropout_arguments(p, np.uint64(seed))
    return dropout_fragments.Dropout(tuple(keys), limits, scale)


@pytest.mark.parametrize("seed, head, b, m, n", PLACES)
@pytest.mark.parametrize("block_m, capped", [(64, False), (128, False), (64, True)])
def test_gradients_whose_rows_are_keys(
    rng, monkeypatch, instructions, block_m, capped, seed, head, b, m, n
):
    place_of, draw, differentiate = dropout_fragments.make_key_rows(block_m, pack, capped)
    S_SHAPE, P_SHAPE, FLAGS = (block_m // 8, 4), (block_m // 16, 4), block_m // 64
    delta = rng.integers(-9, 9, block_m).astype(np.float32)

    @cuda.jit(device=True)
    def load_shared_x2(two, address):
        two[0], two[1] = delta[address // 4], delta[address // 4 + 1]

    monkeypatch.setattr(dropout_fragments, "load_shared_x2", load_shared_x2)

    @cuda.jit
    def kernel(p_rows, dp_rows, p_packed, ds_packed, dropout_args):
        s, dp = cuda.local.array(S_SHAPE, float32), cuda.local.array(S_SHAPE, float32)
        p, ds = cuda.local.array(P_SHAPE, uint32), cuda.local.array(P_SHAPE, uint32)
        flags = cuda.local.array(FLAGS, uint32)
        lane = cuda.threadIdx.x
        for j in range(block_m // 8):
            for r in range(4):
                row, col = lane // 4 + 8 * (r >> 1), 8 * j + 2 * (lane % 4) + (r & 1)
                s[j, r], dp[j, r] = p_rows[row, col], dp_rows[row, col]
        for k in range(block_m // 16):
            for r in range(4):
                row, col = lane // 4 + 8 * (r & 1), 16 * k + 8 * (r >> 1) + 2 * (lane % 4)
                p[k, r] = pack(p_rows[row, col], p_rows[row, col + 1])
        place = place_of(int32(n + lane // 4), head, b, lane)
        draw(flags, m, place, dropout_args, lane)
        differentiate(s, dp, 0, p, ds, flags, lane)
        for k in range(block_m // 16):
            for r in range(4):
                row, col = lane // 4 + 8 * (r & 1), 16 * k + 8 * (r >> 1) + 2 * (lane % 4)
                for c in range(2):
                    p_packed[row, col + c] = p[k, r] >> 16 * c & 0xFFFF
                    ds_packed[row, col + c] = ds[k, r] >> 16 * c & 0xFFFF

    dropout_p = 0.5
    p_rows = rng.integers(1, 50, (16, block_m)).astype(np.float32)
    dp_rows = rng.integers(-50, 50, (16, block_m)).astype(np.float32)
    packed = np.zeros((2, 16, block_m), np.uint16)
    kernel[1, 32](p_rows, dp_rows, *packed, packed_arguments(dropout_p, seed))
    z = mask_at(seed, dropout_p, head, b, m, n, block_m, 16).T
    np.testing.assert_array_equal(packed[0].astype(np.int16), p_rows * z)
    np.testing.assert_array_equal(packed[1].astype(np.int16), p_rows * (z * dp_rows - delta))


def test_round_keys_are_those_of_philox():
    for seed in (0, 5, 2**32 - 1, 2**64 - 1):
        counter = tuple(map(np.uint32, (1, 2, 3, 4)))
        want = reference.philox(counter, (seed % 2**32, seed // 2**32), rounds=7)
        for key in dropout.round_keys(np.uint64(seed)):
            k0, k1 = np.uint32(int(key) % 2**32), np.uint32(int(key) // 2**32)
            counter = rounds_of()(*counter, k0, k1)
        assert tuple(map(int, counter)) == tuple(map(int, want))


@functools.cache
def rounds_of():
    return numba.njit(dropout.philox_round.py_func)  # with the types that it has on a GPU


# --- machine code -----------------------------------------------------------------------------

x = types.Array(types.float16, 4, "C")
rows, sums = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
MASK_ARGS = types.int32, types.int32, types.float32, types.float32
DROPOUT_ARGS = *7 * (types.uint64,), types.uint32, types.float32
OTHERS = {  # beside the multiplications of Philox, in a kernel without dropout
    "all": ((100, -1), 30.0, True),
    "plain": (),
}


def philox_products(code):
    """Places of the wide multiplications by the factors of Philox, which are negative as int32."""
    factors = [f"-{2**32 - int(x):#x}" for x in (dropout.M0, dropout.M2)]
    return [
        n
        for n, i in enumerate(code.instructions)
        if i.opcode == "IMAD.WIDE.U32" and any(factor in i.operands for factor in factors)
    ]


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, dtype, causal, mask",
    [
        thorough(64, "bfloat16", True, "plain"),
        (128, "float16", False, "plain"),
        thorough(128, "float16", True, "all"),
        thorough(256, "float16", False, "plain"),
    ],
)
def test_the_forward_kernel_stays_in_registers(head_dim, dtype, causal, mask):
    tiling = persistent_tiling(head_dim, 4096, causal)._replace(overlap=False)
    options = OTHERS[mask] or ((-1, -1), 0.0, False)
    kernel = make_flash_attn_persistent(head_dim, tiling, causal, dtype, *options, True)
    slopes = types.Array(types.float32, 1, "C") if options[2] else types.float32
    args = (*4 * (types.uint64,), rows, *3 * (types.int32,), types.float32, slopes, *MASK_ARGS)
    args += *DROPOUT_ARGS, *3 * (types.Tuple(()),)  # no sinks, runs or arguments of a mask
    code = compile_kernel(kernel, args, cc=HOPPER)
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
    assert code.registers <= 65536 // tiling.num_threads
    assert "C75" not in code.report  # products serialised, setmaxnreg ignored
    # 9 for 8 entries, and 3 and two rows' for a tile: in the first one, and in those with and
    # without a mask.
    copies = 2 if not causal and mask == "plain" and head_dim <= 128 else 3
    patches = copies * tiling.block_n // 16
    places = philox_products(code)
    assert 9 * patches <= len(places) <= 9 * patches + 5 * copies
    # Philox runs beside the exponentials: most of these are between its multiplications.
    first, last = places[-9 * tiling.block_n // 16], places[-1]
    beside = [i.opcode for i in code.instructions[first:last]].count("MUFU.EX2")
    assert beside >= tiling.block_n // 4
    compared = [i for i in code.instructions if i.opcode.startswith("HSET2")]
    assert len(compared) == 4 * patches and all("|" in i.operands for i in compared)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, order, causal, mask, spilled_by_products",
    [
        thorough(64, "added", False, "plain", 4),
        thorough(64, "by arrival", True, "plain", 12),
        thorough(128, "added", True, "plain", 0),
        (128, "ordered", True, "all", 16),
    ],
)
def test_the_backward_kernel_stays_in_registers(head_dim, order, causal, mask, spilled_by_products):
    options = OTHERS[mask] or ((-1, -1), 0.0, False)
    kernel = make_flash_attn_bwd_persistent(head_dim, order, causal, "float16", *options, True)
    counters = types.int32 if order == "added" else types.Array(types.int32, 1, "C")
    slopes = types.Array(types.float32, 1, "C") if options[2] else types.float32
    args = (*6 * (types.uint64,), rows, rows, sums, x, *3 * (types.int32,), *2 * (types.float32,))
    none = types.Tuple(())
    args += slopes, counters, *MASK_ARGS, *DROPOUT_ARGS, none, none
    code = compile_kernel(kernel, args, cc=HOPPER)
    opcodes = [i.opcode.split(".")[0] for i in code.instructions]
    first = opcodes.index("HGMMA")
    last = len(opcodes) - 1 - opcodes[::-1].index("HGMMA")
    products = opcodes[first:last]
    assert products.count("STL") + products.count("LDL") <= spilled_by_products
    assert code.spill_bytes <= 320 and code.float64_instructions == 0
    assert code.registers <= 65536 // 384
    assert "C75" not in code.report
    # Philox runs between the start of dP and the wait for S: it overlaps with both.
    patches = 128 // 16 if head_dim == 64 else 64 // 16
    places = philox_products(code)
    assert 9 * patches <= len(places) <= 14 * patches
    wait = next(n for n, opcode in enumerate(opcodes) if opcode == "WARPGROUP" and n > places[-1])
    start = max(n for n, opcode in enumerate(opcodes) if opcode == "HGMMA" and n < wait)
    assert sum(start < n for n in places) >= 9 * patches
    assert opcodes[:wait].count("WARPGROUP") == 2  # the starts of S and dP
    assert "DEPBAR" in code.instructions[wait].opcode
    compared = [i for i in code.instructions if i.opcode.startswith("HSET2")]
    assert len(compared) == 4 * patches and all("|" in i.operands for i in compared)


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.97, 1 - 1e-9])
def test_the_largest_probabilities_are_refused(p):
    from fa_numba import checks

    with pytest.raises(ValueError, match=r"dropout_p must be at most 0\.96875 .* got 0\.9"):
        checks.check_dropout(p, 0, largest=dropout.LARGEST_ON_TENSOR_CORES)


def test_both_functions_have_the_options_of_the_lessons():
    import inspect

    for function in (flash_attn_persistent, flash_attn_bwd_persistent):
        parameters = inspect.signature(function).parameters
        assert parameters["dropout_p"].default == 0.0 and parameters["seed"].default == 0
