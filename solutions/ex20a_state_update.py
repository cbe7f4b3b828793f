"""ex20a · The state: linear attention one token at a time

Causal linear attention of one head. Token m looks at the tokens 0 ... m, itself among them, and
weighs token n by phi_q[m] . phi_k[n], where softmax attention has exp(q[m] . k[n]). All that is
needed of the past is a sum, the state, with a column for each column of v and a last one for the
weights themselves, as though each v had a 1 at its end:

    state[f, c]        = sum over tokens n of phi_k[n, f] * v[n, c],   c < HEAD_DIM
    state[f, HEAD_DIM] = sum over tokens n of phi_k[n, f]

For each token, in order: add it to the state; then, with y[c] = sum over f of
phi_q[m, f] * state[f, c], its output is out[m, c] = y[c] / y[HEAD_DIM], or 0 if y[HEAD_DIM] is 0.

The kernel is given. Write add_and_read, which it calls: for one token n and one column c, the loop
over the features that adds the token to the column and returns y[c].

shapes    phi_q, phi_k (seqlen, feature_dim);  v, out (seqlen, HEAD_DIM);
          state (feature_dim, HEAD_DIM + 1).  All float32; seqlen, feature_dim, HEAD_DIM >= 1.
state     on entry it holds the tokens before (all 0 if there are none); on exit these as well.
launch    kernel[1, HEAD_DIM + 1](phi_q, phi_k, v, state, out): thread c owns column c of the state.
          HEAD_DIM is v.shape[1], at most 256, and HEAD_DIM + 1 need not be whole warps.
HBM       each token loads each element of the state once and stores it once, for feature_dim is
          not known when the kernel is compiled. v is loaded once, out stored once and never
          loaded. phi_q and phi_k may be read by every thread.
shared    one float, or a few, eight at most; no local array
features  may be of any sign and size, and all 0; so may the sums of weights be less than 0

About 6 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

from numba import cuda, float32

### KIND: fill a loop
### HINT 1: One loop over the features. In the same turn the thread updates its element of the state
### HINT 1: and takes it times phi_q.
### HINT 2: The token sees itself: y takes the new element, not the old one. Keep it in a variable,
### HINT 2: so that the state is loaded once.
### HINT 3: for f: u = state[f, c] + phi_k[n, f] * v_n; state[f, c] = u; y += phi_q[n, f] * u.
### DEBRIEF: This is decoding without a KV cache: the state does not grow, and a token costs the
### DEBRIEF: same whether it is the second or the millionth. For a whole prompt the kernel is poor:
### DEBRIEF: the state goes to HBM and back for each token, and every token waits for the one
### DEBRIEF: before.


@cuda.jit(device=True)
def add_and_read(phi_q, phi_k, state, n, c, v_n):
    """Add token n to column c of the state, then return y[c] of token n.

    v_n is v[n, c], or 1 in the last column.
    """
    ### BEGIN SOLUTION
    y = float32(0.0)
    for f in range(phi_k.shape[1]):
        u = state[f, c] + phi_k[n, f] * v_n  # U <- U + phi(k) v^T         eqs. 18, 19
        state[f, c] = u
        y += phi_q[n, f] * u  # phi(q)^T U                                 eq. 20
    return y
    ### END SOLUTION


@cuda.jit
def kernel(phi_q, phi_k, v, state, out):
    """Causal linear attention of one head, token by token.

    grid     (1,); threads (HEAD_DIM + 1,), one per column of the state
    shared   divisor (1,)
    private  y, one column of the output, not yet divided
    HBM      state once to and fro per token; v, out once
    paper    Transformers are RNNs, arXiv:2006.16236, equations 18 to 20
    """
    divisor = cuda.shared.array(1, float32)
    c = cuda.threadIdx.x
    head_dim = v.shape[1]
    for n in range(v.shape[0]):
        v_n = v[n, c] if c < head_dim else float32(1.0)
        y = add_and_read(phi_q, phi_k, state, n, c, v_n)
        if c == head_dim:
            divisor[0] = y
        cuda.syncthreads()  # divisor is complete: safe to read
        if c < head_dim:
            l = divisor[0]
            out[n, c] = y / l if l != float32(0.0) else float32(0.0)
        cuda.syncthreads()  # everyone is done with divisor: safe to overwrite
