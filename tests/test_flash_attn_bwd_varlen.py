"""flash_attn_bwd_varlen without a GPU: its tiles, copies and scheduler, and its machine code.

`modelled_gradients` is the kernel with NumPy in place of wgmma and TMA. The scheduler, the bounds
and the coordinates of the copies are the kernel's own.
"""

import itertools
from collections import defaultdict

import expression_cases
import numpy as np
import pytest
from cases import thorough
from few_cases import pairs
from machine_code_cases import in_registers, needs_compiler, stated_registers
from numba import cuda, typeof, types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from test_tensor_core_bwd import spills_between_products

from fa_numba import reference
from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.kernels import masks
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME, UNREAD
from fa_numba.ptx.tma import in_window
from fa_numba.runtime.tensor_maps import windows_of
from fa_numba.tensor_core import flash_attn_bwd_varlen as varlen
from fa_numba.tensor_core import packed_backward, packed_key_tiles
from fa_numba.tensor_core.backward import NOTHING, tile_rows
from fa_numba.tensor_core.dq_parts import (
    ADDED,
    BY_ARRIVAL,
    INDEX,
    LAST,
    ORDERED,
    PART_LENGTH,
    make_dq_functions,
)
from fa_numba.tensor_core.gradient_fragments import BLOCK_N
from fa_numba.tensor_core.key_tiles import make_query_tiles

CC = (9, 0, "a")
# After a row of `slots`: the first and the end tile of queries, the first key's position.
MORE = range(packed_key_tiles.SLOT_LENGTH, packed_key_tiles.SLOT_LENGTH + 3)

# Lengths of queries and of keys.
LENGTHS = [
    ([1], [1]),
    ([128, 64, 256], [128, 128, 256]),  # whole tiles
    ([5, 130, 1, 300], [7, 129, 127, 260]),
    ([300, 0, 90, 20], [10, 200, 0, 400]),  # rows without keys, no queries, no keys
    ([0, 0, 3], [3, 0, 0]),
]
MASKS = {
    "full": (False, (-1, -1)),
    "causal": (True, (-1, -1)),
    "window": (False, (60, 30)),
    "causal window": (True, (60, -1)),
}


def starts_of(lengths):
    return np.cumsum((0, *lengths), dtype=np.int32)


def described_tiles(
    cu_q,
    cu_k,
    queue,
    num_kv_heads,
    group_size,
    head_dim,
    mask,
    num_blocks=3,
    order=ADDED,
    in_step=False,
):
    """Descriptions of all tiles of keys, in the order of the claims."""
    scheduler = packed_key_tiles.make_scheduler(head_dim, order, *mask, in_step)
    find_sequence, describe, is_first_of_two = scheduler
    query_tiles = make_query_tiles(tile_rows(head_dim), BLOCK_N, *mask)
    position_of, Batch = packed_key_tiles.position_of, packed_key_tiles.Batch
    K_ROW, SEQLEN_Q = packed_key_tiles.K_ROW, packed_key_tiles.SEQLEN_Q
    FIRST_TILE, END_TILE, POSITION = MORE
    num_units = sum(-(-n // BLOCK_N) for n in np.diff(cu_k)) * num_kv_heads
    tiles = np.full((2 * num_units, packed_key_tiles.SLOT_LENGTH + len(MORE)), -9, np.int32)

    @cuda.jit
    def kernel(cu_q, cu_k, queue, num_kv_heads, group_size, tiles):
        batch = Batch(cu_q, cu_k, queue, queue, num_kv_heads, group_size, num_blocks)
        claim, second = cuda.threadIdx.x, False  # a thread in place of a thread block
        unit, index = find_sequence(claim, 0, batch)
        while index < cu_k.shape[0] - 1:
            row = 2 * claim + second
            describe(tiles, row, unit, second, index, batch)
            position = tiles[row, POSITION] = position_of(tiles, row)
            first, end = query_tiles(position, tiles[row, SEQLEN_Q], UNREAD)
            tiles[row, FIRST_TILE], tiles[row, END_TILE] = first, end
            second = is_first_of_two(tiles, row, index, batch)
            if not second:
                unit, index = find_sequence(unit + num_blocks, index, batch)
                claim += num_blocks

    kernel[1, num_blocks](cu_q, cu_k, queue, num_kv_heads, group_size, tiles)
    return tiles[tiles[:, K_ROW] >= 0]


def queue_of(cu_q):
    """The sequences, those with the most queries first."""
    return np.argsort(-np.diff(cu_q), kind="stable").astype(np.int32)


def coordinates(rows, ends, num_rows):
    """`in_window` of each row and end."""
    found = np.zeros((len(rows), 2), np.int32)

    @cuda.jit
    def kernel(rows, ends, found):
        i = cuda.threadIdx.x
        found[i, 0], found[i, 1] = in_window(rows[i], ends[i], num_rows)

    kernel[1, len(rows)](np.array(rows, np.int32), np.array(ends, np.int32), found)
    return found.tolist()


def copied_rows(x, num_rows, row, window):
    """The tokens that TMA copies to or from a box of num_rows rows; −1 where it zero-pads."""
    shape = (1, *x.shape)
    address, shape, strides = windows_of(0, shape, (0, *x.strides), num_rows)
    assert 0 <= window < shape[0] and row >= 0
    rows = row + np.arange(num_rows)
    at = address + window * strides[0] + rows * strides[1]
    tokens, rest = np.divmod(at, x.strides[0])
    assert not rest.any()
    inside = rows < shape[1]
    assert (tokens[inside] >= 0).all() and (tokens[inside] < len(x)).all()
    return np.where(inside, tokens, -1)


def loaded(x, row, end, num_rows, head):
    """A tile in shared memory."""
    tokens = copied_rows(x, num_rows, *coordinates([row], [end], num_rows)[0])
    return np.where(tokens[:, None] < 0, 0, x[tokens, head])


def sequences_of_tiles(cu_q, num_tiles, block_m):
    sequence_of, found = make_sequence_of(block_m), np.zeros((num_tiles, 4), np.int64)

    @cuda.jit
    def kernel(cu_q, found):
        tile = cuda.threadIdx.x
        found[tile, 0], found[tile, 1], found[tile, 2], found[tile, 3] = sequence_of(tile, cu_q)

    kernel[1, num_tiles](cu_q, found)
    return found


def modelled_gradients(dout, q, k, v, out, lse, cu_q, cu_k, mask):
    """dq, dk and dv by tiles, as the kernels compute them."""
    num_tokens_q, num_heads, head_dim = q.shape
    num_kv_heads, batch = k.shape[1], len(cu_q) - 1
    group_size, block_m = num_heads // num_kv_heads, tile_rows(head_dim)
    first_query, end_query, _ = masks.make_bounds_of_keys(*mask)
    first_query, end_query = first_query.py_func, end_query.py_func
    scale = 1 / np.sqrt(head_dim)

    # The kernel before: rows of float32 that begin with a tile.
    m_tiles = num_tokens_q // block_m + batch
    tiles_of_q = sequences_of_tiles(cu_q, m_tiles, block_m)
    lse_2 = np.full((num_heads, m_tiles, block_m), NOTHING, np.float64)
    delta, dq_sum = np.zeros_like(lse_2), np.zeros((*lse_2.shape, head_dim))
    for tile, (_, start, length, m_start) in enumerate(tiles_of_q):
        tokens = start + np.arange(m_start, max(m_start, min(length, m_start + block_m)))
        lse_2[:, tile, : len(tokens)] = lse[:, tokens] * np.log2(np.e)
        delta[:, tile, : len(tokens)] = (dout * out).sum(-1)[tokens].T
    lse_2[~(lse_2 > -NOTHING)] = NOTHING

    dk, dv = np.full(k.shape, np.nan), np.full(v.shape, np.nan)
    stored = np.zeros(k.shape[:2], int)
    queue = queue_of(cu_q)
    for description in described_tiles(cu_q, cu_k, queue, num_kv_heads, group_size, head_dim, mask):
        description = map(int, description)
        k_row, k_end, q_row, seqlen_q, m_tile, kv_head, _, first, end, at = description
        keys, values = (loaded(x, k_row, k_end, BLOCK_N, kv_head) for x in (k, v))
        position = at + np.arange(BLOCK_N)  # of a key among the queries
        of_k, of_v = np.zeros((2, BLOCK_N, head_dim))
        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            for m in range(first, end):
                rows = q_row + m * block_m, q_row + seqlen_q, block_m, head
                queries, gradients = loaded(q, *rows), loaded(dout, *rows)
                s = keys @ queries.T
                index = m * block_m + np.arange(block_m)
                for i, at in enumerate(position):  # `mask_tile`
                    unseen = (index < first_query(at)) | (index >= end_query(at, seqlen_q))
                    s[i, unseen & (index < seqlen_q) | (at >= seqlen_q)] = -1e30
                p = np.exp2(s * scale * np.log2(np.e) - lse_2[head, m_tile + m])
                ds = p * (values @ gradients.T - delta[head, m_tile + m])
                of_v += p @ gradients
                of_k += ds @ queries
                dq_sum[head, m_tile + m] += ds.T @ keys
        for warp in range(0, BLOCK_N, varlen.STORE_ROWS):
            row, window = coordinates([k_row + warp], [k_end], varlen.STORE_ROWS)[0]
            if row < varlen.STORE_ROWS:  # as `make_store_tile`
                tokens = copied_rows(k, varlen.STORE_ROWS, row, window)
                for i, token in enumerate(tokens[tokens >= 0]):
                    dk[token, kv_head], dv[token, kv_head] = scale * of_k[warp + i], of_v[warp + i]
                    stored[token, kv_head] += 1
    assert (stored == 1).all()

    # The kernel after.
    dq, converted = np.full(q.shape, np.nan), np.zeros(num_tokens_q, int)
    for tile, (_, start, length, m_start) in enumerate(tiles_of_q):
        tokens = start + np.arange(m_start, max(m_start, min(length, m_start + block_m)))
        dq[tokens] = scale * dq_sum[:, tile, : len(tokens)].transpose(1, 0, 2)
        converted[tokens] += 1
    assert (converted == 1).all()
    return dq, dk, dv


def make_case(rng, lengths, head_dim, mask):
    """The arguments of `modelled_gradients` before the mask, and the definition's gradients."""
    cu_q, cu_k = map(starts_of, lengths)
    q, dout = (rng.standard_normal((cu_q[-1], 2, head_dim)) for _ in range(2))
    k, v = (rng.standard_normal((cu_k[-1], 1, head_dim)) for _ in range(2))
    options = {"causal": mask[0], "window_size": mask[1]}
    out, lse = reference.varlen_attention(q, k, v, cu_q, cu_k, **options)
    want = reference.varlen_attention_bwd(dout, q, k, v, cu_q, cu_k, **options)
    return (dout, q, k, v, out, lse, cu_q, cu_k), want


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.few(lambda lengths, mask: [lengths, mask])
def test_tiles_and_copies_give_the_gradients(rng, lengths, mask):
    args, want = make_case(rng, lengths, 8, mask)
    for got, x in zip(modelled_gradients(*args, mask), want, strict=True):
        np.testing.assert_allclose(got, x, atol=1e-12)


def test_tiles_of_64_queries_too(rng):
    args, want = make_case(rng, LENGTHS[2], 72, MASKS["causal"])
    for got, x in zip(modelled_gradients(*args, MASKS["causal"]), want, strict=True):
        np.testing.assert_allclose(got, x, atol=1e-12)


def test_a_sequence_of_nan_reaches_no_other(rng):
    args, want = make_case(rng, LENGTHS[2], 8, MASKS["full"])
    for b in range(4):
        spoilt = [x.copy() for x in args]
        cu_q, cu_k = args[-2:]
        rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
        for x, part in zip(spoilt[:5], (rows, rows, keys, keys, rows), strict=True):
            x[part] = np.nan
        with np.errstate(invalid="ignore"):
            got = modelled_gradients(*spoilt, MASKS["full"])
        for x, y, part in zip(got, want, (rows, keys, keys), strict=True):
            others = np.ones(len(x), bool)
            others[part] = False
            np.testing.assert_allclose(x[others], y[others], atol=1e-12)
            assert np.isnan(x[part]).all()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("num_kv_heads, group_size", [(1, 1), (3, 2)])
@pytest.mark.parametrize("num_blocks", [1, 5, 200])
@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.few(
    lambda mask, num_kv_heads, num_blocks, in_step: pairs(mask, num_kv_heads, num_blocks, in_step)
)
def test_each_tile_is_claimed_once_the_longest_sequences_first(
    num_kv_heads, group_size, num_blocks, in_step, mask
):
    lengths_q, lengths_k = [9, 700, 0, 40, 700], [300, 1290, 129, 0, 1]
    cu_q, cu_k = starts_of(lengths_q), starts_of(lengths_k)
    order = sorted(range(5), key=lambda b: -lengths_q[b])
    queue = np.array(order, np.int32)
    args = cu_q, cu_k, queue, num_kv_heads, group_size, 64, mask, num_blocks
    tiles = described_tiles(*args, in_step=in_step)
    at = [
        tuple(row) for row in tiles[:, [packed_key_tiles.K_ROW, packed_key_tiles.KV_HEAD]].tolist()
    ]
    want = {
        (cu_k[b] + n, head)
        for b in range(5)
        for n in range(0, lengths_k[b], BLOCK_N)
        for head in range(num_kv_heads)
    }
    assert len(at) == len(want) and set(at) == want
    sequences = [int(np.searchsorted(cu_k, row, "right")) - 1 for row, _ in at]
    assert sequences == sorted(sequences, key=order.index)
    for row, b in zip(tiles.tolist(), sequences, strict=True):
        assert row[packed_key_tiles.K_END] == cu_k[b + 1]
        assert (
            row[packed_key_tiles.Q_ROW] == cu_q[b]
            and row[packed_key_tiles.SEQLEN_Q] == lengths_q[b]
        )
        assert (
            row[packed_key_tiles.M_TILE] == cu_q[b] // 128 + b
            and row[packed_key_tiles.K_START] == cu_k[b]
        )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_under_a_causal_mask_the_keys_of_most_work_come_first(mask):
    cu, heads = starts_of([16 * BLOCK_N]), 3
    tiles = described_tiles(cu, cu, queue_of(cu), heads, 1, 64, mask)
    order = (tiles[:, packed_key_tiles.K_ROW] // BLOCK_N).tolist()
    causal, (left, right) = mask
    parts = (0, 8, 12, 16) if left < 0 and (causal or right >= 0) else (0, 16)
    parts = itertools.pairwise(parts)
    assert order == [n for part in parts for _ in range(heads) for n in range(*part)]


def test_in_step_long_and_short_tiles_alternate():
    """Pairs; in the last sequence the first halves of a few heads, the longest tiles first."""
    cu, heads, num_blocks = starts_of([5 * BLOCK_N, 4 * BLOCK_N]), 3, 4
    args = cu, cu, np.array([0, 1], np.int32), heads, 2, 64, MASKS["causal"], num_blocks
    tiles = described_tiles(*args, in_step=True)
    n_tiles = (tiles[:, packed_key_tiles.K_ROW] - tiles[:, packed_key_tiles.K_START]) // BLOCK_N
    at = [*zip(tiles[:, packed_key_tiles.KV_HEAD].tolist(), n_tiles.tolist(), strict=True)]
    assert at[:15] == [(head, n) for head in range(heads) for n in (0, 4, 1, 3, 2)]
    # Two long tiles of a head: two heads for four thread blocks.
    assert at[15:23] == [(head, n) for n in range(4) for head in range(2)]
    assert at[23:] == [(2, n) for n in range(4)]


@pytest.mark.parametrize("order", [BY_ARRIVAL, ORDERED])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.few(lambda lengths, mask, order: [(lengths, order), mask])
def test_each_part_of_dq_has_an_index_and_the_other_tiles_are_cleared(lengths, mask, order):
    (cu_q, cu_k), heads, head_dim = map(starts_of, lengths), 2, 72
    tiles = described_tiles(cu_q, cu_k, queue_of(cu_q), heads, 1, head_dim, mask, order=order)
    functions = make_dq_functions(
        head_dim, tile_rows(head_dim), order, *mask[:1], "float16", mask[1]
    )
    name_part, N_SHIFT, parts = functions.name_part, 7, defaultdict(list)

    @cuda.jit
    def kernel(part, numbers):
        m, n, shift, seqlen_k = numbers
        name_part(part, 0, m, n, shift, seqlen_k, UNREAD)

    for row in tiles.tolist():
        k_row, k_end, _, seqlen_q, m_tile, head, k_start, first, end, _ = row
        n, seqlen_k, m_tiles = (k_row - k_start) >> N_SHIFT, k_end - k_start, -(-seqlen_q // 64)
        for m in range(first, end):
            part = np.full(PART_LENGTH, -9, np.int32)
            kernel[1, 1](part, np.array([m, n, seqlen_q - seqlen_k, seqlen_k], np.int32))
            parts[head, m_tile + m].append((int(part[INDEX]), int(part[LAST])))
        cleared = [*range(min(first, m_tiles))] if n == 0 else []
        cleared += range(max(end, 0), m_tiles) if k_row + BLOCK_N >= k_end else []
        for m in cleared:
            assert not parts[head, m_tile + m]
            parts[head, m_tile + m].append((0, 0))
    for b, (seqlen_q, seqlen_k) in enumerate(zip(*lengths, strict=True)):
        for head, m in np.ndindex(heads, -(-seqlen_q // 64) if seqlen_k else 0):
            found = parts.pop((head, int(cu_q[b]) // 64 + b + m))
            assert {last for _, last in found} == {len(found) - 1}
            indices = [index for index, _ in found]
            assert sorted(indices) == [*range(len(found))]
            if order == ORDERED:  # each part waits for those that were claimed before
                assert indices == sorted(indices)
    assert not any(parts.values())


def test_a_window_ends_at_its_row():
    rows, ends = [0, 0, 5, 90, 90, 90], [3, 128, 100, 100, 90, 80]
    assert coordinates(rows, ends, 16) == [[13, 3], [0, 16], [0, 21], [6, 100], [16, 90], [26, 80]]


H3 = types.Array(types.float16, 3, "C")
F1, F2, F3 = (types.Array(types.float32, ndim, "C") for ndim in (1, 2, 3))
I1 = types.Array(types.int32, 1, "C")
NONE = types.Tuple(())


@needs_compiler
@pytest.mark.parametrize("head_dim, dtype", [thorough(64, "float16"), (128, "bfloat16")])
def test_kernels_before_and_after_stay_in_registers(head_dim, dtype):
    for kernel, args in (
        (
            packed_backward.make_prepare_packed(head_dim, dtype),
            (H3, H3, F2, I1, I1, *3 * (F3,), types.float32, I1, I1, NONE),
        ),
        (
            packed_backward.make_prepare_packed(head_dim, dtype, True),
            (H3, H3, F2, I1, I1, *2 * (F3,), types.float32, H3, I1, I1, NONE),
        ),
        (
            packed_backward.make_prepare_packed(head_dim, dtype, False, True),
            (H3, H3, F2, I1, I1, *3 * (F3,), types.float32, I1, I1, types.Tuple((F1, F3))),
        ),
        (packed_backward.make_convert_packed(head_dim, dtype), (F3, H3, I1, types.float32)),
    ):
        in_registers(kernel, args)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, order, mask, spilled_by_products, in_step",
    [
        thorough(64, ADDED, (True,), 0, False),
        thorough(128, ADDED, (True,), 0, False),
        thorough(128, ADDED, (False,), 0, False),
        thorough(96, ADDED, (False, (100, 50)), 0, False),
        # A cap's derivatives take 32 registers.
        thorough(
            64, ADDED, (False, (AT_RUN_TIME, AT_RUN_TIME), float(AT_RUN_TIME), True), 80, False
        ),
        thorough(64, BY_ARRIVAL, (True,), 4, False),
        thorough(128, BY_ARRIVAL, (True,), 4, False),
        thorough(128, ORDERED, (False,), 4, False),
        (128, ADDED, (True,), 0, True),
        thorough(128, ADDED, (True, (-1, -1), 30.0), 0, True),
        thorough(128, ADDED, (True, (-1, -1), 0.0, True), 0, True),
        thorough(96, ADDED, (False, (-1, 50)), 0, True),
        thorough((192, 128), ADDED, (True,), 30, True),
        thorough((192, 128), ORDERED, (False,), 30, False),
    ],
)
def test_the_kernel_stays_in_registers(head_dim, order, mask, spilled_by_products, in_step):
    head_dim, head_dim_v = map(int, np.broadcast_to(head_dim, 2))
    causal, *rest = mask
    kernel = varlen.make_flash_attn_bwd_varlen(
        head_dim, order, causal, "float16", *rest, IN_STEP=in_step, HEAD_DIM_V=head_dim_v
    )
    slopes = F1 if mask[3:] else types.float32
    dq = types.float32 if order == ADDED else types.Array(types.float16, 4, "C")
    args = (*6 * (types.uint64,), *3 * (F3,), dq, *4 * (I1,), *2 * (types.int32,))
    args += (*2 * (types.float32,), slopes, *2 * (types.int32,), *2 * (types.float32,))
    code = compile_kernel(kernel, (*args, NONE, NONE), cc=CC)
    assert spills_between_products(code) <= spilled_by_products
    # The producer and the warp that counts parts have 24 registers.
    most = 320 if head_dim == head_dim_v else 480  # a third panel of dQ
    assert code.spill_bytes <= (0 if order == ADDED and not spilled_by_products else most)
    assert code.float64_instructions == 0
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report  # products serialised, setmaxnreg ignored
    assert varlen.shared_bytes(head_dim, head_dim_v) + code.shared_bytes <= 227 * 1024


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, order, softcap",
    [
        thorough("documents", 64, ADDED, 0.0),
        thorough("documents", 128, ADDED, 0.0),
        thorough("documents", 128, ORDERED, 0.0),
        thorough("dilated", 128, ADDED, float(AT_RUN_TIME)),
    ],
)
def test_functions_of_the_user_stay_in_registers(name, head_dim, order, softcap):
    given = expression_cases.given_of(name)
    kernel = varlen.make_flash_attn_bwd_varlen(
        head_dim, order, False, "float16", SOFTCAP=softcap, EXPRESSIONS=given.expressions
    )
    dq = types.float32 if order == ADDED else types.Array(types.float16, 4, "C")
    args = (*6 * (types.uint64,), *3 * (F3,), dq, *4 * (I1,), *2 * (types.int32,))
    args += (*3 * (types.float32,), *2 * (types.int32,), *2 * (types.float32,))
    runs = (1 if order == ADDED else 2) * (types.Array(types.int32, 5, "C"),)
    code = compile_kernel(kernel, (*args, types.Tuple(runs), typeof(given.arguments)), cc=CC)
    assert spills_between_products(code) == code.float64_instructions == 0
    # The producer and the warp that counts parts have 24 registers.
    assert code.spill_bytes <= 640
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report


X, LSE = np.ones((5, 4, 64), np.float16), np.ones((4, 5), np.float32)
STARTS = np.array([0, 2, 5], np.int32)
GOOD = {"dout": X, "q": X, "k": X, "v": X, "out": X, "lse": LSE}
GOOD |= {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({}, "flash_attn_bwd_varlen is made of PTX.*flash_attn_varlen_bwd computes the same"),
        ({"q": [1.0]}, "q must be a NumPy array.* got list"),
        ({"cu_seqlens_k": [0, 2, 5]}, "cu_seqlens_k must be a NumPy array.* got list"),
    ],
)
def test_what_is_refused(changed, message):
    with pytest.raises(TypeError, match=message):
        varlen.flash_attn_bwd_varlen(**GOOD | changed)
