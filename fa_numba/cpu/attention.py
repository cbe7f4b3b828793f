"""The jobs on NumPy arrays: checks, then the threads, then the results.

Every forward job is one compiled function, `forward.forward`: a packed batch is sequences that
begin elsewhere, a cache is keys of which the first seq_lens[b] count, and pages are looked up while
a tile is filled. Keys, values and results are never copied whole.
"""

import functools
from typing import NamedTuple

import numba
import numpy as np

from fa_numba import checks
from fa_numba.cpu import backward, decode, dropout, expressions, forward, plans, threads
from fa_numba.cpu.tiles import BLOCK_M, BLOCK_N, MAX_HEAD_DIM, WIDTH
from fa_numba.cpu.vectors import E4M3, FLOAT32, ROWS, kind_of
from fa_numba.tiling.block_sizes import ceil_div

NO_LIMIT = 2**40  # keys; a position and this are still an int64
NO_SLOPES = np.empty(0, np.float32)
NO_SCALES = None, None
NO_PAGES = np.empty((0, 0), np.int32), 0  # table, page_size
FEW_QUERIES = 16  # of a sequence: fewer fill less than half a panel of `forward`
LEAST_BYTES = 2**22  # of keys and values in a part, where they are split: some 200 µs
TASKS_PER_THREAD = 4  # at least, for threads that begin late or are interrupted


@checks.takes(checks.SCORES)
def flash_attn(q, k, v, *, dropout_p=0.0, seed=0, sinks=None, **options):
    """Attention of NumPy arrays, compiled for the CPU.

    Parameters
    ----------
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, mask, \
    mask_args, score, score_args, sinks
        As for `flash_attn_v2`; the same entries are dropped.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    user, given, slopes = _read(q, **options)
    plan = _forward_plan(q, k, v, numba.get_num_threads(), dropout_p, seed, *given)
    batch, seqlen_q, num_heads, _ = q.shape
    lse = np.empty((batch, num_heads, seqlen_q), np.float32)
    return _forward(q, k, v, lse, slopes, user, _sinks(q, sinks), *plan)


@checks.takes(checks.SCORES)
def flash_attn_grad(
    dout, q, k, v, out, lse, *, dropout_p=0.0, seed=0, deterministic=False, sinks=None,
    score_args_grad=False, **options,
):  # fmt: skip
    """Gradients of attention of NumPy arrays, compiled for the CPU.

    Parameters
    ----------
    dout, q, k, v, out, lse, causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, \
    seed, mask, mask_args, score, score_args, sinks, score_args_grad
        As for `fa_numba.flash_attn_grad`.
    deterministic : bool, default=False
        Nothing changes: with as many threads the bits are the same in every run.

    Returns
    -------
    dq, dk, dv, dsinks, dscore_args
        As of `fa_numba.flash_attn_grad`.
    """
    of_score = _of_score(score_args_grad, **options)
    user, given, slopes = _read(q, **options)
    inputs, dropout = (dout, q, k, v, out, lse), (dropout_p, seed)
    plan = _backward_plan(*inputs, numba.get_num_threads(), *dropout, deterministic, *given)
    return _backward(*inputs, slopes, user, sinks, *of_score, *plan)


@checks.takes(checks.SCORES)
def flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, sinks=None, **options):
    """Attention of a packed batch of NumPy arrays, compiled for the CPU.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, alibi_slopes, \
    softmax_scale, mask, mask_args, score, score_args, sinks
        As for `fa_numba.flash_attn_varlen`.

    Returns
    -------
    out, lse : arrays
        As of `fa_numba.flash_attn_varlen`.
    """
    checks.check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, head_dims=checks.ANY_HEAD_DIMS)
    user, given, slopes = _read(q, **options)
    tiles = _tiles(_packed(cu_seqlens_q, cu_seqlens_k), q.shape[1], numba.get_num_threads())
    lse = np.empty((q.shape[1], q.shape[0]), np.float32)
    arrays = (x[None] for x in (q, k, v, lse))
    more = user, _sinks(q, sinks), tiles, _options(q, *given)
    out, lse = _forward(*arrays, slopes, *more)
    return out[0], lse[0]


@checks.takes(checks.SCORES)
def flash_attn_varlen_grad(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *, deterministic=False, sinks=None,
    score_args_grad=False, **options,
):  # fmt: skip
    """Gradients of `flash_attn_varlen`.

    Parameters
    ----------
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, \
    alibi_slopes, softmax_scale, mask, mask_args, score, score_args, sinks, score_args_grad
        As for `fa_numba.flash_attn_varlen_grad`.
    deterministic : bool, default=False
        As for `flash_attn_grad`.

    Returns
    -------
    dq, dk, dv, dsinks, dscore_args
        As of `fa_numba.flash_attn_grad`.
    """
    given = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    checks.check_varlen_bwd(*given, head_dims=checks.ANY_HEAD_DIMS)
    of_score = _of_score(score_args_grad, **options)
    user, given, slopes = _read(q, **options)
    options = _options(q, *given)
    checks.check_flag("deterministic", deterministic)
    sequences = _packed(cu_seqlens_q, cu_seqlens_k)
    arrays = [x[None] for x in (dout, q, k, v, out, lse)]
    parts = _key_parts(sequences, *arrays[1:4], numba.get_num_threads())
    dq, dk, dv, *more = _backward(*arrays, slopes, user, sinks, *of_score, parts, options)
    return dq[0], dk[0], dv[0], *more


@checks.takes(checks.SCORES)
def flash_decode(q, k_cache, v_cache, seq_lens, *, k_scale=None, v_scale=None, **options):
    """Attention of a few new queries to a contiguous cache in NumPy arrays, compiled for the CPU.

    Parameters
    ----------
    q, k_cache, v_cache, seq_lens, causal, window_size, softcap, alibi_slopes, softmax_scale, \
    mask, mask_args, score, score_args, sinks, k_scale, v_scale
        As for `fa_numba.flash_decode`.

    Returns
    -------
    out, lse : arrays
    """
    _check_decode(q, k_cache, v_cache, seq_lens, k_scale, v_scale)
    checks.check_decode_contents(seq_lens, k_cache)
    return _cached(q, k_cache, v_cache, seq_lens, scales=(k_scale, v_scale), **options)


@checks.takes(checks.SCORES)
def paged_attn_decode(
    q, k_cache, v_cache, block_table, seq_lens, *, k_scale=None, v_scale=None, **options
):
    """Attention of a few new queries to a paged cache in NumPy arrays, compiled for the CPU.

    Parameters
    ----------
    q, k_cache, v_cache, block_table, seq_lens, causal, window_size, softcap, alibi_slopes, \
    softmax_scale, mask, mask_args, score, score_args, sinks, k_scale, v_scale
        As for `fa_numba.paged_attn_decode`.

    Returns
    -------
    out, lse : arrays
    """
    _check_paged_decode(q, k_cache, v_cache, block_table, seq_lens, k_scale, v_scale)
    checks.check_paged_decode_contents(block_table, seq_lens, k_cache)
    pages = np.array(block_table, order="C"), k_cache.shape[1]
    return _cached(q, k_cache, v_cache, seq_lens, pages, (k_scale, v_scale), **options)


def _read(
    q, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, softmax_scale=None,
    mask=None, mask_args=(), score=None, score_args=(),
):  # fmt: skip
    """A user's mask and score as `Given`, or None; the options that are not in them; the slopes.

    Parameters
    ----------
    q, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args
        As for `flash_attn`.
    """
    options = causal, window_size, softcap, alibi_slopes
    if mask is None and score is None and type(mask_args) is type(score_args) is tuple:
        if not mask_args + score_args:
            return None, (*options, softmax_scale), alibi_slopes
    known, _ = checks.check_mask(q, *options)
    given = checks.check_expressions(q, mask, mask_args, score, score_args, known, alibi_slopes)
    if given is None:
        return None, (*options, softmax_scale), alibi_slopes
    same = checks.as_options(given, known, score, score_args)
    if same is not None:
        return None, (*same[:3], alibi_slopes, softmax_scale), alibi_slopes
    return given, (False, (-1, -1), 0.0, None, softmax_scale), None


def _of_score(score_args_grad, *, score_args=(), **others):
    """Arguments of `_backward`: the arrays that a score reads, and whether to derive by them."""
    return score_args, checks.check_flag("score_args_grad", score_args_grad)


def _prepared(user, *sizes, **more):
    """As from `expressions.prepared`; no arrays without a mask and a score."""
    return (expressions.NO_USER, ()) if user is None else expressions.prepared(user, *sizes, **more)


def _sinks(q, sinks):
    """Sinks as the functions are compiled for: contiguous, writable, float32."""
    return NO_SLOPES if sinks is None else np.array(checks.check_sinks(q, sinks)[0])


@plans.kept
def _forward_plan(q, k, v, num_threads, dropout_p, seed, *given):
    """Arguments of `_forward` that are no arrays: tiles, options, drops.

    Parameters
    ----------
    q, k, v, dropout_p, seed
        As for `flash_attn`.
    num_threads : int
        To divide the work for.
    *given
        The arguments of `_options` after q.
    """
    checks.check_qkv(q, k, v, head_dims=checks.ANY_HEAD_DIMS)
    options = _options(q, *given)
    drops = dropout.options(dropout_p, seed)
    batch, seqlen_q, num_heads, _ = q.shape
    return _tiles(_equal(batch, seqlen_q, k.shape[1]), num_heads, num_threads), options, drops


@plans.kept
def _backward_plan(dout, q, k, v, out, lse, num_threads, dropout_p, seed, deterministic, *given):
    """Arguments of `_backward` that are no arrays: key_parts, options, drops.

    Parameters
    ----------
    dout, q, k, v, out, lse, dropout_p, seed, deterministic
        As for `flash_attn_grad`.
    num_threads, *given
        As for `_forward_plan`.
    """
    checks.check_bwd(dout, q, k, v, out, lse, head_dims=checks.ANY_HEAD_DIMS)
    options = _options(q, *given)
    drops = dropout.options(dropout_p, seed)
    checks.check_flag("deterministic", deterministic)
    sequences = _equal(q.shape[0], q.shape[1], k.shape[1])
    return _key_parts(sequences, q, k, v, num_threads), options, drops


_check_decode, _check_paged_decode = (
    plans.kept(functools.partial(check, head_dims=checks.ANY_HEAD_DIMS))
    for check in (checks.check_decode_layouts, checks.check_paged_decode_layouts)
)


@plans.kept
def _options(q, causal, window_size, softcap, alibi_slopes, softmax_scale):
    """left, right, scale, softcap: arguments of the compiled functions, before the slopes."""
    mask, _ = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    causal, (left, right), softcap, _ = mask
    scale = checks.check_softmax_scale(softmax_scale, q.shape[-1])
    left = NO_LIMIT if left < 0 else left
    right = 0 if causal else NO_LIMIT if right < 0 else right
    return left, right, scale, np.float32(softcap)


def _slopes(alibi_slopes):
    """Slopes as the functions are compiled for: contiguous and writable."""
    return NO_SLOPES if alibi_slopes is None else np.array(alibi_slopes)


def _equal(batch, seqlen_q, seqlen_k):
    """First query, number of queries, first key, number of keys, of each sequence of a batch."""
    sequences = np.zeros((batch, 4), np.int64)
    sequences[:, 1], sequences[:, 3] = seqlen_q, seqlen_k
    return sequences


def _packed(cu_seqlens_q, cu_seqlens_k):
    """As `_equal`, of a packed batch."""
    bounds = [np.asarray(cu, np.int64) for cu in (cu_seqlens_q, cu_seqlens_k)]
    return np.stack([part for cu in bounds for part in (cu[:-1], np.diff(cu))], axis=1)


def _before(sizes):
    """The sum of all sizes before each, and that of all at the end."""
    sums = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=sums[1:])
    return sums


def _layout(x):
    """Address of an array, and its strides in bytes but for the last."""
    return (x.__array_interface__["data"][0], _batch_stride(x), *x.strides[1:3])


def _scale_layout(scale):
    """As `_layout`, of the scales of a cache: a head's alone are the same for each token."""
    if scale is None:
        return 0, 0, 0, 0
    if scale.ndim == 3:
        return _layout(scale)
    return scale.__array_interface__["data"][0], 0, 0, scale.strides[0]


def _batch_stride(x):
    """0 for a batch of one, which may be a packed one: its sequences are told apart by rows."""
    return 0 if x.shape[0] == 1 else x.strides[0]


def _lse_strides(lse):
    """How many numbers apart sequences, heads and queries are."""
    _, num_heads, seqlen_q = lse.shape
    return 0 if lse.shape[0] == 1 else num_heads * seqlen_q, seqlen_q, 1


class Tiles(NamedTuple):
    """How the queries of all sequences are divided into tasks: see `forward.forward`."""

    sequences: np.ndarray
    max_queries: int
    block_m: int
    tasks_before: np.ndarray


def _tiles(sequences, num_heads, num_threads):
    """Smaller tiles where there would be too few for all threads: keys are copied more often."""
    queries = sequences[:, 1]
    per_task = int(queries.sum()) * num_heads // (TASKS_PER_THREAD * num_threads)
    block_m = min(max(ceil_div(per_task, WIDTH), 1) * WIDTH, BLOCK_M)
    return Tiles(sequences, int(queries.max(initial=0)), block_m, _before(-(-queries // block_m)))


def _forward(
    q, k, v, lse, alibi_slopes, user, sinks, tiles, options, drops=dropout.NO_DROPOUT,
    pages=NO_PAGES,
):  # fmt: skip
    """Allocate out, run the tasks, and return out and lse.

    Parameters
    ----------
    q, k, v, alibi_slopes : arrays
        With four axes; the slopes may be None.
    lse : float32 array of shape (batch, num_heads, seqlen_q)
        Receives the result.
    user, sinks : Given or None, float32 array
        As from `_read` and `_sinks`.
    tiles, options, drops : Tiles, tuple, tuple
        As from `_forward_plan`.
    pages : (int32 array, int)
        Table and page_size of a paged cache.
    """
    _, _, num_heads, head_dim = q.shape
    sequences, max_queries, block_m, tasks_before = tiles
    options = *options, _slopes(alibi_slopes)
    if _few(q, k, max_queries) and not drops[0]:
        return _decode(q, k, v, sequences, max_queries, lse, pages, options, user, sinks)
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    user, kept = _prepared(user, sequences, num_heads, WIDTH)
    threads.run(
        forward.forward, int(tasks_before[-1]) * num_heads, forward.WORKSPACE,
        *map(_layout, (q, k, v, out)), kind_of(q.dtype), block_m, sequences, tasks_before, *pages,
        num_heads, num_heads // k.shape[2], head_dim, v.shape[3], lse.reshape(-1),
        _lse_strides(lse), *options, drops, sinks, user, arrays=(q, k, v, out, kept),
    )  # fmt: skip
    return out, lse


def _few(q, k, max_queries):
    """Whether to read each key once, for all queries."""
    return max_queries <= FEW_QUERIES and q.shape[2] // k.shape[2] <= decode.MAX_ROWS


def _cached(
    q, k_cache, v_cache, seq_lens, pages=NO_PAGES, scales=NO_SCALES, *, sinks=None, **options
):
    """Attention to a cache.

    Parameters
    ----------
    q, k_cache, v_cache, seq_lens, sinks, **options
        As for `flash_decode`.
    pages
        As for `_forward`.
    scales : (array, array)
        k_scale and v_scale, or None.
    """
    user, given, slopes = _read(q, **options)
    options = _options(q, *given)
    sinks = _sinks(q, sinks)
    batch, seqlen_q, num_heads, _ = q.shape
    sequences = _equal(batch, seqlen_q, seq_lens)
    lse = np.empty((batch, num_heads, seqlen_q), np.float32)
    if _few(q, k_cache, seqlen_q) or scales[0] is not None:
        options = *options, _slopes(slopes)
        more = pages, options, user, sinks, scales
        return _decode(q, k_cache, v_cache, sequences, seqlen_q, lse, *more)
    tiles = _tiles(sequences, num_heads, numba.get_num_threads())
    more = user, sinks, tiles, options
    return _forward(q, k_cache, v_cache, lse, slopes, *more, pages=pages)


def _decode(q, k, v, sequences, max_queries, lse, pages, options, user, sinks, scales=NO_SCALES):
    """Attention of few queries.

    Parameters
    ----------
    q, k, v, lse, pages, options, user, sinks, scales
        As for `_forward` and `_cached`; the slopes are the last of the options.
    sequences : int64 array of shape (batch, 4)
        As for `forward.forward`.
    max_queries : int
        Of a sequence.
    """
    (_, num_kv_heads, head_dim), head_dim_v = k.shape[1:], v.shape[3]
    group, kind = q.shape[2] // num_kv_heads, kind_of(q.dtype)
    per_task = max(min(decode.MAX_ROWS // group, max_queries), 1)
    num_chunks = ceil_div(max_queries, per_task)
    heads_per_task = max(decode.MAX_ROWS // (ceil_div(per_task * group, ROWS) * ROWS), 1)
    if k.strides[2] > k.strides[1]:
        heads_per_task = 1  # the keys of a head lie side by side, and not the heads of a token
    num_blocks = ceil_div(num_kv_heads, heads_per_task)
    tasks = len(sequences) * num_blocks * num_chunks
    max_keys = max(sequences[:, 3].tolist(), default=0)  # of few numbers: 2 µs sooner than NumPy's
    bytes_of_keys = max_keys * num_kv_heads * (head_dim + head_dim_v) * k.itemsize
    num_splits = min(_parts(tasks, numba.get_num_threads()), max(bytes_of_keys // LEAST_BYTES, 1))
    out = np.empty((*q.shape[:3], head_dim_v), q.dtype)
    outs, lses, out_kind, steps = out, lse, kind, (0, 0)
    if num_splits > 1:
        width = ceil_div(head_dim_v, WIDTH) * WIDTH
        outs = np.empty((num_splits, *q.shape[:3], width), np.float32)
        lses = np.empty((num_splits, *lse.shape), np.float32)
        out_kind, steps = FLOAT32, (outs.strides[0], lse.size)
    user, kept = _prepared(user, sequences, q.shape[2], per_task, decoding=True)
    threads.run(
        decode.decode, tasks * num_splits, decode.WORKSPACE, *map(_layout, (q, k, v)), kind,
        kind if scales[0] is None else E4M3, *map(_scale_layout, scales), per_task, num_chunks,
        num_splits, heads_per_task, num_blocks, sequences, *pages, num_kv_heads,
        group, head_dim, head_dim_v, _layout(outs[0] if num_splits > 1 else out), steps[0],
        out_kind, lses.reshape(-1), _lse_strides(lse), steps[1], *options, sinks,
        user, arrays=(q, k, v, outs, kept, scales),
    )  # fmt: skip
    if num_splits > 1:
        address, *strides = _layout(out)
        threads.run(
            decode.merge, q.shape[0] * q.shape[1], WIDTH + MAX_HEAD_DIM, outs.reshape(-1),
            lses.reshape(-1), num_splits, q.shape[1], q.shape[2], head_dim_v, kind, address,
            tuple(strides), lse.reshape(-1), _lse_strides(lse), arrays=(out,),
        )  # fmt: skip
    return out, lse


def _parts(tasks, num_threads):
    """How many parts of a task all threads need to have work until the end."""
    if not tasks or tasks % num_threads == 0 or tasks >= TASKS_PER_THREAD * num_threads:
        return 1
    return ceil_div(TASKS_PER_THREAD * num_threads, tasks)


class KeyParts(NamedTuple):
    """How the keys of all sequences are divided into tasks: see `backward.backward`.

    `sizes` are those of the arrays in which the parts of dk and dv lie, `workspace` is that of a
    thread.
    """

    sequences: np.ndarray
    keys_before: np.ndarray
    pairs: int
    num_parts: int
    sizes: tuple
    workspace: int


def _key_parts(sequences, q, k, v, num_threads):
    num_heads, num_kv_heads = q.shape[2], k.shape[2]
    pairs, most_tiles = len(sequences) * num_kv_heads, 1
    if pairs:
        most_tiles = ceil_div(int(sequences[:, 1].max()), BLOCK_M) * num_heads // num_kv_heads
    num_parts = max(min(_parts(pairs, num_threads), most_tiles), 1)
    # A tile may have rows beyond the last key.
    keys_before = _before(sequences[:, 3] + BLOCK_N)
    widths = [ceil_div(x.shape[3], WIDTH) * WIDTH for x in (k, v)]
    sizes, workspace = (0, 0), backward.WORKSPACE
    if num_parts > 1:
        sizes = tuple(int(keys_before[-1]) * num_kv_heads * num_parts * x for x in widths)
    elif pairs:
        workspace += (int(sequences[:, 3].max()) + BLOCK_N) * sum(widths)
    return KeyParts(sequences, keys_before, pairs, num_parts, sizes, workspace)


def _backward(
    dout, q, k, v, out, lse, alibi_slopes, user, sinks, score_args, score_args_grad, key_parts,
    options, drops=dropout.NO_DROPOUT,
):  # fmt: skip
    """Allocate dq, dk and dv, run the tasks, and return them; then dsinks, if there are sinks.

    With `score_args_grad`, the gradients of score_args follow.

    Parameters
    ----------
    dout, q, k, v, out, lse, alibi_slopes : arrays
        With four axes, lse with three; the slopes may be None.
    user, sinks : Given, array
        Or None.
    key_parts, options, drops : KeyParts, tuple, tuple
        As from `_backward_plan`.
    """
    _, _, num_heads, head_dim = q.shape
    num_kv_heads, kind = k.shape[2], kind_of(q.dtype)
    sequences, keys_before, pairs, num_parts, sizes, workspace = key_parts
    dq, dk, dv = (np.empty(x.shape, x.dtype) for x in (q, k, v))
    parts = [np.empty(size, np.float32) for size in sizes]
    sink_scores = _sinks(q, sinks)
    deltas = np.zeros(lse.shape if sink_scores.size else 0, np.float32)
    tasks = pairs * num_parts if score_args_grad else 0
    prepared, kept = _prepared(user, sequences, num_heads, WIDTH, tasks=tasks)
    threads.run(
        backward.backward, pairs * num_parts, workspace,
        *map(_layout, (dout, q, k, v, out, dq)), kind, sequences, keys_before, num_parts,
        num_heads // num_kv_heads, num_kv_heads, head_dim, v.shape[3],
        np.array(lse, order="C").reshape(-1), _lse_strides(lse), *options, _slopes(alibi_slopes),
        drops, _layout(dk), _layout(dv), *parts, deltas.reshape(-1), prepared,
        arrays=(dout, q, k, v, out, dq, dk, dv, kept),
    )  # fmt: skip
    if num_parts > 1:
        for x, x_parts in zip((dk, dv), parts, strict=True):
            threads.run(
                backward.add_parts, pairs, 0, x_parts, _layout(x), kind, sequences, keys_before,
                num_parts, num_kv_heads, x.shape[3], arrays=(x,),
            )  # fmt: skip
    more = ()
    if score_args_grad:
        more = (expressions.argument_gradients(kept, user, score_args) if user else (),)
    if sinks is None:
        return dq, dk, dv, *more
    sees = lse > -np.inf  # a key, or the sink
    with np.errstate(invalid="ignore"):  # −∞ − −∞
        p = np.where(sees, np.exp(sink_scores[:, None] - lse), 0)
    dsinks = -np.sum(p * deltas, axis=(0, 2), dtype=np.float64)
    return dq, dk, dv, dsinks.astype(sinks.dtype), *more
