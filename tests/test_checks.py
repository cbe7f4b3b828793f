"""Bad inputs: each is refused with one clear error, and nothing is changed.

A row of the tables is a function, what is changed in arguments that it takes, and what the message
says: the argument, what it must be, what it got. `wrong_arguments` makes such rows for what any
array, integer and switch must be.
"""

import copy
import functools
import importlib
import inspect
import pickle
import re
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fake_libraries import CupyArray, TorchTensor, fake_torch

import fa_numba.distributed
from fa_numba import checks
from fa_numba.checks import names
from fa_numba.checks.refused import RefusedError
from fa_numba.cpu import attention as cpu_attention
from fa_numba.dispatch import job
from fa_numba.dispatch.options import options_of
from fa_numba.distributed.plan import Plan
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kernels.softmax_topk import softmax_topk
from fa_numba.kv_cache import (
    ContiguousCache,
    OutOfPagesError,
    RollingCache,
    Scheduler,
    beams,
    cascade_plan,
    samples,
)
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_fp8 import flash_attn_fp8


class Call:
    """A function, and good arguments for it; called with some of them changed.

    A method's object is its argument `self`, like any other.
    """

    def __init__(call, function, /, **good):
        call.function, call.good = function, good

    def __call__(call, /, **changed):
        return call.function(**copy.deepcopy(call.good) | changed)

    def __repr__(call):
        return call.function.__qualname__.removesuffix(".__init__")


class Job(Call):
    """A call of a job, beside that of its namesake among the kernels."""

    def __repr__(call):
        return f"job_{super().__repr__()}"


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def table(*rows):
    return np.array(rows, np.int32)


def read_only(*shape):
    x = ones(*shape)
    x.flags.writeable = False
    return x


def masked(*shape):
    return np.ma.masked_less(ones(*shape), 0)


def used_pool(num_pages=4, page_size=2):
    """A pool with a sequence, number 0, of three tokens."""
    pool = fa_numba.PagePool(num_pages, page_size)
    pool.allocate([1, 2, 3])
    return pool


def used_cache():
    """A cache with 4 tokens of one sequence and 1 of another; each has 6 places."""
    cache = ContiguousCache(2, 6, 2, 8)
    cache.k_cache[...] = cache.v_cache[...] = numbered(2, 6, 2, 8)
    cache.append(ones(2, 4, 2, 8), ones(2, 4, 2, 8), [4, 1])
    return cache


X, K = ones(2, 5, 4, 8), ones(2, 6, 2, 8)  # queries, keys
PACKED_X, PACKED_K, STARTS = ones(5, 4, 8), ones(6, 2, 8), table(0, 2, 5)
PAGES = {"k_cache": numbered(3, 4, 2, 8), "v_cache": numbered(3, 4, 2, 8)}
TABLES = {"block_table": table([0, 2], [1, -1]), "seq_lens": table(7, 4)}
HEDGEHOG = {"feature_map": "hedgehog"}
W_Q, W_K, STATE = ones(4, 8, 3), ones(2, 8, 3), ones(2, 2, 8, 9)
BIG = 10**400  # no float can hold it
HALF = np.float16
FLOATS = (np.float32, np.float16)

naive_softmax = Call(fa_numba.naive_softmax, x=ones(3, 4))
softmax = Call(fa_numba.safe_softmax, x=ones(3, 4))
online_softmax = Call(fa_numba.online_softmax, x=ones(3, 4))
softmax_registers = Call(fa_numba.softmax_registers, x=ones(3, 4))
topk = Call(softmax_topk, x=ones(3, 40), k=2)
topk_warps = Call(fa_numba.softmax_topk_warps, x=ones(3, 40), k=2)
naive = Call(fa_numba.naive_attn, q=X, k=K, v=K)
lazy = Call(fa_numba.lazy_softmax_attn, q=X, k=K, v=K)
flash_v1 = Call(fa_numba.flash_attn_v1, q=X, k=K, v=K)
attention = Call(fa_numba.flash_attn_v2, q=X, k=K, v=K)
unsigned = Call(fa_numba.flash_attn_v2_unsigned, q=X, k=K, v=K)
tiles_4x4 = Call(fa_numba.flash_attn_v2_4x4, q=X, k=K, v=K)
simt = Call(fa_numba.flash_attn_registers, q=X, k=K, v=K)
fastest = Call(fa_numba.flash_attn, q=X, k=K, v=K)
which = Call(fa_numba.which, q=X, k=K, v=K)
fp8 = Call(flash_attn_fp8, q=X.astype(HALF), k=K.astype(HALF), v=K.astype(HALF))
check_fp8 = Call(checks.check_fp8, q=ones(2, 5, 4, 64))
block_sparse = Call(  # tiles of 4 × 4 make the mask 2 × 2
    fa_numba.flash_attn_v1, q=X, k=X, v=X, block_m=4, block_n=4, block_mask=ones(2, 2, dtype=bool)
)
backward = Call(fa_numba.flash_attn_bwd, dout=X, q=X, k=K, v=K, out=X, lse=ones(2, 4, 5))
backward_simt = Call(fa_numba.flash_attn_bwd_registers, **backward.good)
gradients = Call(fa_numba.flash_attn_grad, **backward.good)
packed = {"q": PACKED_X, "k": PACKED_K, "v": PACKED_K}
packed |= {"cu_seqlens_q": STARTS, "cu_seqlens_k": table(0, 6, 6)}
varlen = Call(flash_attn_varlen, **packed)
varlen_bwd = Call(
    fa_numba.flash_attn_varlen_bwd, **packed, dout=PACKED_X, out=PACKED_X, lse=ones(4, 5)
)
linear = Call(fa_numba.linear_attn, q=X, k=K[:, :5], v=K[:, :5])
decode = Call(flash_decode, q=ones(2, 1, 4, 8), k_cache=K, v_cache=K, seq_lens=table(6, 3))
merge = Call(fa_numba.merge_states, out_a=X, lse_a=ones(2, 4, 5), out_b=X, lse_b=ones(2, 4, 5))
lookup = Call(fa_numba.paged_kv_lookup, **PAGES, **TABLES)
paged_decode = Call(paged_attn_decode, q=ones(2, 1, 4, 8), **PAGES, **TABLES)
latent = Call(
    fa_numba.mla_decode,
    **{"q": ones(2, 1, 4, 8), "latent_cache": ones(2, 6, 8), "seq_lens": table(6, 3)},
    **{"softmax_scale": 0.5, "latent_dim": 6},
)
plan = cascade_plan(**TABLES, page_size=4)
cascade = Call(fa_numba.cascade_decode, q=ones(2, 1, 4, 8), **PAGES, plan=plan)
bounds = dict.fromkeys(("k_min", "k_max"), PAGES["k_cache"][:, 0].copy())
few_pages = Call(
    fa_numba.topk_decode, q=ones(2, 1, 4, 8), **PAGES, **bounds, **TABLES, num_top_pages=2
)
five_pages = {"k_cache": numbered(5, 4, 2, 8), "v_cache": numbered(5, 4, 2, 8)}
write = Call(  # 3 tokens
    fa_numba.reshape_and_cache,
    **{"k": ones(3, 2, 8), "v": ones(3, 2, 8), "slot_mapping": table(7, -1, 19)},
    **five_pages,
)
copy_pages = Call(fa_numba.copy_pages, **five_pages, src=table(0, 4), dst=table(1, 3))
swap = Call(
    fa_numba.swap_pages,
    **{"k_src": numbered(5, 4, 2, 8), "v_src": numbered(5, 4, 2, 8)},
    **{"k_dst": ones(3, 4, 2, 8), "v_dst": ones(3, 4, 2, 8), "src": table(0, 4)},
    dst=table(1, 2),
)
pool = Call(fa_numba.PagePool, num_pages=4, page_size=2)
POOL = used_pool()
allocate = Call(fa_numba.PagePool.allocate, self=POOL, tokens=[1, 2])
append = Call(fa_numba.PagePool.append, self=POOL, tokens={0: [4]})
fork = Call(fa_numba.PagePool.fork, self=POOL, seq=0)
free = Call(fa_numba.PagePool.free, self=POOL, seq=0)
block_table = Call(fa_numba.PagePool.block_table, self=POOL, seqs=[0])
references = Call(fa_numba.PagePool.references, self=POOL, page=0)
sampling = Call(samples, pool=POOL, seq=0, number=2)
beam_search = Call(beams, pool=POOL, seqs=[0], parents=[0, 0])
scheduler = Call(Scheduler, pool=POOL)
submit = Call(Scheduler.submit, self=Scheduler(used_pool()), tokens=[1, 2])
finish = Call(Scheduler.finish, self=Scheduler(used_pool()), request=None)
cache = Call(ContiguousCache, batch=2, max_len=6, num_kv_heads=2, head_dim=8)
append_kv = Call(ContiguousCache.append, self=used_cache(), k=ones(2, 2, 2, 8), v=ones(2, 2, 2, 8))
rolling = Call(RollingCache, batch=1, window=4, num_kv_heads=1, head_dim=8)

WRONG_TYPES = [
    (cascade, {"plan": 3}, "plan must be a CascadePlan, from cascade_plan, got int"),
    (cascade, {"k_scale": ones(2)}, "k_cache must be uint8, the bytes of e4m3, .* got float32"),
    (which, {"v": 3.0}, "v must be .* got float"),
    (which, {"softmax_scale": "1"}, "softmax_scale must be a number or None, got str"),
    (fp8, {"hadamard": 1}, "hadamard must be True or False, got 1"),
    (fp8, {}, "q, k, v must be GPU arrays, got NumPy arrays: flash_attn_fp8 .* flash_attn_v2"),
    (fp8, {"k": [[1.0]]}, "k must be .* got list"),
    (attention, {"window_size": 3}, r"window_size must be a tuple \(left, right\), got 3"),
    (attention, {"window_size": (3,)}, r"window_size must be a tuple .* got \(3,\)"),
    (attention, {"window_size": (1, 2, 3)}, r"window_size must be a tuple .* got \(1, 2, 3\)"),
    (attention, {"window_size": None}, "window_size must be a tuple .* got None"),
    (attention, {"window_size": (3, None)}, r"window_size\[1\] must be an integer, got None"),
    (attention, {"softcap": "30"}, "softcap must be a number, got str"),
    (attention, {"dropout_p": None}, "dropout_p must be a number, got NoneType"),
    (attention, {"dropout_p": True}, "dropout_p must be a number, got bool"),
    (attention, {"alibi_slopes": 0.5}, "alibi_slopes must be .* got float"),
    (attention, {"softmax_scale": "1"}, "softmax_scale must be a number or None, got str"),
    (attention, {"softmax_scale": True}, "softmax_scale must be a number or None, got bool"),
    (attention, {"softmax_scale": 1j}, "softmax_scale must be a number or None, got complex"),
    (latent, {"block_table": [[0]]}, "block_table must be .* got list"),
    (latent, {"block_table": ones(2, 1)}, "block_table must be int32, got float32"),
    (latent, {"softmax_scale": None}, "softmax_scale must be a number, got NoneType"),
    (swap, {"src": [0, 4]}, "src must be a NumPy array: .* on the host, got list"),
    (allocate, {"tokens": 5}, "tokens must be a sequence of integers, got 5"),
    (allocate, {"tokens": None}, "tokens must be a sequence of integers, got None"),
    (allocate, {"tokens": [1, 2.0]}, r"tokens must be a sequence of integers, got \[1, 2.0\]"),
    (allocate, {"tokens": [1, True]}, r"tokens must be a sequence of integers, got \[1, True\]"),
    (allocate, {"tokens": "text"}, "tokens must be a sequence of integers, got 'text'"),
    (allocate, {"tokens": {1: 2}}, r"tokens must be a sequence .*got {1: 2}, which has no order"),
    (allocate, {"tokens": {1, 2}}, r"tokens must be a sequence .*got {1, 2}, which has no order"),
    (allocate, {"tokens": ones(2, 2, dtype=int)}, "tokens must be a sequence of integers, got arr"),
    (append, {"tokens": [4]}, r"tokens must be a dict .*\{seq: \[token\]\}, got \[4\]"),
    (append, {"tokens": None}, "tokens must be a dict .*got None"),
    (append, {"tokens": {0: 4}}, "tokens must be a sequence of integers, got 4"),
    (append, {"tokens": {0: [4], 0.5: [4]}}, "seq must be an integer, got 0.5"),
    (append, {"tokens": {False: [4]}}, "seq must be an integer, got False"),
    (append, {"tokens": {"a": [4]}}, "seq must be an integer, got 'a'"),
    (block_table, {"seqs": 0}, "seqs must be a sequence of integers, got 0"),
    (block_table, {"seqs": "0"}, "seq must be an integer, got '0'"),
    (beam_search, {"seqs": 0}, "seqs must be a sequence of integers, got 0"),
    (beam_search, {"parents": 0}, "parents must be a sequence of integers, got 0"),
    (beam_search, {"parents": [0.0]}, r"parents must be a sequence of integers, got \[0.0\]"),
    (scheduler, {"pool": 4}, "pool must be a PagePool, got int"),
    (scheduler, {"host_pool": "host"}, "host_pool must be a PagePool, got str"),
    (submit, {"tokens": 3}, "tokens must be a sequence of integers, got 3"),
    # caches without pages
    (cache, {"like": "cupy"}, "like must be a NumPy array, .* got str"),
    (attention, {"window_size": "ab"}, "window_size must be a tuple .* got 'ab'"),
    (attention, {"window_size": table(1, 2)}, "window_size must be a tuple .* got array"),
    (attention, {"softcap": np.array(3.0)}, "softcap must be a number, got ndarray"),
    (attention, {"softmax_scale": ones(2)}, "softmax_scale must be a number or None, got ndarray"),
    # linear attention
    (linear, HEDGEHOG, r"weights must be a pair \(w_q, w_k\), got NoneType"),
    (linear, HEDGEHOG | {"weights": W_Q}, r"weights must be a pair \(w_q, w_k\), got ndarray"),
    (linear, HEDGEHOG | {"weights": (W_Q,)}, r"weights must be a pair \(w_q, w_k\), got"),
    (linear, HEDGEHOG | {"weights": (W_Q, 1)}, "w_k must be .* got int"),
    (linear, HEDGEHOG | {"weights": (W_Q.astype(float), W_K)}, "w_q must be float32.*got float64"),
    (linear, {"state": [0.0]}, "state must be .* got list"),
    (linear, {"state": STATE.astype(float)}, "state must be float32, got float64"),
]
WRONG_VALUES = [
    (cascade, {"q": ones(1, 1, 4, 8)}, r"plan must be for .*, \(1, 1, 4\), got \(2, 1, 4\)"),
    (cascade, {"q": ones(2, 1, 4, 9)}, "must have the head_dim of q, 9, got 8"),
    (few_pages, {"q": ones(2, 2, 4, 8)}, "q must have one query of each sequence, got 2"),
    (few_pages, {"q": ones(2, 1, 4, 9)}, "q must have the head_dim of k_min, 8, got 9"),
    (few_pages, {"q": ones(2, 1, 4, 0)}, "q must have head_dim from 1 to 256, got 0"),
    (few_pages, {"q": ones(1, 1, 4, 8)}, "block_table must have a row for each of the 1 sequences"),
    (few_pages, {"k_max": ones(1, 2, 8)}, "k_max must have the shape of k_min"),
    (few_pages, {"softmax_scale": -1.0}, "softmax_scale must be positive"),
    (few_pages, {"seq_lens": table(99, 3)}, r"seq_lens\[0\] must be"),
    (
        few_pages,
        {"k_cache": np.repeat(PAGES["k_cache"], 2, axis=1)[:, ::2]},
        "k_cache must be contig",
    ),
    (
        fastest,
        {"k": ones(2, 6, 2, 9), "v": ones(2, 6, 2, 9)},
        "k and v must have the head_dim of q, 8, got 9",
    ),
    (gradients, {"lse": ones(2, 4, 6)}, r"lse must have shape .*\(2, 4, 5\), got \(2, 4, 6\)"),
    (check_fp8, {"q": ones(2, 5, 4, 96)}, "q must have a head_dim of 64 or 128 .*, got 96"),
    (which, {"job": "flash"}, "job must be flash_attn, .* or softmax_topk, got flash"),
    # axes
    (attention, {"q": ones(5, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(5, 4, 8\)"),
    (softmax, {"x": ones(4)}, r"x must have axes \(num_rows, num_cols\), got shape \(4,\)"),
    (lookup, {"k_cache": ones(4, 2, 8)}, r"k_cache must have axes \(num_pages, .*\(4, 2, 8\)"),
    (lookup, {"block_table": table(0, 1)}, r"block_table must have axes \(batch, max_pages\)"),
    (lookup, {"seq_lens": table([7, 4])}, r"seq_lens must have axes \(batch\), .*\(1, 2\)"),
    # sizes that do not agree
    (attention, {"v": ones(2, 5, 2, 8)}, r"v must have the shape of k, .*\(2, 5, 2, 8\)"),
    (attention, {"q": ones(3, 5, 4, 8)}, "k and v must have the batch of q, 3, got 2"),
    (attention, {"q": ones(2, 5, 4, 9)}, "k and v must have the head_dim of q, 9, got 8"),
    (attention, {"q": ones(2, 5, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (backward, {"dout": ones(2, 5, 2, 8)}, r"dout must have the shape of q, .*\(2, 5, 2, 8\)"),
    (backward, {"out": ones(2, 6, 4, 8)}, r"out must have the shape of q, .*\(2, 6, 4, 8\)"),
    (backward, {"lse": ones(2, 5, 4)}, r"lse must have shape .*\(2, 4, 5\), got \(2, 5, 4\)"),
    (lookup, {"v_cache": ones(3, 4, 2, 9)}, "v_cache must have the shape of k_cache"),
    (lookup, {"seq_lens": table(7)}, "seq_lens must have one length for each of the 2 .*got 1"),
    # sizes out of range
    (attention, {x: ones(2, 5, 4, 513) for x in "qkv"}, "q must have head_dim from 1 to 512, got"),
    (attention, {"v": ones(2, 6, 2, 513)}, "v must have head_dim from 1 to 512, got 513"),
    (attention, {"k": ones(2, 6, 2, 9)}, "k must have the head_dim of q, 8, got 9"),
    (backward, {x: ones(2, 5, 4, 257) for x in "qkv"}, "q must have head_dim from 1 to 256, got"),
    (backward, {"v": ones(2, 6, 2, 9)}, r"dout must have the shape of q, .*head_dim of v, 9, got"),
    (simt, {"v": ones(2, 6, 2, 9)}, r"v must have the shape of k, \(2, 6, 2, 8\), got"),
    (backward_simt, {"v": ones(2, 6, 2, 9)}, r"v must have the shape of k, \(2, 6, 2, 8\), got"),
    (flash_v1, {"v": ones(2, 6, 2, 9)}, r"v must have the shape of k, \(2, 6, 2, 8\), got"),
    (lazy, {"v": ones(2, 6, 2, 9)}, r"v must have the shape of k, \(2, 6, 2, 8\), got"),
    (linear, {"v": ones(2, 5, 2, 9)}, r"v must have the shape of k, \(2, 5, 2, 8\), got"),
    (attention, {x: ones(2, 5, 4, 0) for x in "qkv"}, "q must have head_dim from 1 .*got 0"),
    (attention, {"q": ones(2, 5, 0, 8)}, "q must have at least one head"),
    (attention, {x: ones(2, 6, 0, 8) for x in "kv"}, "num_kv_heads=0 for num_heads=4"),
    (attention, {"q": ones(65536, 0, 1, 1)}, "batch must be at most 65535, got 65536"),
    (attention, {"q": ones(1, 0, 65536, 1)}, "num_heads must be at most 65535, got 65536"),
    (lookup, {f"{x}_cache": ones(3, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (lookup, {f"{x}_cache": ones(3, 4, 2, 300) for x in "kv"}, "k_cache must have head_dim"),
    # layout
    # options
    (attention, {"softmax_scale": 1e39}, "softmax_scale must be finite in float32, got 1e"),
    (unsigned, {"q": ones(3, 5, 4, 8)}, "k and v must have the batch of q, 3, got 2"),
    (
        tiles_4x4,
        {x: ones(2, 5, 4, 129) for x in "qkv"},
        "head_dim must be at most 128 for flash_attn_v2_4x4, got 129: flash_attn_registers takes",
    ),
    (simt, {"q": ones(2, 5, 4, 9)}, "k and v must have the head_dim of q, 9, got 8"),
    (simt, {"block_m": 48}, "block_m must be 16, 32, 64 or 128, got 48"),
    (simt, {"rows": 6}, "rows must be 4 or 8, got 6"),
    (simt, {x: ones(2, 5, 4, 129) for x in "qkv"} | {"rows": 8}, "rows must be 4 at head_dim=129"),
    (tiles_4x4, {"columns": 3}, "columns must be 1, 2 or 4, got 3"),
    (backward_simt, {"tile_size": 48}, "tile_size must be 16, 32 or 64, got 48"),
    (backward_simt, {"lse": ones(2, 4, 6)}, r"lse must have shape .* got \(2, 4, 6\)"),
    (simt, {"block_m": 128, "block_n": 128}, "must fit the registers .* got 128 and 128"),
    (attention, {"softcap": np.nan}, "softcap must be 0, or positive .* got nan"),
    (attention, {"softcap": np.inf}, "softcap must be 0, or positive .* got inf"),
    (attention, {"softcap": 1e-60}, "softcap must be 0, or positive .* got 1e-60"),
    (attention, {"dropout_p": 1}, "dropout_p must be at least 0 and less than 1, got 1"),
    (attention, {"dropout_p": -0.1}, "dropout_p must be at least 0 and .* got -0.1"),
    (attention, {"dropout_p": 1 - Fraction(1, 10**40)}, "dropout_p must be .* less than 1, got 9"),
    (attention, {"alibi_slopes": ones(2)}, "one slope for each of the 4 heads of q, got 2"),
    (attention, {"alibi_slopes": ones(2, 4)}, r"alibi_slopes must have axes \(num_heads\), .*2, 4"),
    (attention, {"block_m": 64, "block_n": 32}, r"at most 1024, got 64 \* 32 = 2048"),
    (attention, {"block_m": 1, "block_n": 768}, "within 49152 bytes .* got 1 and 768"),
    # decoding
    (decode, {"q": ones(2, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(2, 4, 8\)"),
    (decode, {"k_cache": ones(6, 2, 8)}, r"k_cache must have axes \(batch, max_len, .*\(6, 2, 8\)"),
    (decode, {"v_cache": ones(2, 7, 2, 8)}, r"v_cache must have the shape of k_cache, .*7, 2, 8"),
    (decode, {"q": ones(3, 1, 4, 8)}, "k_cache and v_cache must have the batch of q, 3, got 2"),
    (decode, {"q": ones(2, 1, 4, 9)}, "k_cache and v_cache must have the head_dim of q, 9, got 8"),
    (decode, {"q": ones(2, 1, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (decode, {"seq_lens": table([6, 3])}, r"seq_lens must have axes \(batch\), got shape \(1, 2\)"),
    (decode, {"seq_lens": table(6)}, "one length for each of the 2 sequences of q, got 1"),
    (decode, {"seq_lens": table(6, 7)}, r"seq_lens\[1\] must be from 0 to max_len = 6, got 7"),
    (decode, {"seq_lens": table(-1, 6)}, r"seq_lens\[0\] must be from 0 to max_len = 6, got -1"),
    # decoding from pages
    (latent, {"q": ones(2, 4, 8)}, r"q must have axes \(batch, seqlen_q, .* got shape \(2, 4, 8\)"),
    (
        latent,
        {"latent_cache": ones(2, 6, 1, 8)},
        r"must have axes \(batch, max_len, row_dim\), got",
    ),
    (latent, {"latent_cache": ones(3, 6, 8)}, "latent_cache must have a row for each of .*, got 3"),
    (latent, {"latent_cache": ones(2, 6, 9)}, "must have the row_dim of q, 8, got 9"),
    (latent, {"q": ones(2, 1, 0, 8)}, "q must have at least one head, got num_heads=0"),
    (latent, {"q": ones(2, 1, 4, 577)}, "q must have row_dim from 1 to 576, got 577"),
    (latent, {"latent_dim": 9}, "latent_dim must be at most row_dim = 8, got 9"),
    (latent, {"seq_lens": table(7, 3)}, r"seq_lens\[0\] must be from 0 to max_len = 6, got 7"),
    (latent, {"seq_lens": table(6)}, "seq_lens must have a row for each of the 2 sequences"),
    (latent, {"block_table": table([0])}, "block_table must have a row for each of the 2 .* got 1"),
    (latent, {"block_table": table([2], [0])}, r"block_table\[0, 0\] must be a page .*, got 2"),
    (
        latent,
        {"block_table": table([0], [1]), "latent_cache": ones(2, 0, 8)},
        "latent_cache must have a page_size of at least 1, got 0",
    ),
    (paged_decode, {"q": ones(1, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(1, 4, 8\)"),
    (paged_decode, {"k_cache": ones(3, 4, 8)}, r"k_cache must have axes \(num_pages, page_size"),
    (paged_decode, {"v_cache": ones(3, 5, 2, 8)}, "v_cache must have the shape of k_cache"),
    (paged_decode, {"q": ones(3, 1, 4, 8)}, "a row for each of the 3 sequences of q, got 2"),
    (paged_decode, {"q": ones(2, 1, 4, 9)}, "must have the head_dim of q, 9, got 8"),
    (paged_decode, {"q": ones(2, 1, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (paged_decode, {"q": ones(2, 1, 0, 8)}, "q must have at least one head"),
    (paged_decode, {f"{x}_cache": ones(3, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (paged_decode, {"seq_lens": table(7)}, "one length for each of the 2 rows of block_table"),
    (paged_decode, {"seq_lens": table(9, 4)}, r"seq_lens\[0\] must be from 0 to .* = 8, got 9"),
    (paged_decode, {"seq_lens": table(7, 5)}, r"block_table\[1, 1\] must be a page .*got -1"),
    (paged_decode, {"block_table": table([0, 3], [1, 1])}, r"\[0, 1\] must be .* 0 to 2, .*got 3"),
    (merge, {"out_a": ones(5, 4, 8)}, r"out_a must have axes \(batch, seqlen_q, .*\(5, 4, 8\)"),
    (merge, {"out_b": ones(2, 6, 4, 8)}, r"out_b must have the shape of out_a, .*\(2, 6, 4, 8\)"),
    (merge, {"lse_a": ones(2, 5, 4)}, r"lse_a must have shape .*\(2, 4, 5\), got \(2, 5, 4\)"),
    (merge, {f"out_{x}": ones(2, 5, 4, 257) for x in "ab"}, "head_dim from 1 to 256, got 257"),
    (merge, {f"out_{x}": ones(65536, 0, 1, 1) for x in "ab"}, "batch must be at most 65535"),
    (block_sparse, {"block_mask": ones(2, 3, dtype=bool)}, r"= \(2, 2\) for .*got \(2, 3\)"),
    (block_sparse, {"block_mask": ones(2, 2, dtype=bool), "block_m": 8}, r"\(1, 2\) for block_m=8"),
    # what the tables hold
    (lookup, {"seq_lens": table(7, -1)}, r"seq_lens\[1\] must be from 0 to .* = 8, got -1"),
    (lookup, {"seq_lens": table(9, 4)}, r"seq_lens\[0\] must be from 0 to .* = 8, got 9"),
    (lookup, {"block_table": table([0, 3], [1, -1])}, r"\[0, 1\] must be a page from 0 to 2, .*3"),
    (lookup, {"seq_lens": table(7, 5)}, r"block_table\[1, 1\] must be a page .*\[1\] = 5 .*got -1"),
    (lookup, {"max_len": 6}, r"seq_lens\[0\] must be from 0 to max_len = 6, got 7"),
    (lookup, {"max_len": 9}, r"max_len must be at most max_pages \* page_size = 8, got 9"),
    (lookup, {"max_len": -1}, "max_len must be at least 0, got -1"),
    # writing, copying, swapping pages
    (write, {"k": ones(1, 3, 2, 8)}, r"k must have axes \(num_tokens, num_kv_heads, head_dim\)"),
    (write, {"v": ones(4, 2, 8)}, r"v must have the shape of k, \(3, 2, 8\), got \(4, 2, 8\)"),
    (write, {x: ones(3, 2, 9) for x in "kv"}, r"of the caches, \(2, 8\), got \(2, 9\)"),
    (write, {"k_cache": ones(4, 2, 8)}, r"k_cache must have axes \(num_pages, .*\(4, 2, 8\)"),
    (write, {"v_cache": ones(6, 4, 2, 8)}, "v_cache must have the shape of k_cache"),
    (write, {f"{x}_cache": ones(5, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (write, {"k_cache": read_only(5, 4, 2, 8)}, "k_cache must be writable"),
    (write, {"v_cache": read_only(5, 4, 2, 8)}, "v_cache must be writable"),
    (write, {"slot_mapping": table([7, 8, 9])}, r"slot_mapping must have axes \(num_tokens\)"),
    (write, {"slot_mapping": table(7, 8)}, "a slot for each of the 3 tokens of k, got 2"),
    (
        write,
        {"slot_mapping": table(1, 20, 2)},
        r"slot_mapping\[1\] .* from 0 to 19, or -1 .*got 20",
    ),
    (write, {"slot_mapping": table(1, 3, -2)}, r"slot_mapping\[2\] must be a slot .* got -2"),
    (write, {"slot_mapping": table(6, 1, 6)}, r"twice, got slot_mapping\[0\] = slot_.*\[2\] = 6"),
    (copy_pages, {"v_cache": ones(5, 4, 2, 9)}, "v_cache must have the shape of k_cache"),
    (
        copy_pages,
        {f"{x}_cache": ones(5, 4, 2, 257) for x in "kv"},
        "k_cache must have head_dim from 1",
    ),
    (copy_pages, {"v_cache": read_only(5, 4, 2, 8)}, "v_cache must be writable"),
    (copy_pages, {"src": table([0, 4])}, r"src must have axes \(num_copies\), got shape \(1, 2\)"),
    (copy_pages, {"dst": table(1)}, r"dst must have the shape of src, \(2\,\), got \(1,\)"),
    (copy_pages, {"src": table(0, 5)}, r"src\[1\] must be a page of k_cache, from 0 to 4, got 5"),
    (copy_pages, {"dst": table(-1, 3)}, r"dst\[0\] must be a page of k_cache, from 0 to 4, got -1"),
    (
        copy_pages,
        {"dst": table(3, 3)},
        r"dst must not name a page twice, got dst\[0\] = dst\[1\] = 3",
    ),
    (
        copy_pages,
        {"dst": table(1, 0)},
        r"no page in common, .* got dst\[1\] = 0, which is also src\[0\]",
    ),
    (swap, {"v_src": ones(4, 4, 2, 8)}, "v_src must have the shape of k_src"),
    (swap, {"v_dst": read_only(3, 4, 2, 8)}, "v_dst must be writable"),
    (
        swap,
        {f"{x}_dst": ones(3, 5, 2, 8) for x in "kv"},
        r"must have the pages of k_src, \(4, 2, 8\), got \(5, 2, 8\)",
    ),
    (swap, {"src": table(0, 5)}, r"src\[1\] must be a page of k_src, from 0 to 4, got 5"),
    (swap, {"dst": table(3, 1)}, r"dst\[0\] must be a page of k_dst, from 0 to 2, got 3"),
    (swap, {"dst": table(2, 2)}, r"dst must not name a page twice, got dst\[0\] = dst\[1\] = 2"),
    (swap, {"dst": table(2)}, "dst must have the shape of src"),
    # the page pool
    (pool, {"num_pages": 2**30, "page_size": 3}, r"a slot fits an int32, got 3221225472"),
    (allocate, {"tokens": [1, 2**63]}, r"tokens must be .* that an int64 can hold, got \[1, 922"),
    (append, {"tokens": {1: [4]}}, "seq must be a sequence of this pool, not freed, got 1"),
    (append, {"tokens": {0: [4], -1: [5]}}, "seq must be a sequence of this pool, .* got -1"),
    (append, {"tokens": {0: [4, -(2**70)]}}, "tokens must be .* that an int64 can hold, got"),
    (fork, {"seq": 7}, "seq must be a sequence of this pool, not freed, got 7"),
    (free, {"seq": -1}, "seq must be a sequence of this pool, not freed, got -1"),
    (block_table, {"seqs": [0, 3]}, "seq must be a sequence of this pool, not freed, got 3"),
    (references, {"page": 4}, "page must be a page of this pool, from 0 to 3, got 4"),
    (references, {"page": -1}, "page must be a page of this pool, from 0 to 3, got -1"),
    (sampling, {"seq": 3, "number": 1}, "seq must be a sequence of this pool, not freed, got 3"),
    (beam_search, {"seqs": [0, 9]}, "seq must be a sequence of this pool, not freed, got 9"),
    (beam_search, {"seqs": [0, 0]}, r"seqs must not name a sequence twice, got \[0, 0\]"),
    (beam_search, {"parents": [0, 1]}, r"parents\[1\] must be the index of one of the 1 .* got 1"),
    (beam_search, {"parents": [-1]}, r"parents\[0\] must be the index .* got -1"),
    (
        scheduler,
        {"host_pool": used_pool(2, 4)},
        "host_pool must have the page_size of pool, 2, got 4",
    ),
    (scheduler, {"host_pool": POOL}, "host_pool must be another pool than pool, got the same"),
    (finish, {}, "request must be running or waiting in this scheduler, got None"),
    # caches without pages
    (cache, {"max_len": 0}, "max_len must be at least 1, got 0"),
    (cache, {"head_dim": 257}, "head_dim must be at most 256, got 257"),
    (cache, {"batch": 2**30, "max_len": 4}, r"batch \* max_len must be at most 2\*\*31, .*got 429"),
    (rolling, {"window": 10**30}, r"window \+ num_sinks must be at most 2\*\*31, .*got 1000"),
    (rolling, {"head_dim": 300}, "head_dim must be at most 256, got 300"),
    (append_kv, {"k": ones(2, 2, 8)}, r"k must have axes \(batch, seqlen_new, .*\(2, 2, 8\)"),
    (append_kv, {"v": ones(2, 4, 2, 8)}, r"v must have the shape of k, .*got \(2, 4, 2, 8\)"),
    (append_kv, dict.fromkeys("kv", ones(2, 3, 1, 8)), r"\(2, seqlen_new, 2, 8\) .*3, 1, 8\)"),
    (append_kv, dict.fromkeys("kv", ones(3, 3, 2, 8)), r"\(2, seqlen_new, 2, 8\) .*3, 2, 8\)"),
    (append_kv, dict.fromkeys("kv", ones(2, 3, 2, 16)[..., ::2]), "k must be contiguous"),
    (append_kv, {"num_new": [1]}, r"num_new must be 2 integers, .*got \[1\]"),
    (append_kv, {"num_new": [1.0, 2.0]}, r"num_new must be 2 integers, .*got \[1.0, 2.0\]"),
    (append_kv, {"num_new": [True, False]}, r"num_new must be 2 integers, .*got \[True, False\]"),
    (append_kv, {"num_new": [[1], [1, 2]]}, r"num_new must be 2 .*got \[\[1\], \[1, 2\]\]"),
    (append_kv, {"num_new": [2**70, 0]}, r"num_new must be 2 integers, .*got \[118"),
    (append_kv, {"num_new": [1, 3]}, r"num_new\[1\] must be from 0 to seqlen_new = 2, got 3"),
    (append_kv, {"num_new": [-1, 2]}, r"num_new\[0\] must be from 0 to .*, got -1"),
    (
        append_kv,
        dict.fromkeys("kv", ones(2, 3, 2, 8)),
        r"num_new\[0\] must be at most max_len - lengths\[0\] = 6 - 4 = 2, got 3: the row is full",
    ),
    # rows of a matrix
    (topk_warps, {"k": 33}, "k must be at most 32, .*got 33"),
    (topk_warps, {"k": 41}, "k must be at most num_cols = 40, got 41"),
    (topk, {"x": ones(7)}, r"x must have axes \(num_rows, num_cols\), got shape \(7,\)"),
    (topk, {"x": ones(2, 0), "k": 1}, "k must be at most num_cols = 0, got 1"),
    (topk, {"k": 33}, "k must be at most 32, .*got 33"),
    (topk, {"k": 41}, "k must be at most num_cols = 40, got 41"),
    # attention that was not in the rows above
    (naive, {"k": ones(2, 7, 2, 8)}, r"v must have the shape of k, .*got \(2, 6, 2, 8\)"),
    (flash_v1, dict.fromkeys("qkv", ones(1, 3, 1, 257)), "q must have head_dim .*got 257"),
    (attention, {"softmax_scale": BIG}, "softmax_scale must be finite in float32, got 10000"),
    (attention, {"softmax_scale": -np.inf}, "softmax_scale must be finite in float32, got -inf"),
    (attention, {"softcap": BIG}, "softcap must be 0, or positive and finite .* got 10000"),
    (attention, {"block_m": 10**30}, r"at most 1024, got 10+ \* "),
    (lazy, {"v": ones(2, 7, 2, 8)}, r"v must have the shape of k, .*got \(2, 7, 2, 8\)"),
    # packed sequences
    (varlen, {"q": ones(1, 5, 4, 8)}, r"q must have axes \(num_tokens_q, num_heads, head_dim\)"),
    (varlen, {"k": ones(6, 8)}, r"k must have axes \(num_tokens_k, num_kv_heads, head_dim\)"),
    (varlen, {"v": ones(5, 2, 8)}, r"v must have the shape of k, .*got \(5, 2, 8\)"),
    (varlen, dict.fromkeys("kv", ones(6, 2, 7)), "must have the head_dim of q, 8, got 7"),
    (varlen, dict.fromkeys("kv", ones(6, 3, 8)), "must divide the heads of q .*num_kv_heads=3"),
    (varlen, {"q": ones(5, 0, 8)}, "q must have at least one head, got num_heads=0"),
    (varlen, dict.fromkeys("qkv", ones(5, 2, 513)), "q must have head_dim from 1 to 512, got 513"),
    (varlen, {"v": ones(6, 2, 513)}, "v must have head_dim from 1 to 512, got 513"),
    (varlen_bwd, {"v": ones(6, 2, 9)}, r"dout must have the shape of q, .*head_dim of v, 9, got"),
    (varlen, {"cu_seqlens_q": table([0, 2, 5])}, r"cu_seqlens_q must have axes \(batch \+ 1\)"),
    (varlen, {"cu_seqlens_k": table(0, 6)}, r"cu_seqlens_k must have the shape of cu_seqlens_q"),
    (
        varlen,
        {"cu_seqlens_q": table(), "cu_seqlens_k": table()},
        r"cu_seqlens_q must have batch \+ 1 numbers, at least 2 for the 5 tokens of q, got 0",
    ),
    (varlen, dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), table(0)), "at least 2 .*, got 1"),
    (varlen, {"cu_seqlens_q": table(1, 2, 5)}, r"cu_seqlens_q\[0\] must be 0, .*got 1"),
    (
        varlen,
        {"cu_seqlens_k": table(0, 7, 6)},
        r"must not decrease, got cu_seqlens_k\[1\] = 7 and cu_seqlens_k\[2\] = 6",
    ),
    (
        varlen,
        {"cu_seqlens_q": table(0, -1, 5)},
        r"must not decrease, got .* cu_seqlens_q\[1\] = -1",
    ),
    (varlen, {"cu_seqlens_q": table(0, 2, 4)}, "must end with the number of .* q, 5, got 4"),
    (varlen, {"cu_seqlens_k": table(0, 2, 7)}, "must end with the number of .* k, 6, got 7"),
    (varlen_bwd, {"dout": ones(5, 4, 7)}, r"dout must have the shape of q, \(5, 4, 8\), got"),
    (varlen_bwd, {"out": ones(5, 2, 8)}, r"out must have the shape of q, \(5, 4, 8\), got"),
    (
        varlen_bwd,
        {"lse": ones(5, 4)},
        r"lse must have shape \(num_heads, num_tokens_q\) = \(4, 5\)",
    ),
    (varlen_bwd, {"cu_seqlens_q": table(0, 2, 4)}, "must end with the number of .* q, 5, got 4"),
    # decoding: more of what goes wrong
    (decode, {"num_splits": 10**9}, "num_splits must be at most 65536, got 1000000000"),
    (decode, {"q": ones(2, 1, 4, 513)}, "q must have head_dim from 1 to 512, got 513"),
    (decode, {"v_cache": ones(2, 6, 2, 513)}, "v_cache must have head_dim from 1 to 512, got 513"),
    (paged_decode, {"v_cache": ones(3, 4, 2, 513)}, "v_cache must have head_dim from 1 to 512"),
    (cascade, {"v_cache": ones(4, 4, 2, 9)}, "v_cache must have the shape of k_cache"),
    (paged_decode, {"block_table": table([0, -2], [1, 1])}, r"\[0, 1\] must be .*, got -2"),
    (lookup, {"max_len": 10**30}, r"max_len must be at most max_pages \* page_size = 8, got 1000"),
    # writing and copying: more of what goes wrong
    (
        write,
        dict.fromkeys(("k_cache", "v_cache"), five_pages["k_cache"]),
        "v_cache must be another array than k_cache, got one array for both",
    ),
    (copy_pages, {"src": table(0, 3), "dst": table(3, 1)}, r"no page in common, .*src\[1\]"),
    (
        swap,
        {f"{x}_{side}": numbered(5, 4, 2, 8) for x in "kv" for side in ("src",)}
        | {"k_dst": ones(3, 4, 2, 9)},
        "v_dst must have the shape of k_dst",
    ),
    (
        swap,
        dict.fromkeys(("k_src", "v_src", "k_dst", "v_dst"), ones(5, 4, 2, 8))
        | {"dst": table(4, 3)},
        r"src and dst must have no page in common, .* got dst\[0\] = 4, which is also src\[1\]",
    ),
    # linear attention
    (linear, {"k": K[:1]}, "k must have the batch of q, 2, got 1"),
    (linear, {"feature_map": "elu"}, 'must be "elu1", .* or "hedgehog", got \'elu\''),
    (linear, {"feature_map": None}, "feature_map must be .* got None"),
    (linear, {"feature_map": np.array(["elu1", "relu"])}, "feature_map must be .* got array"),
    (linear, {"weights": (W_Q, W_K)}, "weights must be None for feature_map='elu1', got tuple"),
    (linear, HEDGEHOG | {"weights": (W_Q[0], W_K)}, r"w_q must have axes \(num_heads, .*\(8, 3\)"),
    (linear, HEDGEHOG | {"weights": (W_K, W_K)}, r"= \(4, 8\) before .*got .*\(2, 8, 3\)"),
    (linear, HEDGEHOG | {"weights": (W_Q, W_Q)}, r"w_k must have \(num_kv_heads, head_dim\).* got"),
    (linear, HEDGEHOG | {"weights": (W_Q[..., :2], W_K)}, "at least 1, got 2 and 3"),
    (linear, HEDGEHOG | {"weights": (W_Q[..., :0], W_K[..., :0])}, "at least 1, got 0 and 0"),
    (linear, {"state": STATE[..., :8]}, r"state must have shape .*2, 8, 9\), got \(2, 2, 8, 8\)"),
    (linear, {"state": STATE, "feature_map": "taylor2"}, r"= \(2, 2, 73, 9\), got"),
    (linear, {"form": "fast"}, 'must be "recurrent", "chunked" or None, got \'fast\''),
    (linear, {"form": np.array(["chunked"] * 2)}, "form must be .* got array"),
    (linear, {"form": "recurrent"}, "must have causal=True, got causal=False"),
    (linear, {"q": X[:, :4], "causal": True}, "q and k must .*got seqlen_q=4 and seqlen_k=5"),
    (linear, {"chunk_size": 17}, "chunk_size must be at most 16, .*got 17"),
    (
        linear,
        {"q": ones(2, 5, 130, 8), "causal": True, "form": "recurrent"},
        "num_heads / num_kv_heads of at most 64, .*got 65",
    ),
]

NO_PAGES = [
    (allocate, {"tokens": range(10)}, "5 more pages are needed, and 2 of 4 are free"),
    (append, {"tokens": {0: range(6)}}, "3 more pages are needed, and 2 of 4 are free"),
    (submit, {"tokens": range(9)}, "9 tokens need 5 pages, and the whole pool has 4"),
]
TABLE = [(*row[:2], TypeError, row[2]) for row in WRONG_TYPES]
TABLE += [(*row[:2], ValueError, row[2]) for row in WRONG_VALUES]
TABLE += [(*row[:2], OutOfPagesError, row[2]) for row in NO_PAGES]
CALLS = [x for x in list(globals().values()) if isinstance(x, Call)]
# The kernel and its job have the same arguments, so both refuse the same values.
JOBS = {
    softmax: Job(fa_numba.softmax, **softmax.good),
    topk: Job(fa_numba.softmax_topk, **topk.good),
    varlen: Job(fa_numba.flash_attn_varlen, **varlen.good),
    varlen_bwd: Job(fa_numba.flash_attn_varlen_grad, **varlen_bwd.good),
    decode: Job(fa_numba.flash_decode, **decode.good),
    paged_decode: Job(fa_numba.paged_attn_decode, **paged_decode.good),
}
CALLS += JOBS.values()
TABLE += [
    (JOBS[call], changed, error, message)
    for call, changed, error, message in TABLE
    if call in JOBS and changed.keys() <= inspect.signature(JOBS[call].function).parameters.keys()
]
NEEDS_NOTHING = [call for call in CALLS if call not in (finish, fp8)]  # no request, no GPU


LEAST = {"num_splits": 0, "seed": 0, "batch": 0, "num_sinks": 0}  # else 1, of these:
LEAST |= dict.fromkeys("block_m block_n query_chunk_size key_chunk_size chunk_size k".split(), 1)
LEAST |= dict.fromkeys("num_top_pages latent_dim num_pages page_size number window".split(), 1)
LEAST |= dict.fromkeys("num_kv_heads head_dim".split(), 1)
INTEGERS = LEAST.keys() | {"tile_size", "max_len", "seq", "page"}
SWITCHES = {"causal", "deterministic", "batched", "share_prefixes"}


def wrong_arguments(call):
    """(argument, wrong value, error, message) of every array, integer and switch of a function."""
    several = sum(getattr(x, "dtype", 0) == np.float32 for x in call.good.values()) > 1
    for name, parameter in inspect.signature(call.function).parameters.items():
        x = call.good.get(name, parameter.default)
        none = [] if parameter.default is None else [None]
        if isinstance(x, np.ndarray):
            yield from wrong_arrays(name, x, several and not name.startswith("lse"))
            for wrong in ([1.0], 3.0, "text", *none):
                yield name, wrong, TypeError, f"{name} must be .*got {type(wrong).__name__}"
        elif name in INTEGERS:
            for wrong in (2.0, True, "2", np.array(2), table(2, 2), *none):
                yield name, wrong, TypeError, f"{name} must be an integer.*, got"
            if name in LEAST:
                least = LEAST[name]
                message = f"{name} must be at least {least}, got {least - 1}"
                yield name, least - 1, ValueError, message
        elif name in SWITCHES:
            for wrong in (1, "yes", None, np.array(True)):
                yield name, wrong, TypeError, f"{name} must be True or False, got"


def wrong_arrays(name, x, beside_others):
    """Such rows for an array; `beside_others` have its dtype."""
    floats = x.dtype in FLOATS
    dtypes = ["i8", "u4", "f4", "?", ">i4"] if x.dtype == np.int32 else ["f4", "u1"]
    for dtype in ["f8", "i8", "c16", "?", "O", ">f4", "U"] if floats else dtypes:
        wrong = x.astype(dtype)
        yield name, wrong, TypeError, f"{name} must be .*got {wrong.dtype}"
    for wrong in (x[None], np.asarray(x[0])):
        shape = re.escape(str(wrong.shape))
        yield name, wrong, ValueError, f"{name} must have (axes|shape|the shape of).*got .*{shape}"
    if floats:
        message = f"{name} must be a plain NumPy array, got numpy.ma.MaskedArray"
        yield name, masked(*x.shape), TypeError, message
    if floats and beside_others:
        yield name, x.astype(HALF), TypeError, f"{name}.* must be .* got .*float16"
    if floats and not name.startswith("lse"):
        for wrong in (np.repeat(x, 2, axis=-1)[..., ::2], x[..., ::-1]):
            yield name, wrong, ValueError, f"{name} must be contiguous( along its last axis)?, got"


CHECKED = [call for call in CALLS if call not in (fp8, check_fp8)]


@pytest.mark.parametrize("call", CHECKED, ids=repr)
def test_every_argument_is_checked(call):
    for name, wrong, error, message in wrong_arguments(call):
        expect_refusal(call, {name: wrong}, error, message)


@pytest.mark.parametrize(
    "call, changed, error, message", TABLE, ids=[f"{call}: {text:.50}" for call, *_, text in TABLE]
)
def test_bad_input(call, changed, error, message):
    expect_refusal(call, changed, error, message)


def expect_refusal(call, changed, error, message):
    arguments = call.good | changed
    before = pickle.dumps(arguments)
    with pytest.raises(error, match=message) as caught:
        call.function(**arguments)
    text = str(caught.value)
    assert type(caught.value) is error or isinstance(caught.value, RefusedError)
    assert error is OutOfPagesError or re.search(r"must .*\bgot ", text, re.DOTALL), text
    assert pickle.dumps(arguments) == before, "an input, a cache or a pool has been changed"


# The rows above try the options of one function; these say that the others check them too.
OPTIONS = [
    ({"window_size": (3.0, 0)}, TypeError, r"window_size\[0\] must be an integer, got 3.0"),
    ({"window_size": (-2, 0)}, ValueError, r"window_size\[0\] must be at least -1, got -2"),
    ({"softcap": None}, TypeError, "softcap must be a number, got NoneType"),
    ({"softcap": -1}, ValueError, "softcap must be 0, or positive .* got -1"),
    ({"dropout_p": np.nan}, ValueError, "dropout_p must be at least 0 and .* got nan"),
    ({"seed": 2**64}, ValueError, r"seed must be less than 2\*\*64, got 18446744073709551616"),
    ({"alibi_slopes": [0.5] * 4}, TypeError, "alibi_slopes must be .* got list"),
    ({"alibi_slopes": ones(4, dtype=float)}, TypeError, "alibi_slopes must be float32, got float"),
    ({"alibi_slopes": ones(3)}, ValueError, "one slope for each of the 4 heads of q, got 3"),
    ({"softmax_scale": np.nan}, ValueError, "softmax_scale must be finite in float32, got nan"),
    ({"num_splits": 2**16 + 1}, ValueError, "num_splits must be at most 65536, got 65537"),
]


def calls_with(changed):
    """The calls of functions that have this option; one needs a GPU."""
    return [
        call
        for call in CALLS
        if changed.keys() <= inspect.signature(call.function).parameters.keys() and call is not fp8
    ]


@pytest.mark.parametrize("changed, error, message", OPTIONS, ids=[row[2] for row in OPTIONS])
def test_every_function_with_an_option_checks_it(changed, error, message):
    assert len(calls_with(changed)) >= 2
    for call in calls_with(changed):
        with pytest.raises(error, match=message):
            call(**changed)


@pytest.mark.parametrize("call", NEEDS_NOTHING, ids=repr)
def test_what_the_rows_change_is_good(call):
    call()


def test_every_public_function_is_in_the_table():
    functions = {getattr(fa_numba, name) for name in fa_numba.__all__} - {fa_numba.backend}
    rows = [call.function for call, *_ in TABLE]
    rows += [call.function for changed, *_ in OPTIONS for call in calls_with(changed)]
    rows += [call.function for call in CHECKED for _ in wrong_arguments(call)]
    assert len(rows) >= 60
    few = [function.__name__ for function in functions if rows.count(function) < 3]
    assert not few
    unused = [call for call in CALLS if call.function not in rows]
    assert not unused


def test_good_arguments_come_back_in_the_form_that_launchers_need():
    scale = checks.check_softmax_scale(None, 64)
    assert scale == np.float32(0.125) and scale.dtype == np.float32
    assert checks.check_softmax_scale(0, 64) == 0  # and not the default
    assert checks.check_softmax_scale(np.float64(2), 64).dtype == np.float32
    assert checks.check_causal(np.True_) is True
    mask, slopes = checks.check_mask(ones(1, 1, 2, 4), True, [np.int64(3), 5], np.float32(2), None)
    assert mask == (True, (3, -1), 2.0, False) and isinstance(slopes, np.float32)
    assert [type(x) for x in mask] == [bool, tuple, float, bool]
    assert (mask.causal, mask.window_size, mask.softcap, mask.alibi) == mask
    assert checks.check_block_sizes("flash_attn_v2", 64, None, None) == (16, 16)
    assert checks.check_block_sizes("flash_attn_v2", 64, np.int64(4), None) == (4, 16)
    attention(block_m=1, block_n=128, softmax_scale=-1, causal=np.False_)
    attention(q=ones(2, 0, 4, 8))


def test_a_call_has_the_sizes_results_and_scale_of_its_arguments():
    q, k, slopes = ones(2, 5, 4, 16), ones(2, 6, 2, 16), ones(4)
    call = checks.forward_call(q, k, k, True, (3, 3), 0.0, slopes, 0.5)
    assert (call.batch, call.seqlen_q, call.num_heads, call.head_dim) == q.shape
    assert (call.batch, call.seqlen_k, call.num_kv_heads, call.head_dim) == k.shape
    assert call.group_size == 2 and call.dtype == "float32"
    assert call.mask == checks.Mask(True, (3, -1), 0.0, True) and call.slopes is slopes
    assert call.softmax_scale == 0.5 and call.scale_log2 == np.float32(0.5 * np.log2(np.e))
    assert call.out.shape == q.shape and call.lse.shape == (2, 4, 5)
    assert call.arguments == (q, k, k, call.out, call.lse, call.softmax_scale, slopes)
    out, lse = call.results_without_keys()
    assert (out == 0).all() and (lse == -np.inf).all() and lse.shape == call.lse.shape


@pytest.mark.parametrize(
    "changed, float32, message",
    [
        ({"dtype": np.float32}, False, "q, k, v must be float16 or bfloat16 for f, got float32"),
        ({}, True, "must be float32 for .*, got float16"),
        ({"head_dim": 12}, False, "q must have a head_dim that is a multiple of 8 up to 256 for f"),
        ({"first": 1}, False, "q must begin at a multiple of 16 bytes"),
        ({"softmax_scale": -1}, False, "softmax_scale must be positive"),
    ],
)
def test_a_call_on_tensor_cores_has_their_requirements(monkeypatch, changed, float32, message):
    monkeypatch.setattr(arrays, "gpu_available", lambda: True)
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (9, 0))
    given = {"dtype": HALF, "head_dim": 16, "first": 0, "softmax_scale": None} | changed
    memory = np.zeros(4096, given["dtype"])
    first = -memory.ctypes.data % 16 // memory.itemsize + given["first"]
    size = 10 * given["head_dim"]
    x = CupyArray(memory[first : first + size].reshape(1, 5, 2, given["head_dim"]))
    on = checks.TensorCores("f", checks.HOPPER, float32=float32)
    with pytest.raises((TypeError, ValueError), match=message):
        checks.forward_call(x, x, x, softmax_scale=given["softmax_scale"], on=on)


@pytest.mark.parametrize("name", sorted(set(fa_numba.__all__) - {"backend", "PagePool"}))
def test_an_unknown_argument_is_named(name):
    with pytest.raises(TypeError, match="causall"):
        getattr(fa_numba, name)(X, causall=True)


@pytest.mark.parametrize(
    "function, name, hint",
    [
        ("flash_attn", "is_causal", "it is called causal here. Causal aligns the last query"),
        ("flash_attn_v2", "scale", "it is called softmax_scale here$"),
        ("flash_attn", "sm_scale", "it is called softmax_scale here$"),
        ("flash_attn_v1", "attn_mask", "flash_attn, flash_attn_v2, .* take a mask and a score$"),
        ("flash_attn_v2", "attn_mask", "it is called mask here. It is a function of b, h, m, n"),
        ("naive_attn", "score_mod", "it is called score here. It is a function of s, b, h, m, n"),
        ("flash_attn", "deterministic", "it is for gradients"),
        ("flash_attn", "p_dropout", "it is called dropout_p here$"),
        ("flash_attn", "tensor_layout", r"the axes are \(batch, seqlen, num_heads, head_dim\)"),
        ("flash_attn", "num_splits", "the kernel chooses it"),
        ("flash_attn_grad", "softmax_lse", "it is called lse here$"),
        ("flash_attn_varlen", "dropout_p", "flash_attn, flash_attn_grad, .* have dropout$"),
        ("flash_attn_varlen", "max_seqlen_q", "it follows from cu_seqlens_q$"),
        ("flash_attn_varlen", "cu_seqlens", "it is two arguments here"),
        ("flash_attn_varlen", "cu_seq_lens_q", "it is called cu_seqlens_q here. Int32$"),
        ("flash_attn_varlen_grad", "kv_indptr", "it is called cu_seqlens_k here. Int32$"),
        ("flash_decode", "cache_seqlens", "it is called seq_lens here. It counts the new token"),
        ("flash_decode", "key", "it is called k_cache here$"),
        ("flash_attn", "key", "it is called k here$"),
        ("paged_attn_decode", "page_table", "it is called block_table here$"),
        ("paged_attn_decode", "paged_kv_indices", "block_table has a row of page numbers"),
        ("flash_attn", "q_scale", "flash_attn_fp8 rounds to 8 bits by itself"),
        ("mla_decode", "k_scale", "flash_decode and paged_attn_decode have it, for caches"),
        ("flash_decode", "k_descale", "it is called k_scale here. A key is its scale times"),
        ("flash_attn_v2", "s_aux", "it is called sinks here$"),
        ("flash_attn_v1", "s_aux", "the softmax is over the keys alone: there is no sink$"),
        ("flash_decode", "kv_cache", "it is two arrays here, k_cache and v_cache$"),
        ("paged_attn_decode", "block_size", "it follows from the shapes of the arrays$"),
        ("softmax", "dim", "softmax is over the last axis"),
        ("naive_attn", "sofcap", r"did you mean softcap\?"),
        ("flash_attn", "cache_seqlens", "flash_decode and paged_attn_decode take caches$"),
        ("flash_attn", "cu_seqlens_q", "flash_attn_varlen takes sequences of any lengths$"),
        ("flash_decode", "page_table", "paged_attn_decode takes caches in pages$"),
        ("paged_attn_decode", "rotary_cos", "rotate q and k before the call$"),
        ("flash_attn", "qv", "it has alibi_slopes, .*window_size$"),
        ("merge_states", "zzz", "it has lse_a, lse_b, out_a, out_b$"),
    ],
)
def test_other_libraries_names_are_answered_with_ours(function, name, hint):
    with pytest.raises(TypeError, match=f"{function} has no argument '{name}': {hint}"):
        getattr(fa_numba, function)(X, K, K, **{name: True})


def test_options_by_position_are_named():
    """As in flash_attn_func(q, k, v, dropout_p, softmax_scale, causal)."""
    message = "flash_attn takes 3 arguments by position, q, k, v, got 4: .* alibi_slopes, causal, "
    for function in (fa_numba.flash_attn, fa_numba.which):
        with pytest.raises(TypeError, match=message):
            function(X, K, K, 0.0)
    with pytest.raises(TypeError, match="softmax takes 1 arguments by position, x, got 2$"):
        fa_numba.softmax(X[0, 0], 1)


def test_dropout_is_an_option_where_there_is_dropout():
    out, lse = fa_numba.flash_attn_v2(X, K, K, dropout_p=0.5)
    assert out.shape == X.shape


def test_heads_before_tokens_are_warned_of():
    """(batch, heads, seqlen, head_dim), as PyTorch has it, where the heads happen to divide."""
    q = ones(1, 8, 130, 4)
    message = r"k has 130 heads and 8 keys: .*k.transpose\(0, 2, 1, 3\)"
    for function in (fa_numba.flash_attn_v2, fa_numba.naive_attn, checks.check_qkv):
        with pytest.warns(UserWarning, match=message) as caught:
            function(q, q, q)
        assert caught[0].filename == __file__
    fa_numba.flash_attn_v2(*(x.transpose(0, 2, 1, 3) for x in (q, q, q)))
    fa_numba.flash_attn_v2(ones(1, 2, 128, 4), *(ones(1, 2, 128, 4),) * 2)  # MHA of a large model


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_v2", "flash_attn_grad"])
def test_heads_before_tokens_are_named_where_no_other_reading_is_possible(name):
    """(batch, heads, seqlen, head_dim) where the heads, read as ours, do not divide."""
    q, k, lse = ones(2, 8, 3, 4), ones(2, 2, 100, 4), ones(2, 8, 3)
    given = (q, q, k, k, q, lse) if name.endswith("grad") else (q, k, k)
    hint = (
        r"got num_kv_heads=100 for num_heads=3\. They would .* 8 and 2 heads: .*transpose\(1, 2\)"
    )
    with pytest.raises(ValueError, match=hint):
        getattr(fa_numba, name)(*given)
    with pytest.raises(ValueError, match="got num_kv_heads=2 for num_heads=3$"):
        fa_numba.flash_attn(ones(2, 5, 3, 4), ones(2, 6, 2, 4), ones(2, 6, 2, 4))


def test_heads_before_the_tokens_of_a_cache_are_named():
    q, cache, lengths = ones(2, 1, 4, 8), ones(2, 2, 6, 8), table(3, 4)
    hint = r"num_kv_heads=6 for num_heads=4\. 2, the axis before, would .* k_cache.transpose\(0, 2"
    with pytest.raises(ValueError, match=hint):
        fa_numba.flash_decode(q, cache, cache, lengths)
    with pytest.raises(ValueError, match=hint):
        fa_numba.paged_attn_decode(q, cache, cache, table([0], [1]), lengths)


PUBLIC = {getattr(fa_numba, name) for name in fa_numba.__all__}
TAKES_FLOATS = [
    call
    for call in CALLS
    if call.function in PUBLIC and any(getattr(x, "dtype", 0) in FLOATS for x in call.good.values())
]


@pytest.mark.parametrize("call", TAKES_FLOATS, ids=repr)
def test_a_tensor_that_requires_a_gradient_is_refused(monkeypatch, call):
    """Its gradient would be lost without a word."""

    class Parameter(TorchTensor):
        __module__ = "torch"
        requires_grad = True

    torch = fake_torch([])
    monkeypatch.setitem(sys.modules, "torch", torch)
    floats = [name for name, x in call.good.items() if getattr(x, "dtype", None) in FLOATS]
    tensors = {
        name: TorchTensor(x) if isinstance(x, np.ndarray) else x for name, x in call.good.items()
    }
    for name in floats:
        changed = tensors | {name: Parameter(call.good[name])}
        with pytest.raises(ValueError, match=f"^{name} must not require .*") as error:
            call.function(**changed)
        message = str(error.value)
        assert message.endswith(f"pass {name}.detach()")
        assert ("fa_numba.torch" in message) == ("q" in call.good)  # that is for attention alone
    torch.is_grad_enabled = lambda: False
    for name in floats:
        checks.requirements.require_one_library(x=arrays.facts(Parameter(call.good[name])))


@pytest.mark.parametrize(
    "name, meant",
    [
        (
            "scaled_dot_product_attention",
            "; did you mean fa_numba.torch.scaled_dot_product_attention?",
        ),
        ("flash_attention", "; did you mean fa_numba.flash_attn?"),
        (
            "flash_attn_qkvpacked_func",
            "; did you mean fa_numba.torch.flash_attn_func(*qkv.unbind(2))?",
        ),
        ("flex_attention", "; did you mean fa_numba.torch.flex_attention?"),
        ("quicksort", ""),
        ("masks.sliding_window", "; did you mean fa_numba.masks.window?"),
        ("distributed.ring_attention", "; did you mean fa_numba.distributed.ring_attn?"),
    ],
)
def test_a_name_that_is_not_there_comes_with_the_one_that_is(name, meant):
    module, _, name = f"fa_numba.{name}".rpartition(".")
    with pytest.raises(AttributeError) as error:
        getattr(importlib.import_module(module), name)
    assert str(error.value) == f"module {module!r} has no attribute {name!r}{meant}"


def test_kernels_know_the_name_that_is_meant():
    with pytest.raises(AttributeError, match=r"; did you mean fa_numba.kernels.flash_attn_v2\?$"):
        fa_numba.kernels.flash_atn_v2  # noqa: B018


def test_names_of_others_lead_to_names_that_exist():
    of_torch = Path(fa_numba.__file__).with_name("torch").joinpath("__init__.py").read_text()
    for meant in names.MEANT.values():
        _, *path = re.match(r"[\w.]+", meant)[0].split(".")
        if path[0] == "torch":  # PyTorch may be missing
            assert f'"{path[1]}"' in of_torch, meant
        else:
            functools.reduce(getattr, path, fa_numba)


def test_the_array_to_blame_is_blamed():
    with pytest.raises(ValueError, match="^k must have the head_dim of q, 8, got 9"):
        fa_numba.flash_attn(X, ones(2, 6, 2, 9), K)
    with pytest.raises(ValueError, match="^v must have the shape of k"):
        fa_numba.flash_attn_registers(X, K, ones(2, 6, 2, 9))


def test_a_dtype_near_the_right_one_comes_with_its_conversion():
    with pytest.raises(TypeError, match=r'q must be .*, got float64: q.astype\("float32"\)$'):
        fa_numba.flash_attn(X.astype(float), K, K)
    lengths = np.array([6, 3])
    with pytest.raises(TypeError, match=r'seq_lens must be int32, got int64: seq_lens.astype\("i'):
        fa_numba.flash_decode(X, K, K, lengths)
    with pytest.raises(TypeError, match="q must be .*, got int64$"):
        fa_numba.flash_attn(X.astype(np.int64), K, K)


# Options that many functions share


def test_shared_options_have_the_same_defaults_wherever_they_are_written_out():
    shared = checks.SCORES | checks.DROPOUT
    jobs = job.JOBS.values()
    kernels = [x.function for made in jobs for x in made.candidates.values()]
    leaves = [checks.check_scores, cpu_attention._read, options_of, Plan.__init__]
    for function in (*leaves, *kernels, *(made.function for made in jobs)):
        own = inspect.signature(function).parameters
        for name in shared.keys() & own.keys():
            assert own[name].default in (shared[name], inspect.Parameter.empty), (function, name)
    own = inspect.signature(checks.check_scores).parameters.values()
    given = {x.name: x.default for x in own if x.kind is x.POSITIONAL_OR_KEYWORD and x.name != "q"}
    assert list(given.items()) == list(checks.SCORES.items())


def test_a_signature_has_shared_options_in_the_place_of_options():
    @checks.takes(checks.PLAIN | {"size": 0})
    def attend(q, k=1, *, seed, size=3, **options):
        """Attend."""
        return q, k, seed, size, options

    plain = "causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, softmax_scale=None"
    assert str(inspect.signature(attend)) == f"(q, k=1, *, {plain}, size=3, seed)"
    assert (attend.__name__, attend.__doc__) == ("attend", "Attend.")
    assert attend(5, seed=2, causal=True) == (5, 1, 2, 3, {"causal": True})
    assert attend(5, seed=2, size=0) == (5, 1, 2, 0, {})
    for name, message in (("is_causal", "it is called causal here"), ("casual", "did you mean")):
        with pytest.raises(TypeError, match=rf"^attend has no argument '{name}': {message}"):
            attend(5, seed=2, **{name: True})
    with pytest.raises(TypeError, match="give options by their names, .*causal"):
        attend(5, 6, 7, seed=2)
    with pytest.raises(TypeError, match=r"attend\(\) missing 1 required keyword-only argument"):
        attend(5)
