"""Every operation of the package, defined in NumPy: no tiles, no tricks, inputs never changed.

A kernel is right when it agrees with this file. `dtype` is the precision of the computation.
float64 gives the definition. The other dtypes give the error that a kernel's error is compared
with: float32 that of plain NumPy code, float16 and bfloat16 that of a plain GPU program, which
computes in float32 and rounds every array of the size of q, k, v, S or P; lse remains float32.
"""

import numpy as np


def softmax(x, *, dtype=np.float64):
    """Softmax of each row.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols)
    dtype : default=float64

    Returns
    -------
    array of shape (num_rows, num_cols), dtype
        NaN in a row where all numbers are −inf: it has no softmax.
    """
    x = np.asarray(x, _computed_in(dtype))
    if x.shape[-1] == 0:
        return x.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # -inf - -inf; 2e38 - -2e38
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return (e / e.sum(axis=-1, keepdims=True)).astype(dtype)


def softmax_topk(x, k, *, dtype=np.float64):
    """The k largest values of each row's softmax, largest first.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols)
    k : int
    dtype : default=float64

    Returns
    -------
    values : array of shape (num_rows, k), dtype
        As from `softmax`.
    columns : integer array of shape (num_rows, k)
        Of equal x the smaller column comes first; a NaN ranks as −inf.
    """
    rank = np.where(np.isnan(x), -np.inf, x)
    columns = np.argsort(-rank, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(softmax(x, dtype=dtype), columns, axis=-1), columns


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    mask=None,
    score=None,
    sinks=None,
    dropout_p=0.0,
    seed=0,
    dtype=np.float64,
):
    """softmax(q kᵀ · softmax_scale) v, head by head.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim)
        Query head h uses key head h // (num_heads // num_kv_heads). Values may have another
        head_dim than queries and keys; out then has that of the values.
    causal : bool, default=False
        Query m sees no key beyond its own position, m + seqlen_k − seqlen_q: the last query has the
        position of the last key.
    window_size : (left, right), default=(-1, -1)
        Query m sees no key more than left before its position, or more than right after it;
        −1 is no limit.
    softcap : float, default=0.0
        A score s becomes softcap · tanh(s / softcap); 0 leaves it.
    alibi_slopes : array of shape (num_heads,), default=None
        A score of head h then loses alibi_slopes[h] · |position of the query − n|.
    softmax_scale : float, default=1/√head_dim
    mask : bool array that broadcasts to (batch, num_heads, seqlen_q, seqlen_k), or callable
        A query sees a key where it is true, if causal and window_size allow it too; a callable is
        ``mask(b, h, position of the query, n)``.
    score : callable, default=None
        ``score(s, b, h, position of the query, n)`` in place of a score s, after softcap and ALiBi.
    sinks : array of shape (num_heads,), default=None
        A further score of each row, with the value 0.
    dropout_p : float, default=0.0
        The softmax's entries are set to 0 where `dropout_mask` is False, the others divided by
        1 − dropout_p, with dropout_p rounded down to a multiple of 2⁻¹⁵; lse is that of the softmax
        before dropout.
    seed : int, default=0
    dtype : default=float64

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), dtype but at least float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    q, k, v = (_heads_first(x, _computed_in(dtype)) for x in (q, k, v))
    options = causal, window_size, softcap, alibi_slopes, softmax_scale, mask, score
    s, _ = _scores(q, k, dict(zip(SCORE_OPTIONS, options, strict=True)))
    sink = -np.inf if sinks is None else np.asarray(sinks, s.dtype)[:, None, None]
    m = _finite(np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sink))
    p = np.exp(s - m)
    l = p.sum(axis=-1, keepdims=True) + np.exp(sink - m)
    z = _dropout_factors(dropout_p, seed, s)
    pv = _rounded(p * z, dtype) @ _per_query_head(v, q)
    out = pv / np.where(l == 0, 1, l).astype(l.dtype)
    with np.errstate(divide="ignore"):  # log(0) = -inf is what we want
        lse = m + np.log(l)
    return _heads_first(out, dtype), lse[..., 0]


def cached_attention(q, k_cache, v_cache, seq_lens, *, dtype=np.float64, **options):
    """`attention` of each sequence's queries to the first seq_lens[b] keys of its cache.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k_cache, v_cache : arrays of shape (batch, max_len, num_kv_heads, head_dim)
    seq_lens : integer array of shape (batch,)
    dtype, **options
        As for `attention`.

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
    lse : array of shape (batch, num_heads, seqlen_q), dtype
        As from `attention`.
    """
    batch, seqlen_q, num_heads, _ = q.shape
    out = np.zeros((*q.shape[:3], v_cache.shape[3]), dtype)
    lse = np.zeros((batch, num_heads, seqlen_q), _computed_in(dtype))
    for b, n in enumerate(seq_lens):
        one = slice(b, b + 1)
        out[one], lse[one] = attention(
            q[one], k_cache[one, :n], v_cache[one, :n], dtype=dtype, **_of_sequence(b, options)
        )
    return out, lse


def latent_attention(
    q_nope,
    q_rope,
    latent,
    k_rope,
    w_uk,
    w_uv,
    *,
    absorbed=False,
    causal=False,
    softmax_scale=None,
    dtype=np.float64,
):
    """Multi-head latent attention (MLA): keys and values of all heads are products of one latent.

    The two forms are equal. The plain one has a key and a value for each head; the absorbed one
    multiplies queries and outputs by the matrices in their place, and all heads share one key,
    latent and k_rope, whose first columns are the value.

    Parameters
    ----------
    q_nope, q_rope : arrays of shape (batch, seqlen_q, num_heads, head_dim or rope_dim)
        The part of a query without a position, and the part that is rotated.
    latent, k_rope : arrays of shape (batch, seqlen_k, latent_dim or rope_dim)
        All that a cache has to keep of a token.
    w_uk, w_uv : arrays of shape (num_heads, latent_dim, head_dim)
        A head's key is latent @ w_uk and k_rope, its value is latent @ w_uv.
    absorbed : bool, default=False
    causal : bool, default=False
        As for `attention`.
    softmax_scale : float, default=1/√(head_dim + rope_dim)
        In both forms.
    dtype : default=float64

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
    lse : array of shape (batch, num_heads, seqlen_q), dtype but at least float32
        As from `attention`.
    """
    wide = _computed_in(dtype)
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = (
        np.asarray(x, wide) for x in (q_nope, q_rope, latent, k_rope, w_uk, w_uv)
    )
    if softmax_scale is None:
        softmax_scale = (q_nope.shape[3] + q_rope.shape[3]) ** -0.5
    options = {"causal": causal, "softmax_scale": softmax_scale, "dtype": dtype}
    if absorbed:
        q = np.concatenate([np.einsum("bmhd,hcd->bmhc", q_nope, w_uk), q_rope], axis=3)
        k = np.concatenate([latent, k_rope], axis=2)
        out, lse = attention(q, k[:, :, None], latent[:, :, None], **options)
        return np.einsum("bmhc,hcd->bmhd", out.astype(wide), w_uv).astype(dtype), lse
    k, v = (np.einsum("bnc,hcd->bnhd", latent, w) for w in (w_uk, w_uv))
    of_heads = np.broadcast_to(k_rope[:, :, None], (*k.shape[:3], k_rope.shape[2]))
    q = np.concatenate([q_nope, q_rope], axis=3)
    return attention(q, np.concatenate([k, of_heads], axis=3), v, **options)


def varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, *, dtype=np.float64, **options):
    """`attention` of each sequence of a packed batch to its own keys.

    Parameters
    ----------
    q : array of shape (num_tokens_q, num_heads, head_dim)
    k, v : arrays of shape (num_tokens_k, num_kv_heads, head_dim)
    cu_seqlens_q, cu_seqlens_k : integer arrays of shape (batch + 1,)
        Sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1] − 1.
    dtype, **options
        As for `attention`.

    Returns
    -------
    out : array of shape (num_tokens_q, num_heads, head_dim), dtype
    lse : array of shape (num_heads, num_tokens_q), dtype
        As from `attention`.
    """
    num_tokens_q, num_heads, _ = q.shape
    out = np.zeros((*q.shape[:2], v.shape[2]), dtype)
    lse = np.zeros((num_heads, num_tokens_q), _computed_in(dtype))
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(*cu[b : b + 2]) for cu in (cu_seqlens_q, cu_seqlens_k))
        one = q[None, rows], k[None, keys], v[None, keys]
        one = attention(*one, dtype=dtype, **_of_sequence(b, options))
        out[rows], lse[:, rows] = (x[0] for x in one)
    return out, lse


def paged_attention(q, k_cache, v_cache, block_table, seq_lens, **options):
    """`cached_attention` to the keys that `paged_kv_lookup` finds.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k_cache, v_cache, block_table, seq_lens
        As for `paged_kv_lookup`.
    **options
        Those of `cached_attention`.

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
    lse : array of shape (batch, num_heads, seqlen_q), dtype
        As from `attention`.
    """
    k, v = paged_kv_lookup(k_cache, v_cache, block_table, seq_lens)
    return cached_attention(q, k, v, seq_lens, **options)


def feature_map(x, name, w=None, *, dtype=np.float64):
    """φ(x), whose products φ(q)·φ(k) are the weights of linear attention.

    Parameters
    ----------
    x : array of shape (batch, seqlen, num_heads, head_dim)
    name : "elu1", "relu", "taylor2" or "hedgehog"
        elu(x) + 1; max(x, 0); 1, x / d^¼ and x xᵀ / √(2d); e^(x w).
    w : array of shape (num_heads, head_dim, num_features), default=None
    dtype : default=float64

    Returns
    -------
    array of shape (batch, seqlen, num_heads, feature_dim), dtype
    """
    x = np.asarray(x, _computed_in(dtype))
    match name:
        case "elu1":
            phi = np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
        case "relu":
            phi = np.maximum(x, 0)
        case "taylor2":
            x = x * x.dtype.type(x.shape[-1] ** -0.25)
            pairs = x[..., :, None] * x[..., None, :] * x.dtype.type(0.5**0.5)
            pairs = pairs.reshape(*x.shape[:3], x.shape[-1] ** 2)
            phi = np.concatenate([np.ones((*x.shape[:3], 1), x.dtype), x, pairs], axis=-1)
        case "hedgehog":
            phi = np.exp(np.einsum("bnhd,hdf->bnhf", x, np.asarray(w, x.dtype)))
    return phi.astype(dtype)


def linear_attn(
    q, k, v, *, feature_map="elu1", causal=False, weights=None, state=None, dtype=np.float64
):
    """The mean of v with weights φ(q)·φ(k), head by head.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim)
    feature_map : as for `feature_map`, default="elu1"
    causal : bool, default=False
        Query m sees the keys up to m; seqlen_q == seqlen_k.
    weights : pair of arrays (w_q, w_k), default=None
        For "hedgehog".
    state : array of shape (batch, num_kv_heads, feature_dim, head_dim + 1), default=0
        The state that an earlier call returned: its tokens are seen by every query.
    dtype : default=float64

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
        0 where the weights sum to 0.
    state : array of shape (batch, num_kv_heads, feature_dim, head_dim + 1), at least float32
        Σ φ(k) vᵀ, with Σ φ(k) as its last column.
    """
    w_q, w_k = (None, None) if weights is None else weights
    compute = _computed_in(dtype)
    phi_q, phi_k = (
        _heads_first(_features(x, feature_map, w, dtype=dtype), compute)
        for x, w in ((q, w_q), (k, w_k))
    )
    v = _heads_first(v, compute)
    v = np.concatenate([v, np.ones((*v.shape[:3], 1), compute)], axis=-1)
    s = _rounded(phi_q @ _per_query_head(phi_k, phi_q).mT, dtype)
    total = (np.tril(s) if causal else s) @ _per_query_head(v, phi_q)
    new_state = phi_k.mT @ v
    if state is not None:
        state = np.asarray(state, compute)
        total = total + phi_q @ _per_query_head(state, phi_q)
        new_state = new_state + state
    l = total[..., -1:]
    return _heads_first(total[..., :-1] / np.where(l == 0, 1, l).astype(compute), dtype), new_state


_features = feature_map  # linear_attn has an argument of that name


def merge_states(out_a, lse_a, out_b, lse_b, *, dtype=np.float64):
    """Combine the results of `attention` for two sets of keys into the result for all of them.

    Parameters
    ----------
    out_a, out_b : arrays of shape (batch, seqlen_q, num_heads, head_dim)
    lse_a, lse_b : arrays of shape (batch, num_heads, seqlen_q)
        −inf where a set has no keys; its out is ignored there.
    dtype : default=float64

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, head_dim), dtype
    lse : array of shape (batch, num_heads, seqlen_q), dtype
        As from `attention`.
    """
    lse_a, lse_b = (np.asarray(x, _computed_in(dtype)) for x in (lse_a, lse_b))
    m = _finite(np.maximum(lse_a, lse_b))
    w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)
    total = w_a + w_b
    out = np.zeros(out_a.shape, lse_a.dtype)
    for x, lse_x, w in ((out_a, lse_a, w_a), (out_b, lse_b, w_b)):
        share = w / np.where(total == 0, 1, total)
        share, empty = (y.mT[..., None] for y in (share, lse_x == -np.inf))
        out += share * np.where(empty, 0, x)
    with np.errstate(divide="ignore"):  # log(0) = -inf is what we want
        return out.astype(dtype), m + np.log(total)


def attention_bwd(
    dout,
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    mask=None,
    score=None,
    sinks=None,
    dropout_p=0.0,
    seed=0,
    state=None,
    dtype=np.float64,
):
    """Gradients of sum(dout ∘ out) with respect to q, k and v.

    P is computed from lse, and delta from out, as in every backward pass that has not stored P. In
    float32 the error of that computation is the one to compare a kernel's error with.

    Parameters
    ----------
    dout : array of the shape of out
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, score, sinks, \
    dropout_p, seed, dtype
        As for `attention`.
    state : (out, lse), default=those of `attention`
        Where k and v are some of the keys and values, those of attention to all of them. Then dq
        is the part that these keys give.

    Returns
    -------
    dq, dk, dv : arrays with the shapes of q, k and v, dtype
        0 for a row that sees no key and for a key that no row sees.
    dsinks : array of shape (num_heads,), dtype
        With sinks alone.
    """
    options = {
        "causal": causal,
        "window_size": window_size,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
        "mask": mask,
        "score": score,
    }
    if state is None:
        state = attention(
            q, k, v, **options, sinks=sinks, dropout_p=dropout_p, seed=seed, dtype=dtype
        )
    out, lse = state
    dout, q, k, v, out = (_heads_first(x, _computed_in(dtype)) for x in (dout, q, k, v, out))
    s, slope = _scores(q, k, options, with_slope=True)
    p = _rounded(np.exp(s - _finite(lse)[..., None]), dtype)
    z = _dropout_factors(dropout_p, seed, s)
    dp = dout @ _per_query_head(v, q).mT * z
    delta = np.sum(dout * out, axis=-1, keepdims=True)
    ds = _rounded(p * (dp - delta) * slope * _scale(q, softmax_scale), dtype)
    dq = ds @ _per_query_head(k, q)
    dk = _sum_over_group(ds.mT @ q, k)
    dv = _sum_over_group((p * z).mT @ dout, v)
    gradients = tuple(_heads_first(x, dtype) for x in (dq, dk, dv))
    if sinks is None:
        return gradients
    of_sink = np.exp(np.asarray(sinks, s.dtype)[:, None] - lse) * delta[..., 0]
    return *gradients, _rounded(-of_sink.sum(axis=(0, 2)), dtype)


def varlen_attention_bwd(dout, q, k, v, cu_seqlens_q, cu_seqlens_k, *, dtype=np.float64, **options):
    """`attention_bwd` of each sequence of a packed batch.

    Parameters
    ----------
    dout : array of the shape of out
    q, k, v, cu_seqlens_q, cu_seqlens_k, dtype, **options
        As for `varlen_attention`.

    Returns
    -------
    dq, dk, dv : arrays with the shapes of q, k and v, dtype
    dsinks : array of shape (num_heads,), dtype
        As from `attention_bwd`.
    """
    dq, dk, dv = (np.zeros(x.shape, dtype) for x in (q, k, v))
    dsinks = [] if options.get("sinks") is None else [np.zeros(q.shape[1], dtype)]
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(*cu[b : b + 2]) for cu in (cu_seqlens_q, cu_seqlens_k))
        one = (dout[None, rows], q[None, rows], k[None, keys], v[None, keys])
        (*gradients,) = attention_bwd(*one, dtype=dtype, **_of_sequence(b, options))
        dq[rows], dk[keys], dv[keys] = (x[0] for x in gradients[:3])
        for total, of_sequence in zip(dsinks, gradients[3:], strict=True):
            total += of_sequence
    return dq, dk, dv, *dsinks


def philox(counter, key, rounds=10):
    """Philox4x32 of Salmon et al. 2011: random bits that are a function of two numbers.

    Parameters
    ----------
    counter : four integers or integer arrays, from 0 to 2³² − 1
    key : two integers from 0 to 2³² − 1
    rounds : int, default=10
        Ten are the paper's choice; seven, the fewest that pass its tests, draw `dropout_mask`.

    Returns
    -------
    four uint64 arrays of 32 random bits each
    """
    x0, x1, x2, x3 = (np.asarray(x, np.uint64) for x in counter)
    low = np.uint64(2**32 - 1)
    for i in range(rounds):
        k0, k1 = ((k + i * w) % 2**32 for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        a, b = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & low, (a >> 32) ^ x3 ^ k1, a & low
    return x0, x1, x2, x3


def dropout_mask(seed, p, batch, num_heads, seqlen_q, seqlen_k):
    """Return where dropout keeps an entry of P: where its 15 random bits are at least p · 2¹⁵.

    Parameters
    ----------
    seed : int
        The generator's key, from 0 to 2⁶⁴ − 1.
    p : float
        The probability of being dropped, 0 <= p < 1; p · 2¹⁵ is rounded down.
    batch, num_heads, seqlen_q, seqlen_k : int

    Returns
    -------
    bool array of shape (batch, num_heads, seqlen_q, seqlen_k)
        Entry [b, h, m, n] depends on seed, p, b, h, m, n alone. With m = 16 M + 8 m' + μ and
        n = 16 N + 8 n' + 2 ν + c, its bits are the low 15 of half c of word 2 n' + m' of `philox`
        in seven rounds, with the counter (4 N + ν, 8 M + μ, h, b).
    """
    n_tiles, m_tiles = -(-seqlen_k // 16), -(-seqlen_q // 16)
    shape = batch, num_heads, 8 * m_tiles, 4 * n_tiles
    counter = np.indices(shape, sparse=True)[::-1]
    words = philox(counter, (seed % 2**32, seed // 2**32), rounds=7)
    words = np.stack([np.broadcast_to(x, shape) for x in words])
    bits = np.stack([words, words >> np.uint64(16)]) & np.uint64(2**15 - 1)
    bits = bits.reshape(2, 2, 2, batch, num_heads, m_tiles, 8, n_tiles, 4)  # c, n', m', ...
    bits = bits.transpose(3, 4, 5, 2, 6, 7, 1, 8, 0)
    bits = bits.reshape(batch, num_heads, 16 * m_tiles, 16 * n_tiles)
    return bits[:, :, :seqlen_q, :seqlen_k] >= int(p * 2**15)


def dense_mask(block_mask, block_m, block_n, seqlen_q, seqlen_k):
    """Expand a mask of tiles to the mask of single scores that `attention` takes.

    Parameters
    ----------
    block_mask : bool array of shape (⌈seqlen_q / block_m⌉, ⌈seqlen_k / block_n⌉)
    block_m, block_n, seqlen_q, seqlen_k : int

    Returns
    -------
    bool array of shape (seqlen_q, seqlen_k)
    """
    rows = np.repeat(block_mask, block_m, axis=0)[:seqlen_q]
    return np.repeat(rows, block_n, axis=1)[:, :seqlen_k]


def paged_kv_lookup(k_cache, v_cache, block_table, seq_lens, *, max_len=None):
    """Gather the pages of each sequence to dense keys and values.

    Parameters
    ----------
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
    block_table : integer array of shape (batch, max_pages)
        Page of token t of sequence b: block_table[b, t // page_size].
    seq_lens : integer array of shape (batch,)
    max_len : int, default=max(seq_lens)

    Returns
    -------
    k, v : arrays of shape (batch, max_len, num_kv_heads, head_dim), dtype of the caches
        0 past the end of a sequence.
    """
    if max_len is None:
        max_len = max(seq_lens, default=0)
    page_size, size = k_cache.shape[1], (len(seq_lens), max_len)
    k, v = (np.zeros((*size, *x.shape[2:]), x.dtype) for x in (k_cache, v_cache))
    for b, seq_len in enumerate(seq_lens):
        for t in range(seq_len):
            page, offset = block_table[b, t // page_size], t % page_size
            k[b, t] = k_cache[page, offset]
            v[b, t] = v_cache[page, offset]
    return k, v


def reshape_and_cache(k, v, k_cache, v_cache, slot_mapping):
    """Return the caches with the keys and values of new tokens in their slots.

    Parameters
    ----------
    k, v : arrays of shape (num_tokens, num_kv_heads, head_dim)
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
    slot_mapping : integer array of shape (num_tokens,)
        page · page_size + offset; −1 for a token that is not written.

    Returns
    -------
    k_cache, v_cache : arrays of the same shapes and dtypes
    """
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    page_size = k_cache.shape[1]
    for i, slot in enumerate(slot_mapping):
        if slot != -1:
            page, offset = slot // page_size, slot % page_size
            k_cache[page, offset], v_cache[page, offset] = k[i], v[i]
    return k_cache, v_cache


def swap_pages(k_src, v_src, k_dst, v_dst, src, dst):
    """Return the destination caches with page src[i] of the source caches as page dst[i].

    `copy_pages` is this function with one pair of caches as source and destination.

    Parameters
    ----------
    k_src, v_src, k_dst, v_dst : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
    src, dst : integer arrays of shape (num_copies,)

    Returns
    -------
    k_dst, v_dst : arrays of the same shapes and dtypes
    """
    k, v = k_dst.copy(), v_dst.copy()
    for page_src, page_dst in zip(src, dst, strict=True):
        k[page_dst], v[page_dst] = k_src[page_src], v_src[page_src]
    return k, v


def _computed_in(dtype):
    """The dtype of the computation: float32 for numbers that are stored in 16 bits."""
    return np.result_type(dtype, np.float32).type


def _rounded(x, dtype):
    """Round an intermediate result, as a program does that stores it in an array of a dtype."""
    return x.astype(dtype).astype(x.dtype)


def _heads_first(x, dtype):
    """(batch, seqlen, heads, head_dim) to (batch, heads, seqlen, head_dim), and back."""
    return np.asarray(x, dtype).transpose(0, 2, 1, 3)


SCORE_OPTIONS = (
    "causal", "window_size", "softcap", "alibi_slopes", "softmax_scale", "mask", "score",
)  # fmt: skip


def _scores(q, k, options, with_slope=False):
    """Return S, and the derivative of each score by q·k · softmax_scale: 1 without softcap, score.

    Both have shape (batch, num_heads, seqlen_q, seqlen_k). S is −inf where a query does not see a
    key. The derivative of `score` takes two more calls for each pair: it counts with `with_slope`.
    """
    defaults = {"window_size": (-1, -1), "softcap": 0.0}
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, score = (
        options.get(name, defaults.get(name)) for name in SCORE_OPTIONS
    )
    s = q @ _per_query_head(k, q).mT * _scale(q, softmax_scale)
    slope = np.ones_like(s)
    if softcap:
        cap = s.dtype.type(softcap)
        t = np.tanh(s / cap)
        s, slope = cap * t, 1 - t * t
    seqlen_q, seqlen_k = s.shape[2:]
    position = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    ahead = np.arange(seqlen_k) - position  # how far a key is beyond the query's position
    if alibi_slopes is not None:
        s -= np.asarray(alibi_slopes, s.dtype)[:, None, None] * abs(ahead).astype(s.dtype)
    if score is not None:
        s, of_score = _modified(s, score, with_slope)
        slope = slope * of_score
    left, right = window_size
    hidden = (bool(causal) & (ahead > 0)) | ((left >= 0) & (-ahead > left))
    s[..., hidden | ((right >= 0) & (ahead > right))] = -np.inf
    if mask is not None:
        mask = np.vectorize(mask, [bool])(*_pairs(s)) if callable(mask) else mask
        s = np.where(mask, s, s.dtype.type(-np.inf))
    return s, slope


def _pairs(s):
    """The indices b, h, position of the query, n of all scores."""
    b, h, m, n = np.ogrid[tuple(map(slice, s.shape))]
    return np.broadcast_arrays(b, h, m + s.shape[3] - s.shape[2], n)


def _of_sequence(b, options):
    """The options of `attention` to sequence b alone: functions are called with its number."""
    options, mask, score = dict(options), options.get("mask"), options.get("score")
    if callable(mask):
        options["mask"] = lambda _, h, m, n: mask(b, h, m, n)
    if score is not None:
        options["score"] = lambda s, _, h, m, n: score(s, b, h, m, n)
    return options


def _modified(s, score, with_slope):
    """All scores as a function changes them, pair by pair, and its derivative by differences."""
    # As float64, not Python's float: that plus a float32 of the user's would be a float32.
    of_pairs = np.vectorize(lambda s, *pair: score(np.float64(s), *pair), [float])
    step = 1e-5
    s, *pairs = s.astype(np.float64), *_pairs(s)
    if not with_slope:
        return of_pairs(s, *pairs), 1.0
    slope = (of_pairs(s + step, *pairs) - of_pairs(s - step, *pairs)) / (2 * step)
    return of_pairs(s, *pairs), slope


def _dropout_factors(dropout_p, seed, s):
    """The factor of each entry of P under dropout: 0, or 1 / (1 − the true probability)."""
    if dropout_p == 0:
        return s.dtype.type(1)
    kept = 1 - int(dropout_p * 2**15) / 2**15
    return dropout_mask(seed, dropout_p, *s.shape) * s.dtype.type(1 / kept)


def _finite(x):
    """Replace −inf by 0: a row that sees no key then gets e^(−inf − 0) = 0 in place of NaN."""
    return np.where(x == -np.inf, 0, x).astype(x.dtype)


def _scale(q, softmax_scale):
    return q.dtype.type(q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)


def _per_query_head(x, q):
    """Each key head, once for each of the query heads that share it."""
    batch, num_kv_heads, *shape = x.shape
    if num_kv_heads == 1:  # shared by all: 128 copies of a latent cache would be gigabytes
        return np.broadcast_to(x, (batch, q.shape[1], *shape))
    return np.repeat(x, q.shape[1] // num_kv_heads, axis=1)


def _sum_over_group(dx, x):
    """Sum the gradients of the query heads that share a key head."""
    batch, num_heads, seqlen, head_dim = dx.shape
    num_kv_heads = x.shape[1]
    return dx.reshape(batch, num_kv_heads, num_heads // num_kv_heads, seqlen, head_dim).sum(axis=2)
