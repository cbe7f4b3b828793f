"""Linear attention: a state of constant size replaces all keys.

recurrent   the state goes to HBM and back once per token   one token at a time
chunked     the state goes there once per chunk of tokens   matrix products   <- this file

    out_m = φ(q_m)ᵀ U_m / φ(q_m)ᵀ Z_m        U_m = Σ φ(k_n) v_nᵀ,  Z_m = Σ φ(k_n)        n = 0 ... m

The sum over the keys up to m has two parts. The keys of earlier chunks are in the state at the
start of m's chunk. The keys of its own chunk are few enough for scores and a mask, as in softmax
attention:

    φ(q_m)ᵀ U_m = φ(q_m)ᵀ U_start + Σ (φ(q_m)·φ(k_n)) v_n        n = the chunk's first ... m

One kernel walks the tokens and writes the state before each chunk; then another kernel processes
all chunks at once. Without a mask there is one state, that of all keys, and there are no scores.

Z is the last column of U, as if each v had a 1 at its end; so the denominator is computed with the
numerators.

Papers: Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236; Hua et al. 2022,
Transformer Quality in Linear Time, arXiv:2202.10447 (chunks).
"""

import functools

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.kernels.feature_map import feature_map as phi
from fa_numba.kernels.kahan import kahan_add
from fa_numba.kernels.linear_attn_recurrent import make_recurrent, recurrent_threads
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

TILE = 16  # features, or columns of the state, in a tile


@functools.cache
def make_chunk_states(HEAD_DIM, CHUNK, CAUSAL):
    """The first kernel, the state before each chunk and at the end."""

    @cuda.jit
    def chunk_states_kernel(phi_k, v, state_in, states, state):
        """A thread block owns a tile of the state and walks the chunks of tokens.

        grid      (num_f_tiles * num_col_tiles, num_kv_heads, batch); threads (TILE, TILE): thread
                  (ty, tx) owns element [ty, tx] of the tile
        shared    phi_tile, v_tile (CHUNK, TILE)
        private   u, rounded_up
        HBM       state_in, state once, states once if CAUSAL; phi_k once per tile of columns,
                  V once per tile of features
        paper     Transformer Quality in Linear Time
        budget    64 registers, 2048 bytes shared (HEAD_DIM=64, CHUNK=16)
        """
        phi_tile = cuda.shared.array((CHUNK, TILE), float32)
        v_tile = cuda.shared.array((CHUNK, TILE), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen, feature_dim = phi_k.shape[1], phi_k.shape[3]
        num_col_tiles = (HEAD_DIM + 1 + TILE - 1) // TILE
        f_start = cuda.blockIdx.x // num_col_tiles * TILE
        col = cuda.blockIdx.x % num_col_tiles * TILE + tx
        f = f_start + ty
        mine = f < feature_dim and col <= HEAD_DIM

        u = state_in[b, kv_head, f, col] if mine else float32(0.0)
        rounded_up = float32(0.0)
        for n_start in range(0, seqlen, CHUNK):
            if CAUSAL and mine:
                states[b, kv_head, n_start // CHUNK * feature_dim + f, col] = u
            if ty < CHUNK:
                n = n_start + ty
                phi_tile[ty, tx] = float32(0.0)
                v_tile[ty, tx] = float32(0.0)
                if n < seqlen and f_start + tx < feature_dim:
                    phi_tile[ty, tx] = phi_k[b, n, kv_head, f_start + tx]
                if n < seqlen and col <= HEAD_DIM:
                    x = float32(v[b, n, kv_head, col]) if col < HEAD_DIM else float32(1.0)
                    v_tile[ty, tx] = x
            cuda.syncthreads()  # phi_tile, v_tile are complete: safe to read
            kv = float32(0.0)
            for r in range(CHUNK):
                kv += phi_tile[r, ty] * v_tile[r, tx]
            u, rounded_up = kahan_add(u, rounded_up, kv)  # U <- U + φ(K)ᵀ V, of many tokens
            cuda.syncthreads()  # everyone is done with the tiles: safe to overwrite
        if mine:
            state[b, kv_head, f, col] = u

    return chunk_states_kernel


@functools.cache
def make_chunk_outputs(HEAD_DIM, CHUNK, CAUSAL):
    """The second kernel, out of one chunk of queries: threads (TILE, CHUNK), CHUNK <= TILE."""
    ODD = TILE | 1  # an odd row length: the threads of a warp read k_tile in different banks
    COLS = HEAD_DIM + 1  # of [out, divisor]
    NUM_COLS = ceil_div(COLS, TILE)  # columns of these that a thread owns

    @cuda.jit
    def chunk_outputs_kernel(phi_q, phi_k, v, states, out):
        """A thread block owns a chunk of queries of one head and walks the features.

        states holds the states of all chunks, one below the other: the state of chunk c begins at
        row c * feature_dim. Without CAUSAL there is one state for all queries.

        grid      (num_chunks, num_heads, batch); threads (TILE, CHUNK): thread (ty, tx) computes
                  score [ty, tx], and columns tx, tx + TILE, ... of [out, divisor]
        shared    q_tile, k_tile (CHUNK, TILE), features of the queries and of the chunk's keys;
                  s_tile (CHUNK, CHUNK); u_tile (TILE, HEAD_DIM + 1), rows of the state, then of V;
                  divisor (CHUNK,)
        private   acc, rounded_up (NUM_COLS,); s, s_rounded_up
        HBM       phi_q, out once; states once per chunk; if CAUSAL phi_k, V once
        paper     Transformer Quality in Linear Time
        budget    128 registers, 7424 bytes shared (HEAD_DIM=64, CHUNK=16)
        """
        q_tile = cuda.shared.array((CHUNK, TILE), float32)
        k_tile = cuda.shared.array((CHUNK, ODD), float32)
        s_tile = cuda.shared.array((CHUNK, CHUNK), float32)
        u_tile = cuda.shared.array((TILE, COLS), float32)
        divisor = cuda.shared.array(CHUNK, float32)
        acc = cuda.local.array(NUM_COLS, float32)
        rounded_up = cuda.local.array(NUM_COLS, float32)  # by the sum: features may be thousands

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen, feature_dim = phi_q.shape[1], phi_q.shape[3]
        kv_head = head // (phi_q.shape[2] // phi_k.shape[2])
        m = cuda.blockIdx.x * CHUNK + ty  # this thread's query, and the key that it loads
        first_row = cuda.blockIdx.x * feature_dim if CAUSAL else 0

        for c in range(NUM_COLS):
            acc[c] = rounded_up[c] = float32(0.0)
        s = s_rounded_up = float32(0.0)
        for f_start in range(0, feature_dim, TILE):
            f = f_start + tx
            live = m < seqlen and f < feature_dim
            q_tile[ty, tx] = phi_q[b, m, head, f] if live else float32(0.0)
            if CAUSAL:
                k_tile[ty, tx] = phi_k[b, m, kv_head, f] if live else float32(0.0)
            for r in range(ty, TILE, CHUNK):
                f = f_start + r
                row = first_row + f
                for col in range(tx, COLS, TILE):
                    u = states[b, kv_head, row, col] if f < feature_dim else float32(0.0)
                    u_tile[r, col] = u
            cuda.syncthreads()  # q_tile, k_tile, u_tile are complete: safe to read

            if CAUSAL and tx < CHUNK:
                for r in range(TILE):  # S = φ(Q) φ(K)ᵀ of the chunk
                    s, s_rounded_up = kahan_add(s, s_rounded_up, q_tile[ty, r] * k_tile[tx, r])
            for r in range(TILE):  # φ(Q) U_start
                for c in range(NUM_COLS):
                    col = tx + c * TILE
                    if col < COLS:
                        x = q_tile[ty, r] * u_tile[r, col]
                        acc[c], rounded_up[c] = kahan_add(acc[c], rounded_up[c], x)
            cuda.syncthreads()  # everyone is done with the tiles: safe to overwrite

        if CAUSAL:
            if tx < CHUNK:
                s_tile[ty, tx] = s
            for col in range(tx, COLS, TILE):
                u_tile[ty, col] = float32(1.0)  # the divisors' column
                if col < HEAD_DIM:
                    x = float32(v[b, m, kv_head, col]) if m < seqlen else float32(0.0)
                    u_tile[ty, col] = x
            cuda.syncthreads()  # s_tile and the rows of V are complete: safe to read
            for r in range(ty + 1):  # the keys up to the query itself
                x = s_tile[ty, r]
                for c in range(NUM_COLS):
                    col = tx + c * TILE
                    if col < COLS:
                        acc[c] += x * u_tile[r, col]  # + S V

        if tx == HEAD_DIM % TILE:
            divisor[ty] = acc[NUM_COLS - 1]  # column HEAD_DIM: φ(q)ᵀ Z
        cuda.syncthreads()  # divisor is complete: safe to read
        if m < seqlen:
            l = divisor[ty]  # 0 where φ(q) and φ(k) have no feature in common
            for c in range(NUM_COLS):
                col = tx + c * TILE
                if col < HEAD_DIM:
                    out[b, m, head, col] = acc[c] / l if l != float32(0.0) else float32(0.0)

    return chunk_outputs_kernel


@refuses_other_names
def linear_attn(
    q, k, v, *, feature_map="elu1", causal=False, weights=None, state=None, form=None, chunk_size=16
):
    """Linear attention: φ(q)·φ(k) replaces the weight e^(q·k/√head_dim) of softmax attention.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides with a contiguous
        last axis; head_dim from 1 to 256.
    feature_map : "elu1", "relu", "taylor2" or "hedgehog", default="elu1"
        φ: elu(x) + 1; relu(x); the Taylor series of e^(q·k/√head_dim) to its second degree;
        e^(x W). See `fa_numba.kernels.feature_map`.
    causal : bool, default=False
        Query m sees the keys 0 to m, so seqlen_q must equal seqlen_k. Earlier keys are seen through
        `state`.
    weights : pair of arrays (w_q, w_k), dtype of q, default=None
        For "hedgehog", of shapes (num_heads, head_dim, num_features) and
        (num_kv_heads, head_dim, num_features). The paper's [e^(xW), e^(−xW)] has weights [W, −W].
    state : array of shape (batch, num_kv_heads, feature_dim, head_dim + 1), float32, default=None
        The state that an earlier call returned: earlier tokens, which every query sees. None: no
        earlier tokens.
    form : "recurrent" or "chunked", default=chosen
        Form of a causal call: the two agree up to rounding. The default for one token is
        "recurrent".
    chunk_size : int, default=16
        Tokens of a chunk, from 1 to 16.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row whose weights sum to 0: it sees no key, or (relu) shares no feature with any.
    state : array of shape (batch, num_kv_heads, feature_dim, head_dim + 1), float32
        U = Σ φ(k) vᵀ of all tokens so far, with Z = Σ φ(k) as its last column. Its size does not
        depend on the number of tokens.
    """
    checks.check_qkv(q, k, v)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    causal = checks.check_causal(causal)
    w_q, w_k = checks.check_feature_map(feature_map, weights, q, k)
    form = checks.check_linear_form(form, causal, q, k)
    chunk_size = checks.check_linear_chunk_size(chunk_size)
    phi_q, phi_k = phi(q, feature_map, w_q), phi(k, feature_map, w_k)
    feature_dim = phi_q.shape[3]
    shape = (batch, num_kv_heads, feature_dim, head_dim + 1)
    if state is None:
        state_in = arrays.full(q, shape, 0)
    else:
        checks.check_state(state, q, shape)
        state_in = state
    state, out = arrays.empty(q, shape), arrays.empty(q, q.shape, q.dtype)

    if form == "recurrent":
        kernel = make_recurrent(head_dim, num_heads // num_kv_heads)
        grid, threads = (num_kv_heads, batch), (recurrent_threads(head_dim),)
        arrays.launch(kernel, grid, threads, phi_q, phi_k, v, state_in, state, out)
        return out, state

    states = state  # without a mask the state of all keys is the only one
    if causal:
        num_chunks = ceil_div(seqlen_k, chunk_size)
        states = arrays.empty(q, (batch, num_kv_heads, num_chunks * feature_dim, head_dim + 1))
    kernel = make_chunk_states(head_dim, chunk_size, causal)
    grid = (ceil_div(feature_dim, TILE) * ceil_div(head_dim + 1, TILE), num_kv_heads, batch)
    arrays.launch(kernel, grid, (TILE, TILE), phi_k, v, state_in, states, state)
    kernel = make_chunk_outputs(head_dim, chunk_size, causal)
    grid, threads = (ceil_div(seqlen_q, chunk_size), num_heads, batch), (TILE, chunk_size)
    arrays.launch(kernel, grid, threads, phi_q, phi_k, v, states, out)
    return out, state
