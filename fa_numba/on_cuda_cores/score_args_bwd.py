"""Gradients of the arrays of floats that a user's score reads.

The score of a query m and a key n may read a number t = a[i], as the bias of T5 does, where the
index i depends on the head, m and n. The chain rule, with dS of the score itself:

    dS = P ∘ (dP − delta)        dt = Σ dS · ∂score/∂t, over all pairs that read t

No kernel of the other gradients has this sum. This one computes S and dP again, by register tiles
on CUDA cores. A thread adds its pairs while they read the same number, and then adds this sum to
HBM with an atomic addition, so the order varies from run to run.

Paper: FlashAttention-2, arXiv:2307.08691, Algorithm 2, whose lines for dS are these.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32, uint64

from fa_numba import checks
from fa_numba.constants import NEG_INF, ONE, ZERO
from fa_numba.expressions import nodes
from fa_numba.expressions.derivative import ZERO as NONE
from fa_numba.expressions.derivative import derivative
from fa_numba.expressions.functions import SCORE_VARIABLES, device_function, device_functions
from fa_numba.expressions.nodes import Node, make
from fa_numba.kernels import dropout, masks
from fa_numba.kernels.flash_attn_bwd import delta_of
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.on_cuda_cores import register_tiles
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.register_tiling import BACKWARD_SIZES, backward_tiling

ROWS = 4  # of a tile, that a thread owns


@functools.cache
def make_score_args_bwd(HEAD_DIM, HEAD_DIM_V, TILE, DROPOUT_P, EXPRESSIONS, READ, INDEX, PACKED):
    """The kernel for the numbers that one place in the score reads.

    READ is the "load" of the score, INDEX its index into the flat array, as a node. seed is unused
    without dropout, classes without a mask or in a packed batch, cu_seqlens otherwise: each may
    then be any scalar.
    """
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    factor = device_function(derivative(EXPRESSIONS.score, READ), "factor", SCORE_VARIABLES)
    index_of = device_function(INDEX, "index_of", "b h m n")
    tile_is_hidden = masks.make_tile_is_hidden(EXPRESSIONS.mask is not None and not PACKED)
    sequence_of = make_sequence_of(TILE)
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    tiling = backward_tiling(max(HEAD_DIM, HEAD_DIM_V), TILE)
    WIDTH, TX, TY = tiling.width, tiling.threads_x, tiling.threads_y
    ROW, SCORE_ROW, THREADS = tiling.row, tiling.score_row, tiling.threads
    WARPS, COLS = THREADS // register_tiles.WARP_SIZE, TILE // TX
    Q_TILE, DOUT_TILE, KEY_TILE, S_TILE = (i * TILE * ROW for i in range(4))
    DP_TILE = S_TILE + TILE * SCORE_ROW

    tx_ty = register_tiles.make_tx_ty(TX)
    load = register_tiles.make_load(HEAD_DIM, WIDTH, TILE, ROW, WARPS)
    load_v = register_tiles.make_load(HEAD_DIM_V, WIDTH, TILE, ROW, WARPS)
    add_rows = register_tiles.make_product_of_rows(ROWS, COLS, TY, TX, WIDTH, ROW, ROW)

    @cuda.jit(device=True)
    def multiply(tiles, a_start, to, ty, tx):
        """Write the dot products of the rows of a tile with the keys' rows to another tile."""
        c = cuda.local.array((ROWS, COLS), float32)
        for i in range(ROWS):
            for j in range(COLS):
                c[i, j] = ZERO
        add_rows(c, tiles, a_start, KEY_TILE, ty, tx)
        for i in range(ROWS):
            for j in range(COLS):
                tiles[uint64(to + (ty + i * TY) * SCORE_ROW + tx + j * TX)] = c[i, j]

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def score_args_bwd_kernel(
        dout, q, k, v, lse, delta, gradient, cu_seqlens_q, cu_seqlens_k, softmax_scale, seed,
        classes, args,
    ):  # fmt: skip
        """A thread block owns TILE query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch), packed (num_tokens_q // TILE + batch, num_heads);
                  threads (TX · TY,): thread (ty, tx) computes rows ty, ty + TY, ... and columns
                  tx, tx + TX, ... of S and dP; then a warp has 32 neighbours in a row
        shared    q_tile, dout_tile, key_tile (TILE, WIDTH), key_tile of K and then of V; s_tile,
                  dp_tile (TILE, TILE)
        private   c (ROWS, COLS); at, total
        HBM       Q, dout once; K, V, lse, delta once per tile of queries, except hidden tiles;
                  an atomic addition to gradient for each run of equal indices in a thread
        paper     FlashAttention-2, Algorithm 2, lines 10 to 14
        budget    128 registers, 0 bytes shared of fixed size (HEAD_DIM=64, TILE=64)
        """
        tiles = cuda.shared.array(0, float32)
        tx, ty = tx_ty(cuda.threadIdx.x)
        head = int32(cuda.blockIdx.y)
        if PACKED:
            b, q_start, seqlen_q, m_start = sequence_of(cuda.blockIdx.x, cu_seqlens_q)
            k_start = cu_seqlens_k[b]
            seqlen_k = cu_seqlens_k[b + 1] - k_start
            if m_start >= seqlen_q:  # an unused tile: the whole thread block returns
                return
        else:
            b, q_start, k_start = cuda.blockIdx.z, 0, 0
            seqlen_q, seqlen_k = q.shape[1], k.shape[1]
            m_start = cuda.blockIdx.x * TILE
        of_batch = 0 if PACKED else b
        b = int32(b)
        kv_head = head // (q.shape[2] // k.shape[2])
        at, total = int32(-1), ZERO  # the number that this thread adds to, and its part

        end = q_start + seqlen_q
        load(tiles, Q_TILE, q, of_batch, q_start + m_start, head, end, ONE)
        load_v(tiles, DOUT_TILE, dout, of_batch, q_start + m_start, head, end, ONE)
        for n_start in range(0, seqlen_k, TILE):
            if tile_is_hidden(classes, b, head, m_start // TILE, n_start // TILE):
                continue
            n_row, end = k_start + n_start, k_start + seqlen_k
            load(tiles, KEY_TILE, k, of_batch, n_row, kv_head, end, ONE)
            cuda.syncthreads()  # the tiles are complete: safe to read
            multiply(tiles, Q_TILE, S_TILE, ty, tx)  # S = Q Kᵀ                          line 10
            cuda.syncthreads()  # everyone is done with K: safe to overwrite
            load_v(tiles, KEY_TILE, v, of_batch, n_row, kv_head, end, ONE)
            cuda.syncthreads()  # V is complete
            multiply(tiles, DOUT_TILE, DP_TILE, ty, tx)  # dP = dout Vᵀ                  line 13
            cuda.syncthreads()  # s_tile, dp_tile are complete

            for pair in range(cuda.threadIdx.x, TILE * TILE, THREADS):
                r, c = pair // TILE, pair % TILE
                m, n = int32(m_start + r), int32(n_start + c)
                position = int32(m + seqlen_k - seqlen_q)
                if m >= seqlen_q or n >= seqlen_k or not user_sees(b, head, position, n, args):
                    continue
                s = tiles[uint64(S_TILE + r * SCORE_ROW + c)] * softmax_scale
                s_mod = user_score(s, b, head, position, n, args)
                if s_mod == NEG_INF:  # the score hides the key
                    continue
                row = q_start + m
                p = math.exp(s_mod - lse[of_batch, head, row])  # P = exp(S - lse)       line 11
                dp = tiles[uint64(DP_TILE + r * SCORE_ROW + c)]
                if DROPOUT:
                    dp *= KEEP_SCALE if keeps(seed, b, head, m, n) else ZERO
                ds = p * (dp - delta[of_batch, head, row])  # dS = P ∘ (dP - delta)      line 14
                index = index_of(b, head, position, n, args)
                if index != at:
                    if at >= 0:
                        cuda.atomic.add(gradient, at, total)
                    at, total = index, ZERO
                total += ds * factor(s, b, head, position, n, args)
        if at >= 0:
            cuda.atomic.add(gradient, at, total)

    return score_args_bwd_kernel


def shared_bytes(head_dim, tile_size):
    """Shared memory of a thread block."""
    tiling = backward_tiling(head_dim, tile_size)
    return 4 * tile_size * (3 * tiling.row + 2 * tiling.score_row)


@checks.takes(checks.PLAIN | checks.FUNCTIONS)
def score_args_bwd(
    dout, q, k, v, out, lse, cu_seqlens_q=None, cu_seqlens_k=None, *, dropout_p=0.0, seed=0,
    **options,
):  # fmt: skip
    """The gradients of score_args alone.

    Parameters
    ----------
    dout, q, k, v, out, lse, causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, \
    seed, mask, mask_args, score, score_args
        As for `flash_attn_bwd`; of a packed batch as for `flash_attn_varlen_bwd`.
    cu_seqlens_q, cu_seqlens_k : int32 arrays of shape (batch + 1,), default=None
        Of a packed batch.

    Returns
    -------
    tuple
        For each of score_args its gradient, of the array's shape, dtype and library; None for a
        number and for an array of integers.
    """
    packed, score_args = cu_seqlens_q is not None, options.get("score_args", ())
    scores = checks.check_scores(q, k=None if packed else k, **options)
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    if scores.given is None:
        return ()
    starts, classes, batch = (cu_seqlens_q, cu_seqlens_k), np.int8(0), q.shape[0]
    head_dims = q.shape[-1], v.shape[-1]
    tile_size = _tile_size(q, max(head_dims))
    if packed:
        dout, q, k, v, out, lse = map(arrays.with_axis, (dout, q, k, v, out, lse))
        grid = q.shape[1] // tile_size + starts[0].shape[0] - 1, q.shape[2]
    else:
        starts = (np.int32(0),) * 2
        classes = masks.tile_classes(q, k, scores, tile_size, tile_size)
        grid = ceil_div(q.shape[1], tile_size), q.shape[2], batch
    delta = delta_of(dout, out)
    threads = backward_tiling(max(head_dims), tile_size).threads
    arguments, first = scores.expression_args, scores.given.num_mask_args
    found = [_zeros(q, x) for x in score_args]
    constants = *head_dims, tile_size, dropout_p, scores.expressions
    for read in _reads(scores.expressions.score, range(first, first + len(score_args))):
        index, sizes = _flat_index(read, arguments)
        kernel = make_score_args_bwd(*constants, read, index, packed)
        more = dout, q, k, v, lse, delta, found[read.args[0] - first], *starts
        more += scores.softmax_scale, seed
        arrays.launch(
            kernel, grid, (threads,), *more, classes, (*arguments, *sizes),
            shared_bytes=shared_bytes(max(head_dims), tile_size),
        )  # fmt: skip
    return tuple(
        None if dx is None else arrays.astype(dx.reshape(x.shape), x.dtype)
        for dx, x in zip(found, score_args, strict=True)
    )


def _tile_size(q, head_dim):
    """The largest tiles that fit; the smallest fit on every GPU."""
    limit = arrays.shared_bytes_per_block(q)
    return max(x for x in BACKWARD_SIZES if shared_bytes(head_dim, x) <= limit)


def _zeros(q, x):
    """A flat array for the gradient of an argument, None for one without."""
    found = arrays.facts(x)
    if found.library is None or not found.dtype.startswith(("float", "bfloat")):
        return None
    return arrays.full(q, (math.prod(found.shape),), 0)


def _reads(score, positions):
    """The places where a score reads a float on which it depends, in one of these arguments."""
    for x in nodes.walk(score) if score is not None else ():
        if x.op == "load" and x.kind == "float" and x.args[0] in positions:
            if derivative(score, x) != NONE:
                yield x


def _flat_index(read, arguments):
    """The index of a "load" into its flat array, and the sizes that it has as further arguments."""
    position, flat, *others = read.args
    sizes = tuple(np.int32(size) for size in arguments[position].shape[1:])
    for i, x in enumerate(others, len(arguments)):
        flat = make("add", make("mul", flat, Node("var", (f"arg{i}",), "int")), x)
    return flat, sizes
