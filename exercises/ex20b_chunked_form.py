"""ex20b · The chunked form: many tokens for one move of the state

The same sums as in ex20a, of one head, CHUNK tokens at a time. What token m of a chunk sees comes
in two parts: the chunks before, which are in the state as it was when the chunk began, and the
tokens of its own chunk up to itself, for which there are scores and a mask as in softmax attention:

    y[m, c] = sum over f of phi_q[m, f] * state[f, c]
            + sum over n = chunk's first ... m of (phi_q[m] . phi_k[n]) * v1[n, c]

with v1 = v and a last column of ones, so that out[m, c] = y[m, c] / y[m, HEAD_DIM], or 0 if that is
0. Then the chunk's tokens are added to the state, state[f, c] += phi_k[n, f] * v1[n, c], and the
next chunk begins.

Loads, scores, barriers and stores are given. Write read, which returns a thread's y, and add, which
adds the chunk to the thread's elements of the state.

shapes    phi_q, phi_k (seqlen, FEATURE_DIM);  v, out (seqlen, HEAD_DIM);
          state (FEATURE_DIM, HEAD_DIM + 1).  All float32.
lengths   seqlen >= 1 is any, a multiple of CHUNK or not, also smaller; CHUNK, FEATURE_DIM,
          HEAD_DIM >= 1; in all (HEAD_DIM + 1) * CHUNK <= 1024.
state     on entry it holds the tokens before (all 0 if there are none); on exit these as well.
launch    kernel[1, (HEAD_DIM + 1, CHUNK)](phi_q, phi_k, v, state, out): thread (ty, tx), with
          tx = threadIdx.x and ty = threadIdx.y, owns y[m, tx] of token m = chunk's first + ty.
shared    five tiles: q, k (CHUNK, FEATURE_DIM), v1 (CHUNK, HEAD_DIM + 1), the scores
          (CHUNK, CHUNK), the state (FEATURE_DIM, HEAD_DIM + 1); and the chunk's divisors. A padded
          column in each tile is allowed; no local array
features  may be of any sign and size; so may the sums of weights be less than 0
HBM       loads   phi_q, phi_k, v and state once
          stores  out and state once. Nothing else: the state stays on the chip from chunk to chunk.
mask      a token never looks at a later one: NaN in that one must not reach it

About 11 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import functools

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, FEATURE_DIM, CHUNK):
    """The kernel for these sizes, compile-time constants."""
    COLS = HEAD_DIM + 1

    @cuda.jit(device=True)
    def read(q_tile, s_tile, v_tile, u_tile):
        """Return y of this thread's token and column: the chunks before, then its own chunk."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex20b: read")

    @cuda.jit(device=True)
    def add(k_tile, v_tile, u_tile):
        """Add the chunk to this thread's elements of the state, rows ty, ty + CHUNK, ..."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex20b: add")

    @cuda.jit
    def kernel(phi_q, phi_k, v, state, out):
        """Causal linear attention of one head, chunk by chunk.

        grid     (1,); threads (COLS, CHUNK), one per element of a chunk's y
        shared   q_tile, k_tile (CHUNK, FEATURE_DIM); v_tile (CHUNK, COLS);
                 s_tile (CHUNK, CHUNK); u_tile (FEATURE_DIM, COLS); divisor (CHUNK,)
        private  y
        HBM      everything once
        paper    Transformer Quality in Linear Time, arXiv:2202.10447
        """
        q_tile = cuda.shared.array((CHUNK, FEATURE_DIM), float32)
        k_tile = cuda.shared.array((CHUNK, FEATURE_DIM), float32)
        v_tile = cuda.shared.array((CHUNK, COLS), float32)
        s_tile = cuda.shared.array((CHUNK, CHUNK), float32)
        u_tile = cuda.shared.array((FEATURE_DIM, COLS), float32)
        divisor = cuda.shared.array(CHUNK, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen = v.shape[0]

        for f in range(ty, FEATURE_DIM, CHUNK):
            u_tile[f, tx] = state[f, tx]
        for start in range(0, seqlen, CHUNK):
            m = start + ty  # this thread's token
            for f in range(tx, FEATURE_DIM, COLS):
                q_tile[ty, f] = phi_q[m, f] if m < seqlen else float32(0.0)
                k_tile[ty, f] = phi_k[m, f] if m < seqlen else float32(0.0)
            v_tile[ty, tx] = float32(1.0)
            if tx < HEAD_DIM:
                v_tile[ty, tx] = v[m, tx] if m < seqlen else float32(0.0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile, u_tile are complete: safe to read

            for n in range(tx, ty + 1, COLS):  # later tokens need no score
                s = float32(0.0)
                for f in range(FEATURE_DIM):
                    s += q_tile[ty, f] * k_tile[n, f]
                s_tile[ty, n] = s  # S = phi(Q) phi(K)^T
            cuda.syncthreads()  # s_tile is complete: safe to read

            y = read(q_tile, s_tile, v_tile, u_tile)
            if tx == HEAD_DIM:
                divisor[ty] = y
            cuda.syncthreads()  # divisor is complete, and everyone is done with the old state

            if m < seqlen and tx < HEAD_DIM:
                l = divisor[ty]
                out[m, tx] = y / l if l != float32(0.0) else float32(0.0)
            add(k_tile, v_tile, u_tile)
            cuda.syncthreads()  # everyone is done with the tiles: safe to overwrite
        for f in range(ty, FEATURE_DIM, CHUNK):
            state[f, tx] = u_tile[f, tx]

    return kernel


# Stub b4141ca2 of solutions/ex20b_chunked_form.py: `fa-numba reset ex20b` brings it back.
