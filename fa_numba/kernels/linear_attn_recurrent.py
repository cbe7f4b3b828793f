"""Linear attention as a recurrence, token by token.

recurrent   the state goes to HBM and back once per token   one token at a time   <- this file
chunked     the state goes there once per chunk of tokens   matrix products

With φ(q)·φ(k) instead of e^(q·k/√d), the sums over the keys do not depend on the query:

    out_m = Σ φ(q_m)·φ(k_n) v_n / Σ φ(q_m)·φ(k_n) = φ(q_m)ᵀ U_m / φ(q_m)ᵀ Z_m       n = 0 ... m
    U_m = U_{m-1} + φ(k_m) v_mᵀ        Z_m = Z_{m-1} + φ(k_m)

U and Z hold everything that later tokens need of the past: a KV cache that does not grow. Here Z is
the last column of U, as if each v had a 1 at its end; so the denominator is computed with the
numerators.

Decoding takes one such step for each token. Over a whole prompt these steps are slow, because each
one moves the state and waits for the one before; linear_attn.py is faster there.

Paper: Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 3.4.
"""

import functools

from numba import cuda, float32

from fa_numba.constants import WARP_SIZE
from fa_numba.kernels.kahan import kahan_add
from fa_numba.tiling.block_sizes import ceil_div


def recurrent_threads(head_dim):
    """Threads of a thread block: one per column of the state, in whole warps."""
    return ceil_div(head_dim + 1, WARP_SIZE) * WARP_SIZE


@functools.cache
def make_recurrent(HEAD_DIM, GROUP_SIZE):
    """The kernel for these compile-time constants: launch it with recurrent_threads(HEAD_DIM)."""

    @cuda.jit
    def recurrent_kernel(phi_q, phi_k, v, state_in, state, out):
        """A thread block owns the state of one K/V head, each thread one column of it.

        grid      (num_kv_heads, batch); threads (HEAD_DIM + 1,), in whole warps
        shared    divisor (GROUP_SIZE,): one for each query head that shares the state
        private   acc, rounded_up (GROUP_SIZE,): one column of out for each of them
        HBM       state read and written once per token; state_in, v, out once; phi_q, phi_k in
                  every thread
        paper     Transformers are RNNs, equations 18 to 20
        budget    64 registers, 4 bytes shared (HEAD_DIM=64, GROUP_SIZE=1)
        """
        divisor = cuda.shared.array(GROUP_SIZE, float32)
        acc = cuda.local.array(GROUP_SIZE, float32)
        rounded_up = cuda.local.array(GROUP_SIZE, float32)  # by the sum: features may be thousands
        col = cuda.threadIdx.x
        kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y
        feature_dim = phi_k.shape[3]

        if col <= HEAD_DIM:
            for f in range(feature_dim):
                state[b, kv_head, f, col] = state_in[b, kv_head, f, col]

        for n in range(phi_k.shape[1]):
            for g in range(GROUP_SIZE):
                acc[g] = rounded_up[g] = float32(0.0)
            if col <= HEAD_DIM:
                v_n = float32(v[b, n, kv_head, col]) if col < HEAD_DIM else float32(1.0)
                for f in range(feature_dim):
                    # U <- U + φ(k) vᵀ                                                   eqs. 18, 19
                    u = state[b, kv_head, f, col] + phi_k[b, n, kv_head, f] * v_n
                    state[b, kv_head, f, col] = u
                    for g in range(GROUP_SIZE):
                        x = phi_q[b, n, kv_head * GROUP_SIZE + g, f] * u
                        acc[g], rounded_up[g] = kahan_add(acc[g], rounded_up[g], x)
            if col == HEAD_DIM:
                for g in range(GROUP_SIZE):
                    divisor[g] = acc[g]
            cuda.syncthreads()  # divisor is complete: safe to read
            if col < HEAD_DIM:
                for g in range(GROUP_SIZE):
                    l = divisor[g]  # 0 where φ(q) and φ(k) have no feature in common
                    x = acc[g] / l if l != float32(0.0) else float32(0.0)
                    out[b, n, kv_head * GROUP_SIZE + g, col] = x
            cuda.syncthreads()  # everyone is done with divisor: safe to overwrite

    return recurrent_kernel
